//! Slow path of the allocator: takes samples that are due, and counts frees of sampled objects.
//!
//! Everything here runs with the thread marked busy: an allocation that a signal handler makes
//! during this time goes straight to the allocator. Failing to take a sample is always allowed; the
//! request then gets an ordinary object.

mod calls;
mod overwritten;
mod resize;
mod untracked;

pub use calls::*;
pub use resize::*;

use crate::arch;
use crate::backend;
use crate::backend::growth::{self, MIN_BYTES};
use crate::cost;
use crate::cpu;
use crate::float_environment;
use crate::fork;
use crate::local::Local;
use crate::object::{self, HeaderState, Layout, Object};
use crate::probes;
use crate::range::{self, Flags, OutsideRange};
use crate::seccomp;
use crate::session::{self, Epoch};
use crate::stats;
use crate::sys;
use crate::thread::{self, Thread};
use crate::timers;
use crate::trial::Kind;
use core::ffi::{c_int, c_void};
use core::ptr::{NonNull, null_mut};
use core::sync::atomic::{AtomicU64, Ordering};
use sampling::thinning::{self, Key};
use shm_protocol::counters::Counters;
use shm_protocol::layout::SHARED_SHARD;
use shm_protocol::record::{TABLE_FULL, size_class};
use shm_protocol::{Bank, FreeSample, NewSample, RecordId, clock};
use unwind::walk::Walk;
use unwind::{Cause, Registers};

/// Objects of this size or larger are never sampled: no range could hold them.
const MAX_BYTES: usize = 1 << 40;

/// Alignment of any object, in bytes.
const MIN_ALIGN: usize = 16;

/// Allocation request of the program.
#[derive(Clone, Copy)]
struct Request {
    bytes: usize,
    align: usize,
    zero: bool,
    /// True if the program may use all of the size class, not only `bytes`.
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

/// Runs `work` with the thread marked busy, and preserves `errno` and the floating-point
/// environment. Returns null, without running it, if the thread was busy already.
///
/// # Safety
/// Nothing else accesses the thread's state while `work` runs.
#[inline(always)]
unsafe fn run_guarded(work: impl FnOnce(&mut Local) -> *mut u8) -> *mut u8 {
    let local = arch::local();
    // SAFETY: the state is the thread's own. `busy` keeps signal handlers from borrowing it while
    // `work` runs.
    unsafe {
        if (*local).busy != 0 {
            return null_mut();
        }
        (*local).busy = 1;
        if (*local).errno.is_null() {
            (*local).errno = libc::__errno_location();
        }
        let saved = *(*local).errno;
        let result = float_environment::with_default(|| work(&mut *local));
        *(*local).errno = saved;
        (*local).busy = 0;
        result
    }
}

/// Runs `work`, during which the thread takes no sample. For control calls of jemalloc (`mallctl`),
/// which create threads and call the program's hooks, and so allocate, while they hold locks that a
/// sample may need.
pub fn without_sampling<R>(work: impl FnOnce() -> R) -> R {
    let local = arch::local();
    // SAFETY: the word is the thread's own, and no borrow of its state is alive here.
    let before = unsafe { core::mem::replace(&mut (*local).busy, 1) };
    let result = work();
    // SAFETY: the word is the thread's own.
    unsafe { (*local).busy = before };
    result
}

/// Ends sampling in the calling thread, which is about to enter seccomp's strict mode: this mode
/// allows none of the system calls that a sample makes. Counts the thread as unsampled.
#[cold]
pub fn end_in_thread() {
    // SAFETY: the word is the thread's own. It stays set until the thread exits.
    unsafe { (*arch::local()).busy = 1 };
    if let Some(epoch) = session::current() {
        let counters = &epoch.bank.header.counters;
        counters.unsampled_threads.fetch_add(1, Ordering::Relaxed);
    }
}

/// Bytes of stack that a sample needs, with a reserve.
const SAMPLE_STACK_BYTES: u64 = 4608;

/// Returns true if the thread is on its alternate signal stack and too little of that is left for a
/// sample. A sample that is due is then taken at the thread's next allocation elsewhere, and stands
/// for the same number of bytes.
#[inline(always)]
fn has_little_stack(registers: &Registers) -> bool {
    let local = arch::local();
    // SAFETY: the words are the thread's own, and no borrow of its state is alive here.
    let (start, end) = unsafe { ((*local).signal_stack, (*local).signal_stack_end) };
    registers.sp < end && registers.sp.wrapping_sub(start) < SAMPLE_STACK_BYTES
}

/// Returns a sampled object for a request on the slow path, or null if no sample is due.
///
/// # Safety
/// `registers` belong to the caller of the allocation function, which is still on the stack.
#[inline(always)]
unsafe fn sample_if_possible(request: Request, registers: &Registers) -> *mut u8 {
    // SAFETY: `registers` belong to the allocation function's caller, which is still on the
    // stack.
    unsafe { sample_request(request, None, registers) }
}

/// Object that a new one replaces.
#[derive(Clone, Copy)]
struct Replaced<'a> {
    /// Address of the object.
    at: *mut c_void,
    /// Header of a sampled object, which is then counted as freed; `None` if the object is not
    /// sampled.
    header: Option<&'a Object>,
}

