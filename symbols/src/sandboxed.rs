//! Symbolizes the code of a live process that may be hostile.
//!
//! The process controls its files, and may change them while they are read: they may be FIFOs
//! without a writer, endless, or crafted. So all of [`symbolize`], not only the reading of symbols,
//! runs in a child process with resource limits and a deadline.
//!
//! Guarantees: [`code`] returns within its timeout, whatever the files are, and leaves no process
//! behind.
//!
//! The calling process must have only one thread, because it forks.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use profile::Profile;

use super::answer::{self, Failure};
use super::dwarf::Resolved;
use super::frame::{Frame, Frames};
use super::{Options, symbolize};

/// Address space that the child may use in addition to its size at the start, in bytes.
const CHILD_MEMORY: u64 = 16 << 30;
/// CPU time that the child may use, in seconds.
const CHILD_SECONDS: u64 = 300;
/// Interval between checks for cancellation.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Reason why code is not symbolized.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Fork, pipe or read failed.
    #[error("functions cannot be named: {0}")]
    Io(io::Error),
    /// The child reported an error.
    #[error("functions cannot be named: {0}")]
    Refused(Failure),
    /// The timeout expired.
    #[error("functions cannot be named: reading its files takes too long")]
    TooLong,
    /// The caller cancelled the lookup.
    #[error("functions cannot be named: interrupted")]
    Interrupted,
    /// The child died, or its answer does not match the profile.
    #[error("functions cannot be named: a file of the process is damaged")]
    Damaged,
}

/// A function, and its source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The function's name.
    pub name: Rc<str>,
    /// Source file of the function; empty if unknown.
    pub file: Rc<str>,
    /// Line in the file; 0 if unknown.
    pub line: u32,
}

/// Returns the functions at each location of `profile` with their source lines, innermost first.
/// Empty for a location without a name. `is_cancelled` is polled.
///
/// # Errors
/// The child died, exceeded `timeout`, or the lookup was cancelled.
pub fn code(
    profile: Profile,
    options: &Options,
    timeout: Duration,
    is_cancelled: impl Fn() -> bool,
) -> Result<Vec<Vec<Code>>, Error> {
    let frames = frames(profile, options, timeout, is_cancelled)?;
    let code = |frame: Frame| Code {
        name: frame.name,
        file: frame.file,
        line: frame.line,
    };
    let all = frames.into_iter();
    Ok(all.map(|f| f.into_iter().map(code).collect()).collect())
}

/// Like [`code`], with the names of Python's frames as [`Profile::python_name`] formats them,
/// which contain file and line.
///
/// # Errors
/// Fails as [`code`] does.
pub fn code_by_name(
    profile: Profile,
    options: &Options,
    timeout: Duration,
    is_cancelled: impl Fn() -> bool,
) -> Result<Vec<Vec<Code>>, Error> {
    let locations = profile.locations.iter();
    let python: Vec<Option<String>> = locations.map(|l| profile.python_name(l)).collect();
    let mut all = code(profile, options, timeout, is_cancelled)?;
    for (functions, python) in all.iter_mut().zip(python) {
        if let Some(name) = python {
            *functions = vec![Code {
                name: name.into(),
                file: Rc::default(),
                line: 0,
            }];
        }
    }
    Ok(all)
}

fn frames(
    profile: Profile,
    options: &Options,
    timeout: Duration,
    is_cancelled: impl Fn() -> bool,
) -> Result<Frames, Error> {
    let count = profile.locations.len();
    let (from, to) = io::pipe().map_err(Error::Io)?;
    // SAFETY: this process has one thread, so the child's copy of it is whole: no lock is
    // held by a thread that the child does not have.
    let child = unsafe { libc::fork() };
    match child {
        -1 => return Err(Error::Io(io::Error::last_os_error())),
        0 => {
            drop(from);
            let code = i32::from(answer(profile, options, to).is_err());
            // SAFETY: _exit ends the process; nothing of it is used afterwards.
            unsafe { libc::_exit(code) }
        }
        _ => drop(to),
    }
    let answer = collect(from, Instant::now() + timeout, is_cancelled);
    kill_and_reap(child);
    let found = answer?;
    if found.len() != count {
        return Err(Error::Damaged);
    }
    Ok(found)
}

