//! Waiting for the end of a process, by a descriptor.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::machine::is_ours;

/// A descriptor that becomes readable when the process ends; `None` on kernels
/// before 5.3 or if the process is gone.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    if !is_ours() {
        return None;
    }
    // SAFETY: a plain call; a descriptor that it returns is ours alone.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as libc::c_int))
    }
}

/// Returns true if the process behind a pidfd has exited.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    wait_for_end(pidfd, Duration::ZERO)
}

/// Waits for the process behind a pidfd to end. Returns whether it has ended.
pub fn wait_for_end(pidfd: &OwnedFd, longest: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = i32::try_from(longest.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one initialised pollfd, and the count says so.
    unsafe { libc::poll(&raw mut poll, 1, ms) > 0 }
}