/// Like [`sample_if_possible`], for an object that may replace another one. Not inlined: if no
/// sample is due, the allocator is called without this function's stack frame.
///
/// # Safety
/// See [`sample_if_possible`].
#[inline(never)]
unsafe fn sample_request(
    request: Request,
    replaced: Option<&Replaced<'_>>,
    registers: &Registers,
) -> *mut u8 {
    if has_little_stack(registers) {
        return null_mut();
    }
    // SAFETY: the closure uses the thread's state only through its argument.
    unsafe { run_guarded(|local| sample_if_due(local, request, replaced, registers)) }
}

/// Takes a sample if one is due. Returns the sampled object, or null.
#[inline(always)]
fn sample_if_due(
    local: &mut Local,
    request: Request,
    replaced: Option<&Replaced<'_>>,
    registers: &Registers,
) -> *mut u8 {
    if !may_sample(local) && !begins_early(local) {
        return null_mut();
    }
    if !is_due(local, &request) {
        return null_mut();
    }
    // SAFETY: not null, because a sample is due only in a thread that has entered an epoch.
    let thread = unsafe { &mut *thread::state_of(local) };
    // SAFETY: the thread has entered an epoch, and enters no other one below.
    let epoch = unsafe { thread.epoch() };
    if epoch.interval == 0 {
        // The session has no heap profile and only samples CPU time.
        local.left = cpu::COUNTDOWN;
        cpu::handle_countdown(epoch);
        return null_mut();
    }
    if thread.trial.is_running() && !thread.trial.proceed(&mut local.left, epoch) {
        return null_mut();
    }
    // A skipped sample costs time, too.
    let timer = thread.start_timer();
    let object = take_sample(local, thread, epoch, request, replaced, registers);
    thread.stop_timer(timer, epoch);
    if epoch.max_overhead != 0
        && thread.interval as u64 != cost::interval()
        && thread.adopt_interval(epoch)
    {
        overwritten::record_interval(thread.interval as u64);
        local.left = thread.gaps.draw_gap(thread.interval);
    }
    object
}

