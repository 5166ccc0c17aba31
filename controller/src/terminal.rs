//! Results to stdout, talk to stderr, progress only on a terminal. A closed terminal or
//! pipe must not end a session, so failed writes are dropped.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::text;

/// Writes a line of results.
pub fn result(line: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Writes a line of talk.
pub fn tell(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "mem_profiler: {line}");
}

/// What the progress bar shows.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Processes being sampled.
    pub processes: usize,
    /// Samples so far.
    pub samples: u64,
    /// Estimated bytes allocated so far.
    pub bytes: f64,
}

/// A bar while a session runs; nothing at all where stderr is no terminal.
pub struct Progress {
    bar: Option<ProgressBar>,
    total: Option<Duration>,
}

impl Progress {
    /// Starts a bar for a session of this length; without one it shows the time gone by.
    pub fn start(total: Option<Duration>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let template = match total {
                Some(_) => "{bar:30.cyan/blue} {msg}",
                None => "{spinner} {msg}",
            };
            let style = ProgressStyle::with_template(template)
                .unwrap_or_else(|_| ProgressStyle::default_bar());
            let length = total.map(|t| t.as_millis() as u64);
            ProgressBar::with_draw_target(length, ProgressDrawTarget::stderr_with_hz(4))
                .with_style(style)
        });
        Self { bar, total }
    }

    /// No bar.
    pub fn silent() -> Self {
        Self {
            bar: None,
            total: None,
        }
    }

    /// Shows how far the session is.
    pub fn show(&self, gone: Duration, tally: &Tally) {
        let Some(bar) = &self.bar else { return };
        let time = match self.total {
            Some(total) => format!("{} left", text::duration(total.saturating_sub(gone))),
            None => format!("{} (Ctrl-C ends it)", text::duration(gone)),
        };
        bar.set_position(gone.as_millis() as u64);
        bar.set_message(format!(
            "{time}, {} samples, {:.1} MB sampled, {} {}",
            tally.samples,
            tally.bytes / 1e6,
            tally.processes,
            if tally.processes == 1 {
                "process"
            } else {
                "processes"
            }
        ));
    }

    /// Prints lines above the bar.
    pub fn above(&self, print: impl FnOnce()) {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
