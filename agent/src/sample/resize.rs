//! Resizing of sampled and ordinary objects.
//!
//! A resized sampled object is counted as freed with its old size and allocated with its new size.
//! Whether the new size is sampled must be drawn at random as for any other allocation: if every
//! resized sample remained a sample, there would be more of them after each resize. Only an object
//! that is certain to be sampled with both sizes (a large one) remains a sample without a draw.
//!
//! All usable bytes are copied, not only the requested ones: jemalloc might have left the object at
//! its address, so the program may rely on all of them.

use super::calls::{allocate_ordinary, request_of_flags};
use super::*;
use crate::backend::NEXT;
use crate::backend::growth::{free_moved, move_bytes, place_at_offset};
use crate::probes;
use crate::session::skips_sampling;

/// Returns the usable size of a sampled object.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn usable_size(p: *const c_void) -> usize {
    // SAFETY: `p` is a live object in the range.
    match unsafe { Object::read(p.cast()) } {
        HeaderState::Live(object) => object.layout().usable,
        // SAFETY: `p` is a live object in the range, with a damaged header.
        state => unsafe { overwritten::usable_size(p.cast(), state) },
    }
}

/// Reason why a resized object remains a sample.
#[derive(Clone, Copy, PartialEq)]
enum Reason {
    /// Objects of its old and its new size are always sampled.
    Certain,
    /// A sample is due.
    Drawn,
}

/// Weight of an object that is certain to be sampled.
const CERTAIN_WEIGHT: f32 = 1.0;

/// Resizes a sampled object. If the new size is not sampled, moves the object out of the range, to
/// memory that `elsewhere` allocates. Returns null if there is no memory.
///
/// # Safety
/// `p` is a live object in the range, and `registers` belong to the caller of the allocation
/// function.
unsafe fn resize(
    p: *mut c_void,
    request: Request,
    registers: &Registers,
    elsewhere: impl FnOnce() -> *mut c_void,
) -> *mut c_void {
    let at: *mut u8 = p.cast();
    // SAFETY: `p` is a live object. No more is copied than is usable in both objects.
    unsafe {
        let HeaderState::Live(object) = Object::read(at) else {
            let new = move_out(p, elsewhere(), request.align);
            untracked::count_if_postponed(registers, !new.is_null());
            return new;
        };
        let bytes = request.bytes;
        let in_place = |reason| {
            run_guarded(|local| resize_in_place(local, at, &object, request, reason, registers))
        };
        let may_walk = !has_little_stack(registers);
        if may_walk && !in_place(Reason::Certain).is_null() {
            return p;
        }
        let mut new: *mut c_void = null_mut();
        if bytes < MAX_BYTES && !skips_sampling(bytes) && may_walk {
            if !in_place(Reason::Drawn).is_null() {
                return p;
            }
            let replaced = Replaced {
                at: p,
                header: Some(&object),
            };
            new = sample_request(request, Some(&replaced), registers).cast();
        }
        if new.is_null() {
            let new = move_out(p, elsewhere(), request.align);
            untracked::count_if_postponed(registers, !new.is_null());
            return new;
        }
        let room = request.layout().usable;
        let moved = object.layout().usable.min(room);
        move_bytes(at, new.cast(), moved);
        free_moved_object(moved, || free_counted(p, &object, |_, _| None));
        new
    }
}

/// Calls `free` for an object of which `moved` bytes have been moved to another one.
fn free_moved_object(moved: usize, free: impl FnOnce()) {
    if moved < MIN_BYTES {
        free();
    } else {
        free_moved(free);
    }
}

