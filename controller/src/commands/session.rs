//! Without a command: one session, one dump per process.

use std::process::ExitCode;

use mem_agents::discovery::Discovery;

use super::push::Push;
use super::reporting::Printer;
use crate::cli::SessionArgs;
use crate::session::{DumpCondition, Run, Settings};
use crate::terminal;

/// Runs a session in running processes.
pub fn execute(args: SessionArgs) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        leak_check: None,
        cpu_rate: 0,
        density: args.interval.initial_density(),
        max_overhead: args.interval.overhead_limit(),
        length: args.seconds,
        prefix: args.output.output,
        selection: args.select.into(),
        triggers: args.triggers.into(),
        dump_condition: DumpCondition::default(),
    };
    let mut push = Push::start(&args.push)?;
    let reporter = Printer::attached().quiet(args.quiet.quiet);
    let reporter = Box::new(reporter.pushing(push.as_mut()));
    let mut outcome = Run::new(settings, Discovery::new(), false, reporter)?.run()?;
    outcome.failures += usize::from(!push.is_none_or(Push::finish));
    if args.quiet.quiet {
        let is_success = outcome.failures == 0 && !outcome.written.is_empty();
        return Ok(if is_success {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        });
    }
    super::print_summary(&outcome.written);
    if !super::follow_up(&outcome.written, args.page, terminal::result) {
        outcome.failures += 1;
    }
    Ok(super::conclude(&outcome))
}
