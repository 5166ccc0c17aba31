//! Waits for events that end or change a session: signals, process exits, timeouts.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// Signals that end a session and keep its data.
const ENDING: [Signal; 3] = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Signal that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// Signal number.
    pub signal: Signal,
    /// True if the kernel sent it to the process group: a key on the terminal, or a hangup.
    pub from_terminal: bool,
}

impl Received {
    /// Returns true if the signal ends a session.
    pub fn ends_session(self) -> bool {
        ENDING.contains(&self.signal)
    }
}

/// Receives signals as data rather than through handlers.
pub struct Signals {
    source: Source,
}

enum Source {
    Kernel(SignalFd),
    /// Stream whose end counts as an ending signal.
    UntilDropped(UnixStream),
}

/// Handle to a session in another thread. Dropping it ends the session.
pub struct EndOnDrop(#[expect(dead_code, reason = "it is held open")] UnixStream);

impl Signals {
    /// Blocks the ending signals and `more`, so that they are received here.
    pub fn block(more: &[Signal]) -> nix::Result<Self> {
        let mut set = SigSet::empty();
        ENDING.iter().chain(more).for_each(|s| set.add(*s));
        set.thread_block()?;
        let flags = SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK;
        Ok(Self {
            source: Source::Kernel(SignalFd::with_flags(&set, flags)?),
        })
    }

    /// Creates a receiver without signals, for a second session in a process that already has a
    /// receiver. It reports an ending signal once the handle is dropped.
    pub fn until_dropped() -> io::Result<(Self, EndOnDrop)> {
        let (held, watched) = UnixStream::pair()?;
        let source = Source::UntilDropped(watched);
        Ok((Self { source }, EndOnDrop(held)))
    }

    /// Waits until a signal arrives, a descriptor of `others` becomes readable, or the timeout
    /// expires. Returns the signals that arrived.
    pub fn wait(&self, others: &[BorrowedFd<'_>], timeout: Duration) -> nix::Result<Vec<Received>> {
        let source = match &self.source {
            Source::Kernel(fd) => fd.as_fd(),
            Source::UntilDropped(stream) => stream.as_fd(),
        };
        let mut fds = vec![PollFd::new(source, PollFlags::POLLIN)];
        fds.extend(others.iter().map(|fd| PollFd::new(*fd, PollFlags::POLLIN)));
        // Rounded up, so that the last millisecond of a session is not spent spinning.
        let ms = timeout.as_micros().div_ceil(1000);
        let timeout = PollTimeout::try_from(ms.min(i32::MAX as u128) as i32);
        match poll(&mut fds, timeout.unwrap_or(PollTimeout::ZERO)) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error),
        }
        let is_ready = fds[0].any().unwrap_or(false);
        let mut received = Vec::new();
        let Source::Kernel(fd) = &self.source else {
            if is_ready {
                received.push(Received {
                    signal: Signal::SIGINT,
                    from_terminal: false,
                });
            }
            return Ok(received);
        };
        while let Ok(Some(info)) = fd.read_signal() {
            if let Ok(signal) = Signal::try_from(info.ssi_signo as i32) {
                let from_terminal = info.ssi_code == libc::SI_KERNEL;
                received.push(Received {
                    signal,
                    from_terminal,
                });
            }
        }
        Ok(received)
    }
}

/// Returns true if a signal that ends a session is pending.
pub fn is_end_requested() -> bool {
    // SAFETY: `sigset_t` is plain data, and all zero bits are a valid value.
    let mut pending: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: `pending` is an initialised local, and `sigpending` fills it before `sigismember`
    // reads it.
    unsafe {
        libc::sigpending(&raw mut pending) == 0
            && ENDING
                .iter()
                .any(|signal| libc::sigismember(&raw const pending, *signal as libc::c_int) == 1)
    }
}

/// Unblocks all signals, for a child process before exec. Async-signal-safe.
pub fn unblock_all() -> std::io::Result<()> {
    let none = SigSet::empty();
    Ok(sigprocmask(SigmaskHow::SIG_SETMASK, Some(&none), None)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dropped_request_ends_every_wait() {
        let (signals, request) = Signals::until_dropped().unwrap();
        assert_eq!(signals.wait(&[], Duration::ZERO).unwrap(), []);
        drop(request);
        for _ in 0..2 {
            let received = signals.wait(&[], Duration::from_secs(60)).unwrap();
            assert!(received.len() == 1 && received[0].ends_session());
        }
    }

    #[test]
    fn a_signal_ends_the_wait() {
        let signals = Signals::block(&[Signal::SIGUSR2]).unwrap();
        nix::sys::signal::raise(Signal::SIGUSR2).unwrap();
        let received = signals.wait(&[], Duration::from_secs(60)).unwrap();
        assert_eq!(received.len(), 1);
        assert_eq!(
            (received[0].signal, received[0].from_terminal),
            (Signal::SIGUSR2, false)
        );
        assert!(!received[0].ends_session());
        assert_eq!(signals.wait(&[], Duration::ZERO).unwrap(), []);
    }
}
