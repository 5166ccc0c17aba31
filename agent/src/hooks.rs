//! Functions that a program may define for LeakSanitizer to call (`sanitizer/lsan_interface.h`):
//! whether to check for leaks at all, which leaks are known, and which options apply. They are
//! called by checks, never by an allocation.
//!
//! The loader has resolved their names when it loaded the agent, if the program or one of its
//! libraries exports them.

use crate::arch::glibc_function;
use crate::exemptions;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::layout::{DECLARED_OPTIONS, DECLARED_SUPPRESSIONS};

/// Type of a hook, none of which has arguments.
type Hook<T> = unsafe extern "C" fn() -> T;

/// Converts an address into a hook; `None` if it is 0.
///
/// # Safety
/// `address` is 0 or that of a function of this type.
unsafe fn as_hook<T>(address: usize) -> Option<Hook<T>> {
    // SAFETY: 0, which is `None`, or the address of such a function.
    unsafe { core::mem::transmute::<usize, Option<Hook<T>>>(address) }
}

/// Returns true if the program wants no leak checks (`__lsan_is_turned_off`).
pub fn is_turned_off() -> bool {
    let address = glibc_function!("__lsan_is_turned_off");
    // SAFETY: LeakSanitizer's header declares a function of this type with this name.
    let hook = unsafe { as_hook::<c_int>(address) };
    // SAFETY: the program's own function, called as LeakSanitizer calls it.
    hook.is_some_and(|hook| unsafe { hook() } != 0)
}

/// Calls the program's functions that return known leaks and options, once. Lists their strings for
/// the controller that performs the check.
pub fn list_declared_strings() {
    static HAS_RUN: AtomicBool = AtomicBool::new(false);
    if HAS_RUN.swap(true, Ordering::Relaxed) {
        return;
    }
    for (address, kind) in [
        (
            glibc_function!("__lsan_default_suppressions"),
            DECLARED_SUPPRESSIONS,
        ),
        (glibc_function!("__lsan_default_options"), DECLARED_OPTIONS),
    ] {
        // SAFETY: LeakSanitizer's header declares functions of this type with both names.
        let Some(hook) = (unsafe { as_hook::<*const c_char>(address) }) else {
            continue;
        };
        // SAFETY: the program's own function, called as LeakSanitizer calls it.
        let text = unsafe { hook() };
        if !text.is_null() {
            // SAFETY: a terminated string, according to the header.
            let bytes = unsafe { CStr::from_ptr(text) }.count_bytes();
            // If the list is full, the controller does not know the string.
            let _ = exemptions::add_text(kind, text.addr() as u64, bytes as u64);
        }
    }
}
