//! `malloc_trim`, with which programs return free memory to the system.

use crate::arch::on_aligned_stack;
use crate::backend::{is_inactive, is_system};
use crate::{range, sample, stats, sys};
use core::ffi::{c_int, c_void};

type Trim = unsafe extern "C" fn(usize) -> c_int;

on_aligned_stack! {
    /// glibc: malloc.h. Releases the free memory of all arenas and of the calling thread's cache.
    /// Returns 1 if there was any. `pad` is not used: jemalloc has no top of the heap.
    #[unsafe(no_mangle)]
    pub fn malloc_trim(pad: usize) -> c_int, trim
}

unsafe extern "C" fn trim(pad: usize) -> c_int {
    let others = if is_system() || is_inactive() {
        trim_next(pad)
    } else {
        0
    };
    if (is_system() && range::reserved() == 0) || is_inactive() {
        return others;
    }
    let saved = sys::errno();
    let trimmed = sample::without_sampling(stats::purge);
    sys::set_errno(saved);
    others | c_int::from(trimmed)
}

/// Calls `malloc_trim` of the program's own allocator.
fn trim_next(pad: usize) -> c_int {
    let found: *mut c_void = sys::next_symbol(c"malloc_trim");
    if found.is_null() {
        return 0;
    }
    // SAFETY: the C library's function of this type, by malloc.h.
    unsafe { core::mem::transmute::<*mut c_void, Trim>(found)(pad) }
}
