//! The process's exit: a leak check that was requested, then the end of the segment.

use crate::environment::number;
use crate::sys::{self, Uncancelled};
use crate::{checks, cpu_profile, cpu_totals, hooks, scratch, seccomp, session};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicU32, Ordering};
use shm_protocol::layout::{AT_EXIT_CHECKED, AT_EXIT_UNCHECKED, AT_EXIT_WAITS, Status};

#[used]
#[cfg_attr(not(test), unsafe(link_section = ".fini_array"))]
static DESTRUCTOR: extern "C" fn() = destructor;

/// Pid of the controller that checks the process for leaks at its exit; 0: none does.
static CHECKER: AtomicU32 = AtomicU32::new(0);

/// Notes which controller checks the process at its exit, if the environment names one.
pub fn start() {
    let checker = number(c"MEM_PROFILER_LEAK_CHECK").and_then(|pid| u32::try_from(pid).ok());
    CHECKER.store(checker.unwrap_or(0), Ordering::Relaxed);
}

/// No check is made at the process's end: the program has had one, or wants none.
pub fn let_exit_unchecked() {
    let asked = CHECKER.swap(0, Ordering::Relaxed) != 0;
    if let Some(status) = session::status().filter(|_| asked) {
        status.at_exit.store(AT_EXIT_UNCHECKED, Ordering::Release);
    }
}

/// The leak check that a variable requests; the exit code to end with, if not the program's own.
fn check() -> Option<libc::c_int> {
    let runs = session::control().epoch(Ordering::Relaxed) != 0;
    runs.then(checks::at_exit).flatten()
}

/// Waits until a controller has checked the process for leaks, or has ended; not indefinitely, and
/// not for long if no controller says that it will. At the program's exit, and only where that was
/// requested and a session runs.
fn wait_for_check(status: &Status) {
    const PERIOD_NS: i64 = 1_000_000;
    const MOST_UNSEEN: u32 = 30_000;
    const MOST: u32 = 600_000;
    let checker = CHECKER.load(Ordering::Relaxed) as libc::pid_t;
    let runs = session::control().epoch(Ordering::Relaxed) != 0;
    if checker <= 0 || !runs || !seccomp::is_absent() {
        return;
    }
    if hooks::is_turned_off() {
        return let_exit_unchecked();
    }
    let saved = sys::errno();
    hooks::tell();
    status.at_exit.store(AT_EXIT_WAITS, Ordering::Release);
    for period in 0..MOST {
        // SAFETY: signal 0 is not sent.
        let is_gone = || unsafe { libc::kill(checker, 0) } != 0 && sys::errno() == libc::ESRCH;
        let state = status.at_exit.load(Ordering::Acquire);
        let is_done = state == AT_EXIT_CHECKED || (state == AT_EXIT_WAITS && period > MOST_UNSEEN);
        if is_done || (period % 100 == 0 && is_gone()) {
            break;
        }
        let pause = libc::timespec {
            tv_sec: 0,
            tv_nsec: PERIOD_NS,
        };
        scratch::clear();
        // SAFETY: reads the timespec, which lives; writes nothing.
        unsafe { libc::nanosleep(&pause, null_mut()) };
    }
    sys::set_errno(saved);
}

/// At the process's end: the segment goes, unless it holds a profile to collect, or a filter
/// may forbid to remove it. What stays is removed by programs that start later, or by the
/// controller.
extern "C" fn destructor() {
    if cfg!(test) || session::is_in_anothers_memory() {
        return;
    }
    cpu_profile::at_exit();
    if !session::has_own() {
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
    cpu_totals::note_clock();
    // Whoever sees that sampling is off must see why.
    status.exited.store(1, Ordering::Relaxed);
    session::control().epoch.store(0, Ordering::Release);
    if last_epoch == 0 || collected >= last || session::is_programs_own(last) {
        session::remove();
    }
    if let Some(code) = code {
        // Again from within: the C library writes out its buffers, and ends with this code.
        // SAFETY: takes a number; the library's handlers that have run are not run again.
        unsafe { libc::exit(code) }
    }
}