/// Draws the gap to the next sample, and takes the one that is due. Returns the sampled object, or
/// null if the sample is skipped.
#[inline(always)]
fn take_sample(
    local: &mut Local,
    thread: &mut Thread,
    epoch: &Epoch,
    request: Request,
    replaced: Option<&Replaced<'_>>,
    registers: &Registers,
) -> *mut u8 {
    local.left = thread.gaps.draw_gap(thread.interval);
    if thread.trial.is_running() {
        thread.trial.split_gap(&mut local.left);
    }
    if request.bytes >= MAX_BYTES {
        return null_mut();
    }
    range::prepare(epoch.range_limit);
    let Ok(site) = apply_thinning(thread, epoch, &request, registers) else {
        return null_mut();
    };
    let now = clock::now_ns();
    if !keep_session(epoch, now) {
        return null_mut();
    }
    let mut kind = Kind::Plain;
    // Not with thinning, which would mistake the doubled weights of trials for uncertainty.
    if thread.trial.is_due() && epoch.thinning == 0 {
        let Thread {
            trial,
            gaps,
            interval,
            ..
        } = thread;
        kind = trial.begin(gaps, *interval, &mut local.left, request.bytes);
        if kind == Kind::Skipped {
            return null_mut();
        }
    }
    let due = Due {
        request,
        site,
        is_double: kind == Kind::Taken,
        ignored: local.ignoring != 0,
        replaced,
    };
    let object = sample(thread, epoch, due, registers, now);
    if kind == Kind::Taken {
        thread.trial.record_taken();
    }
    object
}

/// Returns true if a sample is due, after the countdown has expired. If the countdown was drawn in
/// an older epoch, the thread first enters the current epoch and draws a new gap.
#[inline(always)]
fn is_due(local: &mut Local, request: &Request) -> bool {
    let number = session::control().epoch(Ordering::Relaxed);
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let thread = unsafe { thread::state_of(local).as_ref() };
    // SAFETY: a thread has memory only after it has entered an epoch. The epoch is not used after
    // this line.
    let is_current = thread.is_some_and(|thread| session::is_current(unsafe { thread.epoch() }));
    if local.epoch == number && is_current {
        return true;
    }
    let Some(thread) = enroll(local, number) else {
        return false;
    };
    if thread.interval == 0.0 {
        return false;
    }
    let counted = if request.bytes < MAX_BYTES {
        request.bytes as i64
    } else {
        0
    };
    local.left = thread.gaps.draw_gap(thread.interval) - counted;
    local.left < 0
}

/// Call site of a sample in a session with thinning.
#[derive(Clone, Copy)]
struct Site {
    key: Key,
    /// One in 2^`step` samples that are due is taken.
    step: u32,
}

/// Result for a sample that was due, but that thinning skips.
struct Thinned;

/// Decides by the call site whether a sample that is due is taken. Returns the site, or `Ok(None)`
/// in a session without thinning.
#[inline(always)]
fn apply_thinning(
    thread: &mut Thread,
    epoch: &Epoch,
    request: &Request,
    registers: &Registers,
) -> Result<Option<Site>, Thinned> {
    if epoch.thinning == 0 {
        return Ok(None);
    }
    let key = Key::of(registers, request.bytes);
    let step = thread.sites.step(key);
    if !thread.gaps.is_one_in_pow2(step) {
        return Err(Thinned);
    }
    Ok(Some(Site { key, step }))
}

/// Maintains the session: ends it at its deadline, updates statistics, and reserves memory before
/// the tables are full. Returns false if the session has ended.
#[inline(always)]
fn keep_session(epoch: &Epoch, now_ns: u64) -> bool {
    if epoch.deadline_ns != 0 && now_ns >= epoch.deadline_ns {
        session::expire(epoch, now_ns);
        return false;
    }
    if stats::refresh(now_ns) {
        session::grow_early(epoch);
    }
    true
}

/// Returns true if the process has a segment of its own. A forked child first leaves its parent's.
#[inline]
fn may_sample(local: &mut Local) -> bool {
    fork::leave_if_copy(local) && session::wait_as_child(local)
}

unsafe extern "C" {
    /// `init::mem_agent_begin_early`; not imported, because `init` depends on this module.
    safe fn mem_agent_begin_early() -> bool;
}

