//! Reasons why a process cannot be stopped or copied.

use std::io;
use std::time::Duration;

/// Reason why a process could not be stopped or copied. The process continues as before.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// No such process.
    #[error("process {pid} does not exist; check the pid")]
    Gone {
        /// The pid that was requested.
        pid: i32,
    },
    /// Thread id instead of a process id.
    #[error("{tid} is a thread of process {pid}; give the process's pid, {pid}")]
    Thread {
        /// Thread id that was requested.
        tid: i32,
        /// Process that it belongs to.
        pid: i32,
    },
    /// This process itself.
    #[error(
        "process {pid} is this one, and cannot stop itself; run the check from another process"
    )]
    Own {
        /// Pid of this process.
        pid: i32,
    },
    /// Zombie: exited, but not reaped by its parent.
    #[error("process {pid} has ended (it is a zombie); nothing is left to look at")]
    Zombie {
        /// The process.
        pid: i32,
    },
    /// Process exited while it was being stopped or copied.
    #[error("process {pid} ended while it was being captured; nothing is left to look at")]
    Ended {
        /// The process.
        pid: i32,
    },
    /// Process executed another program while it was being stopped.
    #[error("process {pid} executed another program while it was being captured; try again")]
    Executed {
        /// The process.
        pid: i32,
    },
    /// Traced by another process.
    #[error(
        "process {pid} is traced by process {tracer} ({name}), and only one can trace it; end that one first"
    )]
    Traced {
        /// The process.
        pid: i32,
        /// Pid of the tracer; 0 if it is in another pid namespace.
        tracer: i32,
        /// Name of the tracer.
        name: String,
    },
    /// Tracing is not permitted.
    #[error("no permission to trace process {pid}: {advice}")]
    Denied {
        /// The process.
        pid: i32,
        /// Advice to the user.
        advice: String,
    },
    /// Program with another word size.
    #[error(
        "process {pid} runs a program of another word size; only 64-bit programs of this processor can be captured"
    )]
    Width {
        /// The process.
        pid: i32,
    },
    /// A thread did not stop in time.
    #[error(
        "thread {tid} of process {pid} did not stop within {limit:?} (state {state}): it waits in the kernel; try again later"
    )]
    Deadline {
        /// The process.
        pid: i32,
        /// The thread.
        tid: i32,
        /// State of the thread in `/proc`.
        state: char,
        /// Time that it had.
        limit: Duration,
    },
    /// Seccomp filter, which might kill the process for `clone`.
    #[error(
        "process {pid} has a seccomp filter, which may kill it for making a copy; scan it while it is stopped instead"
    )]
    Seccomp {
        /// The process.
        pid: i32,
    },
    /// No thread can make the copy: its registers must be restored completely by `rt_sigreturn`.
    #[error("process {pid} cannot be copied safely: {reason}; scan it while it is stopped instead")]
    NoThread {
        /// The process.
        pid: i32,
        /// Reason.
        reason: &'static str,
    },
    /// The process's code does not contain the required instructions.
    #[error(
        "process {pid} has no code that makes a system call and returns; scan it while it is stopped instead"
    )]
    NoCode {
        /// The process.
        pid: i32,
    },
    /// Process adopts orphans, and would adopt the copy as well.
    #[error(
        "process {pid} adopts orphans (first of a container, or a subreaper), so also the copy; scan it while it is stopped instead"
    )]
    Reaper {
        /// The process.
        pid: i32,
    },
    /// Kernel refused to copy the process.
    #[error(
        "process {pid} cannot be copied: {error} ({advice}); scan it while it is stopped instead"
    )]
    Clone {
        /// The process.
        pid: i32,
        /// Error of `clone`.
        error: io::Error,
        /// Usual meaning of the error.
        advice: String,
    },
    /// Copy was killed.
    #[error(
        "the copy of process {pid} was killed while it was made, perhaps for lack of memory; scan it while it is stopped instead"
    )]
    Killed {
        /// The process.
        pid: i32,
    },
    /// Any other error of the kernel.
    #[error("cannot {action} process {pid}: {error}")]
    Kernel {
        /// The process.
        pid: i32,
        /// Failed action.
        action: &'static str,
        /// Error of the kernel.
        error: io::Error,
    },
}

impl Refusal {
    /// Returns true if only the copy was refused, so that the process is still stopped and can be
    /// read.
    #[must_use]
    pub fn is_copy_refused(&self) -> bool {
        matches!(
            self,
            Self::Seccomp { .. }
                | Self::NoThread { .. }
                | Self::NoCode { .. }
                | Self::Reaper { .. }
                | Self::Clone { .. }
                | Self::Killed { .. }
        )
    }

    /// Returns the refusal for a failed request. `ESRCH` means that the process is gone.
    pub(crate) fn kernel(pid: i32, action: &'static str, error: io::Error) -> Self {
        if error.raw_os_error() == Some(libc::ESRCH) {
            Self::Ended { pid }
        } else {
            Self::Kernel { pid, action, error }
        }
    }

    /// Returns the refusal for a failed `clone` in the target.
    pub(crate) fn clone(pid: i32, errno: i32) -> Self {
        let advice = match errno {
            libc::EAGAIN => {
                "a limit on processes: RLIMIT_NPROC of its user, pids.max of its control group, or kernel.threads-max"
            }
            libc::ENOMEM => "no memory for its page tables, or its control group may have no more",
            libc::EPERM | libc::ENOSYS => "a security module forbids it",
            _ => "unexpected",
        };
        let error = io::Error::from_raw_os_error(errno);
        let advice = advice.to_owned();
        Self::Clone { pid, error, advice }
    }

    /// Returns the refusal, with advice, for a process that may not be seized (`EPERM`).
    pub(crate) fn denied(pid: i32) -> Self {
        let yama = std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope");
        // SAFETY: the call takes no arguments and cannot fail.
        let is_root = unsafe { libc::geteuid() } == 0;
        let advice = denial_advice(yama.unwrap_or_default().trim(), is_root);
        Self::Denied {
            pid,
            advice: advice.to_owned(),
        }
    }
}

/// Returns advice for a user who may not trace, given Yama's `ptrace_scope`. Root may lack the
/// capability too, as in many containers.
fn denial_advice(scope: &str, is_root: bool) -> &'static str {
    match (scope, is_root) {
        ("3", _) => "kernel.yama.ptrace_scope is 3, which forbids tracing until the next boot",
        (_, true) => {
            "root lacks CAP_SYS_PTRACE here, or a security module forbids it; run mem_profiler with CAP_SYS_PTRACE, or outside"
        }
        ("2", _) => "kernel.yama.ptrace_scope is 2; run as root, or with CAP_SYS_PTRACE",
        ("1", _) => {
            "kernel.yama.ptrace_scope is 1; run as root, with CAP_SYS_PTRACE, or set it to 0 (sysctl kernel.yama.ptrace_scope=0)"
        }
        _ => {
            "it belongs to another user, or has more rights than this process; run as root, or with CAP_SYS_PTRACE"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_advised_to_run_as_root() {
        for scope in ["", "0", "1", "2", "3"] {
            let user = denial_advice(scope, false);
            let root = denial_advice(scope, true);
            assert_eq!(user.contains("run as root"), scope != "3", "{user}");
            assert!(!root.contains("run as root"), "{root}");
        }
    }
}
