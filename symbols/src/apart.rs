//! Naming code of a process that lives and may mean ill.
//!
//! Its files are what it wants them to be, and may change while they are read: pipes
//! without a writer, disks without end, programs that lie. So all of [`symbolize`], not
//! the reading of symbols alone, is done by a child, which has limits and a deadline.
//!
//! Promises: [`names`] comes back within its time, whatever the files are; nothing of the
//! child is left then.
//!
//! The caller must be the only thread of its process.

use std::io::{self, PipeReader, PipeWriter, Read};
use std::os::fd::AsRawFd;
use std::rc::Rc;
use std::time::{Duration, Instant};

use heap_format::Profile;

use super::answer::{self, Failure};
use super::frame::{Frame, Frames};
use super::{Options, symbolize};

/// Address space that a child may take in addition to what it has.
const MEMORY: u64 = 16 << 30;
/// Seconds that it may compute.
const SECONDS: u64 = 300;
/// Interval at which the wish of the caller to stop is examined.
const LOOK: Duration = Duration::from_millis(50);

/// Why code is not named.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no child, or nothing can be read from it.
    #[error("functions cannot be named: {0}")]
    Io(io::Error),
    /// The child says why.
    #[error("functions cannot be named: {0}")]
    Refused(Failure),
    /// The child took longer than the caller had patience.
    #[error("functions cannot be named: reading its files takes too long")]
    TooLong,
    /// The caller wished to stop.
    #[error("functions cannot be named: interrupted")]
    Interrupted,
    /// The child died, or its answer is not for this profile.
    #[error("functions cannot be named: a file of the process is damaged")]
    Damaged,
}

/// What is known of code: a function there, and where its source is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// The function's name.
    pub name: Rc<str>,
    /// Its source file; empty when unknown.
    pub file: Rc<str>,
}

/// Names of the functions at each location of `profile`, innermost first; none where
/// nothing is known.
///
/// # Errors
/// The child died, took longer than `patience`, or `stops` said so.
pub fn names(
    profile: Profile,
    options: &Options,
    patience: Duration,
    stops: impl Fn() -> bool,
) -> Result<Vec<Vec<String>>, Error> {
    // Python's frames come with names, and its lines are kept apart.
    let locations = profile.locations.iter();
    let python: Vec<Option<String>> = locations.map(|l| profile.python_name(l)).collect();
    let frames = frames(profile, options, patience, stops)?;
    let name = |frame: &Frame| frame.name.as_ref().to_owned();
    let names = frames
        .iter()
        .zip(python)
        .map(|(frames, python)| match python {
            Some(line) => vec![line],
            None => frames.iter().map(name).collect(),
        });
    Ok(names.collect())
}

/// The same with the functions' source files.
///
/// # Errors
/// As [`names`].
pub fn code(
    profile: Profile,
    options: &Options,
    patience: Duration,
    stops: impl Fn() -> bool,
) -> Result<Vec<Vec<Code>>, Error> {
    let frames = frames(profile, options, patience, stops)?;
    let code = |Frame { name, file, .. }| Code { name, file };
    let all = frames.into_iter();
    Ok(all.map(|f| f.into_iter().map(code).collect()).collect())
}

fn frames(
    profile: Profile,
    options: &Options,
    patience: Duration,
    stops: impl Fn() -> bool,
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
    let answer = collect(from, Instant::now() + patience, stops);
    end(child);
    answer.and_then(|found| match found.len() == count {
        true => Ok(found),
        false => Err(Error::Damaged),
    })
}

/// The life of the child.
fn answer(mut profile: Profile, options: &Options, mut to: PipeWriter) -> io::Result<()> {
    restrain();
    // Its warnings about files are for readers of dumps.
    let _ = symbolize(&mut profile, options);
    let lines = |first: u32, count: u32| &profile.lines[first as usize..][..count as usize];
    // A function's texts are sent once.
    let texts = |function: &heap_format::Function| Frame {
        name: function.name.as_str().into(),
        file: function.file.as_str().into(),
        ..Frame::default()
    };
    let functions: Vec<Frame> = profile.functions.iter().map(texts).collect();
    let frame = |line: &heap_format::Line| functions[line.function as usize].clone();
    let locations = profile.locations.iter();
    let frames = locations.map(|l| {
        lines(l.first_line, l.line_count)
            .iter()
            .map(frame)
            .collect()
    });
    answer::send(&mut to, &Ok(frames.collect()))
}

/// Readies a process for reading files of others: sets limits, makes it leader of a group of its
/// own, has it end with its parent, and silences it.
pub fn restrain() {
    std::panic::set_hook(Box::new(|_| {}));
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let pages = statm.split(' ').next().and_then(|n| n.parse::<u64>().ok());
    let own = pages.unwrap_or(0).saturating_mul(4096);
    for (what, most) in [
        (libc::RLIMIT_CORE, 0),
        (libc::RLIMIT_AS, MEMORY.saturating_add(own)),
        (libc::RLIMIT_CPU, SECONDS),
    ] {
        let limit = libc::rlimit {
            rlim_cur: most,
            rlim_max: most,
        };
        // SAFETY: `limit` is a whole rlimit. A limit that cannot be set, since a lower one
        // is in force, need not be.
        unsafe { libc::setrlimit(what, &raw const limit) };
    }
    // SAFETY: plain calls about this process. Its group is all that it starts in turn.
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

/// Output of the child, until it ends.
fn collect(
    mut from: PipeReader,
    deadline: Instant,
    stops: impl Fn() -> bool,
) -> Result<Frames, Error> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 1 << 16];
    loop {
        if Instant::now() >= deadline {
            return Err(Error::TooLong);
        }
        if stops() {
            return Err(Error::Interrupted);
        }
        let mut poll = libc::pollfd {
            fd: from.as_raw_fd(),
            events: libc::POLLIN,
            revents: 0,
        };
        // SAFETY: one whole pollfd, which is ours.
        if unsafe { libc::poll(&raw mut poll, 1, LOOK.as_millis() as libc::c_int) } <= 0 {
            continue;
        }
        match from.read(&mut chunk).map_err(Error::Io)? {
            0 => break,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
    match answer::receive(&mut bytes.as_slice()).map_err(Error::Io)? {
        Some(Ok(frames)) => Ok(frames),
        Some(Err(failure)) => Err(Error::Refused(failure)),
        None => Err(Error::Damaged),
    }
}

/// Ends the child with all that it started, and waits until it is gone.
fn end(child: libc::pid_t) {
    let mut status = 0;
    // SAFETY: our own child, not yet waited for, and the group that it made for itself; a
    // place for one int.
    unsafe {
        libc::kill(-child, libc::SIGKILL);
        libc::kill(child, libc::SIGKILL);
        while libc::waitpid(child, &raw mut status, 0) == -1
            && io::Error::last_os_error().kind() == io::ErrorKind::Interrupted
        {}
    }
}
