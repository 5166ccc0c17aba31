//! Completions and man pages, made from the command line's own definitions.

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::Cli;

/// Prints the completions for a shell.
pub fn completions(shell: Shell) -> anyhow::Result<ExitCode> {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mem_profiler", &mut text);
    crate::terminal::own(&String::from_utf8_lossy(&text));
    Ok(ExitCode::SUCCESS)
}

/// Writes a man page for each command into a folder.
pub fn man(folder: &Path) -> anyhow::Result<ExitCode> {
    clap_mangen::generate_to(Cli::command(), folder).with_context(|| {
        format!(
            "{}: cannot write man pages there",
            crate::text::path(folder)
        )
    })?;
    Ok(ExitCode::SUCCESS)
}
