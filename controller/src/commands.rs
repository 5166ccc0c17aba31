//! The commands, one file each. Each returns the exit code.

pub mod clean;
pub mod docs;
pub mod dump;
pub mod list;
pub mod recover;
pub mod run;
pub mod session;
pub mod top;
pub mod why;

use std::process::ExitCode;

use crate::dump::Written;
use crate::session::Outcome;
use crate::terminal;

/// Closes a command that writes dumps.
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

/// A table of what was written, where it is more than one dump.
fn summary(written: &[Written]) {
    if written.len() > 1 {
        table(written);
    }
}

/// A table of what was written.
fn table(written: &[Written]) {
    let rows = written.iter().map(|w| {
        let bytes = crate::text::bytes;
        let sizes = [bytes(w.alloc_bytes), bytes(w.live_bytes)];
        let [allocated, live] = sizes;
        vec![
            w.title.clone(),
            w.ended.label(),
            w.samples.to_string(),
            allocated,
            live,
            crate::text::path(&w.path),
        ]
    });
    let head = ["PROCESS", "ENDED", "SAMPLES", "ALLOCATED", "LIVE", "DUMP"];
    for line in crate::text::table(&head, &[2, 3, 4], rows.collect()) {
        terminal::tell(&line);
    }
}
