//! Resizing of sampled and ordinary objects.
//!
//! A sampled object that is resized is counted as freed with its old size and allocated with its
//! new one. If both are certain to be sampled, as those of all large objects are, it stays a sample
//! where it is. In all other cases the new size is drawn like any allocation, as it is for an object
//! that is no sample: if those that are remained samples, there would be more of them with each resize.
//!
//! All usable bytes are copied, not only the requested ones: if jemalloc would have left an
//! object at its address, the program must not be able to notice that it moved.

use super::calls::{ordinary, request};
use super::*;
use crate::backend::NEXT;
use crate::backend::growth::move_bytes;
use crate::probes;
use crate::session::skips_sampling;

/// Usable size of a sampled object.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn usable_size(p: *const c_void) -> usize {
    // SAFETY: the caller's.
    match unsafe { Object::read(p.cast()) } {
        Met::Live(object) => object.layout().usable,
        // SAFETY: the caller's.
        met => unsafe { overwritten::usable_size(p.cast(), met) },
    }
}

/// Why an object of the new size is a sample.
#[derive(Clone, Copy, PartialEq)]
enum Why {
    /// Any of its old size was, and any of its new one would be.
    Certain,
    /// A sample is due.
    Drawn,
}

/// The weight of an object that is certain to be sampled.
const CERTAIN: f32 = 1.0;

/// Resizes a sampled object for `request`; if its new size is not sampled, it moves out of the
/// range to memory that `elsewhere` allocates. Null if there is no memory.
///
/// # Safety
/// `p` is a live object in the range.
unsafe fn resize(
    p: *mut c_void,
    request: Request,
    registers: &Registers,
    elsewhere: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let at: *mut u8 = p.cast();
    // SAFETY: the caller's; what is copied is within both objects.
    unsafe {
        let Met::Live(object) = Object::read(at) else {
            let new = leave(p, elsewhere());
            untracked::settle(registers, !new.is_null());
            return new;
        };
        let bytes = request.bytes;
        let stays = |why| guarded(|local| stay(local, at, &object, request, why, registers));
        let has_room = !is_cramped(registers);
        if has_room && !stays(Why::Certain).is_null() {
            return p;
        }
        let mut new: *mut c_void = null_mut();
        if bytes < MAX_BYTES && !skips_sampling(bytes) && has_room {
            if !stays(Why::Drawn).is_null() {
                return p;
            }
            new = sampled_for(request, Some(&object), registers).cast();
        }
        if new.is_null() {
            let new = leave(p, elsewhere());
            untracked::settle(registers, !new.is_null());
            return new;
        }
        let room = request.layout().usable;
        move_bytes(at, new.cast(), object.layout().usable.min(room));
        free_after(p, &object, |_, _| ());
        new
    }
}

/// Moves a sampled object to an ordinary one, unless that is null.
unsafe fn leave(p: *mut c_void, new: *mut c_void) -> *mut c_void {
    if !new.is_null() {
        // SAFETY: the caller's live object of the range, and a new one; what is copied is
        // within both.
        unsafe {
            let room = NEXT.usable_size(new);
            move_bytes(p.cast(), new.cast(), usable_size(p).min(room));
            free(p);
        }
    }
    new
}

/// Moves an ordinary object to a sampled one.
unsafe fn arrive(p: *mut c_void, new: *mut u8) -> *mut c_void {
    let new: *mut c_void = new.cast();
    // SAFETY: as above, the other way round.
    unsafe {
        let room = NEXT.usable_size(p);
        move_bytes(p.cast(), new.cast(), usable_size(new).min(room));
        NEXT.free(p);
    }
    new
}