/// Moves a sampled object to an ordinary one with this alignment. Does nothing if `new` is null.
/// Returns the address of the ordinary object.
///
/// # Safety
/// `p` is a live object in the range, and `new` is null or a new object outside it.
unsafe fn move_out(p: *mut c_void, new: *mut c_void, align: usize) -> *mut c_void {
    if new.is_null() {
        return new;
    }
    // SAFETY: both objects are live, and no more is copied than is usable in both. `p` is not used
    // after its free.
    unsafe {
        let moved = NEXT.usable_size(new).min(usable_size(p));
        let new = if moved >= MIN_BYTES && align <= MIN_ALIGN {
            place_at_offset(new, p.addr() % sys::PAGE)
        } else {
            new
        };
        move_bytes(p.cast(), new.cast(), moved);
        free_moved_object(moved, || free(p));
        new
    }
}

/// Moves an ordinary object to a sampled one.
///
/// # Safety
/// `p` is a live object outside the range, and `new` is a new object in it.
unsafe fn move_in(p: *mut c_void, new: *mut u8) -> *mut c_void {
    let new: *mut c_void = new.cast();
    // SAFETY: both objects are live, and no more is copied than is usable in both. `p` is not used
    // after its free.
    unsafe {
        let moved = NEXT.usable_size(p).min(usable_size(new));
        move_bytes(p.cast(), new.cast(), moved);
        free_moved_object(moved, || NEXT.free(p));
    }
    new
}

/// Resizes a sampled object in place and counts it. Returns null if the object's session is over,
/// or if its memory is too small.
fn resize_in_place(
    local: &mut Local,
    at: *mut u8,
    object: &Object,
    request: Request,
    reason: Reason,
    registers: &Registers,
) -> *mut u8 {
    let number = session::control().epoch(Ordering::Relaxed);
    let old = object.layout();
    let new = request.layout();
    let Request {
        bytes,
        align,
        zero,
        exact,
    } = request;
    let fits_address = old.offset == new.offset && (at as usize).is_multiple_of(align);
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let thread = unsafe { thread::state_of(local).as_mut() };
    let now = clock::now_ns();
    let own_session = thread.and_then(|thread| epoch_of_object(thread, object, now));
    let Some((thread, epoch)) = own_session else {
        return null_mut();
    };
    // The countdown may have reached the end of a trial rather than a sample: `sample_if_due` tells
    // them apart.
    if reason == Reason::Drawn && thread.trial.is_running() {
        return null_mut();
    }
    if number == 0 || local.epoch != number || !fits_address || !session::is_current(epoch) {
        return null_mut();
    }
    let mut updated = Object {
        bytes: bytes as u64,
        align,
        born: clock::tick_of(now),
        exact,
        ..*object
    };
    let drawn = thread.weights.get(bytes as u64, thread.interval);
    if reason == Reason::Certain && (drawn, object.weight) != (CERTAIN_WEIGHT, CERTAIN_WEIGHT) {
        return null_mut();
    }
    // SAFETY: the memory of a live object with this layout begins `old.offset` bytes before it.
    if !unsafe { make_room(at.sub(old.offset), old, new) } {
        return null_mut();
    }
    if reason == Reason::Drawn {
        local.left = thread.gaps.draw_gap(thread.interval);
        updated.weight = drawn;
    }
    // The old size is counted first, so that the live heap never includes both.
    let timer = count_free(local, object);
    stop_free_timer(local, timer);
    // SAFETY: the thread has memory, since `own_session` exists.
    let thread = unsafe { &mut *thread::state_of(local) };
    updated.record = count(thread, epoch, registers, &updated.sample(epoch.start_tick));
    // SAFETY: the header stays where it was, and `make_room` made `new.usable` bytes usable.
    unsafe {
        if zero && new.usable > old.usable {
            clear(at.add(old.usable), new.usable - old.usable);
        }
        updated.write(new.offset, at);
    }
    report_resized(at, &updated);
    at
}

/// Reports an object that was resized in place to tracers, as a free and an allocation.
#[cold]
#[inline(never)]
fn report_resized(at: *mut u8, updated: &Object) {
    probes::free(at.cast());
    probes::alloc(at, updated.bytes, updated.weighted_bytes());
}

