//! Signal of the timers: a real-time signal that the program does not use, taken for one session.

use super::Failure;
use core::ffi::{c_int, c_void};
use core::mem::zeroed;
use core::ptr::null;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

/// Signal handler with `SA_SIGINFO`.
pub type Handler = unsafe extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Number of the signal in use; 0: none.
static NUMBER: AtomicI32 = AtomicI32::new(0);
/// Address of the handler; 0 before the first session.
static HANDLER: AtomicUsize = AtomicUsize::new(0);

/// Returns the number of the signal in use; 0 if none is.
pub fn number() -> c_int {
    NUMBER.load(Ordering::Relaxed)
}

/// Returns the signals to try, beginning in the middle of the real-time signals, because programs
/// use those at either end.
pub fn candidates() -> impl Iterator<Item = c_int> {
    (52..=60).chain(36..52)
}

/// Installs the handler for a signal that has its default action, is not in `avoid`, and is not
/// blocked by the calling thread. Changes `errno`.
pub fn install(avoid: u64, handler: Handler) -> Result<(), Failure> {
    // SAFETY: zeros are a valid signal set.
    let mut blocked: libc::sigset_t = unsafe { zeroed() };
    // SAFETY: changes nothing, and fills a set of ours.
    unsafe { libc::sigprocmask(libc::SIG_BLOCK, null(), &mut blocked) };
    HANDLER.store(handler as usize, Ordering::Relaxed);
    let is_usable = |number: &c_int| {
        // SAFETY: a set that was filled, and a valid signal number.
        let is_blocked = unsafe { libc::sigismember(&blocked, *number) } != 0;
        (avoid >> (number - 1)) & 1 == 0 && !is_blocked && action_of(*number) == Some(libc::SIG_DFL)
    };
    match candidates().filter(is_usable).find(|number| take(*number)) {
        Some(number) => {
            NUMBER.store(number, Ordering::Relaxed);
            Ok(())
        }
        None => Err(Failure::NoSignal),
    }
}

/// Installs the handler for a signal. Returns false if the program has just installed one of its
/// own, which is then put back.
fn take(number: c_int) -> bool {
    // SAFETY: zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: zeros are a valid `sigaction`.
    let mut old: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = HANDLER.load(Ordering::Relaxed);
    // Interrupted calls are restarted. An alternate signal stack is used if the program has one, to
    // spare small stacks. All signals are blocked during the handler, which may run on a stack of
    // its own.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
    // SAFETY: the calls fill a set, read one action and write another, all of which are ours.
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

/// Returns the action of a signal.
fn action_of(number: c_int) -> Option<libc::sighandler_t> {
    // SAFETY: zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { zeroed() };
    // SAFETY: changes nothing, and fills an action of ours.
    let is_read = unsafe { libc::sigaction(number, null(), &mut action) } == 0;
    is_read.then_some(action.sa_sigaction)
}

/// Returns true if our handler is still installed. Changes `errno`.
pub fn is_ours() -> bool {
    action_of(number()) == Some(HANDLER.load(Ordering::Relaxed))
}

fn set_action(number: c_int, handler: libc::sighandler_t) {
    // SAFETY: zeros are a valid `sigaction`.
    let mut action: libc::sigaction = unsafe { zeroed() };
    action.sa_sigaction = handler;
    // SAFETY: only reads an action of ours.
    unsafe { libc::sigaction(number, &action, core::ptr::null_mut()) };
}

/// Releases the signal, unless the program has taken it in the meantime. Must be called when no
/// timer is left. Pending signals are discarded first by ignoring them, because the default action
/// ends the process. Changes `errno`.
pub fn restore() {
    let number = NUMBER.swap(0, Ordering::Relaxed);
    if number != 0 && action_of(number) == Some(HANDLER.load(Ordering::Relaxed)) {
        set_action(number, libc::SIG_IGN);
        set_action(number, libc::SIG_DFL);
    }
}

/// Like [`restore`], in a forked child, which has no timers and no pending signals.
#[cold]
pub fn restore_in_child() {
    let number = NUMBER.swap(0, Ordering::Relaxed);
    if number != 0 && action_of(number) == Some(HANDLER.load(Ordering::Relaxed)) {
        set_action(number, libc::SIG_DFL);
    }
}