/// Resizes in place and counts it, if the object's session is still current and the
/// memory has room.
fn stay(
    local: &mut Local,
    at: *mut u8,
    object: &Object,
    request: Request,
    why: Why,
    registers: &Registers,
) -> *mut u8 {
    let number = session::control().epoch(Ordering::Relaxed);
    let (old, new) = (object.layout(), request.layout());
    let Request {
        bytes,
        align,
        zero,
        exact,
    } = request;
    let fits_address = old.offset == new.offset && (at as usize).is_multiple_of(align);
    // SAFETY: null or the thread's own memory.
    let thread = unsafe { thread::of(local).as_mut() };
    let now = clock::now_ns();
    let own = thread.and_then(|thread| of_own_session(thread, object, now));
    let Some((thread, epoch)) = own else {
        return null_mut();
    };
    if number == 0 || local.epoch != number || !fits_address || !session::is_current(epoch) {
        return null_mut();
    }
    let mut reborn = Object {
        bytes: bytes as u64,
        align,
        born: clock::tick_of(now),
        exact,
        ..*object
    };
    let drawn = thread.weights.of(bytes as u64, thread.interval);
    if why == Why::Certain && (drawn, object.weight) != (CERTAIN, CERTAIN) {
        return null_mut();
    }
    // SAFETY: a live object of the range.
    if !unsafe { has_room(at.sub(old.offset), old, new) } {
        return null_mut();
    }
    if why == Why::Drawn {
        local.left = thread.gaps.next(thread.interval);
        reborn.weight = drawn;
    }
    // The old size first: the heap is not higher in between.
    count_free(local, object);
    // SAFETY: the thread's own memory, as above.
    let thread = unsafe { &mut *thread::of(local) };
    reborn.record = count(thread, epoch, registers, &reborn.sample(epoch.start_tick));
    // SAFETY: the header did not move, and the memory behind is there.
    unsafe {
        if zero && new.usable > old.usable {
            clear(at.add(old.usable), new.usable - old.usable);
        }
        reborn.write(new.offset, at);
    }
    announce(at, &reborn);
    at
}

/// Tells tracers of an object that was resized in place.
#[cold]
#[inline(never)]
fn announce(at: *mut u8, reborn: &Object) {
    probes::free(at.cast());
    probes::alloc(at, reborn.bytes, reborn.weighted_bytes());
}

/// Whether an object can have another layout at its address without leaving half of its
/// memory unused. Large allocations are resized; small ones keep their size.
///
/// # Safety
/// The object of layout `old` lies in the allocation at `base`.
unsafe fn has_room(base: *mut u8, old: Layout, new: Layout) -> bool {
    let larger = old.usable.max(new.usable);
    if larger < LEAST_LARGE {
        // Not what the object has by now: shrunk again and again, it would keep what it began with.
        // SAFETY: the caller's.
        let room = unsafe { range::room(base) }.saturating_sub(old.offset);
        return new.usable <= old.usable && room / 2 <= new.usable;
    }
    // SAFETY: the caller's.
    new == old || unsafe { range::resize(base, new.offset + new.usable) }
}

/// `realloc` of an ordinary object (or null) to a size on the slow path.
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
            let new = NEXT.realloc(p, size);
            untracked::settle(registers, !new.is_null());
            return new;
        }
        if p.is_null() {
            new.cast()
        } else {
            arrive(p, new)
        }
    }
}

/// `realloc` of a sampled object.
pub unsafe extern "C" fn realloc_sampled(
    p: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `realloc` owns `p`, which is in the range.
    unsafe {
        if size == 0 {
            // As the underlying allocator does with its own objects.
            free(p);
            return null_mut();
        }
        let request = Request::plain(size);
        resize(p, request, registers, || ordinary(request))
    }
}

/// `rallocx(p, size, flags)` of an ordinary object to a size on the slow path.
pub unsafe extern "C" fn rallocx(
    p: usize,
    size: usize,
    flags: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `rallocx` owns `p`; what is copied is within both objects.
    unsafe {
        let new = match request(size, flags) {
            Some(request) => sampled(request, registers),
            None => null_mut(),
        };
        if new.is_null() {
            let new = NEXT.rallocx(p, size, flags as c_int);
            untracked::settle(registers, !new.is_null());
            return new;
        }
        arrive(p, new)
    }
}

/// `rallocx(p, size, flags)` of a sampled object.
pub unsafe extern "C" fn rallocx_sampled(
    p: usize,
    size: usize,
    flags: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `rallocx` owns `p`, which is in the range; what is copied is
    // within both objects.
    unsafe {
        let elsewhere = || NEXT.mallocx(size, flags as c_int);
        match request(size, flags) {
            Some(request) => resize(p, request, registers, elsewhere),
            None => leave(p, elsewhere()),
        }
    }
}

