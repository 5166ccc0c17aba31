//! Restores inherited signal settings in the programs that this one starts, so that they behave as
//! without it.
//!
//! Rust's runtime ignores `SIGPIPE` before `main`, and `Command` resets it to the default in
//! children, whatever the parent's setting was. So the settings are recorded before `main`.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::sys::signal::Signal;

/// Signals whose actions this program changes.
const CHANGED: [Signal; 3] = [Signal::SIGPIPE, Signal::SIGCHLD, Signal::SIGXFSZ];

/// Bit set of the signals that were ignored, by index in [`CHANGED`].
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Bit set of the signals that were blocked, by number minus one.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

// SAFETY: the loader calls the functions in this section once, before `main`. `record` calls only
// the C library, which is initialised by then.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD: extern "C" fn() = record;

extern "C" fn record() {
    let mut ignored = 0;
    for (index, signal) in CHANGED.iter().enumerate() {
        // SAFETY: all zero bits are a valid `sigaction`.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: no action is installed; the present one is written to a local of the right type.
        let result = unsafe { libc::sigaction(*signal as i32, std::ptr::null(), &raw mut action) };
        if result == 0 && action.sa_sigaction == libc::SIG_IGN {
            ignored |= 1 << index;
        }
    }
    IGNORED.store(ignored, Ordering::Relaxed);
    // SAFETY: all zero bits are a valid `sigset_t`.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the mask is not changed; it is written to a local of the right type.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut set) };
    let is_blocked = |signal: i32| {
        // SAFETY: `set` was filled above, and the signal number is valid.
        unsafe { libc::sigismember(&raw const set, signal) == 1 }
    };
    let blocked = (1..=64).filter(|signal| is_blocked(*signal));
    BLOCKED.store(
        blocked.fold(0, |all, signal| all | (1 << (signal - 1))),
        Ordering::Relaxed,
    );
}

/// Restores the inherited settings in a child. Async-signal-safe, for use between `fork` and
/// `exec`.
pub fn restore() -> io::Result<()> {
    let ignored = IGNORED.load(Ordering::Relaxed);
    for (index, signal) in CHANGED.iter().enumerate() {
        let action = match (ignored >> index) & 1 {
            1 => libc::SIG_IGN,
            _ => libc::SIG_DFL,
        };
        // SAFETY: installs no handler.
        if unsafe { libc::signal(*signal as i32, action) } == libc::SIG_ERR {
            return Err(io::Error::last_os_error());
        }
    }
    let blocked = BLOCKED.load(Ordering::Relaxed);
    // SAFETY: all zero bits are a valid `sigset_t`.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    for signal in (1..=64).filter(|signal| (blocked >> (signal - 1)) & 1 == 1) {
        // SAFETY: `set` is a local, and the signal number is valid.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    // SAFETY: `set` is an initialised local that is only read.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const set, std::ptr::null_mut()) }
    {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Makes writes beyond the file size limit fail instead of killing this program.
pub fn survive_file_limits() {
    // SAFETY: installs no handler.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}
