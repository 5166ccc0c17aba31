//! Interface for reports of a running session. The session itself prints nothing.

use std::time::Duration;

use mem_agents::dump::Written;

use crate::rss_session;

/// Receives the reports of a session, in order. Must not block, since that would stall the session.
pub trait Reporter {
    /// Reports that sampling begins, for this length, or until it is stopped if `None`.
    fn begin(&mut self, length: Option<Duration>);
    /// Reports the progress, several times a second. Calls `state` for the text if it is shown.
    fn progress(&self, elapsed: Duration, state: &dyn Fn() -> String);
    /// Reports that a dump was written.
    fn written(&mut self, dump: &Written);
    /// Reports that a profile of resident memory was written.
    fn written_rss(&mut self, profile: &rss_session::Written);
    /// Prints a report of several lines.
    fn report(&mut self, lines: &[String]);
    /// Prints an informative line.
    fn diagnostic(&mut self, line: &str);
    /// Reports that a process or a dump failed.
    fn failure(&mut self, line: &str);
    /// Reports a problem that does not end the session.
    fn warning(&mut self, line: &str);
    /// Removes the progress: sampling is over, or all dumps are written.
    fn end(&mut self);
}
