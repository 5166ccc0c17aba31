//! `prctl` and `syscall`, with which programs install seccomp filters and forbid themselves to read
//! the cycle counter.
//!
//! Both make the system call with the caller's arguments, like the C library's functions, and
//! record such a call beforehand (see [`crate::seccomp`] and [`crate::cycles`]). They may be called
//! before this library's constructor, so they need nothing of the C library but `errno`. Another
//! library may replace them, too, as those do that simulate users (uid_wrapper) or networks
//! (torsocks): from the constructor on, calls are passed on to it.

use crate::arch::{on_aligned_stack, recording_prctl, recording_syscall};
use crate::{c_library, cpu, cycles, range, sample, seccomp, session, sys};
use core::arch::naked_asm;
use core::ffi::{CStr, c_int, c_long, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// `PR_SET_SECCOMP` of linux/prctl.h.
const PR_SET_SECCOMP: usize = 22;
/// `SECCOMP_MODE_STRICT` of linux/seccomp.h, for prctl(2).
const MODE_STRICT: usize = 1;
/// `SECCOMP_SET_MODE_STRICT` of linux/seccomp.h, for seccomp(2).
const SET_MODE_STRICT: usize = 0;
/// `PR_SET_TSC` of linux/prctl.h.
const PR_SET_TSC: usize = 26;

/// Next definitions of these functions (`RTLD_NEXT`) if they are another library's; null: the
/// system call is made instead.
static PRCTL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static SYSCALL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up other libraries' definitions, at start-up.
pub fn find_next() {
    let find = |slot: &AtomicPtr<c_void>, name: &'static CStr| {
        let [next, in_c_library] = [sys::next_symbol(name), c_library::optional_function(name)];
        if next != in_c_library && !in_c_library.is_null() {
            slot.store(next, Ordering::Relaxed);
        }
    };
    find(&PRCTL, c"prctl");
    find(&SYSCALL, c"syscall");
}

/// Records a call of prctl(2) that is about to be made. Safe in a signal handler that interrupted
/// an allocation.
fn record(option: usize, mode: usize) {
    if session::is_guest() {
        return;
    }
    match option {
        PR_SET_TSC => cycles::forbid(),
        _ => prepare_for_filter(mode == MODE_STRICT),
    }
}

/// Prepares for a filter that is about to be installed.
fn prepare_for_filter(is_strict: bool) {
    session::grow_before_filter();
    range::include_all_in_dumps();
    seccomp::record_installation();
    cpu::end_for_filter();
    if is_strict {
        sample::end_in_thread();
    }
}

/// Records a call of prctl(2) with these first arguments.
extern "C" fn record_prctl(option: c_int, mode: usize) {
    record(option as usize, mode);
}

/// Records a call of prctl(2) or seccomp(2), by its number and first arguments.
extern "C" fn record_syscall(number: c_long, option: c_int, mode: usize) {
    match number {
        libc::SYS_prctl => record(option as usize, mode),
        _ if session::is_guest() => {}
        _ => prepare_for_filter(option as usize == SET_MODE_STRICT),
    }
}

on_aligned_stack! {
    /// See [`record_prctl`].
    fn record_prctl_on_aligned_stack(option: c_int, mode: usize), record_prctl
}

on_aligned_stack! {
    /// See [`record_syscall`].
    fn record_syscall_on_aligned_stack(number: c_long, option: c_int, mode: usize), record_syscall
}

recording_prctl! {
    /// prctl(2).
    prctl, PRCTL, PR_SET_SECCOMP, PR_SET_TSC, record_prctl_on_aligned_stack, fail
}

recording_syscall! {
    /// syscall(2).
    syscall, SYSCALL, PR_SET_SECCOMP, PR_SET_TSC, record_syscall_on_aligned_stack, fail
}

/// Returns the C library's result of a failed call: sets `errno` to the negated result, and returns
/// -1.
extern "C" fn fail(result: c_long) -> c_long {
    crate::sys::set_errno(-result as c_int);
    -1
}
