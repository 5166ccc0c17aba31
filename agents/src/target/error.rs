//! Reasons why a process cannot be sampled.

use std::fmt;
use std::io;
use std::path::PathBuf;

use crate::discovery::Unconfirmed;
use crate::room;
use crate::segment::Refusal;
use crate::text;

/// Reason why a session cannot be started, extended or stopped.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process may not have the segment mapped.
    #[error(transparent)]
    Unconfirmed(#[from] Unconfirmed),
    /// The segment cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The segment cannot be locked.
    #[error("its segment cannot be locked: {0}")]
    Lock(io::Error),
    /// Another controller's session is running.
    #[error(
        "mem_profiler (pid {controller}) is already running a session, {left}: mem_profiler dump \
         writes its profile, stop ends it"
    )]
    Busy {
        /// Pid of the controller.
        controller: u64,
        /// Time left of its session, for display.
        left: String,
    },
    /// Another command samples the process for a moment.
    #[error(
        "another command (mem_profiler top or why, pid {controller}) samples it for a moment: wait for it"
    )]
    Probed {
        /// Pid of the command.
        controller: u64,
    },
    /// Another controller holds the lock, but no session is running.
    #[error("another mem_profiler is starting or ending a session at this moment")]
    Locked,
    /// The process has exited.
    #[error("it ended just now")]
    Ended,
    /// Files cannot be opened.
    #[error("{0}")]
    Descriptors(String),
    /// The process runs under a sanitizer.
    #[error(
        "it runs under a sanitizer (AddressSanitizer or another), whose allocator stays in charge: profile a build without it"
    )]
    Sanitizer,
    /// The process's C library is musl.
    #[error(
        "its C library is musl, and the agent needs glibc: sample it in an image with glibc (Debian, Ubuntu, Fedora)"
    )]
    Musl,
    /// The process has installed a seccomp filter.
    #[error(
        "it has installed a seccomp filter, which might not allow what a session needs: start it with MEM_PROFILER_START=1"
    )]
    Sandboxed,
    /// The shared directory has too little space.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// A session would take from the process what it needs itself.
    #[error("{0}")]
    Shortage(String),
    /// Our own file size limit is too low.
    #[error(
        "the limit on the size of files (ulimit -f) is too low for its segment: raise it in the shell \
         that runs mem_profiler"
    )]
    FileLimit,
    /// The filesystem of the segment's directory cannot reserve memory.
    #[error(
        "the filesystem of {} cannot reserve memory for its segment (ramfs cannot): set MEM_PROFILER_DIR to a tmpfs, for both",
        text::path(.0)
    )]
    Unreserved(PathBuf),
    /// The bank cannot be prepared.
    #[error("its segment cannot be prepared: {0}")]
    Prepare(io::Error),
    /// The session cannot be started or extended.
    #[error("its segment cannot be written: {0}")]
    Publish(io::Error),
    /// The session cannot be stopped.
    #[error("its session cannot be stopped: {0}")]
    Stop(io::Error),
}

impl Error {
    /// Returns true if the cause passes within seconds.
    pub fn is_passing(&self) -> bool {
        matches!(self, Self::Locked | Self::Probed { .. })
    }
}

/// Error for a shared directory that is too full for a session.
#[derive(Debug)]
pub struct NoRoom {
    /// Path of the directory.
    pub directory: PathBuf,
    /// Space that the session needs, in bytes.
    pub needs: u64,
    /// Free space, in bytes; `None` if unknown.
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
