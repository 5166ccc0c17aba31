//! Reports of a session while it runs. It prints nothing itself.

use std::time::Duration;

use mem_agents::dump::Written;

/// The state of a session in numbers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Processes being sampled.
    pub processes: usize,
    /// Samples so far.
    pub samples: u64,
    /// Estimated bytes allocated so far.
    pub bytes: f64,
}

/// Receives the reports of a session, in order. It must not block: the session would stall.
pub trait Reporter {
    /// Sampling begins, for this long or until it is stopped.
    fn begin(&mut self, length: Option<Duration>);
    /// How far the session is, several times a second.
    fn progress(&mut self, elapsed: Duration, tally: &Tally);
    /// A dump was written.
    fn written(&mut self, dump: &Written);
    /// A report of its own, in lines.
    fn report(&mut self, lines: &[String]);
    /// Something is worth a line, and nothing is wrong.
    fn diagnostic(&mut self, line: &str);
    /// A process or a dump failed.
    fn failure(&mut self, line: &str);
    /// Something is wrong, but the session continues.
    fn warning(&mut self, line: &str);
    /// All dumps are written.
    fn end(&mut self);
}