/// Makes room for the `new` layout of an object in place. Large allocations are resized; small ones
/// keep their size. Returns false if there is no room, or if more than half of the memory would be
/// unused.
///
/// # Safety
/// The allocation at `base` is a live object with layout `old`.
unsafe fn make_room(base: *mut u8, old: Layout, new: Layout) -> bool {
    let larger = old.usable.max(new.usable);
    if larger < MIN_LARGE_BYTES {
        // Compares with the allocation, not with the object's current size: otherwise an object
        // that shrinks again and again would keep all of its original memory.
        // SAFETY: `base` is a live allocation.
        let room = unsafe { range::allocated_bytes(base) }.saturating_sub(old.offset);
        return new.usable <= old.usable && room / 2 <= new.usable;
    }
    // SAFETY: `base` is a live allocation.
    new == old || unsafe { range::resize(base, new.offset + new.usable) }
}

/// Returns a sampled object, to which the caller moves the ordinary object `p` if `p` is not null.
/// Returns null if no sample is due.
///
/// # Safety
/// See [`sample_if_possible`]. `p` is null or a live object outside the range.
unsafe fn sample_to_move(request: Request, p: *mut c_void, registers: &Registers) -> *mut u8 {
    let replaced = Replaced {
        at: p,
        header: None,
    };
    // SAFETY: `registers` belong to the allocation function's caller, which is still on the
    // stack.
    unsafe { sample_request(request, (!p.is_null()).then_some(&replaced), registers) }
}

/// `realloc(p, size)` on the slow path, for an ordinary object or null.
pub unsafe extern "C" fn realloc(
    p: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `realloc` owns `p`, an ordinary object or null.
    unsafe {
        let is_free = size == 0 && !p.is_null();
        let new = if is_free {
            null_mut()
        } else {
            sample_to_move(Request::plain(size), p, registers)
        };
        if new.is_null() {
            let new = NEXT.realloc(p, size);
            untracked::count_if_postponed(registers, !new.is_null());
            return new;
        }
        if p.is_null() {
            new.cast()
        } else {
            move_in(p, new)
        }
    }
}

/// `realloc(p, size)` of a sampled object.
pub unsafe extern "C" fn realloc_sampled(
    p: usize,
    size: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `realloc` owns `p`, a live object in the range.
    unsafe {
        if size == 0 {
            // As the underlying allocator does.
            free(p);
            return null_mut();
        }
        let request = Request::plain(size);
        resize(p, request, registers, || allocate_ordinary(request))
    }
}

