//! Loop that heap and CPU sessions share: rounds of work until the session is over.

use std::os::fd::BorrowedFd;
use std::process::ExitStatus;
use std::time::Duration;

use mem_agents::waiting::{Received, Signals};

use crate::launch::LaunchedProgram;

/// Maximum length of one wait for a started program. The wait is repeated until the program exits.
const EXIT_WAIT: Duration = Duration::from_secs(3600);

/// Session that works in rounds.
pub trait Rounds {
    /// Returns the signals that the session handles.
    fn signals(&self) -> &Signals;

    /// Returns the time until the planned end. `None`: the session has no fixed length.
    fn time_left(&self) -> Option<Duration>;

    /// Returns the maximum time until the next round.
    fn pause(&self) -> Duration;

    /// Returns descriptors that become readable when a round should begin early.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>>;

    /// Handles signals and does the work that is due. Returns true if the session is over.
    fn round(&mut self, received: &[Received]) -> bool;

    /// Handles signals. Returns true if the session should end.
    fn receive(&mut self, received: &[Received]) -> bool;

    /// Shows the progress.
    fn show(&self);

    /// Returns the program that the session has started, if any.
    fn child(&self) -> Option<&LaunchedProgram>;
}

/// Works until the time is over, a signal ends the session, or no process is left.
pub fn watch(session: &mut impl Rounds) -> nix::Result<()> {
    loop {
        let left = session.time_left();
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(());
        }
        let pause = session.pause();
        let pause = left.map_or(pause, |left| left.min(pause));
        let received = session.signals().wait(&session.descriptors(), pause)?;
        if session.round(&received) {
            return Ok(());
        }
        session.show();
    }
}

/// Waits for the end of the started program, which may outlive a session of fixed length: its exit
/// status must still be passed on. Returns `None` if the session has started none.
pub fn await_exit(session: &mut impl Rounds) -> nix::Result<Option<ExitStatus>> {
    while let Some(child) = session.child() {
        if child.status.is_some() {
            return Ok(child.status);
        }
        let received = session.signals().wait(&[], EXIT_WAIT)?;
        session.receive(&received);
    }
    Ok(None)
}
