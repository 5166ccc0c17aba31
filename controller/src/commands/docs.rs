//! Generates completions and man pages from the definition of the command line.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use mem_agents::text;

use crate::cli::{self, Shell};
use crate::terminal;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> ExitCode {
    terminal::print_trusted(&cli::completions(shell));
    ExitCode::SUCCESS
}

/// Writes a man page for each command into a directory.
pub fn man(directory: &Path) -> anyhow::Result<ExitCode> {
    cli::man_pages(directory)
        .with_context(|| format!("{}: cannot write man pages there", text::path(directory)))?;
    Ok(ExitCode::SUCCESS)
}
