//! A session's reports on the terminal.

use std::time::Duration;

use mem_agents::dump::Written;
use mem_agents::text;

use super::push::Push;
use crate::session::{Reporter, Tally};
use crate::terminal::{self, Progress};

/// What is done with each dump.
type AtDump = Box<dyn FnMut(&Written)>;

/// Prints the reports of a session.
pub struct Printer {
    progress: Progress,
    /// Whether a program that we started writes to the same stdout, which is then its own.
    shares_stdout: bool,
    /// Whether only what goes wrong is printed.
    is_quiet: bool,
    /// What is to be done when sampling begins.
    at_beginning: Option<Box<dyn FnOnce()>>,
    /// What is to be done with each dump.
    at_dump: Option<AtDump>,
}

impl Printer {
    /// For a session in processes that run already.
    pub fn attached() -> Self {
        Self {
            progress: Progress::silent(),
            shares_stdout: false,
            is_quiet: false,
            at_beginning: None,
            at_dump: None,
        }
    }

    /// The same, or one that says only what goes wrong.
    pub fn quiet(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

    /// Has each dump sent, if dumps are to be.
    pub fn pushing(mut self, push: Option<&mut Push>) -> Self {
        self.at_dump = push.map(|push| Box::new(push.feed()) as _);
        self
    }

    /// Does something more when sampling begins, if it does.
    pub fn at_beginning(mut self, action: impl FnOnce() + 'static) -> Self {
        self.at_beginning = Some(Box::new(action));
        self
    }

    /// For a session of a program that we start.
    pub fn following() -> Self {
        Self {
            shares_stdout: true,
            ..Self::attached()
        }
    }
}

impl Reporter for Printer {
    fn begin(&mut self, length: Option<Duration>) {
        self.progress = match self.shares_stdout || self.is_quiet {
            true => Progress::without_bar(),
            false => Progress::start(length),
        };
        if let Some(action) = self.at_beginning.take() {
            action();
        }
    }

    fn progress(&mut self, elapsed: Duration, tally: &Tally) {
        self.progress.show(elapsed, || state(tally));
    }

    fn written(&mut self, dump: &Written) {
        match self.shares_stdout {
            _ if self.is_quiet => {}
            // The table at the end names these: there may be very many.
            true if dump.is_last => {}
            true => terminal::diagnostic(&dump.line()),
            false => terminal::result(&dump.line()),
        }
        if let Some(action) = &mut self.at_dump {
            action(dump);
        }
    }

    fn report(&mut self, lines: &[String]) {
        terminal::report(lines);
    }

    fn diagnostic(&mut self, line: &str) {
        if !self.is_quiet {
            terminal::diagnostic(line);
        }
    }

    fn failure(&mut self, line: &str) {
        terminal::diagnostic(line);
    }

    fn warning(&mut self, line: &str) {
        terminal::warning(line);
    }

    fn end(&mut self) {
        self.progress.finish();
    }
}

fn state(tally: &Tally) -> String {
    format!(
        "{}, {} sampled, {}",
        text::count(tally.samples, "sample", "samples"),
        text::bytes(tally.bytes),
        text::count(tally.processes as u64, "process", "processes")
    )
}
