//! The C calls whose turn it may be, each with its caller's registers, and what
//! becomes of sampled objects that are resized.

use super::{MAX_BYTES, Request, busily, count, count_free, free, sampled};
use crate::arch::Local;
use crate::backend::NEXT;
use crate::object::{Object, offset_for};
use crate::{range, session};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use shm_protocol::{NewSample, clock};
use unwind::Registers;

/// Bytes of a sampled object that its owner may use.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn usable_size(p: *const c_void) -> usize {
    let at: *const u8 = p.cast();
    // SAFETY: the caller's.
    unsafe {
        let offset = Object::read(at).offset;
        range::usable(at.sub(offset)) - offset
    }
}

/// Resizes a sampled object: its old self is counted as freed, its new self is sampled
/// like any allocation, and if it is not it leaves the range.
///
/// # Safety
/// `p` is a live object in the range.
unsafe fn resize(
    p: *mut c_void,
    request: Request,
    due: bool,
    registers: &Registers,
) -> *mut c_void {
    let at: *mut u8 = p.cast();
    // SAFETY: the caller's.
    unsafe {
        if request.bytes == 0 {
            // As the allocator underneath does with its own.
            free(p);
            return null_mut();
        }
        let object = Object::read(at);
        if due && request.bytes < MAX_BYTES {
            let stayed = busily(|local| stay(local, at, &object, request, registers));
            if !stayed.is_null() {
                return stayed.cast();
            }
        }
        let room = usable_size(p);
        let mut new = if due {
            sampled(request, registers)
        } else {
            null_mut()
        };
        if new.is_null() {
            new = ordinary(request).cast();
        }
        if !new.is_null() {
            core::ptr::copy_nonoverlapping(at, new, room.min(request.bytes));
            free(p);
        }
        new.cast()
    }
}

/// Resizes in place and counts, where the turn is due and the memory has room.
fn stay(
    local: &mut Local,
    at: *mut u8,
    object: &Object,
    request: Request,
    registers: &Registers,
) -> *mut u8 {
    let number = session::control()
        .epoch
        .load(core::sync::atomic::Ordering::Relaxed);
    let same_place = object.offset == offset_for(request.bytes, request.align);
    if local.epoch != number || number == 0 || local.thread.is_null() || !same_place {
        return null_mut();
    }
    // SAFETY: enrolled: it has entered an epoch.
    if !session::is_current(unsafe { (*local.thread).epoch() }) {
        return null_mut();
    }
    // SAFETY: a live object of the range.
    if !unsafe { range::resize(at.sub(object.offset), request.bytes + object.offset) } {
        return null_mut();
    }
    // SAFETY: enrolled, as checked.
    let thread = unsafe { &mut *local.thread };
    // SAFETY: as above.
    let epoch = unsafe { thread.epoch() };
    count_free(local, object);
    local.left = thread.gaps.next(thread.interval);
    let born = clock::tick_of(clock::now_ns());
    let weight = thread.weights.of(request.bytes as u64, thread.interval);
    let tick = born.wrapping_sub(epoch.start_tick);
    let bytes = request.bytes as u64;
    let record = count(
        thread,
        epoch,
        registers,
        &NewSample {
            bytes,
            weight,
            tick,
        },
    );
    let session = epoch.session as u8;
    // SAFETY: the header's place did not move.
    unsafe {
        Object {
            record,
            session,
            weight,
            born,
            bytes,
            offset: object.offset,
        }
        .write(at)
    };
    at
}

/// An unsampled object.
unsafe fn ordinary(request: Request) -> *mut c_void {
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

/// `malloc(size)` whose turn it may be.
pub unsafe extern "C" fn malloc(
    size: usize,
    _: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = sampled(Request::plain(size), registers);
        if object.is_null() {
            NEXT.malloc(size)
        } else {
            object.cast()
        }
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
        let object = sampled(
            Request {
                bytes,
                align: 16,
                zero: true,
            },
            registers,
        );
        if object.is_null() {
            NEXT.calloc(n, size)
        } else {
            object.cast()
        }
    }
}

