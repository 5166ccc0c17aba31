//! Prints the reports of heap and CPU sessions on the terminal.

use std::time::Duration;

use mem_agents::dump::Written;
use mem_agents::text;

use super::files;
use super::push::Push;
use crate::reporter::Reporter;
use crate::rss_session;
use crate::terminal::{self, Progress};

/// Function that is called for each dump.
type AtDump = Box<dyn FnMut(&Written)>;

/// Prints the reports of a session.
pub struct Printer {
    progress: Progress,
    /// True if a program that we started writes to the same stdout. Dumps are then named on stderr.
    shares_stdout: bool,
    /// True if only failures are printed.
    is_quiet: bool,
    /// False if another session of this program shows the progress, or nobody watches.
    shows_progress: bool,
    /// Called once when sampling begins.
    at_beginning: Option<Box<dyn FnOnce()>>,
    /// Called for each dump.
    at_dump: Option<AtDump>,
}

impl Printer {
    /// Creates a printer for a session in running processes.
    pub fn attached() -> Self {
        Self {
            progress: Progress::silent(),
            shares_stdout: false,
            is_quiet: false,
            shows_progress: true,
            at_beginning: None,
            at_dump: None,
        }
    }

    /// Restricts the output to failures, if `is_quiet`.
    pub fn quiet(mut self, is_quiet: bool) -> Self {
        self.is_quiet = is_quiet;
        self
    }

    /// Passes each dump to the sender, if there is one.
    pub fn pushing(mut self, push: Option<&mut Push>) -> Self {
        self.at_dump = push.map(|push| Box::new(push.feed()) as _);
        self
    }

    /// Calls `action` when sampling begins. It may never begin.
    pub fn at_beginning(mut self, action: impl FnOnce() + 'static) -> Self {
        self.at_beginning = Some(Box::new(action));
        self
    }

    /// Creates a printer for a session that shows no progress, because another session of this
    /// program does, or because nobody watches.
    pub fn without_progress() -> Self {
        Self {
            shows_progress: false,
            ..Self::attached()
        }
    }

    /// Creates a printer for a session of a program that we start.
    pub fn following() -> Self {
        Self {
            shares_stdout: true,
            ..Self::attached()
        }
    }
}

impl Reporter for Printer {
    fn begin(&mut self, length: Option<Duration>) {
        self.progress = if !self.shows_progress {
            Progress::silent()
        } else if self.shares_stdout || self.is_quiet {
            Progress::without_bar()
        } else {
            Progress::start(length)
        };
        if let Some(action) = self.at_beginning.take() {
            action();
        }
    }

    fn progress(&self, elapsed: Duration, state: &dyn Fn() -> String) {
        self.progress.show(elapsed, state);
    }

    fn written(&mut self, dump: &Written) {
        files::add_dump(dump);
        // The last dumps of a started program and its children are listed in a table at the end.
        if !self.is_quiet {
            if !self.shares_stdout {
                terminal::result(&dump.line());
            } else if !dump.is_last {
                terminal::diagnostic(&dump.line());
            }
        }
        if let Some(action) = &mut self.at_dump {
            action(dump);
        }
    }

    fn written_rss(&mut self, profile: &rss_session::Written) {
        files::add_rss(profile);
        let path = text::path(&profile.path);
        if self.shares_stdout {
            terminal::note(&path);
        } else {
            terminal::result(&path);
        }
        terminal::note(&format!("{}: {}", profile.title, profile.remark));
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
