//! The slow path: allocations for which a sample may be due, and sampled objects.
//!
//! Everything here runs with the thread marked busy: an allocation made by a signal
//! handler that interrupts it goes straight to the allocator.

mod calls;
mod overwritten;
mod resize;
mod untracked;

pub use calls::*;
pub use resize::*;

use crate::arch;
use crate::backend;
use crate::backend::growth::MIN_BYTES;
use crate::cpu;
use crate::fork;
use crate::local::Local;
use crate::object::{self, Layout, Met, Object};
use crate::probes;
use crate::range::{self, Flags, FreeLists, NoPlace};
use crate::seccomp;
use crate::session::{self, Epoch};
use crate::stats;
use crate::sys;
use crate::thinning::Key;
use crate::thread::{self, Thread};
use crate::timers;
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use shm_protocol::counters::Counters;
use shm_protocol::layout::SHARED_SHARD;
use shm_protocol::record::{TABLE_FULL, size_class};
use shm_protocol::{Bank, FreeSample, NewSample, RecordId, clock};
use unwind::walk::Walk;
use unwind::{Cause, Registers};

/// Objects from here on are left unsampled: no range could hold them.
const MAX_BYTES: usize = 1 << 40;

/// An allocation request of the program.
#[derive(Clone, Copy)]
struct Request {
    bytes: usize,
    align: usize,
    zero: bool,
    /// Whether it needs all of its size class.
    exact: bool,
}

impl Request {
    fn plain(bytes: usize) -> Self {
        Self::aligned(bytes, 1)
    }

    fn aligned(bytes: usize, align: usize) -> Self {
        Self {
            bytes,
            align,
            zero: false,
            exact: object::is_exact(),
        }
    }

    fn zeroed(self) -> Self {
        Self { zero: true, ..self }
    }

    fn layout(&self) -> Layout {
        object::layout(self.bytes, self.align, self.exact)
    }
}

/// Runs `work` with the thread marked busy, and preserves `errno`; null if it was busy already.
#[inline(always)]
unsafe fn guarded(work: impl FnOnce(&mut Local) -> *mut u8) -> *mut u8 {
    let local = arch::local();
    // SAFETY: the thread's own state; `busy` keeps signal handlers from borrowing it as well.
    unsafe {
        if (*local).busy != 0 {
            return null_mut();
        }
        (*local).busy = 1;
        if (*local).errno.is_null() {
            (*local).errno = libc::__errno_location();
        }
        let saved = *(*local).errno;
        let result = work(&mut *local);
        *(*local).errno = saved;
        (*local).busy = 0;
        result
    }
}

/// Runs `work`, in which the thread takes no sample: a control call of the allocator holds locks
/// that a sample may need, while it allocates (it creates threads, and calls hooks of the program).
pub fn without<R>(work: impl FnOnce() -> R) -> R {
    let local = arch::local();
    // SAFETY: the thread's own word.
    let before = unsafe { core::mem::replace(&mut (*local).busy, 1) };
    let result = work();
    // SAFETY: as above.
    unsafe { (*local).busy = before };
    result
}

