//! Waits for processes to exit, with pidfds.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

use crate::machine::is_ours;

/// Opens a descriptor that becomes readable when the process exits. Returns `None` on kernels
/// before 5.3, if the process is gone, or if `/proc` shows another pid namespace.
pub fn pidfd(pid: i32) -> Option<OwnedFd> {
    if !is_ours() {
        return None;
    }
    // SAFETY: the call takes no pointers, and nothing else owns the descriptor that it returns.
    unsafe {
        let fd = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        (fd >= 0).then(|| OwnedFd::from_raw_fd(fd as libc::c_int))
    }
}

/// Returns true if the process of a pidfd has exited.
pub fn has_ended(pidfd: &OwnedFd) -> bool {
    wait_for_end(pidfd, Duration::ZERO)
}

/// Waits for the process of a pidfd to exit, for at most `timeout`. Returns true if it has exited.
pub fn wait_for_end(pidfd: &OwnedFd, timeout: Duration) -> bool {
    let mut poll = libc::pollfd {
        fd: pidfd.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let ms = i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX);
    // SAFETY: `poll` is one initialised pollfd, and the count is 1.
    unsafe { libc::poll(&raw mut poll, 1, ms) > 0 }
}
