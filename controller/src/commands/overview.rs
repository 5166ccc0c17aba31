//! Without arguments on a terminal: shows what will be sampled or, if no process has the agent,
//! what to do about it.

use std::process::ExitCode;

use mem_agents::discovery::Discovery;
use mem_agents::select::Selection;
use mem_agents::siblings;
use mem_agents::text;

use crate::cli::ListArgs;
use crate::terminal::{diagnostic, print_trusted};

/// Maximum number of processes that are named.
const MAX_NAMED: usize = 5;

const EXAMPLES: &str = "
mem_profiler -s 60 -p NAME            samples a running process for a minute
mem_profiler run --html PROGRAM       samples a program from its start, makes a page
mem_profiler why -p NAME              explains the resident memory of a process

A running program takes part if it was started with";

/// Announces what a session without options samples, and how it ends. Returns false if there is
/// nothing to sample.
pub fn announce() -> bool {
    let agents = Selection::default().choose(Discovery::new().scan()).agents;
    let names = agents.iter().take(MAX_NAMED);
    let names: Vec<String> = names
        .map(|agent| format!("{} ({})", text::escape(&agent.name), agent.pid))
        .collect();
    let more = match agents.len().saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    if names.is_empty() {
        return false;
    }
    diagnostic(&format!(
        "sampling {}{more} until Ctrl-C, into ./custom_prof*.heap ('mem_profiler list' only shows \
         them; --help: all commands and options)",
        names.join(", ")
    ));
    true
}

/// Prints the list of processes, and examples.
pub fn execute() -> anyhow::Result<ExitCode> {
    super::list::execute(ListArgs::default())?;
    print_trusted(&format!(
        "{EXAMPLES}\n  {} PROGRAM\nmem_profiler --help lists all commands and options.",
        siblings::preload()
    ));
    Ok(ExitCode::SUCCESS)
}