/// Ends sampling in the calling thread, which is about to enter seccomp's strict mode: of a sample's
/// system calls, that allows none. The thread counts as one without samples.
#[cold]
pub fn end_in_thread() {
    // SAFETY: the thread's own word. It stays busy.
    unsafe { (*arch::local()).busy = 1 };
    if let Some(epoch) = session::current() {
        let counters = &epoch.bank.header.counters;
        counters.unsampled_threads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Stack that a sample needs, with a reserve.
const ROOM: u64 = 4608;

/// Whether there is too little room for a sample on the alternate stack for signals, if the thread is on
/// it. A sample that is due is then taken at the thread's next allocation elsewhere, and stands for as many
/// bytes.
#[inline(always)]
fn is_cramped(registers: &Registers) -> bool {
    let local = arch::local();
    // SAFETY: the thread's own words.
    let (start, end) = unsafe { ((*local).signal_stack, (*local).signal_stack_end) };
    registers.sp < end && registers.sp.wrapping_sub(start) < ROOM
}

/// Returns a sampled object for a request on the slow path; null if no sample is due.
#[inline(always)]
unsafe fn sampled(request: Request, registers: &Registers) -> *mut u8 {
    // SAFETY: the caller's.
    unsafe { sampled_for(request, None, registers) }
}

/// Returns a sampled object that may replace another one; null if no sample is due, or there is no room for
/// it. A function of its own: where there is none, the allocator is called with none of its frame.
#[inline(never)]
unsafe fn sampled_for(
    request: Request,
    replaced: Option<&Object>,
    registers: &Registers,
) -> *mut u8 {
    if is_cramped(registers) {
        return null_mut();
    }
    // SAFETY: the closure's own.
    unsafe { guarded(|local| sample_if_due(local, (request, replaced), registers)) }
}

/// Draws the gap if the thread has not noticed the epoch yet, then samples if the gap is over. A
/// sampled object that the new one replaces is counted as freed if the result is not null.
#[inline(always)]
fn sample_if_due(
    local: &mut Local,
    (request, replaced): (Request, Option<&Object>),
    registers: &Registers,
) -> *mut u8 {
    if !may_sample(local) && !begins_early(local) {
        return null_mut();
    }
    let number = session::control().epoch(Ordering::Relaxed);
    // SAFETY: null, or the thread's own, which has entered an epoch.
    let known = unsafe { thread::of(local).as_ref() };
    // SAFETY: as above; it is not used beyond this line.
    let known = known.is_some_and(|thread| session::is_current(unsafe { thread.epoch() }));
    if local.epoch != number || !known {
        let Some(thread) = enroll(local, number) else {
            return null_mut();
        };
        if thread.interval == 0.0 {
            return null_mut();
        }
        let counted = match request.bytes < MAX_BYTES {
            true => request.bytes as i64,
            false => 0,
        };
        local.left = thread.gaps.next(thread.interval) - counted;
        if local.left >= 0 {
            return null_mut();
        }
    }
    // SAFETY: enrolled, now or before.
    let thread = unsafe { &mut *thread::of(local) };
    // SAFETY: as above.
    let epoch = unsafe { thread.epoch() };
    if epoch.interval == 0 {
        local.left = cpu::COUNTDOWN;
        cpu::pass(epoch);
        return null_mut();
    }
    local.left = thread.gaps.next(thread.interval);
    if request.bytes >= MAX_BYTES {
        return null_mut();
    }
    range::prepare(epoch.range_limit);
    let mut site = None;
    if epoch.thinning > 0 {
        let key = Key::of(registers, request.bytes);
        let step = thread.sites.step(key);
        if !thread.gaps.is_one_in(step) {
            return null_mut();
        }
        site = Some((key, step));
    }
    let now = clock::now_ns();
    if epoch.deadline_ns != 0 && now >= epoch.deadline_ns {
        session::expire(epoch, now);
        return null_mut();
    }
    if stats::refresh(now) {
        session::grow_early(epoch);
    }
    let timer = thread.start_timer();
    let ignored = local.ignoring != 0;
    let drawn = (request, site, ignored);
    let object = sample(thread, epoch, (drawn, replaced), registers, now);
    thread.stop_timer(timer, &epoch.bank);
    object
}

/// Whether the process has a segment of its own, by now.
#[inline]
fn may_sample(local: &mut Local) -> bool {
    fork::leave_if_unseen(local) && session::wait_as_child(local)
}

unsafe extern "C" {
    /// That of `init`, which uses this module.
    safe fn mem_agent_begin_early() -> bool;
}

/// At the process's first allocation: whether sampling begins with it.
#[cold]
fn begins_early(local: &mut Local) -> bool {
    if !session::is_first_epoch() {
        return false;
    }
    let begins = mem_agent_begin_early();
    local.epoch = 0;
    begins && may_sample(local)
}

/// Makes the thread notice the epoch. `None`: there is no session to sample for, and the thread
/// will not ask again before the next epoch.
#[cold]
fn enroll(local: &mut Local, number: u32) -> Option<&'static mut Thread> {
    if number == 0 {
        return None;
    }
    let epoch = session::current().filter(|epoch| epoch.number == number);
    local.epoch = number;
    local.left = i64::MAX / 2;
    if backend::stands_aside() {
        return None;
    }
    let epoch = epoch?;
    if epoch.interval == 0 {
        local.left = cpu::COUNTDOWN;
    }
    // After the segment: if memory is limited, the largest mapping fails before others exist.
    if !crate::module::prepare() {
        session::refuse_for_memory();
        return None;
    }
    if local.thread.is_null() {
        local.thread = thread::make(epoch.range_limit).cast();
    }
    // SAFETY: null or the thread's own memory, mapped as long as the thread lives.
    let Some(thread) = (unsafe { thread::of(local).as_mut() }) else {
        let counters = &epoch.bank.header.counters;
        counters.unsampled_threads.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    overwritten::expect_interval(epoch.interval);
    thread.meet(epoch);
    if epoch.cpu.rate != 0 || timers::session() != 0 {
        cpu::pass(&epoch);
    }
    Some(thread)
}

/// A request that is sampled, its call site with the thinning there, and whether a leak check leaves
/// the object out.
type Drawn = (Request, Option<(Key, u32)>, bool);

/// Makes the object and counts it. Null if it cannot be in the range.
#[inline]
fn sample(
    thread: &mut Thread,
    epoch: &Epoch,
    ((request, site, ignored), replaced): (Drawn, Option<&Object>),
    registers: &Registers,
    now_ns: u64,
) -> *mut u8 {
    let layout = request.layout();
    let place = if replaced.is_some() && layout.usable >= MIN_BYTES {
        allocate_with_room(thread, request.align, layout)
    } else {
        allocate(thread, request.align, layout)
    };
    let born = clock::tick_of(now_ns);
    let mut weight = thread.weights.of(request.bytes as u64, thread.interval);
    if let Some((_, step)) = site {
        weight *= (1 << step) as f32;
    }
    let tick = born.wrapping_sub(epoch.start_tick);
    let sample = NewSample {
        bytes: request.bytes as u64,
        weight,
        tick,
    };
    let base = match place {
        Ok(base) => base.as_ptr(),
        Err(why) => {
            untracked::postpone(thread, sample, why);
            return null_mut();
        }
    };
    let record = find_record(thread, epoch, registers, &sample);
    if let Some(old) = replaced {
        count_replaced(thread, epoch, old, now_ns);
    }
    count_new(thread, epoch, record, &sample);
    if let Some((key, _)) = site {
        let known = epoch.bank.held(record);
        let learned = (sample.bytes, epoch.interval, epoch.thinning);
        thread.sites.learn(key, known, learned);
    }
    let object = Object {
        record,
        session: epoch.session as u8,
        weight,
        born,
        bytes: request.bytes as u64,
        align: request.align,
        ignored,
        exact: request.exact,
    };
    // SAFETY: `base` is fresh and has `offset` bytes for the header, then `usable`.
    unsafe {
        let at = base.add(layout.offset);
        if request.zero {
            clear(at, layout.usable);
        }
        object.write(layout.offset, at);
        probes::alloc(at, object.bytes, object.weighted_bytes());
        at
    }
}

/// Zeroes memory of the range. For large blocks, whole pages are released to the system and
/// come back as zeros when touched, as jemalloc does with memory that it has used before.
///
/// # Safety
/// `bytes` from `at` on are the caller's.
unsafe fn clear(at: *mut u8, bytes: usize) {
    const MUCH: usize = 64 << 10;
    let first = at.align_offset(sys::PAGE);
    let pages = bytes.saturating_sub(first) & !(sys::PAGE - 1);
    // SAFETY: the caller's; whole pages of our own private mapping, without the first and last
    // ones, which neighbours may share. The call fails if they are locked.
    unsafe {
        let given = bytes >= MUCH
            && !crate::seccomp::is_installed()
            && libc::madvise(at.add(first).cast(), pages, libc::MADV_DONTNEED) == 0;
        if given {
            at.write_bytes(0, first);
            at.add(first + pages).write_bytes(0, bytes - first - pages);
        } else {
            at.write_bytes(0, bytes);
        }
    }
}

#[inline]
fn allocate(thread: &mut Thread, align: usize, layout: Layout) -> Result<NonNull<u8>, NoPlace> {
    if !range::is_ready() {
        return Err(NoPlace::Exhausted);
    }
    let free_lists = thread.free_lists.get_or_insert_with(FreeLists::new);
    // SAFETY: the range is ready; there are usable bytes.
    unsafe { free_lists.alloc(layout, align) }
}

/// Like [`allocate`], for a large object that has grown and may grow again.
#[cold]
fn allocate_with_room(
    thread: &mut Thread,
    align: usize,
    layout: Layout,
) -> Result<NonNull<u8>, NoPlace> {
    if !range::is_ready() {
        return Err(NoPlace::Exhausted);
    }
    let free_lists = thread.free_lists.get_or_insert_with(FreeLists::new);
    // SAFETY: the range is ready; the layout has at least `MIN_BYTES`.
    unsafe { free_lists.alloc_with_room(layout, align) }
}

/// Walks the stack and counts the sample; returns its record.
#[inline]
fn count(
    thread: &mut Thread,
    epoch: &Epoch,
    registers: &Registers,
    sample: &NewSample,
) -> RecordId {
    let record = find_record(thread, epoch, registers, sample);
    count_new(thread, epoch, record, sample);
    record
}

/// Counts the sample in a record.
#[inline]
fn count_new(thread: &Thread, epoch: &Epoch, record: RecordId, sample: &NewSample) {
    let (shard, exclusive) = (thread.shard, thread.is_exclusive());
    epoch.bank.count_new(record, shard, sample, exclusive);
}

/// Walks the stack and finds its record, for which the table may have to grow.
#[inline]
fn find_record(
    thread: &mut Thread,
    epoch: &Epoch,
    registers: &Registers,
    sample: &NewSample,
) -> RecordId {
    let (mut walk, mut record) = intern(thread, epoch, registers, sample);
    let mut tries = 0;
    while record == TABLE_FULL && session::grow(epoch, &mut tries) {
        (walk, record) = intern(thread, epoch, registers, sample);
    }
    if record == TABLE_FULL {
        record = thread.merged_record(walk.leaf, size_class(sample.bytes), epoch);
    }
    if let Some(cause) = walk.truncated {
        let counters = &epoch.bank.header.counters;
        truncated(counters, cause).fetch_add(1, Ordering::Relaxed);
    }
    record
}

/// Walks the stack and finds its record. Not `inline`, which makes a copy of these 10 KiB in each unit of
/// code generation.
fn intern(
    thread: &mut Thread,
    epoch: &Epoch,
    registers: &Registers,
    sample: &NewSample,
) -> (Walk, RecordId) {
    let walk = thread.walk(registers, epoch);
    let record = walk.leaf.map_or(TABLE_FULL, |leaf| {
        thread.record_of(leaf, size_class(sample.bytes), epoch)
    });
    (walk, record)
}

/// The counter of a cause.
fn truncated(counters: &Counters, cause: Cause) -> &AtomicU64 {
    match cause {
        Cause::NoModule => &counters.truncated_no_module,
        Cause::NoRule => &counters.truncated_no_rule,
        Cause::Unsupported => &counters.truncated_unsupported,
        Cause::BadFrame => &counters.truncated_bad_frame,
        Cause::OutOfStack => &counters.truncated_out_of_stack,
        Cause::TooDeep => &counters.truncated_too_deep,
    }
}

/// Counts the free of a sampled object, if its session still counts.
#[inline]
fn count_free(local: &mut Local, object: &Object) {
    let now = clock::now_ns();
    if !fork::leave_if_unseen(local) || !session::is_counting(object.session, now) {
        return;
    }
    // SAFETY: null or the thread's own memory.
    let thread = unsafe { thread::of(local).as_mut() };
    let Some((thread, epoch)) = thread.and_then(|thread| of_own_session(thread, object, now))
    else {
        return count_free_shared(local, object, now);
    };
    let timer = thread.start_timer();
    count_own_free(thread, epoch, object, now);
    thread.stop_timer(timer, &epoch.bank);
}

/// Counts the free of a sampled object of the thread's session.
#[inline]
fn count_own_free(thread: &mut Thread, epoch: &Epoch, object: &Object, now_ns: u64) {
    let freed = freed(object, epoch.start_tick, now_ns);
    let record = thread.own_record(object.record, epoch);
    let (shard, exclusive) = (thread.shard, thread.is_exclusive());
    epoch.bank.count_free(record, shard, &freed, exclusive);
}

/// Counts the free of an object that moves, right before the sample of its new place: in between,
/// the heap is not higher than it is with one of them.
#[cold]
fn count_replaced(thread: &mut Thread, epoch: &Epoch, object: &Object, now_ns: u64) {
    if session::is_counting(object.session, now_ns)
        && of_own_session(thread, object, now_ns).is_some()
    {
        count_own_free(thread, epoch, object, now_ns);
    }
}

/// The free of an object now, in a session with this first tick. A birth that is yet to come was overwritten.
#[inline]
fn freed(object: &Object, start: u32, now: u64) -> FreeSample {
    let mut born = object.sample(start);
    let tick = clock::tick_of(now).wrapping_sub(start);
    if tick < born.tick {
        born.tick = tick;
    }
    FreeSample { born, tick }
}

/// The thread's epoch, if it belongs to the object's session and that still has its bank.
#[inline]
fn of_own_session<'a>(
    thread: &'a mut Thread,
    object: &Object,
    now_ns: u64,
) -> Option<(&'a mut Thread, &'static Epoch)> {
    if thread.session == 0 || thread.session as u8 != object.session {
        return None;
    }
    // SAFETY: a thread with a session has entered an epoch.
    let epoch = unsafe { thread.epoch() };
    let holds = epoch.bank.holds(thread.session);
    // An object born before this session is from the session 256 earlier.
    let born_in = clock::is_since(object.born, epoch.start_tick, clock::tick_of(now_ns));
    (holds && born_in).then_some((thread, epoch))
}

/// Counts the free of an object by a thread that does not sample in its session.
#[cold]
fn count_free_shared(local: &mut Local, object: &Object, now: u64) {
    let Some((bank, start)) = session::of_object(object.session, object.born, clock::tick_of(now))
    else {
        return;
    };
    let freed = freed(object, start, now);
    let record = shared_record(&bank, object.record);
    bank.count_free(record, SHARED_SHARD, &freed, false);
    take_part(local);
}

/// Makes a thread that frees sampled objects repeatedly notice the epoch, as if it had allocated:
/// then it has counters of its own, which need no locked instructions.
fn take_part(local: &mut Local) {
    const FREES: u8 = 64;
    let number = session::control().epoch(Ordering::Relaxed);
    // A filter of the program's may forbid a thread that only frees to map memory; and if the thread has
    // an alternate stack for signals, it may be on it, with little room.
    let may_map = !seccomp::is_installed() && local.signal_stack == local.signal_stack_end;
    if local.freed == FREES || local.epoch == number || !may_map {
        return;
    }
    local.freed += 1;
    if local.freed == FREES
        && let Some(thread) = enroll(local, number)
        && thread.interval != 0.0
    {
        local.freed = 0;
        local.left = thread.gaps.next(thread.interval);
        // What it frees is some other thread's to allocate.
        thread.free_lists.get_or_insert_with(FreeLists::new);
    }
}

/// The record in the shared shard that corresponds to an object's record.
#[cold]
fn shared_record(bank: &Bank<'_>, record: RecordId) -> RecordId {
    match bank.checked(record) {
        TABLE_FULL => TABLE_FULL,
        record => bank.record_of_known(bank.stack_of(record), SHARED_SHARD),
    }
}

/// Frees a sampled object.
///
/// # Safety
/// `p` is a live object in the range.
pub unsafe fn free(p: *mut c_void) {
    let at: *mut u8 = p.cast();
    // SAFETY: the caller's: an object of the range, whose header may have been overwritten.
    unsafe {
        match Object::read(at) {
            Met::Live(object) if overwritten::is_plausible(&object) => {
                free_after(p, &object, count_free);
            }
            met => overwritten::free(at, met),
        }
    }
}

/// Frees a sampled object, whose header was read, after it has been counted by `counting`.
///
/// # Safety
/// As [`free`].
#[inline]
unsafe fn free_after(p: *mut c_void, object: &Object, counting: impl FnOnce(&mut Local, &Object)) {
    let at: *mut u8 = p.cast();
    // SAFETY: the caller's: a live object with its header.
    unsafe {
        probes::free(p);
        Object::retire(at);
        let done = guarded(|local| {
            counting(local, object);
            give_back(local, at, object);
            at
        });
        if done.is_null() {
            // A signal handler that interrupted the sampler: touch none of its state.
            range::free(at.sub(object.layout().offset), Flags::uncached());
        }
    }
}

/// Frees an object's memory.
///
/// # Safety
/// As [`free`].
#[inline]
unsafe fn give_back(local: &mut Local, at: *mut u8, object: &Object) {
    let layout = object.layout();
    // SAFETY: the caller's, and what the header says.
    unsafe { give_back_memory(local, at.sub(layout.offset), layout) }
}

/// Frees the memory at `base` of an object of this layout.
///
/// # Safety
/// As [`free`].
#[inline]
unsafe fn give_back_memory(local: &mut Local, base: *mut u8, layout: Layout) {
    // SAFETY: null or the thread's own memory.
    let thread = unsafe { thread::of(local).as_mut() };
    let free_lists = thread.and_then(|thread| thread.free_lists.as_mut());
    // SAFETY: `base` is memory of the range with this layout, and nobody's after this call.
    unsafe {
        if session::control().epoch(Ordering::Relaxed) == 0 {
            range::return_memory(base, layout, free_lists);
        } else if let Some(free_lists) = free_lists {
            free_lists.free(base, layout);
        } else {
            range::free(base, Flags::uncached());
        }
    }
}
