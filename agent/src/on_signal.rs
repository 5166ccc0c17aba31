//! Handlers of signals by which a user makes requests to the profiler: gperftools'
//! `CPUPROFILESIGNAL` and `HEAPPROFILESIGNAL`.
//!
//! Handlers need more stack than a thread may have left, so all of them share one stack of our own.
//! While a handler is running, or a thread makes another request to the controller, these signals
//! do nothing.

use crate::sys::{self, Text};
use crate::{arch, request};
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Size of the handlers' stack in bytes.
const STACK_BYTES: usize = 256 << 10;
/// Highest signal number.
const MAX_SIGNAL: c_int = 64;
/// Maximum number of handlers.
const MAX_HANDLERS: usize = 2;

/// End of the handlers' stack.
static TOP: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// Pid of the process in which a handler is running. A forked child does not wait for its parent's
/// handler.
static RUNNING_PID: AtomicU32 = AtomicU32::new(0);
/// Addresses of the installed handlers; 0: free.
static HANDLERS: [AtomicUsize; MAX_HANDLERS] = [const { AtomicUsize::new(0) }; MAX_HANDLERS];

/// Bit set of the signals for which a handler was installed; bit 0 is signal 1.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// Signal handler with `SA_SIGINFO`.
pub type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Installs a handler for the signal whose number is `text`. Returns the reason if that fails.
/// Called at start-up. Changes `errno`.
pub fn install(text: &[u8], handler: Handler) -> Result<(), &'static [u8]> {
    let number = core::str::from_utf8(text).ok();
    let number = number.and_then(|text| text.trim().parse::<c_int>().ok());
    let number = number.filter(|signal| (1..=MAX_SIGNAL).contains(signal));
    let signal = number.ok_or(&b"is no signal's number"[..])?;
    // SAFETY: zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: zeros are a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { zeroed() };
    // SAFETY: changes nothing, and fills an action of ours.
    let is_known = unsafe { libc::sigaction(signal, null(), &mut old) } == 0;
    let is_taken = (SIGNALS.load(Ordering::Relaxed) >> (signal - 1)) & 1 == 1;
    if !is_known || is_taken || old.sa_sigaction != libc::SIG_DFL {
        return Err(b"is a signal in use, or one that cannot be handled");
    }
    if TOP.load(Ordering::Relaxed).is_null() {
        let stack = sys::map_private(STACK_BYTES);
        if stack.is_null() {
            return Err(b"has no memory for its handler");
        }
        // SAFETY: the end of the mapping.
        let top = unsafe { stack.cast::<u8>().add(STACK_BYTES) };
        TOP.store(top, Ordering::Relaxed);
    }
    let address = handler as *const () as usize;
    action.sa_sigaction = address;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a set of ours to fill, and an action of ours to read.
    let result = unsafe {
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(signal, &action, null_mut())
    };
    if result != 0 {
        return Err(b"is a signal that cannot be handled");
    }
    if let Some(free) = HANDLERS.iter().find(|at| at.load(Ordering::Relaxed) == 0) {
        free.store(address, Ordering::Relaxed);
    }
    SIGNALS.fetch_or(1 << (signal - 1), Ordering::Relaxed);
    Ok(())
}

/// Returns true for a handler that [`install`] installed. The program must not see it, so callers
/// report the default action instead.
pub fn is_ours(handler: usize) -> bool {
    handler > libc::SIG_IGN
        && HANDLERS
            .iter()
            .any(|ours| ours.load(Ordering::Relaxed) == handler)
}

/// Claims the handlers' stack. Returns its end, or null if the signal does nothing now.
///
/// # Safety
/// No requirements. The function is unsafe because the type of the callback is.
pub unsafe extern "C" fn enter(_: *const libc::siginfo_t, _: *const libc::ucontext_t) -> *mut u8 {
    if !arch::has_thread_pointer() || request::is_asking() {
        return null_mut();
    }
    let pid = sys::pid();
    let claim = |running| (running != pid).then_some(pid);
    match RUNNING_PID.fetch_update(Ordering::Acquire, Ordering::Relaxed, claim) {
        Ok(_) => TOP.load(Ordering::Relaxed),
        Err(_) => null_mut(),
    }
}

/// Releases the handlers' stack. Must be the last thing that a handler does on it.
pub fn leave() {
    RUNNING_PID.store(0, Ordering::Release);
}

/// Writes to standard error why a variable has no effect.
pub fn complain(outcome: &[u8], variable: &[u8], why: &[u8]) {
    let mut text = Text::<256>::new();
    text.push(b"mem-profiler: ");
    text.push(outcome);
    text.push(b": ");
    text.push(variable);
    text.push(b" ");
    text.push(why);
    text.push(b"\n");
    let bytes = text.as_c_str().unwrap_or_default().to_bytes();
    // SAFETY: bytes of a live buffer.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}