/// Symbolizes the profile and writes the frames into `to`. Runs in the child.
fn answer(mut profile: Profile, options: &Options, mut to: PipeWriter) -> io::Result<()> {
    restrain();
    // The warnings are about files, for users who read dumps.
    let _ = symbolize(&mut profile, options);
    let lines = |first: u32, count: u32| &profile.lines[first as usize..][..count as usize];
    // Frames of one function share its strings, which are then sent once.
    let frame_of = |function: &profile::Function| Frame {
        name: function.name.as_str().into(),
        file: function.file.as_str().into(),
        ..Frame::default()
    };
    let functions: Vec<Frame> = profile.functions.iter().map(frame_of).collect();
    let frame = |line: &profile::Line| Frame {
        line: line.line,
        ..functions[line.function as usize].clone()
    };
    let locations = profile.locations.iter();
    let frames = locations.map(|l| {
        lines(l.first_line, l.line_count)
            .iter()
            .map(frame)
            .collect()
    });
    answer::send(&mut to, &Ok(Resolved::from(frames.collect::<Frames>())))
}

/// Prepares a child process for reading untrusted files: sets resource limits, makes it the leader
/// of its own process group, has it killed when its parent dies, and silences its output.
pub fn restrain() {
    std::panic::set_hook(Box::new(|_| {}));
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let current_size = pages.unwrap_or(0).saturating_mul(4096);
    for (resource, value) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_AS, CHILD_MEMORY.saturating_add(current_size)),
        (libc::RLIMIT_CPU, CHILD_SECONDS),
    ] {
        let limit = libc::rlimit {
            rlim_cur: value,
            rlim_max: value,
        };
        // SAFETY: `limit` is a complete rlimit. Failure means that a lower limit is in
        // force, which is good enough.
        unsafe { libc::setrlimit(resource, &raw const limit) };
    }
    // SAFETY: both calls take integers and change only this process. Its group will contain
    // whatever it starts.
    unsafe {
        libc::setpgid(0, 0);
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
    }
    if let Ok(null) = std::fs::File::options().write(true).open("/dev/null") {
        // SAFETY: both are descriptors of this process, which writes nothing to its
        // standard error from here on.
        unsafe { libc::dup2(null.as_raw_fd(), libc::STDERR_FILENO) };
    }
}

/// Reads the child's answer until the pipe is closed.
fn collect(
    mut from: PipeReader,
    deadline: Instant,
    is_cancelled: impl Fn() -> bool,
) -> Result<Frames, Error> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        if Instant::now() >= deadline {
            return Err(Error::TooLong);
        }
        if is_cancelled() {
            return Err(Error::Interrupted);
        }
        let mut poll = libc::pollfd {
            fd: from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: `poll` is one initialized pollfd, which outlives the call.
        if unsafe { libc::poll(&raw mut poll, 1, POLL_INTERVAL.as_millis() as libc::c_int) } <= 0 {
            continue;
        }
        match from.read(&mut chunk).map_err(Error::Io)? {
            0 => break,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
    match answer::receive(&mut bytes.as_slice()).map_err(Error::Io)? {
        Some(Ok(found)) => Ok(found.frames),
        Some(Err(failure)) => Err(Error::Refused(failure)),
        None => Err(Error::Damaged),
    }
}

/// Kills the child and its process group, and reaps the child.
fn kill_and_reap(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: `child` is our own child and not reaped yet, so neither its pid nor its group's
    // id can have been reused. `status` has room for one int.
    unsafe {
        libc::kill(-child, libc::SIGKILL);
        libc::kill(child, libc::SIGKILL);
        while libc::waitpid(child, &raw mut status, 0) == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}
