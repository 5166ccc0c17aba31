//! The C calls on the slow path, each with its caller's registers.

use super::{Request, sampled, untracked};
use crate::backend::NEXT;
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use unwind::Registers;

/// An unsampled object.
pub(super) unsafe fn ordinary(request: Request) -> *mut c_void {
    // SAFETY: plain allocation calls.
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

/// A sampled object; where it is none, what the allocator gives.
unsafe fn or_else<T>(
    object: *mut T,
    registers: &Registers,
    ordinary: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    if !object.is_null() {
        return object.cast();
    }
    let object = ordinary();
    // SAFETY: the caller's registers.
    unsafe { untracked::settle(registers, !object.is_null()) };
    object
}

/// `malloc(size)` on the slow path.
pub unsafe extern "C" fn malloc(
    size: usize,
    _: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = sampled(Request::plain(size), registers);
        or_else(object, registers, || NEXT.malloc(size))
    }
}

/// `calloc`, given the product as well, which did not overflow.
pub unsafe extern "C" fn calloc(
    n: usize,
    size: usize,
    bytes: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = sampled(Request::plain(bytes).zeroed(), registers);
        or_else(object, registers, || NEXT.calloc(n, size))
    }
}

/// An aligned object on the slow path; null also for an alignment that is none, which
/// the allocator is to refuse.
unsafe fn aligned(align: usize, bytes: usize, registers: &Registers) -> *mut c_void {
    if !align.is_power_of_two() {
        return null_mut();
    }
    // SAFETY: a power of two.
    unsafe { sampled(Request::aligned(bytes, align), registers).cast() }
}

/// `memalign(align, size)` on the slow path.
pub unsafe extern "C" fn memalign(
    align: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = aligned(align, size, registers);
        or_else(object, registers, || NEXT.memalign(align, size))
    }
}

/// `operator new(size, align)` on the slow path.
pub unsafe extern "C" fn new_aligned(
    size: usize,
    align: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe { memalign(align, size, 0, registers) }
}

/// `aligned_alloc(align, size)` on the slow path.
pub unsafe extern "C" fn aligned_alloc(
    align: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = aligned(align, size, registers);
        or_else(object, registers, || NEXT.aligned_alloc(align, size))
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
        let valid = align.is_multiple_of(size_of::<usize>());
        let object = if valid {
            aligned(align, size, registers)
        } else {
            null_mut()
        };
        if object.is_null() {
            let failure = NEXT.posix_memalign(out, align, size);
            untracked::settle(registers, failure == 0);
            return failure;
        }
        *out = object;
        0
    }
}

/// Flags of mallocx that name an arena or a thread cache: the program's own placement,
/// kept.
const PLACED: usize = !0xff;

/// The request that flags make which name alignment and zeroing only.
pub(super) fn request(size: usize, flags: usize) -> Option<Request> {
    const ZERO: usize = 0x40;
    (flags as c_int as usize & PLACED == 0).then_some(Request {
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
    // SAFETY: plain allocation calls.
    unsafe {
        let object = match request(size, flags) {
            Some(request) => sampled(request, registers),
            None => null_mut(),
        };
        or_else(object, registers, || NEXT.mallocx(size, flags as c_int))
    }
}
