//! Errors that say why an engine cannot be used, for display.

use std::io;

use crate::machine::Machine;

/// Returns advice for a missing capability: `users` for ordinary users. Root, who lacks the
/// capability in many containers, is advised to run with `capability`.
#[must_use]
pub fn capability_advice(users: &str, capability: &str) -> String {
    // SAFETY: cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    advice(is_root, users, capability)
}

fn advice(is_root: bool, users: &str, capability: &str) -> String {
    if is_root {
        format!("run with {capability}, which root lacks here")
    } else {
        users.to_owned()
    }
}

/// Reason why an engine cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Perf events are forbidden by `perf_event_paranoid`, which has this value.
    #[error(
        "the kernel does not allow perf events (kernel.perf_event_paranoid is {}): {}, or set it to 2 or \
         less", .0, capability_advice("run as root or with CAP_PERFMON", "CAP_PERFMON")
    )]
    Paranoid(i64),
    /// Perf events are forbidden by something else, for example a container's seccomp filter.
    #[error(
        "perf events are forbidden here, as in many containers (seccomp): allow perf_event_open, \
         or run mem_profiler outside"
    )]
    Forbidden,
    /// Kernel without perf events.
    #[error("this kernel has no perf events")]
    Missing,
    /// Process of another user.
    #[error(
        "no permission to observe process {pid}: {}",
        capability_advice("run as its user or as root", "CAP_SYS_PTRACE")
    )]
    Foreign {
        /// Process id.
        pid: i32,
    },
    /// Limit on open files reached.
    #[error(
        "mem_profiler may not open enough files: the limit (ulimit -n) was reached{}; raise it, or \
         sample fewer processes at a time", after_threads(*threads)
    )]
    Files {
        /// Number of threads whose files could be opened.
        threads: usize,
    },
    /// Limit on locked memory too low.
    #[error(
        "too little memory may be locked for perf's buffers, {0} KiB more are needed: raise kernel.perf_event_mlock_kb or ulimit -l"
    )]
    Locked(usize),
    /// Process is traced by another one.
    #[error("process {pid} is traced by process {tracer} (a debugger?): end that first")]
    Traced {
        /// Process id.
        pid: i32,
        /// Pid of the tracer.
        tracer: i32,
    },
    /// Tracing is forbidden by `ptrace_scope`.
    #[error(
        "process {pid} may not be traced (kernel.yama.ptrace_scope): {}, or set it to 0",
        capability_advice("run as root", "CAP_SYS_PTRACE")
    )]
    Yama {
        /// Process id.
        pid: i32,
    },
    /// No such process.
    #[error("process {pid} has ended")]
    Gone {
        /// Process id.
        pid: i32,
    },
    /// Kernel thread.
    #[error(
        "process {pid} is a kernel thread, which has no memory of its own: only perf events can \
         sample it (--engine perf, as root)"
    )]
    OfKernel {
        /// Thread id.
        pid: i32,
    },
    /// Agent in the process takes no samples.
    #[error("process {pid} cannot sample itself: {why}")]
    Agent {
        /// Process id.
        pid: i32,
        /// Reason, in words.
        why: String,
    },
    /// Program for another machine.
    #[error("process {pid} cannot be sampled: {machine}")]
    Machine {
        /// Process id.
        pid: i32,
        /// Machine of the program.
        machine: Machine,
    },
    /// Files in `/proc` of an existing process cannot be read.
    #[error("/proc/{pid} cannot be read: {error}")]
    Proc {
        /// Process id.
        pid: i32,
        /// Error of the system call.
        error: io::Error,
    },
    /// Any other error.
    #[error("perf events do not work: {0}")]
    Kernel(io::Error),
}

/// Returns the part of a message that says after how many threads the limit on open files was
/// reached; empty for 0.
fn after_threads(threads: usize) -> String {
    match threads {
        0 => String::new(),
        1 => " after 1 thread".to_owned(),
        n => format!(" after {n} threads"),
    }
}

impl Refusal {
    /// Returns the reason why no engine can sample the process's program, or `None` if one may.
    #[must_use]
    pub fn of_program(pid: i32) -> Option<Self> {
        let machine = Machine::foreign_to_us(pid)?;
        Some(Self::Machine { pid, machine })
    }

