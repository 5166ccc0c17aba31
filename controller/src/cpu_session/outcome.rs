//! Outcome of a CPU session.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitStatus;

use profile::cpu::Mode;

use crate::cli::CpuFormat;
use crate::survivors::Survivor;

/// Outcome of a CPU session.
#[derive(Default)]
pub struct Outcome {
    /// Profiles that were written.
    pub written: Vec<Written>,
    /// Number of processes or files that failed.
    pub failures: usize,
    /// Number of processes that used too little time to be sampled, if that is not a failure.
    pub idle: usize,
    /// Programs without samples, which have no profile.
    pub unsampled: Unsampled,
    /// Kind of time that was sampled.
    pub mode: Mode,
    /// File format of the profiles.
    pub format: CpuFormat,
    /// Processes that outlive the program that we started.
    pub survivors: Vec<Survivor>,
    /// Exit status of the program that we started.
    pub status: Option<ExitStatus>,
    /// Connections on which a program waits for the end of the session that it requested.
    pub waiting: Vec<UnixStream>,
}

/// Programs without samples that were not requested by name or pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsampled {
    /// Number of processes.
    pub processes: u64,
    /// CPU time of these programs, in nanoseconds. Includes programs that a process executed before
    /// or after one that has a profile.
    pub cpu_ns: u64,
    /// Part of `cpu_ns` used by processes that exited before the engine noticed them. Counted only
    /// for processes whose parents have reaped them.
    pub unseen_ns: u64,
}

/// Profile that was written.
pub struct Written {
    /// Path of the file.
    pub path: PathBuf,
    /// Pid of the process.
    pub pid: i32,
    /// Name and pid of the process, for display.
    pub title: String,
    /// Number of samples.
    pub samples: u64,
    /// Time of the process, of the kind that was sampled, in nanoseconds.
    pub ns: u64,
    /// Remarks on the profile's quality, for display.
    pub remark: String,
    /// Executable, if users must pass it to get function names because it has no build id.
    pub program: Option<PathBuf>,
}
