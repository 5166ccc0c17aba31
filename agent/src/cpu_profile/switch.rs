//! gperftools' `CPUPROFILESIGNAL`: a signal that begins a profile, and ends it when it comes again.
//!
//! The handler is for the signal that the program chose, and waits until the controller is
//! sampling, or has written the file. What it does needs more stack than a thread may have left, so
//! it has pages of its own. While it runs, or a thread asks the controller for something else, the
//! signal does nothing.

use super::NAME;
use crate::arch::{self, on_own_stack};
use crate::controller;
use crate::sys::{self, Text};
use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_void};
use core::mem::zeroed;
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};

/// Bytes of the handler's stack.
const STACK: usize = 256 << 10;
/// Signals have numbers up to this.
const MOST: c_int = 64;

/// End of the handler's stack.
static TOP: AtomicPtr<u8> = AtomicPtr::new(null_mut());
/// The process in which the handler runs; a forked child does not wait for its parent's.
static RUNS: AtomicU32 = AtomicU32::new(0);
/// The process that installed it.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// The next profile's number.
static COUNT: AtomicU32 = AtomicU32::new(0);
static BASE: [AtomicU8; NAME] = [const { AtomicU8::new(0) }; NAME];

/// Makes the signal of this number, as given in the variable, switch profiles named `BASE.0`,
/// `BASE.1` and so on. Says so if it cannot. At start-up. Changes `errno`.
pub fn install(base: &CStr, number: &[u8]) {
    let known = core::str::from_utf8(number).ok();
    let known = known.and_then(|text| text.trim().parse::<c_int>().ok());
    let Some(signal) = known.filter(|signal| (1..=MOST).contains(signal)) else {
        return complain(b"is no signal's number");
    };
    // SAFETY: zero is a value.
    let (mut action, mut old): (libc::sigaction, libc::sigaction) = unsafe { zeroed() };
    // SAFETY: nothing is changed; an action to fill.
    let is_known = unsafe { libc::sigaction(signal, null(), &mut old) } == 0;
    if !is_known || old.sa_sigaction != libc::SIG_DFL {
        return complain(b"is a signal in use, or one that cannot be handled");
    }
    let stack = sys::map_private(STACK);
    if stack.is_null() {
        return complain(b"has no memory for its handler");
    }
    // SAFETY: the end of the mapping.
    TOP.store(unsafe { stack.cast::<u8>().add(STACK) }, Ordering::Relaxed);
    OWNER.store(sys::pid(), Ordering::Relaxed);
    for (place, byte) in BASE.iter().zip(base.to_bytes_with_nul()) {
        place.store(*byte, Ordering::Relaxed);
    }
    action.sa_sigaction = handler as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a set to fill, and an action to read.
    let result = unsafe {
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(signal, &action, null_mut())
    };
    if result != 0 {
        complain(b"is a signal that cannot be handled");
    }
}

/// Says on standard error why there will be no profile.
fn complain(why: &[u8]) {
    let mut text = Text::<256>::new();
    text.push(b"mem-profiler: no CPU profile: CPUPROFILESIGNAL ");
    text.push(why);
    text.push(b"\n");
    let bytes = text.as_c_str().unwrap_or_default().to_bytes();
    // SAFETY: bytes that live.
    unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

on_own_stack! {
    /// The signal's handler.
    handler, enter, work
}

/// The end of the handler's stack for [`work`], or null: the signal does nothing now.
///
/// # Safety
/// None is requested.
unsafe extern "C" fn enter(_: *const libc::siginfo_t, _: *const libc::ucontext_t) -> *mut u8 {
    if !arch::has_locals() || controller::is_asking() {
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

/// Begins a profile or ends it. Keeps `errno`.
///
/// # Safety
/// [`enter`] has claimed the stack.
unsafe extern "C" fn work(_: *const libc::siginfo_t, _: *const libc::ucontext_t) {
    if super::running().is_some() {
        super::end();
    } else if let Some(name) = next_name().as_c_str() {
        super::begin(name, None);
    }
    RUNS.store(0, Ordering::Release);
}

/// The next profile's name. A forked child's has its pid in it: its parent counts as well.
fn next_name() -> Text<NAME> {
    let mut name = Text::new();
    for byte in &BASE {
        match byte.load(Ordering::Relaxed) {
            0 => break,
            byte => name.push(&[byte]),
        }
    }
    let own = sys::pid();
    if own != OWNER.load(Ordering::Relaxed) {
        name.push(b"_");
        name.push_number(u64::from(own));
    }
    name.push(b".");
    name.push_number(u64::from(COUNT.fetch_add(1, Ordering::Relaxed)));
    name
}
