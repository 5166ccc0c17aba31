//! The plain form: one session, one dump per process.

use std::process::ExitCode;

use super::reporting::Printer;
use crate::cli::SessionArgs;
use crate::discovery::Discovery;
use crate::session::{Run, Settings};

/// Runs a session in processes that run already.
pub fn execute(args: SessionArgs) -> anyhow::Result<ExitCode> {
    let settings = Settings {
        interval: args.interval.first(),
        max_overhead: args.interval.max_overhead,
        length: args.seconds,
        prefix: args.output.output,
        selection: args.select.into(),
        triggers: args.triggers.into(),
    };
    let reporter = Box::new(Printer::attached());
    let outcome = Run::new(settings, Discovery::new(), false, reporter)?.run()?;
    super::summary(&outcome.written);
    Ok(super::conclude(&outcome))
}
