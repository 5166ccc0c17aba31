//! `run`: a program with the agent from its first allocation.

use std::process::ExitCode;

use super::reporting::Printer;
use crate::cli::RunArgs;
use crate::discovery::Discovery;
use crate::launch::{self, Launched};
use crate::segment::default_directory;
use crate::select::Selection;
use crate::session::{Outcome, Run, Settings};
use crate::terminal::{diagnostic, warning};
use crate::text;

/// Starts the program, follows it and its children, and ends as it ends.
pub fn execute(args: RunArgs) -> anyhow::Result<ExitCode> {
    let agent = launch::find_agent(args.agent.as_deref())?;
    let interval = args.interval.first();
    let dump_signal = args.triggers.signal;
    let settings = Settings {
        interval,
        max_overhead: args.interval.max_overhead,
        length: args.seconds,
        prefix: args.output.output,
        selection: Selection::default(),
        triggers: args.triggers.into(),
    };
    let directory = launch::make_directory(&default_directory())?;
    let discovery = Discovery::in_directory(directory.clone());
    let reporter = Box::new(Printer::following());
    let followed = Run::new(settings, discovery, true, reporter).and_then(|run| {
        match Launched::start(&args.command, &agent, interval, &directory, dump_signal) {
            Ok(child) => run.follow(child).map(Ok),
            Err(error) => {
                diagnostic(&format!("{}: {error}", text::path(&args.command[0])));
                Ok(Err(launch::start_failure(&error)))
            }
        }
    });
    launch::remove_directory(&directory);
    match followed? {
        Ok(outcome) => Ok(conclude(&outcome)),
        Err(code) => Ok(code),
    }
}

/// The exit code is the program's; ours only where it ended well and a dump could not be written.
fn conclude(outcome: &Outcome) -> ExitCode {
    if !outcome.written.is_empty() {
        super::table(&outcome.written);
    } else if outcome.failures == 0 {
        warning(
            "no process was sampled: the program allocates too little, or it is static, setuid or \
             of another architecture, or clears LD_PRELOAD",
        );
    }
    match outcome.status {
        Some(status) if !status.success() => launch::end_like(status),
        _ if outcome.failures > 0 => ExitCode::FAILURE,
        // A program that allocates nothing worth a sample has done nothing wrong.
        _ if outcome.written.is_empty() => ExitCode::SUCCESS,
        _ => {
            diagnostic("succeeded in collecting memory data!");
            ExitCode::SUCCESS
        }
    }
}
