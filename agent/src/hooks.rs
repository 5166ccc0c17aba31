//! Functions that a program defines for LeakSanitizer to call (`sanitizer/lsan_interface.h`): they
//! say whether to look for leaks at all, which leaks are known, and which options apply. They are
//! called by a check that the program requests, and by the one at its exit, never by an allocation.
//!
//! The loader resolved their names when it loaded the agent, as far as the program or one of its
//! libraries exports them.

use crate::arch::glibc_function;
use crate::exemptions;
use core::ffi::{CStr, c_char, c_int};
use core::sync::atomic::{AtomicBool, Ordering};
use shm_protocol::layout::{STATED_OPTIONS, STATED_SUPPRESSIONS};

/// A hook that takes nothing.
type Hook<T> = unsafe extern "C" fn() -> T;

/// The program's function at an address; `None`: it has none.
///
/// # Safety
/// A function of this type, or 0.
unsafe fn function<T>(address: usize) -> Option<Hook<T>> {
    // SAFETY: the caller gives the address of such a function, or 0, which is `None`.
    unsafe { core::mem::transmute::<usize, Option<Hook<T>>>(address) }
}

/// Whether the program wants no leaks looked for (`__lsan_is_turned_off`).
pub fn is_turned_off() -> bool {
    let address = glibc_function!("__lsan_is_turned_off");
    // SAFETY: the name is that of a function of this type, by LeakSanitizer's header.
    let hook = unsafe { function::<c_int>(address) };
    // SAFETY: the program's own, called as LeakSanitizer does.
    hook.is_some_and(|hook| unsafe { hook() } != 0)
}

/// Asks the program which leaks are known and which options it has, once, and lists the texts for
/// the controller that makes the check.
pub fn tell() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if TOLD.swap(true, Ordering::Relaxed) {
        return;
    }
    for (address, kind) in [
        (
            glibc_function!("__lsan_default_suppressions"),
            STATED_SUPPRESSIONS,
        ),
        (glibc_function!("__lsan_default_options"), STATED_OPTIONS),
    ] {
        // SAFETY: both names are those of functions of this type, by LeakSanitizer's header.
        let Some(hook) = (unsafe { function::<*const c_char>(address) }) else {
            continue;
        };
        // SAFETY: the program's own, called as LeakSanitizer does.
        let text = unsafe { hook() };
        if !text.is_null() {
            // SAFETY: a terminated text, by the header.
            let bytes = unsafe { CStr::from_ptr(text) }.count_bytes();
            // Without room it is not known.
            let _ = exemptions::add_text(kind, text.addr() as u64, bytes as u64);
        }
    }
}