/// jemalloc's least large size class: below, objects are never resized in place.
const LEAST_LARGE: usize = 4 * crate::sys::PAGE;
/// jemalloc's largest size class.
const LARGEST: usize = 7 << 60;

/// `xallocx` of a sampled object: resizes it in place, to at least `size` and up to `extra` more
/// if possible, and returns its usable size. It keeps its address, session and weight.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn xallocx(p: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize {
    let at: *mut u8 = p.cast();
    // SAFETY: the caller's.
    let Met::Live(object) = (unsafe { Object::read(at) }) else {
        // SAFETY: the caller's.
        return unsafe { usable_size(p) };
    };
    let Layout {
        offset,
        usable: old,
    } = object.layout();
    if size > LARGEST {
        return old;
    }
    let most = size + extra.min(LARGEST - size);
    let class = |bytes| object::layout(bytes, 1, true).usable;
    let Request { align, zero, .. } = flag_parts(size, flags);
    if old < LEAST_LARGE || class(most) < LEAST_LARGE || !(at as usize).is_multiple_of(align) {
        return old;
    }
    let fits = |bytes: usize| {
        let reborn = resized(&object, bytes)?;
        let usable = reborn.layout().usable;
        // SAFETY: the caller's. An object that shrinks may keep its memory.
        let resized = unsafe { range::resize(at.sub(offset), offset + usable) };
        (resized || usable < old).then_some(reborn)
    };
    let reborn = if class(most) > old {
        let least = (class(size) > old).then_some(size);
        fits(most).or_else(|| fits(least?))
    } else if class(most) < old {
        fits(most)
    } else {
        None
    };
    let Some(reborn) = reborn else {
        return old;
    };
    let new = reborn.layout().usable;
    announce(at, &reborn);
    // SAFETY: the header did not move, and the memory behind it is there.
    unsafe {
        if zero && new > old {
            clear(at.add(old), new - old);
        }
        let counted = guarded(|local| {
            recount(local, &object, reborn).write(offset, at);
            at
        });
        if counted.is_null() {
            // A signal handler that interrupted the sampler: not counted.
            reborn.write(offset, at);
        }
    }
    new
}

/// The request that jemalloc's flags stand for.
fn flag_parts(size: usize, flags: c_int) -> Request {
    request(size, flags as usize & 0xff).unwrap_or(Request::plain(size))
}

/// The object with another size and its header's form; `None` where there is none.
fn resized(object: &Object, bytes: usize) -> Option<Object> {
    let offset = object.layout().offset;
    let keeps = |align: &usize| object::layout(bytes, *align, true).offset == offset;
    let align = [object.align, offset].into_iter().find(keeps)?;
    (bytes < MAX_BYTES).then_some(Object {
        bytes: bytes as u64,
        align,
        exact: true,
        ..*object
    })
}

/// Counts an object as freed and allocated again on the same stack with the same weight.
/// Returns the contents of its new header.
fn recount(local: &mut Local, old: &Object, reborn: Object) -> Object {
    count_free(local, old);
    let now = clock::now_ns();
    let reborn = Object {
        born: clock::tick_of(now),
        ..reborn
    };
    if !session::is_counting(old.session, now) {
        return reborn;
    }
    // SAFETY: null or the thread's own memory.
    let thread = unsafe { thread::of(local).as_mut() };
    if let Some((thread, epoch)) = thread.and_then(|thread| of_own_session(thread, old, now)) {
        let record = thread.own_record(old.record, epoch);
        let sample = reborn.sample(epoch.start_tick);
        epoch
            .bank
            .count_new(record, thread.shard, &sample, thread.is_exclusive());
        return Object { record, ..reborn };
    }
    let Some((bank, start)) = session::of_object(old.session, old.born, clock::tick_of(now)) else {
        return reborn;
    };
    let record = shared_record(&bank, old.record);
    bank.count_new(record, SHARED_SHARD, &reborn.sample(start), false);
    Object { record, ..reborn }
}