/// Begins a session that was requested at start-up, at the first allocation of the process. Returns
/// false if none was requested.
#[cold]
fn begins_early(local: &mut Local) -> bool {
    if !session::is_first_epoch() {
        return false;
    }
    let begins = mem_agent_begin_early();
    local.epoch = 0;
    begins && may_sample(local)
}

/// Makes the thread enter the current epoch. Returns `None` if there is nothing to sample; the
/// thread then does not try again before the next epoch.
#[cold]
fn enroll(local: &mut Local, number: u32) -> Option<&'static mut Thread> {
    if number == 0 {
        return None;
    }
    let epoch = session::current().filter(|epoch| epoch.number == number);
    local.epoch = number;
    local.left = i64::MAX / 2;
    if backend::is_inactive() {
        return None;
    }
    let epoch = epoch?;
    if epoch.interval == 0 {
        local.left = cpu::COUNTDOWN;
    }
    // The largest mapping comes first: if memory is limited, it should fail before smaller ones are
    // made.
    if !crate::module::prepare() {
        session::refuse_for_memory();
        return None;
    }
    if local.thread.is_null() {
        local.thread = thread::make(epoch.range_limit).cast();
    }
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let Some(thread) = (unsafe { thread::state_of(local).as_mut() }) else {
        let counters = &epoch.bank.header.counters;
        counters.unsampled_threads.fetch_add(1, Ordering::Relaxed);
        return None;
    };
    thread.enter_and_count(epoch);
    overwritten::record_interval(thread.interval as u64);
    if epoch.cpu.rate != 0 || timers::session() != 0 {
        cpu::handle_countdown(&epoch);
    }
    Some(thread)
}

/// Sample that is due.
#[derive(Clone, Copy)]
struct Due<'a> {
    request: Request,
    /// Call site; `None` if the session has no thinning.
    site: Option<Site>,
    /// True if the sample counts twice, because a trial skips as many samples as it takes.
    is_double: bool,
    /// True if leak checks must ignore the object.
    ignored: bool,
    /// Object that the new one replaces.
    replaced: Option<&'a Replaced<'a>>,
}

