//! glibc's internal names of its allocator (`__libc_malloc` and so on). Some programs allocate with
//! these and free with `free`, or the other way round.
//!
//! If the program keeps its allocator, calls are passed on unsampled to the next definitions of
//! these names: a library that replaces `malloc` may call them for its own memory. If the
//! executable defines `malloc`, they are sampled, because that `malloc` often just calls them.

use super::*;
use crate::backend;
use core::sync::atomic::Ordering;

/// Returns true if calls are passed on unsampled.
fn is_unsampled() -> bool {
    let [malloc, own] = [&NEXT.malloc, &NEXT.libc_malloc].map(|slot| slot.load(Ordering::Relaxed));
    backend::is_system() && !(backend::is_interposed() && malloc == own)
}

/// `malloc`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __libc_malloc(size: usize) -> *mut c_void {
    // SAFETY: takes any size; `free` accepts the object under both names.
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
    // SAFETY: `p` is null or an object that the caller frees. Sampled objects may come from
    // `malloc`, whatever the allocator is, so the range is checked first.
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
    // SAFETY: `p` is null or a live object of the caller. A sampled one is recognised by the range.
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
    // SAFETY: the size of a page is a power of two.
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
    // SAFETY: the size of a page is a power of two, and `bytes` is a multiple of it.
    unsafe { __libc_memalign(page, bytes) }
}
