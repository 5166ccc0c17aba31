//! What happens to a sampled allocation. The cold side of [`crate::entry`].
//!
//! Everything here runs with the thread marked busy, so that an allocation made by a
//! signal handler in the middle of it goes straight to the allocator.

use crate::arch::{self, Local};
use crate::backend::NEXT;
use crate::object::{Object, offset_for};
use crate::range::{self, Flags};
use crate::session::{self, Epoch};
use crate::thread::{self, Thread};
use crate::{sampler, stats};
use core::ffi::{c_int, c_void};
use core::ptr::null_mut;
use core::sync::atomic::Ordering;
use shm_protocol::layout::SHARED_SHARD;
use shm_protocol::record::TABLE_FULL;
use shm_protocol::{Bank, FreeSample, NewSample, RecordId, clock};
use unwind::Registers;

/// Objects from here on are left unsampled: no range could hold them.
const MAX_BYTES: usize = 1 << 40;

/// The calling thread's `errno`.
pub fn errno() -> c_int {
    // SAFETY: always valid for the calling thread.
    unsafe { *libc::__errno_location() }
}

/// Sets it back.
pub fn set_errno(value: c_int) {
    // SAFETY: always valid for the calling thread.
    unsafe { *libc::__errno_location() = value }
}

/// What is asked for.
#[derive(Clone, Copy)]
struct Request {
    bytes: usize,
    align: usize,
    zero: bool,
}

impl Request {
    fn plain(bytes: usize) -> Self {
        Self {
            bytes,
            align: 16,
            zero: false,
        }
    }
}

/// Runs `work` with the thread marked busy and `errno` kept; null if it was busy already.
#[inline]
unsafe fn busily(work: impl FnOnce(&mut Local) -> *mut u8) -> *mut u8 {
    let local = arch::local();
    // SAFETY: the thread's own words, lent to nobody else while busy.
    unsafe {
        if (*local).busy != 0 {
            return null_mut();
        }
        (*local).busy = 1;
        let saved = errno();
        let result = work(&mut *local);
        set_errno(saved);
        (*local).busy = 0;
        result
    }
}

/// A sampled object for a request whose turn it may be, or null: then it is an ordinary one.
#[inline]
unsafe fn sampled(request: Request, registers: &Registers) -> *mut u8 {
    // SAFETY: the closure's own.
    unsafe { busily(|local| take_turn(local, request, registers)) }
}

/// Draws the gap where the thread has not yet met the epoch, then samples if it is over.
fn take_turn(local: &mut Local, request: Request, registers: &Registers) -> *mut u8 {
    if session::after_unseen_fork() {
        local.epoch = 0;
    }
    let number = session::control()
        .epoch
        .load(core::sync::atomic::Ordering::Relaxed);
    if local.epoch != number || local.thread.is_null() {
        let Some(thread) = enroll(local, number) else {
            return null_mut();
        };
        local.left = thread.gaps.next(thread.interval) - request.bytes as i64;
        if local.left >= 0 {
            return null_mut();
        }
    }
    if request.bytes >= MAX_BYTES {
        return null_mut();
    }
    // SAFETY: enrolled, now or before.
    let thread = unsafe { &mut *local.thread };
    // SAFETY: as above.
    let epoch = unsafe { *thread.epoch() };
    local.left = thread.gaps.next(thread.interval);
    let now = clock::now_ns();
    if epoch.deadline_ns != 0 && now >= epoch.deadline_ns {
        session::expire(&epoch, now);
        return null_mut();
    }
    stats::refresh(now);
    if thread.is_timed() {
        return timed(&epoch, thread, |thread| {
            sample(thread, &epoch, request, registers, now)
        });
    }
    sample(thread, &epoch, request, registers, now)
}

/// Lets the thread meet the epoch. `None`: there is nothing to sample for, and the thread
/// will not ask again before the next epoch.
#[cold]
fn enroll(local: &mut Local, number: u8) -> Option<&'static mut Thread> {
    if number == 0 {
        return None;
    }
    local.epoch = number;
    local.left = i64::MAX / 2;
    let epoch = session::current().filter(|epoch| epoch.number == number)?;
    if local.thread.is_null() {
        local.thread = thread::make();
    }
    // SAFETY: null or the thread's own memory, mapped as long as the thread lives.
    let thread = unsafe { local.thread.as_mut() }?;
    thread.enter(epoch);
    epoch
        .bank
        .header
        .counters
        .threads
        .fetch_add(1, Ordering::Relaxed);
    crate::module::publish_missing();
    Some(thread)
}

