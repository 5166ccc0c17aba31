//! `sigaction` and `signal`: a program that wants the signal used by a session of CPU time gets it,
//! and the session switches to another one. Otherwise, the calls are passed on unchanged.

use crate::arch::glibc_function;
use crate::c_library;
use crate::cpu;
use crate::sys::{next_symbol, set_errno};
use core::ffi::{CStr, c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

type Action = unsafe extern "C" fn(c_int, *const c_void, *mut c_void) -> c_int;
type Simple = unsafe extern "C" fn(c_int, usize) -> usize;

/// The functions behind these; null before they are looked up.
static SIGACTION: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static SIGNAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Finds them. At start-up.
pub fn find_next() {
    SIGACTION.store(next_symbol(c"sigaction"), Ordering::Relaxed);
    SIGNAL.store(next_symbol(c"signal"), Ordering::Relaxed);
}

/// What is behind a function: before start-up by its other name in glibc, else in another library.
fn real(known: &AtomicPtr<c_void>, other: usize, name: &CStr) -> *mut c_void {
    match known.load(Ordering::Relaxed) {
        found if !found.is_null() => found,
        _ if other != 0 => core::ptr::with_exposed_provenance_mut(other),
        _ => next_symbol(name),
    }
}

/// sigaction(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    number: c_int,
    action: *const c_void,
    old: *mut c_void,
) -> c_int {
    if !action.is_null() {
        cpu::give_way(number);
    }
    let real = real(&SIGACTION, glibc_function!("__sigaction"), c"sigaction");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<Action>>(real) } {
        // SAFETY: the caller's arguments.
        Some(real) => unsafe { real(number, action, old) },
        None => {
            set_errno(libc::ENOSYS);
            -1
        }
    }
}

/// signal(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn signal(number: c_int, handler: usize) -> usize {
    cpu::give_way(number);
    let real = real(&SIGNAL, c_library::looked_up(c"signal").addr(), c"signal");
    // SAFETY: null, or the C library's function of this type.
    match unsafe { transmute::<*mut c_void, Option<Simple>>(real) } {
        // SAFETY: the caller's arguments.
        Some(real) => unsafe { real(number, handler) },
        None => {
            set_errno(libc::ENOSYS);
            libc::SIG_ERR
        }
    }
}
