//! Exit status of a process, as reported by the kernel.

use std::os::fd::{AsRawFd, BorrowedFd};

use proc::Stat;

/// Exit status of a process: an exit code or a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// Exit with this code.
    Exited(u8),
    /// Death by this signal.
    Killed(i32),
}

impl ProcessEnd {
    /// Decodes a status as returned by `wait`.
    pub fn of_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Exited((status >> 8) as u8),
            signal => Self::Killed(signal),
        }
    }

    /// Determines how a process ended. Possible until its parent reaps it or, with Linux 6.15 and
    /// later, through a pidfd that was opened before.
    pub fn of(pid: i32, start_time: u64, pidfd: Option<BorrowedFd<'_>>) -> Option<Self> {
        let zombie = Stat::of(pid).filter(|s| s.start_time == start_time && s.is_dead());
        let status = match zombie {
            Some(stat) => stat.wait_status,
            None => status_of_reaped(pidfd?),
        };
        status.map(Self::of_status)
    }
}

/// First version of the kernel's `struct pidfd_info`.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: u64 = (3 << 30) | ((size_of::<PidfdInfo>() as u64) << 16) | (0xff << 8) | 11;
/// `PIDFD_INFO_EXIT`: the exit status is requested, or present.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// Returns the wait status of a reaped process, or `None` on older kernels.
fn status_of_reaped(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: the descriptor is open, and `info` has the size that is encoded in the request.
    let result = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (result == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc::{has_ended, pidfd};
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn the_status_of_a_zombie_is_read() {
        for (script, end) in [
            ("exit 3", ProcessEnd::Exited(3)),
            ("kill -9 $$", ProcessEnd::Killed(libc::SIGKILL)),
        ] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = child.id() as i32;
            let start = Stat::of(pid).unwrap().start_time;
            let fd = pidfd(pid).unwrap();
            while !has_ended(&fd) {
                std::thread::yield_now();
            }
            assert_eq!(ProcessEnd::of(pid, start, Some(fd.as_fd())), Some(end));
            child.wait().unwrap();
            // Older kernels have forgotten it by now.
            let later = ProcessEnd::of(pid, start, Some(fd.as_fd()));
            assert!(later.is_none_or(|later| later == end), "{later:?}");
        }
    }
}