fn timed(epoch: &Epoch, thread: &mut Thread, work: impl FnOnce(&mut Thread) -> *mut u8) -> *mut u8 {
    let before = precise_ns();
    let result = work(thread);
    let spent = precise_ns().wrapping_sub(before);
    let totals = epoch.bank.totals(thread.shard);
    totals.agent_ns.fetch_add(spent, Ordering::Relaxed);
    totals.timed.fetch_add(1, Ordering::Relaxed);
    result
}

fn precise_ns() -> u64 {
    let mut ts = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `ts` is valid.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut ts) };
    (ts.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(ts.tv_nsec as u64)
}

/// Makes the object and counts it. Null if the range has no room: counted all the same,
/// as an object whose free will not be seen.
#[inline]
fn sample(
    thread: &mut Thread,
    epoch: &Epoch,
    request: Request,
    registers: &Registers,
    now_ns: u64,
) -> *mut u8 {
    let offset = offset_for(request.bytes, request.align);
    let base = allocate(thread, request, offset);
    let born = clock::tick_of(now_ns);
    let weight = sampler::weight(request.bytes as u64, thread.interval);
    let tick = born.wrapping_sub(epoch.start_tick);
    let sample = NewSample {
        bytes: request.bytes as u64,
        weight,
        tick,
    };
    let record = count(thread, epoch, registers, &sample);
    if base.is_null() {
        count_untracked(thread, epoch, record, &sample);
        return null_mut();
    }
    let object = Object {
        record,
        session: epoch.session as u8,
        weight,
        born,
        bytes: request.bytes as u64,
        offset,
    };
    // SAFETY: `base` is fresh and has `offset` bytes for the header.
    unsafe {
        let at = base.add(offset);
        object.write(at);
        at
    }
}

#[inline]
fn allocate(thread: &mut Thread, request: Request, offset: usize) -> *mut u8 {
    if !range::ready() {
        return null_mut();
    }
    let flags = *thread.flags.get_or_insert_with(Flags::with_new_cache);
    // SAFETY: the range is ready; the size is not 0.
    unsafe { range::alloc(request.bytes + offset, request.align, request.zero, flags) }
}

/// Walks and counts; returns the record.
#[inline]
fn count(
    thread: &mut Thread,
    epoch: &Epoch,
    registers: &Registers,
    sample: &NewSample,
) -> RecordId {
    let walk = thread.walk(registers, epoch);
    if let Some(cause) = walk.cut {
        let counters = &epoch.bank.header.counters;
        counters.truncated[thread::cause_index(cause)].fetch_add(1, Ordering::Relaxed);
    }
    let record = walk
        .leaf
        .map_or(TABLE_FULL, |leaf| thread.record_of(leaf, epoch));
    epoch
        .bank
        .count_new(record, thread.shard, sample, thread.is_exclusive());
    record
}

#[cold]
fn count_untracked(thread: &Thread, epoch: &Epoch, record: RecordId, born: &NewSample) {
    epoch
        .bank
        .header
        .counters
        .untracked
        .fetch_add(1, Ordering::Relaxed);
    let freed = FreeSample {
        born: *born,
        tick: born.tick,
    };
    epoch
        .bank
        .count_free(record, thread.shard, &freed, thread.is_exclusive());
}

