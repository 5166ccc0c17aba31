//! How a process ended, as far as the kernel reports it.

use std::os::fd::{AsRawFd, BorrowedFd};

use proc::Stat;

/// How a process ended, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessEnd {
    /// With this exit code.
    Exited(u8),
    /// By this signal.
    Killed(i32),
}

impl ProcessEnd {
    /// Reads a status as `wait` gives it.
    pub fn of_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Exited((status >> 8) as u8),
            signal => Self::Killed(signal),
        }
    }

    /// The end of a process that has just ended: one whose parent has not waited for it yet, or,
    /// from Linux 6.15 on, one of which a descriptor is held.
    pub fn of(pid: i32, start_time: u64, pidfd: Option<BorrowedFd<'_>>) -> Option<Self> {
        let waiting = Stat::of(pid).filter(|s| s.start_time == start_time && s.is_dead());
        let status = match waiting {
            Some(stat) => stat.wait_status,
            None => status_behind(pidfd?),
        };
        status.map(Self::of_status)
    }
}

/// `struct pidfd_info` of the kernel, as it was first made.
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup: u64,
    ids: [u32; 11],
    exit_code: i32,
}

/// `PIDFD_GET_INFO`: `_IOWR(0xff, 11, struct pidfd_info)`.
const PIDFD_GET_INFO: u64 = 3 << 30 | (size_of::<PidfdInfo>() as u64) << 16 | 0xff << 8 | 11;
/// `PIDFD_INFO_EXIT`: the exit code is requested, or given.
const PIDFD_INFO_EXIT: u64 = 1 << 3;

/// The status of a process that is gone altogether; `None` on older kernels.
fn status_behind(pidfd: BorrowedFd<'_>) -> Option<i32> {
    let mut info = PidfdInfo {
        mask: PIDFD_INFO_EXIT,
        ..PidfdInfo::default()
    };
    // SAFETY: a descriptor that is open, and a struct of the size that the request names.
    let done = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    (done == 0 && info.mask & PIDFD_INFO_EXIT != 0).then_some(info.exit_code)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proc::{has_ended, pidfd};
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn a_zombies_end_is_known() {
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
