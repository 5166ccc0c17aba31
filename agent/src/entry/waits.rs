//! Functions with which a program accepts pending signals synchronously (`sigwait`, `signalfd` and
//! so on). Programs often accept every signal, but those of a CPU session's timers are not meant
//! for them. Outside a CPU session, calls are passed on unchanged.

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

/// Next definitions of these functions (`RTLD_NEXT`); null before they are looked up.
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

/// Returns the next definition of a function, or null.
fn next_definition(cached: &AtomicPtr<c_void>, name: &CStr) -> *mut c_void {
    match cached.load(Ordering::Relaxed) {
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
        let address = next_definition(&SIGWAIT, c"sigwait");
        // SAFETY: null, or the C library's function of this type.
        let function = unsafe { transmute::<*mut c_void, Option<Wait>>(address) };
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        return function.map_or(libc::ENOSYS, |function| unsafe { function(set, number) });
    }
    loop {
        // SAFETY: the program passes a set; the other two arguments may be null.
        match unsafe { wait_for_others(set, null_mut(), null()) } {
            -1 if crate::sys::errno() == libc::EINTR => {}
            -1 => return crate::sys::errno(),
            found => {
                // SAFETY: the program passes memory for the signal number.
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
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        return unsafe { wait_for_others(set, info, null()) };
    }
    let address = next_definition(&SIGWAITINFO, c"sigwaitinfo");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<WaitInfo>>(address) } {
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        Some(function) => unsafe { function(set, info) },
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
    // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
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
    let address = next_definition(&SIGTIMEDWAIT, c"sigtimedwait");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<TimedWait>>(address) } {
        // SAFETY: the arguments are valid for `sigtimedwait`.
        Some(function) => unsafe { function(set, info, timeout) },
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
    // SAFETY: `timeout` is null or points to a timeout.
    let requested = unsafe { timeout.as_ref() };
    let mut remaining = requested.copied();
    loop {
        // SAFETY: all-zero bytes are a valid `siginfo_t`.
        let mut received: libc::siginfo_t = unsafe { zeroed() };
        let timeout_left = remaining
            .as_ref()
            .map_or(null(), |remaining| &raw const *remaining);
        // SAFETY: `set` is valid; the other two are null or point to our own memory.
        let number = unsafe { timed_wait(set, &mut received, timeout_left) };
        // SAFETY: filled by the kernel if there was a signal.
        if number > 0 && unsafe { cpu::is_from_timer(&received) } {
            remaining =
                requested.map(|requested| timers::subtract(requested, now().saturating_sub(began)));
            continue;
        }
        if number > 0 && !info.is_null() {
            // SAFETY: `info` is not null, and is valid for `sigtimedwait`.
            unsafe { info.write(received) };
        }
        return number;
    }
}

/// signalfd(2). If the set contains every signal that timers may use (as after `sigfillset`), the
/// one in use is removed from it. If it contains only some of them, the program means those
/// signals: it gets them, and the session switches to another one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signalfd(fd: c_int, set: *const libc::sigset_t, flags: c_int) -> c_int {
    let address = next_definition(&DESCRIPTOR, c"signalfd");
    // SAFETY: null, or the C library's function of this type.
    let Some(function) = (unsafe { transmute::<*mut c_void, Option<Descriptor>>(address) }) else {
        return fail();
    };
    let number = timers::number();
    // SAFETY: `set` is not null, so the program has passed a set.
    let in_set = |number| !set.is_null() && unsafe { libc::sigismember(set, number) } == 1;
    if !timers::are_running() || !in_set(number) {
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        return unsafe { function(fd, set, flags) };
    }
    let wants_all = timers::candidates().all(in_set);
    if !wants_all {
        cpu::give_way_to(timers::candidates().filter(|number| in_set(*number)));
        // SAFETY: passes the arguments on unchanged; the program guarantees that they are valid.
        return unsafe { function(fd, set, flags) };
    }
    // SAFETY: `set` is not null. It is copied, and only the copy is changed.
    unsafe {
        let mut others = *set;
        libc::sigdelset(&mut others, number);
        function(fd, &others, flags)
    }
}