/// Counts the free of a sampled object, if its session still has its bank.
#[inline]
fn count_free(local: &mut Local, object: &Object) {
    let Some((bank, start)) = session::of_object(object.session, object.born) else {
        return;
    };
    let now = clock::tick_of(clock::now_ns()).wrapping_sub(start);
    let freed = FreeSample {
        born: object.sample(start),
        tick: now,
    };
    // SAFETY: null or the thread's own memory.
    let thread = unsafe { local.thread.as_mut() };
    let Some(thread) = thread.filter(|thread| thread.session as u8 == object.session) else {
        return count_free_shared(&bank, object.record, &freed);
    };
    let owner = bank
        .records
        .record(object.record)
        .map(|r| r.shard.load(Ordering::Relaxed));
    if object.record == TABLE_FULL || owner == Some(thread.shard) {
        bank.count_free(object.record, thread.shard, &freed, thread.is_exclusive());
        return;
    }
    let leaf = bank
        .records
        .record(object.record)
        .map(|r| r.node.load(Ordering::Relaxed));
    // SAFETY: a thread with a session has entered an epoch.
    let epoch = unsafe { *thread.epoch() };
    let record = thread.record_of(leaf.unwrap_or(0), &epoch);
    let owned = bank
        .records
        .record(record)
        .map(|r| r.shard.load(Ordering::Relaxed));
    let exclusive = thread.is_exclusive() && owned == Some(thread.shard);
    bank.records.count_free(record, &freed, exclusive);
    let totals = bank.totals(thread.shard);
    let bytes = shm_protocol::record::estimated_bytes(&freed.born);
    shm_protocol::record::add(&totals.freed_bytes, bytes, thread.is_exclusive());
}

#[cold]
fn count_free_shared(bank: &Bank<'_>, record: RecordId, freed: &FreeSample) {
    let leaf = bank
        .records
        .record(record)
        .map(|r| r.node.load(Ordering::Relaxed));
    let record = match leaf {
        Some(leaf) if record != TABLE_FULL => bank.record_of(leaf, SHARED_SHARD),
        _ => TABLE_FULL,
    };
    bank.count_free(record, SHARED_SHARD, freed, false);
}

/// Frees a sampled object.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn free(p: *mut c_void) {
    let at: *mut u8 = p.cast();
    // SAFETY: the caller's: a live object with its header.
    unsafe {
        let object = Object::read(at);
        let done = busily(|local| {
            count_free(local, &object);
            range::free(at.sub(object.offset), flags_of(local));
            at
        });
        if done.is_null() {
            // A signal handler in the middle of our own work: keep away from all of it.
            range::free(at.sub(object.offset), Flags::uncached());
        }
    }
}

fn flags_of(local: &mut Local) -> Flags {
    // SAFETY: null or the thread's own memory.
    let thread = unsafe { local.thread.as_ref() };
    thread
        .and_then(|thread| thread.flags)
        .unwrap_or_else(Flags::uncached)
}

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
    // SAFETY: a live object of the range.
    if !unsafe { range::resize(at.sub(object.offset), request.bytes + object.offset) } {
        return null_mut();
    }
    // SAFETY: enrolled, as checked.
    let thread = unsafe { &mut *local.thread };
    // SAFETY: as above.
    let epoch = unsafe { *thread.epoch() };
    count_free(local, object);
    local.left = thread.gaps.next(thread.interval);
    let born = clock::tick_of(clock::now_ns());
    let weight = sampler::weight(request.bytes as u64, thread.interval);
    let tick = born.wrapping_sub(epoch.start_tick);
    let bytes = request.bytes as u64;
    let record = count(
        thread,
        &epoch,
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

/// `posix_memalign(out, align, size)` whose turn it may be; its `int` as a pointer.
pub unsafe extern "C" fn posix_memalign(
    out: usize,
    align: usize,
    size: usize,
    registers: &Registers,
) -> *mut c_void {
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
            return NEXT.posix_memalign(out, align, size) as usize as *mut c_void;
        }
        *out = object;
        null_mut()
    }
}

/// `mallocx(size, flags)` whose turn it may be; the flags name alignment and zeroing only.
pub unsafe extern "C" fn mallocx(
    size: usize,
    flags: usize,
    _: usize,
    registers: &Registers,
) -> *mut c_void {
    const ZERO: usize = 0x40;
    // SAFETY: plain allocation calls.
    unsafe {
        let object = aligned(1 << (flags & 0x3f), size, flags & ZERO != 0, registers);
        if object.is_null() {
            NEXT.mallocx(size, flags as c_int)
        } else {
            object
        }
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
        let new = sampled(Request::plain(size), registers);
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
