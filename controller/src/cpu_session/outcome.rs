//! The outcome of a session of CPU time.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitStatus;

use heap_format::cpu::Mode;

use crate::cli::CpuFormat;

/// What a session led to.
#[derive(Default)]
pub struct Outcome {
    /// Files that were written.
    pub written: Vec<Written>,
    /// Processes or files that failed.
    pub failures: usize,
    /// Processes that did too little to be sampled, where that is no failure.
    pub idle: usize,
    /// What has no profile, as nothing of it was sampled.
    pub silent: Silent,
    /// Which time was sampled.
    pub mode: Mode,
    /// What the profiles are written as.
    pub format: CpuFormat,
    /// How the program that we started ended.
    pub status: Option<ExitStatus>,
    /// Who waits for the end of a session that a program requested, and for its report.
    pub waiting: Vec<UnixStream>,
}

/// Programs of which nothing was sampled, and which were not named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silent {
    /// How many.
    pub processes: u64,
    /// Their CPU time, and that of unsampled programs in processes that have profiles of others.
    pub cpu_ns: u64,
    /// The part of it that was used unobserved: by processes that ended before the engine noticed
    /// them, as far as their parents have waited for them.
    pub unseen_ns: u64,
}

/// A profile that was written.
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// The process.
    pub pid: i32,
    /// Its name and pid, for display.
    pub title: String,
    /// Its samples.
    pub samples: u64,
    /// Its time of the kind that was sampled, in nanoseconds.
    pub ns: u64,
    /// What should be known of it.
    pub remark: String,
    /// Its program, if it must be given for its functions to be named: it has no build id.
    pub program: Option<PathBuf>,
}
