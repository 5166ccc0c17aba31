//! C++'s `operator new` and `operator delete`, in all their forms (C++20 17.6.3).
//!
//! libstdc++'s own call `malloc` and would do; but an allocator library that the program
//! is linked with (tcmalloc, a shared jemalloc) brings its own, and with them another heap.
//! Where there is no memory, the next library's operator is asked in our place: it calls
//! the new-handler and throws. It is reached by jumps, so an exception meets no frame of
//! ours. Ours also spare each stack a frame.

use super::{free_inline, passes};
use crate::arch::{jump_through, with_registers_or_fail};
use crate::backend::NEXT;
use crate::sample;
use core::arch::naked_asm;
use core::ffi::{CStr, c_void};
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};

/// The next library's throwing operators; null where there is no C++ library.
static NEXT_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());
static NEXT_ALIGNED_NEW: AtomicPtr<c_void> = AtomicPtr::new(null_mut());

jump_through!(new_failed, NEXT_NEW);
jump_through!(aligned_new_failed, NEXT_ALIGNED_NEW);
with_registers_or_fail!(sampled_new, sample::malloc, new_failed);
with_registers_or_fail!(sampled_aligned_new, sample::new_aligned, aligned_new_failed);

/// Finds the operators that fail for us. At start-up: later the loader may not be called.
pub fn find_next() {
    let find = |name: &CStr| {
        // SAFETY: a plain lookup by a terminated name.
        unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) }
    };
    NEXT_NEW.store(find(c"_Znwm"), Ordering::Relaxed);
    NEXT_ALIGNED_NEW.store(find(c"_ZnwmSt11align_val_t"), Ordering::Relaxed);
}

#[inline(always)]
unsafe fn throwing(size: usize) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        if !passes(size) {
            return sampled_new(size, 0, 0);
        }
        let p = NEXT.malloc(size);
        if p.is_null() { new_failed(size, 0) } else { p }
    }
}

#[inline(always)]
unsafe fn throwing_aligned(size: usize, align: usize) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        if !passes(size) {
            return sampled_aligned_new(size, align, 0);
        }
        let p = NEXT.memalign(align, size);
        if p.is_null() {
            aligned_new_failed(size, align)
        } else {
            p
        }
    }
}

#[inline(always)]
unsafe fn delete(p: *mut c_void) {
    // SAFETY: the contract of operator delete, passed on.
    unsafe { free_inline(p) }
}

/// `operator new(size_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Znwm(size: usize) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { throwing(size) }
}

/// `operator new(size_t, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZnwmRKSt9nothrow_t(size: usize, _: *const c_void) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { super::malloc_inline(size) }
}

/// `operator new(size_t, align_val_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZnwmSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { throwing_aligned(size, align) }
}

/// `operator new(size_t, align_val_t, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZnwmSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    _: *const c_void,
) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { super::memalign_inline(align, size) }
}

/// `operator new[](size_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Znam(size: usize) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { throwing(size) }
}

/// `operator new[](size_t, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZnamRKSt9nothrow_t(size: usize, _: *const c_void) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { super::malloc_inline(size) }
}

/// `operator new[](size_t, align_val_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZnamSt11align_val_t(size: usize, align: usize) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { throwing_aligned(size, align) }
}

/// `operator new[](size_t, align_val_t, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZnamSt11align_val_tRKSt9nothrow_t(
    size: usize,
    align: usize,
    _: *const c_void,
) -> *mut c_void {
    // SAFETY: the operator's contract, passed on.
    unsafe { super::memalign_inline(align, size) }
}

/// `operator delete(void*)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdlPv(p: *mut c_void) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete(void*, size_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdlPvm(p: *mut c_void, _: usize) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete(void*, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdlPvRKSt9nothrow_t(p: *mut c_void, _: *const c_void) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete(void*, align_val_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdlPvSt11align_val_t(p: *mut c_void, _: usize) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete(void*, size_t, align_val_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdlPvmSt11align_val_t(p: *mut c_void, _: usize, _: usize) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete(void*, align_val_t, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdlPvSt11align_val_tRKSt9nothrow_t(
    p: *mut c_void,
    _: usize,
    _: *const c_void,
) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete[](void*)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdaPv(p: *mut c_void) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete[](void*, size_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdaPvm(p: *mut c_void, _: usize) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete[](void*, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdaPvRKSt9nothrow_t(p: *mut c_void, _: *const c_void) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete[](void*, align_val_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdaPvSt11align_val_t(p: *mut c_void, _: usize) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete[](void*, size_t, align_val_t)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdaPvmSt11align_val_t(p: *mut c_void, _: usize, _: usize) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}

/// `operator delete[](void*, align_val_t, nothrow_t const&)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _ZdaPvSt11align_val_tRKSt9nothrow_t(
    p: *mut c_void,
    _: usize,
    _: *const c_void,
) {
    // SAFETY: the operator's contract, passed on.
    unsafe { delete(p) }
}
