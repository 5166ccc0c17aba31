//! Why an engine cannot be used, for display.

use std::io;

use crate::machine::Machine;

/// What to do for want of a right: what users are told, or, to root, that it lacks the right, as in many
/// containers.
#[must_use]
pub fn get_right(users: &str, right: &str) -> String {
    // SAFETY: cannot fail.
    let is_root = unsafe { libc::geteuid() } == 0;
    advice(is_root, users, right)
}

fn advice(is_root: bool, users: &str, right: &str) -> String {
    if is_root {
        format!("run with {right}, which root lacks here")
    } else {
        users.to_owned()
    }
}

/// Why an engine does not work here.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// The setting forbids it.
    #[error(
        "the kernel does not allow perf events (kernel.perf_event_paranoid is {}): {}, or set it to 2 or \
         less", .0, get_right("run as root or with CAP_PERFMON", "CAP_PERFMON")
    )]
    Paranoid(i64),
    /// Something else forbids it: a container's filter, for one.
    #[error(
        "perf events are forbidden here, as in many containers (seccomp): allow perf_event_open, \
         or run mem_profiler outside"
    )]
    Forbidden,
    /// The kernel has no perf events.
    #[error("this kernel has no perf events")]
    Missing,
    /// Another user's process.
    #[error(
        "no permission to observe process {pid}: {}",
        get_right("run as its user or as root", "CAP_SYS_PTRACE")
    )]
    Foreign {
        /// The process.
        pid: i32,
    },
    /// Too few descriptors.
    #[error(
        "mem_profiler may not open enough files: the limit (ulimit -n) was reached{}; raise it, or \
         sample fewer processes at a time", after(*threads)
    )]
    Files {
        /// Threads whose files could be opened.
        threads: usize,
    },
    /// Too little memory may be locked.
    #[error(
        "too little memory may be locked for perf's buffers, which need {0} KiB in addition to \
         those of this user's other sessions: raise kernel.perf_event_mlock_kb or ulimit -l"
    )]
    Locked(usize),
    /// Somebody else traces it.
    #[error("process {pid} is traced by process {tracer} (a debugger?): end that first")]
    Traced {
        /// The process.
        pid: i32,
        /// Who traces it.
        tracer: i32,
    },
    /// The setting forbids to trace.
    #[error(
        "process {pid} may not be traced (kernel.yama.ptrace_scope): {}, or set it to 0",
        get_right("run as root", "CAP_SYS_PTRACE")
    )]
    Yama {
        /// The process.
        pid: i32,
    },
    /// The process is gone.
    #[error("process {pid} has ended")]
    Gone {
        /// The process.
        pid: i32,
    },
    /// It has no code of its own.
    #[error(
        "process {pid} is a kernel thread, which has no memory of its own: only perf events can \
         sample it (--engine perf, as root)"
    )]
    OfKernel {
        /// The thread.
        pid: i32,
    },
    /// The agent in it takes no samples.
    #[error("process {pid} cannot sample itself: {why}")]
    Agent {
        /// The process.
        pid: i32,
        /// Why.
        why: String,
    },
    /// Its program is another machine's.
    #[error("process {pid} cannot be sampled: {machine}")]
    Machine {
        /// The process.
        pid: i32,
        /// Which one.
        machine: Machine,
    },
    /// Its files in `/proc` cannot be read, and it is there.
    #[error("/proc/{pid} cannot be read: {error}")]
    Proc {
        /// The process.
        pid: i32,
        /// Why.
        error: io::Error,
    },
    /// Anything else.
    #[error("perf events do not work: {0}")]
    Kernel(io::Error),
}

/// When the limit of open files was reached.
fn after(threads: usize) -> String {
    match threads {
        0 => String::new(),
        1 => " after 1 thread".to_owned(),
        n => format!(" after {n} threads"),
    }
}

