//! No command at all: what runs with the agent, and what can be done about it.

use std::process::ExitCode;

use crate::cli::ListArgs;
use crate::terminal::own;

const EXAMPLES: &str = "
mem_profiler -s 60 -p NAME            samples a running process for a minute
mem_profiler run --html PROGRAM       samples a program from its start, makes a page
mem_profiler why -p NAME              explains the resident memory of a process

A running program takes part if it was started with
  LD_PRELOAD=/path/to/libmem_agent.so PROGRAM
mem_profiler --help lists all commands and options.";

/// Prints both.
pub fn execute() -> anyhow::Result<ExitCode> {
    super::list::execute(ListArgs::default())?;
    own(EXAMPLES);
    Ok(ExitCode::SUCCESS)
}
