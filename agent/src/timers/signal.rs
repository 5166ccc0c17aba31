//! The signal that the timers send: one that the program does not use, and only during a session.

use super::Failure;
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// A handler as of `SA_SIGINFO`.
pub type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Its number; 0: none.
static NUMBER: AtomicI32 = AtomicI32::new(0);
static HANDLER: AtomicUsize = AtomicUsize::new(0);

/// The signal in use.
pub fn number() -> c_int {
    NUMBER.load(Ordering::Relaxed)
}

/// Real-time signals from the middle on: programs count from either end.
pub fn candidates() -> impl Iterator<Item = c_int> {
    (52..=60).chain(36..52)
}

/// Finds a signal that has its default action, that the calling thread does not block, and that is
/// not to be avoided, and installs the handler for it. Changes `errno`.
pub fn install(avoid: u64, handler: Handler) -> Result<(), Failure> {
    // SAFETY: zero is a value.
    let mut blocked: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: nothing is changed; a set to fill.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, null(), &mut blocked) };
    HANDLER.store(handler as usize, Ordering::Relaxed);
    let usable = |number: &c_int| {
        // SAFETY: a filled set and a number of a signal.
        let is_blocked = unsafe { libc::sigismember(&blocked, *number) } != 0;
        avoid >> (number - 1) & 1 == 0 && !is_blocked && action_of(*number) == Some(libc::SIG_DFL)
    };
    match candidates().filter(usable).find(|number| take(*number)) {
        Some(number) => {
            NUMBER.store(number, Ordering::Relaxed);
            Ok(())
        }
        None => Err(Failure::NoSignal),
    }
}

/// Installs the handler; `false`: another one was there by then, and is again.
fn take(number: c_int) -> bool {
    // SAFETY: zero is a value.
    let (mut action, mut old): (libc::sigaction, libc::sigaction) = unsafe { zeroed() };
    action.sa_sigaction = HANDLER.load(Ordering::Relaxed);
    // Waiting calls are restarted, and small stacks are spared if the program has an alternate one
    // for signals. Nothing else interrupts the handler, which may be on a stack of its own.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: a set to fill, an action to read and one to write.
    unsafe {
        libc::sigfillset(&mut action.sa_mask);
        if libc::sigaction(number, &action, &mut old) != 0 {
            return false;
        }
        if old.sa_sigaction != libc::SIG_DFL {
            libc::sigaction(number, &old, core::ptr::null_mut());
            return false;
        }
    }
    true
}

/// What is done with a signal.
fn action_of(number: c_int) -> Option<libc::sighandler_t> {
    // SAFETY: zero is a value.
    let mut now: libc::sigaction = unsafe { zeroed() };
    // SAFETY: nothing is changed; an action to fill.
    let known = unsafe { libc::sigaction(number, null(), &mut now) } == 0;
    known.then_some(now.sa_sigaction)
}

/// Whether the handler is still the one that was installed. Changes `errno`.
pub fn is_ours() -> bool {
    action_of(number()) == Some(HANDLER.load(Ordering::Relaxed))
}

fn set(number: c_int, to: libc::sighandler_t) {
    // SAFETY: zero is a value.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = to;
    // SAFETY: an action to read.
    unsafe { libc::sigaction(number, &action, core::ptr::null_mut()) };
}

/// Gives the signal back, unless the program has taken it meanwhile. When no timer is left: those
/// that wait to be delivered are thrown away with the action of ignoring them, since the default
/// action would end the process. Changes `errno`.
pub fn restore() {
    let number = NUMBER.swap(0, Ordering::Relaxed);
    if number != 0 && action_of(number) == Some(HANDLER.load(Ordering::Relaxed)) {
        set(number, libc::SIG_IGN);
        set(number, libc::SIG_DFL);
    }
}

/// The same in a child, which has no timer, and for which no signal waits.
#[cold]
pub fn restore_in_child() {
    let number = NUMBER.swap(0, Ordering::Relaxed);
    if number != 0 && action_of(number) == Some(HANDLER.load(Ordering::Relaxed)) {
        set(number, libc::SIG_DFL);
    }
}
