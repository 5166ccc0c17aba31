//! `malloc_trim`: programs call it to give memory back to the system.

use crate::backend::{is_system, stands_aside};
use crate::{range, sample, stats, sys};
use core::ffi::{c_int, c_void};

type Trim = unsafe extern "C" fn(usize) -> c_int;

/// glibc: malloc.h. Gives back what is free in all arenas, and in the calling thread's cache. Whether
/// there was anything. There is no top of the heap to keep `pad` bytes at.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(pad: usize) -> c_int {
    let others = match is_system() || stands_aside() {
        true => trim_next(pad),
        false => 0,
    };
    if is_system() && range::reserved() == 0 || stands_aside() {
        return others;
    }
    let saved = sys::errno();
    let trimmed = sample::without(stats::purge);
    sys::set_errno(saved);
    others | c_int::from(trimmed)
}

/// The same for the program's own allocator.
fn trim_next(pad: usize) -> c_int {
    let found: *mut c_void = sys::next_symbol(c"malloc_trim");
    if found.is_null() {
        return 0;
    }
    // SAFETY: the C library's function of this type, by malloc.h.
    unsafe { core::mem::transmute::<*mut c_void, Trim>(found)(pad) }
}
