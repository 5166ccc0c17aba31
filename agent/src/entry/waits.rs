//! Functions by which a program fetches blocked signals (`sigwait`, `signalfd` and so on). Programs
//! often fetch all signals, but those of a CPU session's timers are not meant for them. Outside a
//! CPU session, calls are passed on unchanged.

use crate::sys::{next_symbol, set_errno};
use crate::{cpu, timers};
use core::ffi::{CStr, c_int, c_void};
use core::mem::{transmute, zeroed};
use core::ptr::{null, null_mut};
use core::sync::atomic::{AtomicPtr, Ordering};

type Wait = unsafe extern "C" fn(*const libc::sigset_t, *mut c_int) -> c_int;
type WaitInfo = unsafe extern "C" fn(*const libc::sigset_t, *mut libc::siginfo_t) -> c_int;
type TimedWait = unsafe extern "C" fn(
    *const libc::sigset_t,
    *mut libc::siginfo_t,
    *const libc::timespec,
) -> c_int;
type Descriptor = unsafe extern "C" fn(c_int, *const libc::sigset_t, c_int) -> c_int;

/// Functions of the next library; null before they are looked up.
static SIGWAIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static SIGWAITINFO: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static SIGTIMEDWAIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static DESCRIPTOR: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the functions, at start-up.
pub fn find_next() {
    for (function, name) in [
        (&SIGWAIT, c"sigwait"),
        (&SIGWAITINFO, c"sigwaitinfo"),
        (&SIGTIMEDWAIT, c"sigtimedwait"),
        (&DESCRIPTOR, c"signalfd"),
    ] {
        function.store(next_symbol(name), Ordering::Relaxed);
    }
}

/// Returns a function of the next library, or null.
fn real(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    match known.load(Ordering::Relaxed) {
        found if !found.is_null() => found,
        _ => next_symbol(name),
    }
}

/// Fails because the C library has no such function.
fn fail() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// sigwait(3). Returns an error number instead of setting `errno`, and never `EINTR`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const libc::sigset_t, number: *mut c_int) -> c_int {
    if !timers::are_running() {
        let real = real(&SIGWAIT, c"sigwait");
        // SAFETY: null, or the C library's function of this type.
        let real = unsafe { transmute::<*mut c_void, Option<Wait>>(real) };
        // SAFETY: called with the caller's arguments.
        return real.map_or(libc::ENOSYS, |real| unsafe { real(set, number) });
    }
    loop {
        // SAFETY: the caller's set; the other two may be null.
        match unsafe { wait_for_others(set, null_mut(), null()) } {
            -1 if crate::sys::errno() == libc::EINTR => {}
            -1 => return crate::sys::errno(),
            found => {
                // SAFETY: the caller's memory for the signal number.
                unsafe { *number = found };
                return 0;
            }
        }
    }
}

/// sigwaitinfo(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwaitinfo(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
) -> c_int {
    if timers::are_running() {
        // SAFETY: called with the caller's arguments.
        return unsafe { wait_for_others(set, info, null()) };
    }
    let real = real(&SIGWAITINFO, c"sigwaitinfo");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<WaitInfo>>(real) } {
        // SAFETY: called with the caller's arguments.
        Some(real) => unsafe { real(set, info) },
        None => fail(),
    }
}

/// sigtimedwait(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigtimedwait(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    // SAFETY: called with the caller's arguments.
    unsafe {
        if timers::are_running() {
            wait_for_others(set, info, timeout)
        } else {
            timed_wait(set, info, timeout)
        }
    }
}

/// Calls the C library's `sigtimedwait`.
///
/// # Safety
/// The arguments are valid for `sigtimedwait`.
unsafe fn timed_wait(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    let real = real(&SIGTIMEDWAIT, c"sigtimedwait");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<TimedWait>>(real) } {
        // SAFETY: valid arguments, as the caller guarantees.
        Some(real) => unsafe { real(set, info, timeout) },
        None => fail(),
    }
}

/// Like [`timed_wait`], but discards signals of our timers.
///
/// # Safety
/// The arguments are valid for `sigtimedwait`.
unsafe fn wait_for_others(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    let now = || timers::clock(libc::CLOCK_MONOTONIC).unwrap_or(0);
    let began = now();
    // SAFETY: null or the caller's timeout.
    let whole = unsafe { timeout.as_ref() };
    let mut rest = whole.copied();
    loop {
        // SAFETY: integers and a union of them.
        let mut found: libc::siginfo_t = unsafe { zeroed() };
        let until = rest.as_ref().map_or(null(), |rest| &raw const *rest);
        // SAFETY: the caller's set, memory of our own for the result, and null or our own timeout.
        let number = unsafe { timed_wait(set, &mut found, until) };
        // SAFETY: filled by the kernel if there was a signal.
        if number > 0 && unsafe { cpu::is_timers(&found) } {
            rest = whole.map(|whole| timers::less(whole, now().saturating_sub(began)));
            continue;
        }
        if number > 0 && !info.is_null() {
            // SAFETY: the caller's memory for the result.
            unsafe { info.write(found) };
        }
        return number;
    }
}

/// signalfd(2). Our signal is removed from a set of all signals. If a program wants this very
/// signal, it gets it, and the session switches to another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signalfd(fd: c_int, set: *const libc::sigset_t, flags: c_int) -> c_int {
    let real = real(&DESCRIPTOR, c"signalfd");
    // SAFETY: null, or the C library's function of this type.
    let Some(real) = (unsafe { transmute::<*mut c_void, Option<Descriptor>>(real) }) else {
        return fail();
    };
    let number = timers::number();
    // SAFETY: not null, and a set of the caller's.
    let has = |number| !set.is_null() && unsafe { libc::sigismember(set, number) } == 1;
    if !timers::are_running() || !has(number) {
        // SAFETY: called with the caller's arguments.
        return unsafe { real(fd, set, flags) };
    }
    let candidates = || timers::candidates().filter(|number| has(*number));
    if candidates().count() < timers::candidates().count() {
        cpu::give_way_to(candidates());
        // SAFETY: called with the caller's arguments.
        return unsafe { real(fd, set, flags) };
    }
    // SAFETY: the caller's set is copied, and the copy changed.
    unsafe {
        let mut others = *set;
        libc::sigdelset(&mut others, number);
        real(fd, &others, flags)
    }
}
