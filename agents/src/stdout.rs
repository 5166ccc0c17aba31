//! Prints results to standard output. A closed terminal or pipe must not end a session or a server,
//! so write errors are ignored. Errors that matter, such as a full disk, are remembered for the
//! program's exit status ([`loss`]).

use std::io::{Error, ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicI32, Ordering};

/// Returns true if standard output is a terminal.
pub fn is_watched() -> bool {
    std::io::stdout().is_terminal()
}

/// Prints lines of results. Remembers the error if that fails.
pub fn write(lines: &str) {
    let mut out = std::io::stdout().lock();
    let written = writeln!(out, "{lines}").and_then(|()| out.flush());
    drop(out);
    let _ = written.inspect_err(note);
}

/// Returns the error because of which a result was lost, unless its reader has gone away.
pub fn loss() -> Option<Error> {
    match LOSS.load(Ordering::Relaxed) {
        0 => None,
        number => Some(Error::from_raw_os_error(number)),
    }
}

/// Error number of the first failed write; 0 if none.
static LOSS: AtomicI32 = AtomicI32::new(0);

/// Remembers a write error, unless the reader has gone away.
fn note(error: &Error) {
    let reader_is_gone = error.kind() == ErrorKind::BrokenPipe || is_watched() || is_hung_up(error);
    let number = if reader_is_gone {
        0
    } else {
        error.raw_os_error().unwrap_or(0)
    };
    let _ = LOSS.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
}

/// Returns true for the error of a terminal that was hung up, which `is_watched` no longer detects.
fn is_hung_up(error: &Error) -> bool {
    let stdout = std::io::stdout();
    let kind = nix::sys::stat::fstat(stdout.as_fd()).map(|stat| stat.st_mode & libc::S_IFMT);
    error.raw_os_error() == Some(libc::EIO) && kind == Ok(libc::S_IFCHR)
}

/// Prints clap's answer (help, version or a usage error) and exits. Unlike clap, reports if help
/// could not be written.
pub fn answer(program: &str, error: &clap::Error) -> ! {
    let written = error.print().and_then(|()| std::io::stdout().flush());
    if !error.use_stderr()
        && let Err(lost) = &written
    {
        note(lost);
    }
    let lost = loss();
    if let Some(lost) = &lost {
        let text = format!("{program}: the results could not be written: {lost}");
        let _ = writeln!(std::io::stderr().lock(), "{text}");
    }
    std::process::exit(error.exit_code().max(lost.is_some().into()))
}
