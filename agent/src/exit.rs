//! Exit of the process: performs a requested leak check, and removes the segment.

use crate::c_library;
use crate::environment::number;
use crate::sys::{self, Uncancelled};
use crate::{checks, cost, cpu_profile, cpu_totals, heap_watch, hooks, scratch, seccomp, session};
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};
use shm_protocol::layout::{AT_EXIT_CHECKED, AT_EXIT_UNCHECKED, AT_EXIT_WAITS, Status};

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static DESTRUCTOR: unsafe extern "C" fn() = destructor_on_clear_stack;

/// Pid of the controller that checks the process for leaks at its exit; 0: none.
static CHECKER: AtomicU32 = AtomicU32::new(0);

type Handler = unsafe extern "C" fn(*mut c_void);
/// `__cxa_at_quick_exit`, which at_quick_exit(3) calls. glibc ignores the library.
type Register = unsafe extern "C" fn(handler: Handler, library: *mut c_void) -> c_int;

/// Stores the pid of the controller that checks the process at its exit, if the environment names
/// one, and registers the handler of `quick_exit`.
pub fn start() {
    let checker = number(c"MEM_PROFILER_LEAK_CHECK").and_then(|pid| u32::try_from(pid).ok());
    CHECKER.store(checker.unwrap_or(0), Ordering::Relaxed);
    // musl does not have it.
    let register = c_library::optional_function(c"__cxa_at_quick_exit");
    // SAFETY: null, or the C library's function of this type.
    let register = unsafe { transmute::<*mut c_void, Option<Register>>(register) };
    if let Some(register) = register {
        // SAFETY: the agent is never unloaded. If there is no room, the segment stays until a later
        // program removes it.
        unsafe { register(at_quick_exit, null_mut()) };
    }
}

/// Removes the segment at `quick_exit`, which runs no destructors.
extern "C" fn at_quick_exit(_: *mut c_void) {
    cpu_totals::record_clock();
    session::remove_if_unused();
}

/// Cancels the check at exit, because the program has made a check itself, or does not want any.
pub fn cancel_check() {
    let was_requested = CHECKER.swap(0, Ordering::Relaxed) != 0;
    if was_requested && let Some(status) = session::status() {
        status.at_exit.store(AT_EXIT_UNCHECKED, Ordering::Release);
    }
}

/// Performs the leak check that an environment variable requests. Returns an exit status if it
/// replaces the program's own.
fn check() -> Option<c_int> {
    let is_sampling = session::control().epoch(Ordering::Relaxed) != 0;
    if is_sampling { checks::at_exit() } else { None }
}

/// Waits until a controller has checked the process for leaks or has exited. Waits at most ten
/// minutes, and 30 seconds if no controller announces a check. Called at the program's exit; does
/// nothing unless a check was requested and a session is running.
fn wait_for_check(status: &Status) {
    /// Time between two polls of the status, in ns.
    const POLL_INTERVAL_NS: i64 = 1_000_000;
    /// Maximum number of polls before a controller has announced its check.
    const MAX_UNANNOUNCED_POLLS: u32 = 30_000;
    /// Maximum number of polls.
    const MAX_POLLS: u32 = 600_000;
    let checker = CHECKER.load(Ordering::Relaxed) as libc::pid_t;
    let is_sampling = session::control().epoch(Ordering::Relaxed) != 0;
    if checker <= 0 || !is_sampling || !seccomp::is_absent() {
        return;
    }
    if hooks::is_turned_off() {
        return cancel_check();
    }
    let saved = sys::errno();
    hooks::list_declared_strings();
    status.at_exit.store(AT_EXIT_WAITS, Ordering::Release);
    for poll in 0..MAX_POLLS {
        // SAFETY: signal 0 only checks for existence.
        let is_gone = || unsafe { libc::kill(checker, 0) } != 0 && sys::errno() == libc::ESRCH;
        let state = status.at_exit.load(Ordering::Acquire);
        let is_unannounced = state == AT_EXIT_WAITS && poll > MAX_UNANNOUNCED_POLLS;
        let is_done = state == AT_EXIT_CHECKED || is_unannounced;
        if is_done || (poll % 100 == 0 && is_gone()) {
            break;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: POLL_INTERVAL_NS,
        };
        scratch::clear();
        // SAFETY: only reads a `timespec` of ours.
        unsafe { libc::nanosleep(&pause, null_mut()) };
    }
    sys::set_errno(saved);
}

/// Returns true if the process may be checked for leaks at its exit.
extern "C" fn may_check() -> bool {
    CHECKER.load(Ordering::Relaxed) != 0 || checks::is_active()
}

scratch::on_clear_stack!(
    /// Entry of [`destructor`].
    destructor_on_clear_stack,
    destructor,
    if may_check
);

/// Removes the segment at the process's exit, unless it has a profile to collect or a seccomp
/// filter may forbid that. Programs that start later, or the controller, remove what stays.
extern "C" fn destructor() {
    if cfg!(test) || session::is_in_foreign_memory() {
        return;
    }
    cpu_profile::at_exit();
    heap_watch::at_exit();
    if !session::has_own_segment() {
        return;
    }
    let last_epoch = session::control().last_epoch.load(Ordering::Relaxed);
    let last = session::last_session();
    let Some(status) = session::status() else {
        return;
    };
    let uncancelled = Uncancelled::begin();
    wait_for_check(status);
    let code = check();
    drop(uncancelled);
    let collected = status.collected_session.load(Ordering::Relaxed);
    cpu_totals::record_clock();
    cost::at_exit();
    // Stored first: a reader that sees sampling off must see why.
    session::record_exit(status);
    session::control().epoch.store(0, Ordering::Release);
    if last_epoch == 0 || collected >= last || session::is_program_session(last) {
        session::remove();
    }
    if let Some(code) = code {
        // A nested call: the C library flushes its buffers and exits with this status.
        // SAFETY: exit handlers that have run are not run again.
        unsafe { libc::exit(code) }
    }
}
