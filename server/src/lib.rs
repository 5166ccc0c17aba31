//! `mem_server`: the processes with the agent for programs elsewhere. `mem_profiler serve` and
//! `mem_profiler push` are this program, which is one of its own so that the one for boards stays
//! small.
//!
//! Promises: profiles are made outside of their process, from its segment; nothing ever listens,
//! connects or computes inside a target. Files of targets are read by a child with limits alone
//! ([`naming`]).
//!
//! Limits: what this user may not profile is not served either.

pub mod cli;
pub mod encoding;
pub mod naming;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};

/// Executes the command line.
pub fn run() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Names => naming::child(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mem_server: {error:#}");
            ExitCode::FAILURE
        }
    }
}