/// Allocates the object in the range and counts it. Returns null if there is no room in the range.
#[inline]
fn sample(
    thread: &mut Thread,
    epoch: &Epoch,
    due: Due<'_>,
    registers: &Registers,
    now_ns: u64,
) -> *mut u8 {
    let Due {
        request,
        site,
        is_double,
        ignored,
        replaced,
    } = due;
    let layout = request.layout();
    let place = match replaced {
        Some(old) if layout.usable >= MIN_BYTES => {
            allocate_to_move(thread, request.align, layout, old.at)
        }
        _ => allocate(thread, request.align, layout),
    };
    let born = clock::tick_of(now_ns);
    let mut weight = thread.weights.get(request.bytes as u64, thread.interval);
    if let Some(Site { step, .. }) = site {
        weight *= (1 << step) as f32;
    }
    if is_double {
        weight *= 2.0;
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
    if let Some(old) = replaced.and_then(|old| old.header) {
        count_replaced(thread, epoch, old, now_ns);
    }
    count_new(thread, epoch, record, &sample);
    if let Some(Site { key, .. }) = site {
        let (samples, live_bytes) = epoch.bank.samples_and_live_bytes(record);
        let known = thinning::StackSums {
            samples,
            live_bytes,
        };
        let taken = thinning::TakenSample {
            bytes: sample.bytes,
            interval: thread.interval as u64,
            max_step: epoch.thinning,
        };
        thread.sites.update(key, known, taken);
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
    // SAFETY: `base` is newly allocated: `offset` bytes for the header, then `usable` bytes.
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

/// Zeroes memory of the range. Whole pages of a large block are released to the system and read as
/// zeros when touched, as jemalloc does with memory that was used before.
///
/// # Safety
/// The `bytes` bytes at `at` belong to a new or live object.
unsafe fn clear(at: *mut u8, bytes: usize) {
    /// Blocks of this size or larger are released.
    const RELEASE_BYTES: usize = 64 << 10;
    let first = at.align_offset(sys::PAGE);
    let pages = bytes.saturating_sub(first) & !(sys::PAGE - 1);
    // SAFETY: the bytes belong to the object, so whole pages in them are pages of our own private
    // mapping that nobody else uses. The first and the last page may be shared with neighbours and
    // are written to. The call fails if pages are locked.
    unsafe {
        let is_released = bytes >= RELEASE_BYTES
            && !crate::seccomp::is_installed()
            && libc::madvise(at.add(first).cast(), pages, libc::MADV_DONTNEED) == 0;
        if is_released {
            at.write_bytes(0, first);
            at.add(first + pages).write_bytes(0, bytes - first - pages);
        } else {
            at.write_bytes(0, bytes);
        }
    }
}

#[inline]
fn allocate(
    thread: &mut Thread,
    align: usize,
    layout: Layout,
) -> Result<NonNull<u8>, OutsideRange> {
    if !range::is_ready() {
        return Err(OutsideRange::Exhausted);
    }
    let Some(free_lists) = thread.own_free_lists() else {
        return Err(OutsideRange::Elsewhere);
    };
    // SAFETY: the range is ready, and every layout has at least one usable byte.
    unsafe { free_lists.alloc(layout, align) }
}

/// Like [`allocate`], for a large object that may grow again, and to which the pages of the object
/// at `old` are moved.
#[cold]
fn allocate_to_move(
    thread: &mut Thread,
    align: usize,
    layout: Layout,
    old: *mut c_void,
) -> Result<NonNull<u8>, OutsideRange> {
    if !range::is_ready() {
        return Err(OutsideRange::Exhausted);
    }
    let Some(free_lists) = thread.own_free_lists() else {
        return Err(OutsideRange::Elsewhere);
    };
    // SAFETY: the range is ready; the layout has at least `MIN_BYTES`.
    let base = unsafe { free_lists.alloc_with_room(layout, align) }?;
    if align > MIN_ALIGN {
        return Ok(base);
    }
    let offset = old.addr().wrapping_sub(layout.offset) % sys::PAGE;
    // SAFETY: a new object of at least `MIN_BYTES`.
    let placed = unsafe { growth::place_at_offset(base.as_ptr().cast(), offset) };
    Ok(NonNull::new(placed.cast()).unwrap_or(base))
}

/// Walks the stack and counts the sample. Returns its record.
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

/// Counts a sample in its record.
#[inline]
fn count_new(thread: &Thread, epoch: &Epoch, record: RecordId, sample: &NewSample) {
    epoch
        .bank
        .count_new(record, thread.shard, sample, thread.is_exclusive());
}

/// Walks the stack and finds its record. Grows the table if necessary.
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
        truncation_counter(counters, cause).fetch_add(1, Ordering::Relaxed);
    }
    record
}

/// Walks the stack and looks up its record. Not `#[inline]`, because each codegen unit would get
/// its own copy of 10 KiB.
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

/// Returns the counter of stacks that were truncated for this cause.
fn truncation_counter(counters: &Counters, cause: Cause) -> &AtomicU64 {
    match cause {
        Cause::NoModule => &counters.truncated_no_module,
        Cause::NoRule => &counters.truncated_no_rule,
        Cause::Unsupported => &counters.truncated_unsupported,
        Cause::BadFrame => &counters.truncated_bad_frame,
        Cause::OutOfStack => &counters.truncated_out_of_stack,
        Cause::TooDeep => &counters.truncated_too_deep,
    }
}

/// Counts the free of a sampled object if the object's session is still counting. Returns the start
/// time if the free is timed; the caller then calls [`stop_free_timer`].
#[inline]
fn count_free(local: &mut Local, object: &Object) -> Option<u64> {
    if !fork::leave_if_copy(local) {
        return None;
    }
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let mut thread = unsafe { thread::state_of(local).as_mut() };
    let timer = thread.as_mut().and_then(|thread| thread.start_timer());
    let now = clock::now_ns();
    if !session::is_counting(object.session, now) {
        return None;
    }
    let Some((thread, epoch)) = thread.and_then(|thread| epoch_of_object(thread, object, now))
    else {
        count_free_shared(local, object, now);
        return None;
    };
    count_own_free(thread, epoch, object, now);
    timer
}

/// Stops the timer of a free.
#[cold]
#[inline(never)]
fn stop_free_timer(local: &mut Local, started: Option<u64>) {
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let thread = unsafe { thread::state_of(local).as_mut() };
    if let Some(thread) = thread.filter(|thread| thread.session != 0) {
        // SAFETY: a thread with a session has entered an epoch, and enters no other one below.
        let epoch = unsafe { thread.epoch() };
        thread.stop_timer(started, epoch);
    }
}

/// Counts the free of a sampled object of the session in which the thread takes samples.
#[inline]
fn count_own_free(thread: &mut Thread, epoch: &Epoch, object: &Object, now_ns: u64) {
    let freed = free_sample(object, epoch.start_tick, now_ns);
    let record = thread.own_record(object.record, epoch);
    epoch
        .bank
        .count_free(record, thread.shard, &freed, thread.is_exclusive());
}

/// Counts the free of an object that moves, right before the sample at its new address, so that the
/// live heap never includes both.
#[cold]
fn count_replaced(thread: &mut Thread, epoch: &Epoch, object: &Object, now_ns: u64) {
    if session::is_counting(object.session, now_ns)
        && epoch_of_object(thread, object, now_ns).is_some()
    {
        count_own_free(thread, epoch, object, now_ns);
    }
}

/// Returns the sample of a free in a session that began at tick `start`. A birth in the future
/// means that the header was overwritten; it is replaced by the current time.
#[inline]
fn free_sample(object: &Object, start: u32, now: u64) -> FreeSample {
    let mut born = object.sample(start);
    let tick = clock::tick_of(now).wrapping_sub(start);
    if tick < born.tick {
        born.tick = tick;
    }
    FreeSample { born, tick }
}

/// Returns the thread's epoch if it belongs to the object's session and this session still has its
/// bank.
#[inline]
fn epoch_of_object<'a>(
    thread: &'a mut Thread,
    object: &Object,
    now_ns: u64,
) -> Option<(&'a mut Thread, &'static Epoch)> {
    if thread.session == 0 || thread.session as u8 != object.session {
        return None;
    }
    // SAFETY: a thread with a session has entered an epoch, and enters no other one in this call.
    let epoch = unsafe { thread.epoch() };
    let has_bank = epoch.bank.holds_session(thread.session);
    // Headers have the low 8 bits of the session. An object born before this session began is from
    // the session 256 earlier.
    let is_born_in = clock::is_since(object.born, epoch.start_tick, clock::tick_of(now_ns));
    (has_bank && is_born_in).then_some((thread, epoch))
}

