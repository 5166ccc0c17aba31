//! Handlers of the signals by which a user requests something of the profiler: gperftools'
//! `CPUPROFILESIGNAL` and `HEAPPROFILESIGNAL`.
//!
//! What they do needs more stack than a thread may have left, so they have pages of their own, which
//! all share. While one runs, or a thread asks the controller for something else, such a signal does
//! nothing.

use crate::sys::{self, Text};
use crate::{arch, request};
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// Size of the handlers' stack.
const STACK_BYTES: usize = 256 << 10;
/// Highest number of a signal.
const MAX_SIGNAL: c_int = 64;
/// Maximum number of handlers.
const MAX_HANDLERS: usize = 2;

/// End of the handlers' stack.
static TOP: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The process in which a handler runs; a forked child does not wait for its parent's.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// The handlers that are installed; 0: none.
static HANDLERS: [AtomicUsize; MAX_HANDLERS] = [const { AtomicUsize::new(0) }; MAX_HANDLERS];

/// Signals that have such a handler, or had one: bit 0 is signal 1.
static SIGNALS: AtomicU64 = AtomicU64::new(0);

/// A handler, as of `SA_SIGINFO`.
pub type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Makes `handler` handle the signal whose number `text` is. Returns why it cannot. At start-up.
/// Changes `errno`.
pub fn install(text: &[u8], handler: Handler) -> Result<(), &'static [u8]> {
    let known = core::str::from_utf8(text).ok();
    let known = known.and_then(|text| text.trim().parse::<c_int>().ok());
    let known = known.filter(|signal| (1..=MAX_SIGNAL).contains(signal));
    let signal = known.ok_or(&b"is no signal's number"[..])?;
    // SAFETY: zero is a value.
    let (mut action, mut old): (libc::sigaction, libc::sigaction) = unsafe { zeroed() };
    // SAFETY: nothing is changed; an action to fill.
    let is_known = unsafe { libc::sigaction(signal, null(), &mut old) } == 0;
    let is_taken = SIGNALS.load(Ordering::Relaxed) >> (signal - 1) & 1 == 1;
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
    // SAFETY: a set to fill, and an action to read.
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

/// Whether this is a handler that [`install`] installed: the program is told that there is none.
pub fn is_ours(handler: usize) -> bool {
    handler > libc::SIG_IGN
        && HANDLERS
            .iter()
            .any(|ours| ours.load(Ordering::Relaxed) == handler)
}

/// The end of the handlers' stack, or null: the signal does nothing now.
///
/// # Safety
/// None is requested.
pub unsafe extern "C" fn enter(_: *const libc::siginfo_t, _: *const libc::ucontext_t) -> *mut u8 {
    if !arch::has_locals() || request::is_asking() {
        return null_mut();
    }
    let own = sys::pid();
    let free = |runs| (runs != own).then_some(own);
    let taken = RUNS.fetch_update(Ordering::Acquire, Ordering::Relaxed, free);
    match taken {
        Ok(_) => TOP.load(Ordering::Relaxed),
        Err(_) => null_mut(),
    }
}

/// Gives the stack back: last thing that a handler does on it.
pub fn leave() {
    RUNS.store(0, Ordering::Release);
}

/// Says on standard error why a variable has no effect.
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
    // SAFETY: bytes that live.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}
