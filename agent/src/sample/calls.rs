//! Slow paths of the C allocation functions. Each is passed the registers of the function's caller,
//! from which the stack is unwound.

use super::{Request, sample_if_possible, untracked};
use crate::backend::NEXT;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use unwind::Registers;

/// Allocates an object that is not sampled.
///
/// # Safety
/// `request` is valid: its alignment is a power of two.
pub(super) unsafe fn allocate_ordinary(request: Request) -> *mut c_void {
    // SAFETY: the allocator accepts any size, and the alignment is a power of two.
    unsafe {
        match request {
            Request {
                bytes, zero: true, ..
            } => NEXT.calloc(1, bytes),
            Request { bytes, align, .. } if align > 16 => NEXT.memalign(align, bytes),
            Request { bytes, .. } => NEXT.malloc(bytes),
        }
    }
}

/// Returns `object`, a sampled object. If it is null, allocates by `ordinary` instead.
///
/// # Safety
/// `registers` belong to the caller of the allocation function.
unsafe fn or_allocate<T>(
    object: *mut T,
    registers: &Registers,
    ordinary: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if !object.is_null() {
        return object.cast();
    }
    let object = ordinary();
    // SAFETY: `registers` belong to the allocation function's caller.
    unsafe { untracked::count_if_postponed(registers, !object.is_null()) };
    object
}

/// `malloc(size)` on the slow path.
pub unsafe extern "C" fn malloc(
    size: usize,
    _: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: `registers` belong to the allocation function's caller, and the allocator accepts
    // any size.
    unsafe {
        let object = sample_if_possible(Request::plain(size), registers);
        or_allocate(object, registers, || NEXT.malloc(size))
    }
}

/// `calloc(n, size)` on the slow path. `bytes` is their product, which did not overflow.
///
/// # Safety
/// `registers` belong to the caller of the allocation function.
pub unsafe extern "C" fn calloc(
    n: usize,
    size: usize,
    bytes: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: `registers` belong to the allocation function's caller, and the allocator accepts
    // any size.
    unsafe {
        let object = sample_if_possible(Request::plain(bytes).zeroed(), registers);
        or_allocate(object, registers, || NEXT.calloc(n, size))
    }
}

/// Returns a sampled object on the slow path. Returns null if no sample is due, or if the alignment
/// is invalid: the allocator then refuses it.
///
/// # Safety
/// `registers` belong to the caller of the allocation function.
unsafe fn sample_aligned(align: usize, bytes: usize, registers: &Registers) -> *mut c_void {
    if !align.is_power_of_two() {
        return null_mut();
    }
    // SAFETY: `registers` belong to the allocation function's caller.
    unsafe { sample_if_possible(Request::aligned(bytes, align), registers).cast() }
}

/// `memalign(align, size)` on the slow path.
pub unsafe extern "C" fn memalign(
    align: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: `registers` belong to the allocation function's caller, and the allocator checks
    // the alignment.
    unsafe {
        let object = sample_aligned(align, size, registers);
        or_allocate(object, registers, || NEXT.memalign(align, size))
    }
}

/// `operator new(size, align)` on the slow path.
pub unsafe extern "C" fn new_aligned(
    size: usize,
    align: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: `registers` belong to the allocation function's caller.
    unsafe { memalign(align, size, 0, registers) }
}

/// `aligned_alloc(align, size)` on the slow path.
pub unsafe extern "C" fn aligned_alloc(
    align: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: `registers` belong to the allocation function's caller, and the allocator checks
    // the alignment.
    unsafe {
        let object = sample_aligned(align, size, registers);
        or_allocate(object, registers, || NEXT.aligned_alloc(align, size))
    }
}

/// `posix_memalign(out, align, size)` on the slow path.
pub unsafe extern "C" fn posix_memalign(
    out: usize,
    align: usize,
    size: usize,
    registers: &Registers,
) -> c_int {
    let out = out as *mut *mut c_void;
    // SAFETY: the caller of `posix_memalign` owns `out`.
    unsafe {
        let is_valid = align.is_multiple_of(size_of::<usize>());
        let object = if is_valid {
            sample_aligned(align, size, registers)
        } else {
            null_mut()
        };
        if object.is_null() {
            let failure = NEXT.posix_memalign(out, align, size);
            untracked::count_if_postponed(registers, failure == 0);
            return failure;
        }
        *out = object;
        0
    }
}

/// Bits of `mallocx` flags that name an arena or a thread cache. An object whose place the program
/// chooses is not sampled.
const PLACEMENT_FLAGS: usize = !0xff;

/// Returns the request that `mallocx` flags describe, or `None` if they specify more than alignment
/// and zeroing.
pub(super) fn request_of_flags(size: usize, flags: usize) -> Option<Request> {
    const ZERO: usize = 0x40;
    (flags as c_int as usize & PLACEMENT_FLAGS == 0).then_some(Request {
        bytes: size,
        align: 1 << (flags & 0x3f),
        zero: flags & ZERO != 0,
        exact: true,
    })
}

/// `mallocx(size, flags)` on the slow path.
pub unsafe extern "C" fn mallocx(
    size: usize,
    flags: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: `registers` belong to the allocation function's caller, and the program passes
    // valid flags.
    unsafe {
        let object = match request_of_flags(size, flags) {
            Some(request) => sample_if_possible(request, registers),
            None => null_mut(),
        };
        or_allocate(object, registers, || NEXT.mallocx(size, flags as c_int))
    }
}