    /// Returns the reason why a process cannot be traced, if it can be determined without trying.
    pub fn of_tracing(pid: i32) -> Option<Self> {
        let text = match proc::read(&format!("/proc/{pid}/status"), proc::MAX_FILE_BYTES) {
            Ok(text) => text,
            Err(error) => return Some(Self::of_proc(pid, error)),
        };
        let text = String::from_utf8_lossy(&text);
        let tracer = text
            .lines()
            .find_map(|line| line.strip_prefix("TracerPid:"));
        let tracer = tracer.and_then(|tracer| tracer.trim().parse::<i32>().ok());
        if let Some(tracer) = tracer.filter(|tracer| *tracer != 0) {
            return Some(Self::Traced { pid, tracer });
        }
        // Reading memory requires the same permission as tracing.
        match capture::read_memory_error(pid) {
            Some(libc::EPERM)
                if proc::setting("yama/ptrace_scope").is_some_and(|scope| scope > 0) =>
            {
                Some(Self::Yama { pid })
            }
            Some(libc::EPERM) => Some(Self::Foreign { pid }),
            // The process has no memory or has ended.
            Some(libc::ESRCH) if proc::is_kernel_thread(pid) => Some(Self::OfKernel { pid }),
            Some(libc::ESRCH) => Some(Self::Gone { pid }),
            Some(libc::ENOSYS) => Some(Self::Forbidden),
            _ => None,
        }
    }

    /// Returns true if the engine cannot be used at all, not just for this process.
    #[must_use]
    pub fn concerns_engine(&self) -> bool {
        !matches!(
            self,
            Self::Agent { .. }
                | Self::Foreign { .. }
                | Self::Gone { .. }
                | Self::Machine { .. }
                | Self::OfKernel { .. }
                | Self::Proc { .. }
                | Self::Traced { .. }
                | Self::Yama { .. }
        )
    }

    /// Returns the reason for an error when opening an event of this process itself.
    pub(crate) fn of_kernel(error: io::Error) -> Self {
        let paranoid = proc::setting("perf_event_paranoid");
        match (error.raw_os_error(), paranoid) {
            (Some(libc::ENOSYS), _) | (_, None) => Self::Missing,
            (Some(libc::EACCES | libc::EPERM), Some(level)) if level > 2 => Self::Paranoid(level),
            (Some(libc::EACCES | libc::EPERM), _) => Self::Forbidden,
            _ => Self::Kernel(error),
        }
    }

    /// Returns the reason for an error when opening an event of a thread, with `events` events
    /// already open.
    pub(crate) fn of_thread(pid: i32, error: io::Error, events: usize) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Self::Foreign { pid },
            Some(libc::EMFILE | libc::ENFILE) => Self::Files {
                threads: events / proc::processors().len().max(1),
            },
            _ => Self::Kernel(error),
        }
    }

    /// Returns the reason for an error of a process's file in `/proc`.
    pub(crate) fn of_proc(pid: i32, error: io::Error) -> Self {
        match error.raw_os_error() {
            _ if proc::is_gone(&error) => Self::Gone { pid },
            Some(libc::EACCES | libc::EPERM) => Self::Foreign { pid },
            _ if proc::is_full(&error) => Self::Files { threads: 0 },
            _ => Self::Proc { pid, error },
        }
    }

    /// Returns the reason for an error when mapping ring buffers of `min_bytes` bytes in total, the
    /// smallest useful size.
    pub(crate) fn of_rings(error: io::Error, min_bytes: usize) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOMEM | libc::EAGAIN) => {
                Self::Locked(min_bytes.div_ceil(1024))
            }
            _ => Self::of_kernel(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_advised_to_run_as_root() {
        let advice_for = |is_root| advice(is_root, "run as root", "CAP_SYS_PTRACE");
        assert_eq!(advice_for(false), "run as root");
        assert_eq!(
            advice_for(true),
            "run with CAP_SYS_PTRACE, which root lacks here"
        );
    }

    #[test]
    fn only_missing_files_mean_that_a_process_has_exited() {
        let refusal = |number| Refusal::of_proc(7, io::Error::from_raw_os_error(number));
        assert!(matches!(refusal(libc::ESRCH), Refusal::Gone { pid: 7 }));
        assert!(matches!(refusal(libc::ENOENT), Refusal::Gone { pid: 7 }));
        assert!(matches!(refusal(libc::EACCES), Refusal::Foreign { pid: 7 }));
        assert!(matches!(refusal(libc::EMFILE), Refusal::Files { .. }));
        assert!(matches!(refusal(libc::EIO), Refusal::Proc { pid: 7, .. }));
        assert!(refusal(libc::EMFILE).concerns_engine() && !refusal(libc::EIO).concerns_engine());
        assert!(refusal(libc::EMFILE).to_string().contains("ulimit -n"));
    }
}