/// An aligned object whose turn it may be; null also for an alignment that is none, which
/// the allocator is to refuse.
unsafe fn aligned(align: usize, bytes: usize, zero: bool, registers: &Registers) -> *mut c_void {
    if !align.is_power_of_two() {
        return null_mut();
    }
    // SAFETY: a power of two.
    unsafe {
        sampled(
            Request {
                bytes,
                align: align.max(16),
                zero,
            },
            registers,
        )
        .cast()
    }
}

/// `memalign(align, size)` whose turn it may be.
pub unsafe extern "C" fn memalign(
    align: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = aligned(align, size, false, registers);
        if object.is_null() {
            NEXT.memalign(align, size)
        } else {
            object
        }
    }
}

/// `operator new(size, align)` whose turn it may be.
pub unsafe extern "C" fn new_aligned(
    size: usize,
    align: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe { memalign(align, size, 0, registers) }
}

/// `aligned_alloc(align, size)` whose turn it may be.
pub unsafe extern "C" fn aligned_alloc(
    align: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = aligned(align, size, false, registers);
        if object.is_null() {
            NEXT.aligned_alloc(align, size)
        } else {
            object
        }
    }
}

/// `posix_memalign(out, align, size)` whose turn it may be.
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
            aligned(align, size, false, registers)
        } else {
            null_mut()
        };
        if object.is_null() {
            return NEXT.posix_memalign(out, align, size);
        }
        *out = object;
        0
    }
}

/// Flags of mallocx that name an arena or a thread cache: the program's own placement,
/// kept.
const PLACED: usize = !0xff;

/// A sampled object for flags that name alignment and zeroing only, or null.
unsafe fn mallocx_sampled(size: usize, flags: usize, registers: &Registers) -> *mut c_void {
    const ZERO: usize = 0x40;
    if flags as c_int as usize & PLACED != 0 {
        return null_mut();
    }
    // SAFETY: plain allocation calls.
    unsafe { aligned(1 << (flags & 0x3f), size, flags & ZERO != 0, registers) }
}

/// `mallocx(size, flags)` whose turn it may be.
pub unsafe extern "C" fn mallocx(
    size: usize,
    flags: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: plain allocation calls.
    unsafe {
        let object = mallocx_sampled(size, flags, registers);
        if object.is_null() {
            NEXT.mallocx(size, flags as c_int)
        } else {
            object
        }
    }
}

/// `rallocx(p, size, flags)` whose turn it may be, or of a sampled object.
pub unsafe extern "C" fn rallocx(
    p: usize,
    size: usize,
    flags: usize,
    registers: &Registers,
) -> *mut c_void {
    let (p, inside) = (p as *mut c_void, range::contains(p as *const c_void));
    // SAFETY: the caller of `rallocx` owns `p`; what is copied is within both objects.
    unsafe {
        let mut new = mallocx_sampled(size, flags, registers);
        if new.is_null() && !inside {
            return NEXT.rallocx(p, size, flags as c_int);
        }
        if new.is_null() {
            new = NEXT.mallocx(size, flags as c_int);
        }
        if !new.is_null() {
            let room = if inside {
                usable_size(p)
            } else {
                NEXT.usable_size(p)
            };
            core::ptr::copy_nonoverlapping(p.cast::<u8>(), new.cast(), room.min(size));
            if inside { free(p) } else { NEXT.free(p) }
        }
        new
    }
}

/// `realloc` of an ordinary object (or null) to a size whose turn it may be.
pub unsafe extern "C" fn realloc(
    p: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `realloc` owns `p`; what is copied is within both objects.
    unsafe {
        let ends = size == 0 && !p.is_null();
        let new = if ends {
            null_mut()
        } else {
            sampled(Request::plain(size), registers)
        };
        if new.is_null() {
            return NEXT.realloc(p, size);
        }
        if !p.is_null() {
            let room = NEXT.usable_size(p);
            core::ptr::copy_nonoverlapping(p.cast::<u8>(), new, room.min(size));
            NEXT.free(p);
        }
        new.cast()
    }
}

/// `realloc` of a sampled object; `due`: the new size's turn may have come.
pub unsafe extern "C" fn realloc_sampled(
    p: usize,
    size: usize,
    due: usize,
    registers: &Registers,
) -> *mut c_void {
    // SAFETY: the caller of `realloc` owns `p`, which is in the range.
    unsafe { resize(p as *mut c_void, Request::plain(size), due != 0, registers) }
}
