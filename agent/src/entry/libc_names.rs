//! The C library's own names of its allocator: some programs allocate with these and free with
//! `free`, or the other way round.
//!
//! If the program keeps its allocator, they lead to the next library's functions of the same name,
//! unsampled: a library that replaces `malloc` may call these for its memory. Behind the executable's
//! own `malloc` they are sampled, for that often calls these and adds nothing but a count.

use super::*;
use crate::backend;
use core::sync::atomic::Ordering;

/// Whether calls are passed on unsampled.
fn is_unsampled() -> bool {
    let [malloc, own] = [&NEXT.malloc, &NEXT.libc_malloc].map(|slot| slot.load(Ordering::Relaxed));
    backend::is_system() && !(backend::is_behind_others() && malloc == own)
}

/// `malloc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
    // SAFETY: takes any size, and gives what `free` under both names knows.
    unsafe {
        if is_unsampled() {
            NEXT.libc_malloc(size)
        } else {
            malloc_inline(size)
        }
    }
}

/// `free`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_free(p: *mut c_void) {
    // SAFETY: `p` is null or an object that the caller gives up. Sampled ones may come from
    // `malloc`, whatever the allocator is, so the range is asked first.
    unsafe {
        if is_unsampled() && !range::contains(p) {
            NEXT.libc_free(p)
        } else {
            free_inline(p)
        }
    }
}

/// `calloc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_calloc(n: usize, size: usize) -> *mut c_void {
    // SAFETY: takes any two numbers.
    unsafe {
        if is_unsampled() {
            NEXT.libc_calloc(n, size)
        } else {
            calloc_inline(n, size)
        }
    }
}

/// `realloc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_realloc(p: *mut c_void, size: usize) -> *mut c_void {
    // SAFETY: `p` is null or an object of the caller's; a sampled one is recognised by the range,
    // as in `__libc_free`.
    unsafe {
        if is_unsampled() && !range::contains(p) {
            NEXT.libc_realloc(p, size)
        } else {
            realloc_inline(p, size)
        }
    }
}

/// `memalign`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_memalign(align: usize, size: usize) -> *mut c_void {
    // SAFETY: takes any size and alignment.
    unsafe {
        if is_unsampled() {
            NEXT.libc_memalign(align, size)
        } else {
            memalign_inline(align, size)
        }
    }
}

/// `valloc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_valloc(size: usize) -> *mut c_void {
    // SAFETY: a page's size is a power of two.
    unsafe { __libc_memalign(page_size(), size) }
}

/// `pvalloc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_pvalloc(size: usize) -> *mut c_void {
    let page = page_size();
    let Some(bytes) = size.max(1).checked_next_multiple_of(page) else {
        crate::sys::set_errno(libc::ENOMEM);
        return null_mut();
    };
    // SAFETY: a page's size is a power of two, and the size is whole pages.
    unsafe { __libc_memalign(page, bytes) }
}
