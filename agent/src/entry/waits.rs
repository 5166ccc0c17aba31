//! Functions by which a program fetches signals that it blocks, and often all signals: those of a session's
//! timers are not for it. Outside a session of CPU time, the calls are passed on unchanged.

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

/// The functions behind these; null before they are looked up.
static WAIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static WAIT_INFO: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static TIMED_WAIT: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static DESCRIPTOR: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds them. At start-up.
pub fn find_next() {
    for (function, name) in [
        (&WAIT, c"sigwait"),
        (&WAIT_INFO, c"sigwaitinfo"),
        (&TIMED_WAIT, c"sigtimedwait"),
        (&DESCRIPTOR, c"signalfd"),
    ] {
        function.store(next_symbol(name), Ordering::Relaxed);
    }
}

fn real(known: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    match known.load(Ordering::Relaxed) {
        found if !found.is_null() => found,
        _ => next_symbol(name),
    }
}

/// There is no such function.
fn fail() -> c_int {
    set_errno(libc::ENOSYS);
    -1
}

/// sigwait(3). An error is what it returns, and interruptions are none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigwait(set: *const libc::sigset_t, number: *mut c_int) -> c_int {
    if !timers::are_running() {
        let real = real(&WAIT, c"sigwait");
        // SAFETY: null, or the C library's function of this type.
        let real = unsafe { transmute::<*mut c_void, Option<Wait>>(real) };
        // SAFETY: the caller's arguments.
        return real.map_or(libc::ENOSYS, |real| unsafe { real(set, number) });
    }
    loop {
        // SAFETY: the caller's set; the rest may be null.
        match unsafe { wait_for_others(set, null_mut(), null()) } {
            -1 if crate::sys::errno() == libc::EINTR => {}
            -1 => return crate::sys::errno(),
            found => {
                // SAFETY: the caller's word.
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
        // SAFETY: the caller's arguments.
        return unsafe { wait_for_others(set, info, null()) };
    }
    let real = real(&WAIT_INFO, c"sigwaitinfo");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<WaitInfo>>(real) } {
        // SAFETY: the caller's arguments.
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
    // SAFETY: the caller's arguments.
    unsafe {
        match timers::are_running() {
            true => wait_for_others(set, info, timeout),
            false => timed_wait(set, info, timeout),
        }
    }
}

/// The C library's `sigtimedwait`.
unsafe fn timed_wait(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    let real = real(&TIMED_WAIT, c"sigtimedwait");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<TimedWait>>(real) } {
        // SAFETY: the caller's arguments.
        Some(real) => unsafe { real(set, info, timeout) },
        None => fail(),
    }
}

/// The same, except that signals of our timers are thrown away.
unsafe fn wait_for_others(
    set: *const libc::sigset_t,
    info: *mut libc::siginfo_t,
    timeout: *const libc::timespec,
) -> c_int {
    let now = || timers::clock(libc::CLOCK_MONOTONIC).unwrap_or(0);
    let began = now();
    // SAFETY: null, or the caller's.
    let whole = unsafe { timeout.as_ref() };
    let mut rest = whole.copied();
    loop {
        // SAFETY: integers and a union of them.
        let mut found: libc::siginfo_t = unsafe { zeroed() };
        let until = rest.as_ref().map_or(null(), |rest| &raw const *rest);
        // SAFETY: the caller's set; the rest is ours.
        let number = unsafe { timed_wait(set, &mut found, until) };
        // SAFETY: a signal's, if there was one.
        if number > 0 && unsafe { cpu::is_timers(&found) } {
            rest = whole.map(|whole| timers::less(whole, now().saturating_sub(began)));
            continue;
        }
        if number > 0 && !info.is_null() {
            // SAFETY: the caller's memory for it.
            unsafe { info.write(found) };
        }
        return number;
    }
}

/// signalfd(2). A program that wants all signals does without ours; one that wants that very signal gets it,
/// and the session switches to another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signalfd(fd: c_int, set: *const libc::sigset_t, flags: c_int) -> c_int {
    let real = real(&DESCRIPTOR, c"signalfd");
    // SAFETY: null, or the C library's function of this type.
    let Some(real) = (unsafe { transmute::<*mut c_void, Option<Descriptor>>(real) }) else {
        return fail();
    };
    let number = timers::number();
    // SAFETY: a set of the caller's, where there is one.
    let has = |number| !set.is_null() && unsafe { libc::sigismember(set, number) } == 1;
    if !timers::are_running() || !has(number) {
        // SAFETY: the caller's arguments.
        return unsafe { real(fd, set, flags) };
    }
    let candidates = || timers::candidates().filter(|number| has(*number));
    if candidates().count() < timers::candidates().count() {
        cpu::give_way_to(candidates());
        // SAFETY: the caller's arguments.
        return unsafe { real(fd, set, flags) };
    }
    // SAFETY: the caller's set, of which a copy is changed and read.
    unsafe {
        let mut others = *set;
        libc::sigdelset(&mut others, number);
        real(fd, &others, flags)
    }
}
