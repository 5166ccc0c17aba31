//! Postpones suspension of this process from the terminal (Ctrl-Z) while it has a target stopped.
//! Otherwise the target, perhaps a server, would stay stopped until the user continues this
//! process.
//!
//! `SIGSTOP` cannot be postponed.

use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// Job control signals that stop a process by default.
const SIGNALS: [libc::c_int; 3] = [libc::SIGTSTP, libc::SIGTTIN, libc::SIGTTOU];

/// Number of stopped targets, or [`SUSPENDING`].
static STOPPED: AtomicI32 = AtomicI32::new(0);
/// Value of [`STOPPED`] while a thread is suspending this process. No other thread may stop a
/// target during that time.
const SUSPENDING: i32 = -1;
/// Signal that was postponed; 0 if none.
static POSTPONED: AtomicI32 = AtomicI32::new(0);

/// Guard: as long as one exists, this process is not suspended.
#[must_use]
pub struct Hold(());

impl Hold {
    /// Postpones suspension. Signals that are ignored or have a handler already are left alone.
    pub fn new() -> Self {
        static HANDLERS_SET: Once = Once::new();
        HANDLERS_SET.call_once(|| SIGNALS.into_iter().for_each(handle));
        let increment = |count| (count != SUSPENDING).then_some(count + 1);
        while STOPPED.fetch_update(SeqCst, SeqCst, increment).is_err() {
            // This process is about to be suspended, and continues from here afterwards.
            std::thread::yield_now();
        }
        Self(())
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        STOPPED.fetch_sub(1, SeqCst);
        suspend_if_free();
    }
}

/// Suspends this process if a signal was postponed and no target is stopped. Async-signal-safe.
fn suspend_if_free() {
    // The signal is checked first. A signal that arrives after this check needs nothing from here:
    // the last target has been released, so its handler suspends this process itself.
    if POSTPONED.load(SeqCst) == 0
        || STOPPED
            .compare_exchange(0, SUSPENDING, SeqCst, SeqCst)
            .is_err()
    {
        return;
    }
    let signal = POSTPONED.load(SeqCst);
    if signal != 0 {
        suspend(signal);
    }
    // Signals that arrived before this process was continued are obsolete.
    POSTPONED.store(0, SeqCst);
    STOPPED.store(0, SeqCst);
}

/// Lets a signal have its default effect. Async-signal-safe.
fn suspend(signal: libc::c_int) {
    // SAFETY: all-zero sets and actions (`SIG_DFL`) are valid. All calls are async-signal-safe, and
    // the action and the mask that they change are restored.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        let mut ours: libc::sigaction = std::mem::zeroed();
        let mut signal_set: libc::sigset_t = std::mem::zeroed();
        let mut old_mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut signal_set);
        libc::sigaddset(&raw mut signal_set, signal);
        libc::sigaction(signal, &raw const default, &raw mut ours);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const signal_set, &raw mut old_mask);
        libc::raise(signal);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old_mask, ptr::null_mut());
        libc::sigaction(signal, &raw const ours, ptr::null_mut());
    }
}

extern "C" fn on_signal(signal: libc::c_int) {
    // SAFETY: the location of errno is valid for the calling thread.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: `errno` points to the calling thread's errno.
    let before = unsafe { *errno };
    POSTPONED.store(signal, SeqCst);
    suspend_if_free();
    // SAFETY: `errno` points to the calling thread's errno.
    unsafe { *errno = before };
}

fn handle(signal: libc::c_int) {
    // SAFETY: an all-zero action is valid (`SIG_DFL`). The handler is async-signal-safe, and
    // replaces only the default action.
    unsafe {
        let mut current: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(signal, ptr::null(), &raw mut current) != 0
            || current.sa_sigaction != libc::SIG_DFL
        {
            return;
        }
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_signal as *const () as libc::sighandler_t;
        ours.sa_flags = libc::SA_RESTART;
        libc::sigemptyset(&raw mut ours.sa_mask);
        libc::sigaction(signal, &raw const ours, ptr::null_mut());
    }
}
