//! How a session stood when it was dumped, and how its process ended, as far as the
//! kernel or the agent can tell.

use std::os::fd::{AsRawFd, BorrowedFd};

use nix::sys::signal::Signal;
use shm_protocol::snapshot::Header;

use crate::discovery::{Agent, Life};
use crate::process::Stat;

/// How a session stood when it was dumped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It goes on.
    Not,
    /// Its time was over, or somebody ended it.
    InOrder,
    /// The process ended by itself during the session; its exit code where that is known.
    Exited(Option<u8>),
    /// The process died of a signal during the session.
    Died(i32),
    /// The process is gone since: whether by a signal or by `_exit`, nobody saw.
    Gone,
    /// The process executed another program during the session.
    Replaced,
}

impl Ended {
    /// As the dump's facts say it.
    pub fn fact(self) -> String {
        match self {
            Self::Not => "running".to_owned(),
            Self::InOrder => "live".to_owned(),
            Self::Exited(None) => "target exited".to_owned(),
            Self::Exited(Some(code)) => format!("target exited: {code}"),
            Self::Died(signal) => format!("target died: {}", signal_name(signal)),
            Self::Gone => "target ended".to_owned(),
            Self::Replaced => "target executed another program".to_owned(),
        }
    }

    /// As a table says it.
    pub fn label(self) -> String {
        match self {
            Self::Not | Self::InOrder => "-".to_owned(),
            Self::Exited(None | Some(0)) => "exited".to_owned(),
            Self::Exited(Some(code)) => format!("exited {code}"),
            Self::Died(signal) => signal_name(signal),
            Self::Gone => "ended".to_owned(),
            Self::Replaced => "exec".to_owned(),
        }
    }

    /// As a remark behind the file's name; empty where all went as planned.
    pub fn remark(self, title: &str) -> String {
        match self {
            Self::Not | Self::InOrder => String::new(),
            Self::Exited(None | Some(0)) | Self::Gone => {
                format!("{title} ended during the session")
            }
            Self::Exited(Some(code)) => {
                format!("{title} ended during the session with exit code {code}")
            }
            Self::Died(signal) => {
                format!("{title} died during the session of {}", signal_name(signal))
            }
            Self::Replaced => format!("{title} executed another program during the session"),
        }
    }

    /// How the session of an agent that is no longer running it ended. What the kernel
    /// said counts more than what the agent wrote.
    pub fn of(agent: &Agent, header: &Header<'_>) -> Self {
        match (agent.life, agent.fate) {
            (Life::Running, _) => Self::InOrder,
            (Life::Replaced, _) => Self::Replaced,
            (Life::Dead, Some(Fate::Exited(code))) => Self::Exited(Some(code)),
            (Life::Dead, Some(Fate::Died(signal))) => Self::Died(signal),
            (Life::Dead, None) if header.exited() => Self::Exited(None),
            (Life::Dead, None) => Self::Gone,
        }
    }
}

/// How a process ended, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// With this exit code.
    Exited(u8),
    /// Of this signal.
    Died(i32),
}

impl Fate {
    /// Reads a status as `wait` gives it.
    pub fn of_status(status: i32) -> Self {
        match status & 0x7f {
            0 => Self::Exited((status >> 8) as u8),
            signal => Self::Died(signal),
        }
    }

    /// Of a process that has just ended: whose parent has not asked for it yet, or, from
    /// Linux 6.15 on, that a descriptor was held of.
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
/// `PIDFD_INFO_EXIT`: the exit code is asked for, or given.
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

fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |s| s.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::{has_ended, pidfd};
    use std::os::fd::AsFd;
    use std::process::Command;

    #[test]
    fn a_zombies_fate_is_known() {
        for (script, fate) in [
            ("exit 3", Fate::Exited(3)),
            ("kill -9 $$", Fate::Died(libc::SIGKILL)),
        ] {
            let mut child = Command::new("sh").args(["-c", script]).spawn().unwrap();
            let pid = child.id() as i32;
            let start = Stat::of(pid).unwrap().start_time;
            let fd = pidfd(pid).unwrap();
            while !has_ended(&fd) {
                std::thread::yield_now();
            }
            assert_eq!(Fate::of(pid, start, Some(fd.as_fd())), Some(fate));
            child.wait().unwrap();
            // Older kernels have forgotten it by now.
            let later = Fate::of(pid, start, Some(fd.as_fd()));
            assert!(later.is_none_or(|later| later == fate), "{later:?}");
        }
    }

    #[test]
    fn endings_are_told_in_words() {
        assert_eq!(Ended::Died(9).label(), "SIGKILL");
        assert_eq!(Ended::Died(64).fact(), "target died: signal 64");
        assert_eq!(Ended::Exited(Some(0)).label(), "exited");
        assert_eq!(Ended::Exited(Some(2)).label(), "exited 2");
        assert_eq!(
            Ended::Gone.remark("x (1)"),
            "x (1) ended during the session"
        );
        assert_eq!(Ended::InOrder.remark("x (1)"), "");
    }
}
