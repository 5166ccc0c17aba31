//! What this program inherited of signals, for the programs that it starts: they must not behave
//! differently under it.
//!
//! Rust's runtime ignores `SIGPIPE` before `main`, and its `Command` gives children the default
//! action, whoever started us. So the state is noted before `main`.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;

/// Signals whose action this program changes for itself.
const CHANGED: [Signal; 3] = [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGXFSZ];

/// Those of [`CHANGED`] that were ignored, by their places there.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// The signals that were blocked, by their numbers less one.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: run once, before `main`, where functions without arguments are expected; it calls the C
// library only, which is initialized by then, and touches nothing of Rust's runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static NOTE: extern "C" fn() = note;

extern "C" fn note() {
    let mut ignored = 0;
    for (at, signal) in CHANGED.iter().enumerate() {
        // SAFETY: all zero is a valid action.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: nothing is installed; what there is goes to a local of the right type.
        let known = unsafe { libc::sigaction(*signal as i32, std::ptr::null(), &raw mut action) };
        if known == 0 && action.sa_sigaction == libc::SIG_IGN {
            ignored |= 1 << at;
        }
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    // SAFETY: all zero is a valid set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is changed; the set goes to a local of the right type.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set) };
    let is_blocked = |signal: i32| {
        // SAFETY: a set that was filled in, and a signal's number.
        unsafe { libc::sigismember(&raw const set, signal) == 1 }
    };
    let blocked = (1..=64).filter(|signal| is_blocked(*signal));
    BLOCKED.store(
        blocked.fold(0, |all, signal| all | 1 << (signal - 1)),
        Ordering::Relaxed,
    );
}

/// Gives a child back what this program inherited. To be called between `fork` and `exec`:
/// async-signal-safe.
pub fn restore() -> io::Result<()> {
    let ignored = IGNORED.load(Ordering::Relaxed);
    for (at, signal) in CHANGED.iter().enumerate() {
        let action = match ignored >> at & 1 {
            1 => libc::SIG_IGN,
            _ => libc::SIG_DFL,
        };
        // SAFETY: no handler is installed.
        if unsafe { libc::signal(*signal as i32, action) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    let blocked = BLOCKED.load(Ordering::Relaxed);
    // SAFETY: all zero is a valid set.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in (1..=64).filter(|signal| blocked >> (signal - 1) & 1 == 1) {
        // SAFETY: a set of ours, and a signal's number.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: a set of ours is read.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) }
    {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Writes beyond the limit of a file's size fail, instead of ending this program.
pub fn survive_file_limits() {
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
