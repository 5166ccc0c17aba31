//! `mem_server`: serves the profiles of processes with the agent over HTTP, and pushes them to
//! receivers.
//!
//! `mem_profiler serve` and `mem_profiler push` run this program. It is separate so that
//! `mem_profiler` stays small, for boards.
//!
//! Guarantees: profiles are made outside the target, from its segment; nothing listens, connects or
//! computes inside a target. Only a child process with resource limits reads the files of targets
//! ([`naming`]), and builds large profiles, so that this program stays small. Children end with it.
//! Requests are bounded in size and time ([`http`]), and access is checked ([`guard`]).
//!
//! Limits: serves only processes that this user may profile. TLS is left to a proxy.

pub mod address;
mod agents;
mod api;
mod assets;
pub mod cli;
mod content;
pub mod encoding;
pub mod guard;
mod history;
mod history_file;
pub mod http;
mod job;
mod metrics;
pub mod naming;
mod pages;
mod process;
pub mod process_list;
mod profile_list;
mod profiles;
pub mod push;
pub mod reply;
mod report;
pub mod request;
mod routes;
pub mod serve;
pub mod server;
pub mod sessions;
mod snapshots;
mod socket;
pub mod sources;
mod starter;
mod uploads;
mod usage;
mod writes;
mod writing;

use std::io::Write;
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory, Parser};

use cli::{Cli, Command};
use mem_agents::stdout;

/// Runs the command line.
pub fn run() -> ExitCode {
    let cli = Cli::try_parse();
    let cli = cli.unwrap_or_else(|error| {
        let command = std::env::args_os().nth(1).unwrap_or_default();
        stdout::answer(
            "mem_server",
            &usage::hinted(error, &command.to_string_lossy()),
        )
    });
    let result = match cli.command {
        Command::Serve(args) => serve::execute(args),
        Command::Push(args) => push::execute(args),
        Command::Names => naming::run_child(),
        Command::Write(args) => writing::run_child(&args),
        Command::Completions { shell } => {
            let mut command = Cli::command();
            let mut text = Vec::new();
            clap_complete::generate(shell, &mut command, "mem_server", &mut text);
            stdout::write(String::from_utf8_lossy(&text).trim_end());
            Ok(())
        }
        Command::Man { directory } => man(&directory),
    };
    let result = result.and_then(|()| match stdout::loss() {
        Some(error) => Err(anyhow::anyhow!("the results could not be written: {error}")),
        None => Ok(()),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a message on standard error. Ignores failure, because a full disk must not end a server.
fn say(message: &str) {
    let _ = writeln!(std::io::stderr().lock(), "mem_server: {message}");
}

/// Writes a man page for each command into a directory.
fn man(directory: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(directory)?;
    Ok(clap_mangen::generate_to(Cli::command(), directory)?)
}
