//! `go`: writes the heap profile that the runtime of a Go program keeps.

use std::process::ExitCode;

use mem_agents::output::Output;
use mem_agents::waiting::Signals;

use super::reporting::Printer;
use crate::cli::GoArgs;
use crate::cpu_session;
use crate::go_heap::{self, Target};
use crate::reporter::Reporter;
use crate::session::Outcome;
use crate::terminal::{self, diagnostic, note, warning};

/// Writes the profiles of running processes.
pub fn execute(args: GoArgs) -> anyhow::Result<ExitCode> {
    terminal::set_quiet(args.quiet.quiet);
    let output = Output::open(&args.output)?;
    // Signals are blocked first: a signal must not prevent switching the sampling off again.
    let signals = Signals::block(&[])?;
    let selected = cpu_session::find(&args.processes);
    let mut outcome = Outcome::default();
    let mut fail = |failure: &str| {
        diagnostic(failure);
        outcome.failures += 1;
    };
    selected.failures.iter().for_each(|failure| fail(failure));
    let mut targets = Vec::new();
    for &pid in &selected.pids {
        match Target::open(pid, args.enable) {
            Ok(target) => targets.push(target),
            Err(error) => fail(&format!("{}: {error}", go_heap::title(pid))),
        }
    }
    if targets.iter().any(Target::is_enabled) {
        let mut reporter = Printer::attached().quiet(args.quiet.quiet);
        go_heap::announce(&targets, &mut reporter);
        reporter.begin(args.seconds);
        let waited = go_heap::wait(&targets, args.seconds, &signals, &reporter);
        reporter.end();
        if let Err(error) = waited {
            fail(&error.to_string());
        }
    }
    let mut dumps = Vec::new();
    for target in &mut targets {
        match target.write(&output) {
            Ok(written) => dumps.push(written),
            Err(error) => fail(&format!("{}: {error}", target.title())),
        }
        match target.restore() {
            Some(Ok(restored)) => note(&restored),
            Some(Err(error)) => warning(&error.to_string()),
            None => {}
        }
    }
    for written in dumps {
        super::report_dump(written, &mut outcome);
    }
    super::print_summary(&outcome.written);
    if !super::follow_up(&outcome.written, args.page, terminal::result) {
        outcome.failures += 1;
    }
    Ok(super::conclude(&outcome))
}
