//! `_exit` and `_Exit`, which most forked children call to exit.
//!
//! Such exits run no destructors, and the parent may reap the child before a controller has read
//! its CPU clock. A server that forks for each request would fill the directory with unused
//! segments.
//!
//! The code of such an exit lies with the fork handlers, so a forked child that exits immediately
//! takes no page fault for it.

use crate::{cpu_totals, session, sys};
use core::ffi::{c_int, c_void};
use core::mem::transmute;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

type Exit = unsafe extern "C" fn(c_int) -> !;

/// Next definition of `_exit` (`RTLD_NEXT`): a sanitizer's or the C library's; null before
/// start-up.
static REAL: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

/// Looks up the function, at start-up.
pub fn find_next() {
    REAL.store(sys::next_symbol(c"_exit"), Ordering::Relaxed);
}

/// _exit(2).
#[unsafe(no_mangle)]
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    cpu_totals::record_clock();
    session::remove_if_unused();
    // SAFETY: null, or the next definition of `_exit`, which has this type.
    let real = unsafe { transmute::<*mut c_void, Option<Exit>>(REAL.load(Ordering::Relaxed)) };
    if let Some(real) = real {
        // SAFETY: the caller ends the process.
        unsafe { real(code) }
    }
    sys::end(code)
}

/// C11 7.22.4.5.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    // SAFETY: the caller ends the process.
    unsafe { _exit(code) }
}