impl Refusal {
    /// Why no engine can sample what a process runs, if that is so.
    #[must_use]
    pub fn of_program(pid: i32) -> Option<Self> {
        let machine = Machine::foreign_to_us(pid)?;
        Some(Self::Machine { pid, machine })
    }

    /// Why a process cannot be traced, as far as can be known without trying.
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
        // The kernel requires the same permission to read memory as to trace.
        match capture::read_memory_error(pid) {
            Some(libc::EPERM)
                if proc::setting("yama/ptrace_scope").is_some_and(|scope| scope > 0) =>
            {
                Some(Self::Yama { pid })
            }
            Some(libc::EPERM) => Some(Self::Foreign { pid }),
            // It has no memory, or there is nothing that could have any.
            Some(libc::ESRCH) if proc::is_of_kernel(pid) => Some(Self::OfKernel { pid }),
            Some(libc::ESRCH) => Some(Self::Gone { pid }),
            Some(libc::ENOSYS) => Some(Self::Forbidden),
            _ => None,
        }
    }

    /// Whether it is the engine that does not work, and not the process that is refused.
    #[must_use]
    pub fn is_of_engine(&self) -> bool {
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

    /// Of an event of our own.
    pub(crate) fn of_kernel(error: io::Error) -> Self {
        let paranoid = proc::setting("perf_event_paranoid");
        match (error.raw_os_error(), paranoid) {
            (Some(libc::ENOSYS), _) | (_, None) => Self::Missing,
            (Some(libc::EACCES | libc::EPERM), Some(level)) if level > 2 => Self::Paranoid(level),
            (Some(libc::EACCES | libc::EPERM), _) => Self::Forbidden,
            _ => Self::Kernel(error),
        }
    }

    /// For an event of a process's thread, when we had this many.
    pub(crate) fn of_thread(pid: i32, error: io::Error, events: usize) -> Self {
        match error.raw_os_error() {
            Some(libc::EACCES | libc::EPERM) => Self::Foreign { pid },
            Some(libc::EMFILE | libc::ENFILE) => Self::Files {
                threads: events / proc::processors().len().max(1),
            },
            _ => Self::Kernel(error),
        }
    }

    /// Of a process's file in `/proc`.
    pub(crate) fn of_proc(pid: i32, error: io::Error) -> Self {
        match error.raw_os_error() {
            _ if proc::is_gone(&error) => Self::Gone { pid },
            Some(libc::EACCES | libc::EPERM) => Self::Foreign { pid },
            _ if proc::is_full(&error) => Self::Files { threads: 0 },
            _ => Self::Proc { pid, error },
        }
    }

    /// For the rings, which need this many bytes at least.
    pub(crate) fn of_rings(error: io::Error, least: usize) -> Self {
        match error.raw_os_error() {
            Some(libc::EPERM | libc::ENOMEM | libc::EAGAIN) => Self::Locked(least.div_ceil(1024)),
            _ => Self::of_kernel(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_not_told_to_be_root() {
        let said = |is_root| advice(is_root, "run as root", "CAP_SYS_PTRACE");
        assert_eq!(said(false), "run as root");
        assert_eq!(said(true), "run with CAP_SYS_PTRACE, which root lacks here");
    }

    #[test]
    fn a_file_without_a_descriptor_does_not_mean_that_a_process_ended() {
        let of = |number| Refusal::of_proc(7, io::Error::from_raw_os_error(number));
        assert!(matches!(of(libc::ESRCH), Refusal::Gone { pid: 7 }));
        assert!(matches!(of(libc::ENOENT), Refusal::Gone { pid: 7 }));
        assert!(matches!(of(libc::EACCES), Refusal::Foreign { pid: 7 }));
        assert!(matches!(of(libc::EMFILE), Refusal::Files { .. }));
        assert!(matches!(of(libc::EIO), Refusal::Proc { pid: 7, .. }));
        assert!(of(libc::EMFILE).is_of_engine() && !of(libc::EIO).is_of_engine());
        assert!(of(libc::EMFILE).to_string().contains("ulimit -n"));
    }
}