/// `rallocx(p, size, flags)` on the slow path, for an ordinary object.
pub unsafe extern "C" fn rallocx(
    p: usize,
    size: usize,
    flags: usize,
    registers: &Registers,
) -> *mut c_void {
    let p = p as *mut c_void;
    // SAFETY: the caller of `rallocx` owns `p`, a live ordinary object.
    unsafe {
        let new = match request_of_flags(size, flags) {
            Some(request) => sample_to_move(request, p, registers),
            None => null_mut(),
        };
        if new.is_null() {
            let new = NEXT.rallocx(p, size, flags as c_int);
            untracked::count_if_postponed(registers, !new.is_null());
            return new;
        }
        move_in(p, new)
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
    // SAFETY: the caller of `rallocx` owns `p`, a live object in the range.
    unsafe {
        let elsewhere = || NEXT.mallocx(size, flags as c_int);
        match request_of_flags(size, flags) {
            Some(request) => resize(p, request, registers, elsewhere),
            None => move_out(p, elsewhere(), 1 << (flags & 0x3f)),
        }
    }
}

/// jemalloc's smallest large size class, in bytes: smaller objects are never resized in place.
const MIN_LARGE_BYTES: usize = 4 * crate::sys::PAGE;
/// jemalloc's largest size class, in bytes.
const MAX_CLASS_BYTES: usize = 7 << 60;

/// `xallocx` of a sampled object: resizes it in place to at least `size`, and up to `extra` bytes
/// more if possible. Returns its usable size. The object keeps its address, session and weight.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn xallocx(p: *mut c_void, size: usize, extra: usize, flags: c_int) -> usize {
    let at: *mut u8 = p.cast();
    // SAFETY: `p` is a live object in the range.
    let HeaderState::Live(object) = (unsafe { Object::read(at) }) else {
        // SAFETY: `p` is a live object in the range.
        return unsafe { usable_size(p) };
    };
    let Layout {
        offset,
        usable: old,
    } = object.layout();
    if size > MAX_CLASS_BYTES {
        return old;
    }
    let largest = size + extra.min(MAX_CLASS_BYTES - size);
    let class = |bytes| object::layout(bytes, 1, true).usable;
    let Request { align, zero, .. } = request_without_placement(size, flags);
    let is_small = old < MIN_LARGE_BYTES || class(largest) < MIN_LARGE_BYTES;
    if is_small || !(at as usize).is_multiple_of(align) {
        return old;
    }
    let resize_to = |bytes: usize| {
        let updated = header_for_size(&object, bytes)?;
        let usable = updated.layout().usable;
        // SAFETY: a live object's memory begins `offset` bytes before it. If it shrinks, the memory
        // may stay as large as it is.
        let resized = unsafe { range::resize(at.sub(offset), offset + usable) };
        (resized || usable < old).then_some(updated)
    };
    let updated = if class(largest) > old {
        let smallest = (class(size) > old).then_some(size);
        resize_to(largest).or_else(|| resize_to(smallest?))
    } else if class(largest) < old {
        resize_to(largest)
    } else {
        None
    };
    let Some(updated) = updated else {
        return old;
    };
    let new = updated.layout().usable;
    float_environment::with_default(|| report_resized(at, &updated));
    // SAFETY: the header stays where it was, and `new` bytes behind it are usable now.
    unsafe {
        if zero && new > old {
            clear(at.add(old), new - old);
        }
        let counted = run_guarded(|local| {
            recount(local, &object, updated).write(offset, at);
            at
        });
        if counted.is_null() {
            // A signal handler interrupted the sampler: the change is not counted.
            updated.write(offset, at);
        }
    }
    new
}

/// Returns the request that `xallocx` flags describe. Placement flags are ignored.
fn request_without_placement(size: usize, flags: c_int) -> Request {
    request_of_flags(size, flags as usize & 0xff).unwrap_or(Request::plain(size))
}

/// Returns the header for another size with the same offset of the object in its memory, or `None`
/// if there is no such layout.
fn header_for_size(object: &Object, bytes: usize) -> Option<Object> {
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

/// Counts an object as freed and allocated again, with the same stack and weight. Returns the
/// header to write.
fn recount(local: &mut Local, old: &Object, updated: Object) -> Object {
    let timer = count_free(local, old);
    stop_free_timer(local, timer);
    let now = clock::now_ns();
    let updated = Object {
        born: clock::tick_of(now),
        ..updated
    };
    if !session::is_counting(old.session, now) {
        return updated;
    }
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let thread = unsafe { thread::state_of(local).as_mut() };
    if let Some((thread, epoch)) = thread.and_then(|thread| epoch_of_object(thread, old, now)) {
        let record = thread.own_record(old.record, epoch);
        let sample = updated.sample(epoch.start_tick);
        epoch
            .bank
            .count_new(record, thread.shard, &sample, thread.is_exclusive());
        return Object { record, ..updated };
    }
    let Some((bank, start)) = session::bank_of_object(old.session, old.born, clock::tick_of(now))
    else {
        return updated;
    };
    let record = shared_record(&bank, old.record);
    bank.count_new(record, SHARED_SHARD, &updated.sample(start), false);
    Object { record, ..updated }
}
