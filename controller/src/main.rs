//! `mem_profiler`: finds the agents in running processes, runs sampling sessions in them
//! through their shared-memory segments, and writes dumps.
//!
//! All policy is here; the agent only counts. A process is never stopped, signalled or
//! waited for: a dump is read from its segment, alive or dead.

mod cgroup;
mod claims;
mod cli;
mod clock;
mod collect;
mod commands;
mod discovery;
mod dump;
mod ended;
mod family;
mod governor;
mod helper;
mod launch;
mod output;
mod parallel_writer;
mod process;
mod resolved_tree;
mod segment;
mod select;
mod session;
mod smaps;
mod snapshot;
mod target;
mod terminal;
mod text;
mod top;
mod triggers;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, Command};
use commands::dump::Then;

fn main() -> ExitCode {
    let cli = Cli::parse();
    let done = match cli.command {
        None => commands::session::execute(cli.session),
        Some(Command::Run(args)) => commands::run::execute(args),
        Some(Command::List(args)) => commands::list::execute(args),
        Some(Command::Dump(args)) => commands::dump::execute(args, Then::GoOn),
        Some(Command::Stop(args)) => commands::dump::execute(args, Then::Stop),
        Some(Command::Recover(args)) => commands::recover::execute(args),
        Some(Command::Clean(args)) => commands::clean::execute(args),
        Some(Command::Why(args)) => commands::why::execute(args),
        Some(Command::Top(args)) => commands::top::execute(args),
        Some(Command::Completions { shell }) => commands::docs::completions(shell),
        Some(Command::Man { folder }) => commands::docs::man(&folder),
    };
    done.unwrap_or_else(|error| {
        terminal::tell(&format!("{error:#}"));
        ExitCode::FAILURE
    })
}
