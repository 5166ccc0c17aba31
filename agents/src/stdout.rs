//! Results on standard output. A closed terminal or pipe must not end a session or a server, so
//! failed writes are dropped; that a result could not be written for another reason, such as a full
//! disk, is kept for the program's end ([`loss`]).

use std::io::{Error, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Whether somebody looks at the results.
pub fn is_watched() -> bool {
    std::io::stdout().is_terminal()
}

/// Writes lines of results, and notes why if that fails.
pub fn write(lines: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{lines}").and_then(|()| out.flush());
    drop(out);
    let _ = written.inspect_err(note);
}

/// Why a result was not written, if that is anyone's concern.
pub fn loss() -> Option<Error> {
    match LOSS.load(Ordering::Relaxed) {
        0 => None,
        number => Some(Error::from_raw_os_error(number)),
    }
}

/// The number of the first error that writing a result met.
static LOSS: AtomicI32 = AtomicI32::new(0);

/// Notes why a result was not written, unless its reader has gone away.
fn note(error: &Error) {
    let is_gone = error.kind() == ErrorKind::BrokenPipe || is_watched() || is_hung_up(error);
    let number = error.raw_os_error().filter(|_| !is_gone).unwrap_or(0);
    let _ = LOSS.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
}

/// Whether that is what a terminal says whose other end is gone: it is no longer known as one.
fn is_hung_up(error: &Error) -> bool {
    let stdout = std::io::stdout();
    let kind = nix::sys::stat::fstat(stdout.as_fd()).map(|stat| stat.st_mode & libc::S_IFMT);
    error.raw_os_error() == Some(libc::EIO) && kind == Ok(libc::S_IFCHR)
}

/// Ends a program that was called for its help or version, or called wrongly: as clap does, except
/// if help could not be written.
pub fn answer(program: &str, error: &clap::Error) -> ! {
    let written = error.print().and_then(|()| std::io::stdout().flush());
    if let (false, Err(lost)) = (error.use_stderr(), &written) {
        note(lost);
    }
    let lost = loss();
    if let Some(lost) = &lost {
        let text = format!("{program}: the results could not be written: {lost}");
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
    std::process::exit(error.exit_code().max(lost.is_some().into()))
}
