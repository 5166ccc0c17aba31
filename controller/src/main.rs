//! `mem_profiler`: finds the agents in running processes, runs sampling sessions in them
//! through their shared-memory segments, and writes dumps.
//!
//! All policy is here; the agent only counts. A process is never stopped, signalled or
//! waited for: a dump is read from its segment, alive or dead.

mod cli;
mod collect;
mod discovery;
mod dump;
mod output;
mod process;
mod segment;
mod select;
mod session;
mod snapshot;
mod target;
mod terminal;
mod text;
mod waiting;

use std::process::ExitCode;

use clap::Parser;

use cli::{Cli, SessionArgs};
use select::Selection;
use session::{Outcome, Run, Settings};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match flat(cli.session) {
        Ok(outcome) => conclude(&outcome),
        Err(error) => {
            terminal::tell(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// The plain form: one session, one dump per process.
fn flat(args: SessionArgs) -> anyhow::Result<Outcome> {
    let settings = Settings {
        interval: args.interval,
        length: args.seconds,
        prefix: args.output,
        selection: Selection {
            names: args.processes,
        },
    };
    Run::new(settings)?.run()
}

fn conclude(outcome: &Outcome) -> ExitCode {
    if outcome.failures == 0 && !outcome.written.is_empty() {
        terminal::result("succeeded in collecting memory data!");
        return ExitCode::SUCCESS;
    }
    if !outcome.written.is_empty() {
        let (written, failed) = (outcome.written.len(), outcome.failures);
        terminal::tell(&format!("{written} written, {failed} failed"));
    }
    ExitCode::FAILURE
}