/// Counts the free of an object by a thread that does not sample in the object's session.
#[cold]
fn count_free_shared(local: &mut Local, object: &Object, now: u64) {
    let Some((bank, start)) =
        session::bank_of_object(object.session, object.born, clock::tick_of(now))
    else {
        return;
    };
    let freed = free_sample(object, start, now);
    let record = shared_record(&bank, object.record);
    bank.count_free(record, SHARED_SHARD, &freed, false);
    enter_after_frees(local);
}

/// Makes a thread that frees many sampled objects enter the epoch, as if it had allocated. From
/// then on it has counters of its own, which need no atomic instructions.
fn enter_after_frees(local: &mut Local) {
    /// Number of frees after which a thread enters.
    const FREES_TO_ENTER: u8 = 64;
    let number = session::control().epoch(Ordering::Relaxed);
    // A seccomp filter may not allow a thread that only frees to map memory. A thread with an
    // alternate signal stack may be on it, with little room left.
    let may_map = !seccomp::is_installed() && local.signal_stack == local.signal_stack_end;
    if local.freed == FREES_TO_ENTER || local.epoch == number || !may_map {
        return;
    }
    local.freed += 1;
    if local.freed == FREES_TO_ENTER
        && let Some(thread) = enroll(local, number)
        && thread.interval != 0.0
    {
        local.freed = 0;
        local.left = thread.gaps.draw_gap(thread.interval);
        // The objects that the thread frees were allocated by other threads, which may need their
        // memory again: free lists pass it on.
        thread.own_free_lists();
    }
}

