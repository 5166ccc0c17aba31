//! Why a process is not sampled.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::discovery::Unconfirmed;
use crate::room;
use crate::segment::Refusal;
use crate::text;

/// Why a process cannot be taken, started or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It may not have the segment mapped.
    #[error(transparent)]
    Unconfirmed(#[from] Unconfirmed),
    /// Its segment cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// Its segment cannot be locked.
    #[error("its segment cannot be locked: {0}")]
    Lock(io::Error),
    /// Another controller samples it.
    #[error("a session of mem_profiler {controller} is running, {left}")]
    Busy {
        /// Pid of the controller.
        controller: u64,
        /// Time left of its session.
        left: String,
    },
    /// Another controller holds the lock.
    #[error("another mem_profiler is starting or ending a session at this moment")]
    Locked,
    /// The process is gone.
    #[error("it ended just now")]
    Ended,
    /// It runs under a sanitizer.
    #[error(
        "it runs under a sanitizer (AddressSanitizer, LeakSanitizer, ThreadSanitizer, \
         MemorySanitizer), whose allocator the agent leaves in charge: profile a build without it"
    )]
    Sanitizer,
    /// Its C library is musl.
    #[error(
        "its C library is musl, and the agent needs glibc: the program runs as it would without \
         the agent, but cannot be sampled; sample it in an image with glibc (Debian, Ubuntu, Fedora)"
    )]
    Musl,
    /// It runs under a filter of system calls.
    #[error(
        "it has installed a seccomp filter since it started, and the agent makes no system call \
         that the filter might not allow: start it with MEM_PROFILER_START=1, which maps the \
         tables beforehand"
    )]
    Sandboxed,
    /// Its tables do not fit into its directory.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A limit of this program forbids them.
    #[error(
        "the limit on the size of files (ulimit -f) is too low for its segment: raise it in the shell \
         that runs mem_profiler"
    )]
    FileLimit,
    /// Its tables cannot be made.
    #[error("its segment cannot be prepared: {0}")]
    Prepare(io::Error),
    /// The session cannot be started or prolonged.
    #[error("its segment cannot be written: {0}")]
    Publish(io::Error),
    /// The session cannot be switched off.
    #[error("its session cannot be stopped: {0}")]
    Stop(io::Error),
}

/// A directory of segments without room for a session.
#[derive(Debug)]
pub struct NoRoom {
    /// The directory.
    pub directory: PathBuf,
    /// Bytes that the session needs.
    pub needs: u64,
    /// Bytes that are free, if known.
    pub free: Option<u64>,
}

impl std::error::Error for NoRoom {}

impl fmt::Display for NoRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "no room in {}: the session {}; make room there, or move the segments with \
             MEM_PROFILER_DIR (for the program and for mem_profiler)",
            text::path(&self.directory),
            room::comparison(Some(self.needs), self.free),
        )
    }
}