/// Returns the record in the shared shard for the stack and size class of an object's record.
#[cold]
fn shared_record(bank: &Bank<'_>, record: RecordId) -> RecordId {
    match bank.committed_or_table_full(record) {
        TABLE_FULL => TABLE_FULL,
        record => {
            let key = bank.stack_of(record);
            let find = || bank.record_with_reserve(key, SHARED_SHARD);
            match find() {
                TABLE_FULL => with_more_room(bank, find),
                record => record,
            }
        }
    }
}

/// Looks up a record by `find` in a bank that has no room for it, but that may grow.
#[cold]
fn with_more_room(bank: &Bank<'_>, find: impl Fn() -> RecordId) -> RecordId {
    let epoch = session::current().filter(|epoch| bank.holds_session(epoch.session));
    epoch.map_or(TABLE_FULL, |epoch| session::with_room(&epoch, find))
}

/// Frees a sampled object.
///
/// # Safety
/// `p` is a live sampled object.
pub unsafe extern "C" fn free(p: *mut c_void) {
    let at: *mut u8 = p.cast();
    // SAFETY: a live object in the range. Its header may have been overwritten, which `read`
    // detects.
    float_environment::with_default(|| unsafe {
        match Object::read(at) {
            HeaderState::Live(object) if overwritten::is_plausible(&object) => {
                free_counted(p, &object, count_free);
            }
            state => overwritten::free(at, state),
        }
    });
}

/// Frees a sampled object with the header `object`, after calling `counting` for it, which returns
/// the start of its timer.
///
/// # Safety
/// See [`free`].
#[inline]
unsafe fn free_counted(
    p: *mut c_void,
    object: &Object,
    counting: impl FnOnce(&mut Local, &Object) -> Option<u64>,
) {
    let at: *mut u8 = p.cast();
    // SAFETY: `p` is a live object with an intact header, which nobody uses any more.
    unsafe {
        probes::free(p);
        Object::retire(at);
        let result = run_guarded(|local| {
            let timer = counting(local, object);
            give_back(local, at, object);
            if timer.is_some() {
                stop_free_timer(local, timer);
            }
            at
        });
        if result.is_null() {
            // This thread is in a signal handler that interrupted the sampler, whose state must not
            // be touched.
            range::free(at.sub(object.layout().offset), Flags::uncached());
        }
    }
}

/// Frees the memory of an object. `object` is its header.
///
/// # Safety
/// See [`free`].
#[inline]
unsafe fn give_back(local: &mut Local, at: *mut u8, object: &Object) {
    let layout = object.layout();
    // SAFETY: the header says where the memory of this live object begins.
    unsafe { give_back_memory(local, at.sub(layout.offset), layout) }
}

/// Frees the memory of an object that begins at `base`.
///
/// # Safety
/// `base` and `layout` belong to a live object in the range, which nobody uses any more.
#[inline]
unsafe fn give_back_memory(local: &mut Local, base: *mut u8, layout: Layout) {
    // SAFETY: null, or this thread's memory, which is mapped until the thread exits.
    let thread = unsafe { thread::state_of(local).as_mut() };
    let free_lists = thread.and_then(Thread::existing_free_lists);
    // SAFETY: the memory at `base` has this layout, and nobody uses it after this call.
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
