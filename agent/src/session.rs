//! The segment as seen from inside the process: commands, the bank of the current session, and the
//! segment's life cycle.
//!
//! Commands, identity and status are mapped over a static of this library. So testing whether
//! sampling is on needs no pointer, and the answer is "no" before there is a segment. While no
//! session is running, nothing else is mapped. The first thread that notices a session maps the
//! tables, which needs neither a path nor a file descriptor.

mod cgroup;
mod fork;
mod identity;
mod life;
mod mark;
mod name;
mod parent;
mod shards;
mod sweep;
mod tables;
pub mod time;

pub use fork::{is_guest, is_owner, is_waiting, leave, pending_cpu_rate, wait_as_child};
pub use life::{
    has_own_segment, is_in_foreign_memory, is_program_session, last_session, leave_children_out,
    mark_as_own, remove, remove_if_unused,
};
pub use mark::{claim_leaving, is_copy};
pub use shards::{release_shard, take_shard};
#[cfg(not(test))]
pub use tables::shrink;

use crate::sys::{self, PAGE};
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use sampling::thinning;
use shm_protocol::cpu::CpuSetting;
use shm_protocol::layout::{
    AgentMemory, CONTROL_BYTES, Control, MODULES_OFFSET, ModuleTable, REFUSES_MEMORY,
    REFUSES_SECCOMP, STATUS_OFFSET, Status,
};
use shm_protocol::owner::{self, EnteredSession, Mapping, SegmentState, Sessions, Setting};
use shm_protocol::record::{FIRST_RECORD, TABLE_FULL};
use shm_protocol::tree::FIRST_NODE;
use shm_protocol::{Bank, Geometry, RecordId, clock, segment};

/// Size of the view in bytes: [`CONTROL_BYTES`] in whole pages.
const VIEW_BYTES: usize = CONTROL_BYTES.next_multiple_of(PAGE);

/// Memory for the view of commands, identity and status.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub struct ControlView(UnsafeCell<[u8; VIEW_BYTES]>);
// SAFETY: accessed as `Control` and `Status`, which are all atomics, and as `Identity`, which is
// written only while no other process knows of the segment.
unsafe impl Sync for ControlView {}

/// View of the commands (see [`control`]). The first word is the epoch; its initial value is
/// [`FIRST_EPOCH`].
///
/// The view is in a section of its own, before the other variables (`lib.rs`). If it lay between
/// the variables that an idle process writes, these would be on two pages instead of one. A page
/// has 64 KiB on some machines.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_control"))]
pub static CONTROL: ControlView = ControlView(UnsafeCell::new({
    let mut view = [0; VIEW_BYTES];
    *view.first_chunk_mut().unwrap() = FIRST_EPOCH.to_le_bytes();
    view
}));

/// Epoch until the first allocation. No thread has entered it, so the first allocation takes the
/// slow path, where the environment is read.
const FIRST_EPOCH: u32 = if cfg!(test) { 0 } else { u32::MAX - 1 };

/// Returns true before the first allocation.
pub fn is_first_epoch() -> bool {
    FIRST_EPOCH != 0 && control().epoch(Ordering::Relaxed) == FIRST_EPOCH
}

/// Ends [`FIRST_EPOCH`] at the first allocation. Sampling is off until there is a segment.
pub fn await_start() {
    control().epoch.store(0, Ordering::Relaxed);
}

/// Returns the commands. All zeros (off) from the first allocation until a segment is mapped here.
#[inline(always)]
pub fn control() -> &'static Control {
    // SAFETY: the static is aligned and large enough, and any bytes are a valid `Control`.
    unsafe { &*CONTROL.0.get().cast::<Control>() }
}

/// Counts an allocation down. Returns true if it is not sampled: sampling is off, or the countdown
/// has not expired. Sizes that are negative as signed numbers are not counted; they would increase
/// the countdown.
#[inline(always)]
pub fn skips_sampling(size: usize) -> bool {
    const MAX_COUNTED: usize = isize::MAX as usize;
    let epoch = control().epoch(Ordering::Relaxed);
    epoch == 0 || (size <= MAX_COUNTED && crate::arch::counts_down(epoch, size))
}

// All statics that a fork reads and writes are in one section (`mem_agent_state`), because each
// page that the child touches costs a page fault.

/// Relation of this process to the segment in the view: its own, its parent's, or none.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SEGMENT_STATE: SegmentState = SegmentState::new();

/// Number of segments that this process has created. What was recorded in an earlier one must be
/// recorded again.
static SEGMENTS: AtomicU32 = AtomicU32::new(0);
/// Address of the mapping of the whole segment.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static BASE: Mapping = Mapping::new();
/// Size of the whole segment in bytes, as this process chose it.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Returns the status that the agent publishes, or `None` if there is no segment.
pub fn status() -> Option<&'static Status> {
    // SAFETY: the status is inside the view, which is never unmapped.
    // `shm_protocol::segment::create` has written all of it, so it is backed by memory. All fields
    // are atomics.
    let status = unsafe { &*CONTROL.0.get().byte_add(STATUS_OFFSET).cast::<Status>() };
    SEGMENT_STATE.is_own().then_some(status)
}

/// Returns a pointer to the part of the view at `offset`, or `None` if there is no segment.
///
/// # Safety
/// A `T` at `offset` lies inside the view.
pub unsafe fn at<T>(offset: usize) -> Option<*mut T> {
    debug_assert!(offset + size_of::<T>() <= CONTROL_BYTES);
    // SAFETY: the part lies inside the view.
    SEGMENT_STATE
        .is_own()
        .then(|| unsafe { CONTROL.0.get().byte_add(offset).cast() })
}

/// Creates the segment at start-up. Begins a session if the environment requests one or
/// `samples_all` is set. `address_space` is the limit of the address space in bytes; `memory` is
/// the agent's own memory.
pub fn start(address_space: u64, samples_all: bool, memory: AgentMemory) {
    identity::start(memory);
    mark::start();
    fork::start();
    life::start(address_space, samples_all);
}

/// Returns the number of segments that this process has created so far.
pub fn segment_number() -> u32 {
    SEGMENTS.load(Ordering::Relaxed)
}

/// Returns the table of modules, or `None` before the first session of this process.
pub fn modules() -> Option<*mut ModuleTable> {
    // SAFETY: the table is inside the whole segment, which `attach` mapped for a session. Whoever
    // starts a session backs this part with memory.
    BASE.get()
        .map(|base| unsafe { base.add(MODULES_OFFSET).cast() })
}

/// Maps a private page of zeros over the view. Returns false if that fails.
fn cover_view() -> bool {
    // SAFETY: the view is our own static, in whole pages, and any bytes are valid in it.
    unsafe { sys::cover(CONTROL.0.get().cast(), VIEW_BYTES) }
}

/// Records in the status why nothing is sampled.
fn refuse(reason: u32, errno: i32) {
    if let Some(status) = status() {
        status.refuses_errno.store(errno as u32, Ordering::Relaxed);
        status.refuses.store(reason, Ordering::Release);
    }
}

/// Records in the status that memory ran out, with `errno`.
#[cold]
pub fn refuse_for_memory() {
    refuse(REFUSES_MEMORY, sys::errno());
}

/// Returns the mapping of the whole segment. Creates it if necessary.
fn attach() -> Option<*mut u8> {
    if let Some(base) = BASE.get() {
        return Some(base);
    }
    if !SEGMENT_STATE.is_own() {
        return None;
    }
    if crate::seccomp::is_installed() {
        refuse(REFUSES_SECCOMP, 0);
        return None;
    }
    match map_whole() {
        Ok(base) => Some(base),
        Err(segment::Errno(errno)) => {
            refuse(REFUSES_MEMORY, errno);
            None
        }
    }
}

/// Maps the whole segment. The view must be this process's own segment.
fn map_whole() -> Result<*mut u8, segment::Errno> {
    if let Some(base) = BASE.get() {
        return Ok(base);
    }
    let bytes = BYTES.load(Ordering::Relaxed);
    let mapping = map_unlocked(bytes)?;
    match BASE.offer(mapping) {
        Ok(()) => Ok(mapping),
        Err(others) => {
            // SAFETY: just mapped, and no other thread has its address.
            unsafe { libc::munmap(mapping.cast(), bytes) };
            Ok(others)
        }
    }
}

/// Maps the whole segment without locking its memory. `mlockall` would lock a second mapping of
/// locked memory, too, and back all of the file immediately; [`tables`] backs only the parts in
/// use.
fn map_unlocked(bytes: usize) -> Result<*mut u8, segment::Errno> {
    let view = CONTROL.0.get().cast::<c_void>();
    // SAFETY: the view is a shared mapping of this process's segment, and is not unmapped. Other
    // processes may access it at the same time.
    unsafe {
        let is_locked = sys::is_locked(view);
        if is_locked {
            libc::munlock(view, VIEW_BYTES);
        }
        let mapping = segment::map_whole(view.cast(), bytes);
        if is_locked {
            libc::mlock(view, VIEW_BYTES);
        }
        mapping.inspect(|base| tables::close_banks(*base))
    }
}

/// Settings of an epoch, which determine how threads sample.
#[derive(Clone, Copy)]
pub struct Epoch {
    /// Number of the epoch.
    pub number: u32,
    /// Number of the session.
    pub session: u64,
    /// Mean number of bytes between samples; 0 if only CPU time is sampled.
    pub interval: u64,
    /// Deadline in ns of this process's coarse clock; 0: none.
    pub deadline_ns: u64,
    /// Deadline as published, in ns of the machine's clock; 0: none.
    pub published_deadline_ns: u64,
    /// First tick of the session, by this process's clock.
    pub start_tick: u32,
    /// Start of the session as published, in ns of the machine's clock.
    pub published_start_ns: u64,
    /// Maximum address space for sampled objects, in bytes; 0: no limit.
    pub range_limit: u64,
    /// Maximum thinning step: one in 2^`thinning` samples that are due is taken at well-known call
    /// sites. 0: no thinning.
    pub thinning: u32,
    /// Maximum share of the CPU time that sampling may take, in millionths; 0 if the interval is
    /// fixed.
    pub max_overhead: u64,
    /// Settings for sampling CPU time.
    pub cpu: CpuSetting,
    /// Bank of the session.
    pub bank: Bank<'static>,
}

/// Sessions whose banks are in use.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SESSIONS: Sessions = Sessions::new();

/// Returns the current epoch, or `None` if sampling is off or the session's bank is not ready.
pub fn current() -> Option<Epoch> {
    let shift = time::shift();
    let EnteredSession {
        setting,
        bank,
        start_tick,
    } = owner::enter(
        control(),
        &SESSIONS,
        |session| Some(open_bank(attach()?, session)),
        |start_ns| clock::tick_of(shift.to_own(start_ns)),
    )?;
    let deadline_ns = match setting.deadline_ns {
        0 => 0,
        machine_ns => shift.to_own(machine_ns),
    };
    Some(Epoch {
        number: setting.epoch,
        session: setting.session,
        interval: setting.interval,
        deadline_ns,
        published_deadline_ns: setting.deadline_ns,
        start_tick,
        published_start_ns: setting.start_ns,
        range_limit: setting.range_limit,
        max_overhead: match setting.interval {
            0 | 1 => 0,
            _ => setting.max_overhead,
        },
        thinning: match setting.interval {
            0 | 1 => 0,
            _ => setting.thinning.min(u64::from(thinning::MAX_STEP)) as u32,
        },
        cpu: setting.cpu,
        bank,
    })
}

/// Returns true if a session still counts frees; `session` is the low 8 bits of its number. Objects
/// that are freed after the deadline were live at the end of the profile.
#[inline]
pub fn is_counting(session: u8, now_ns: u64) -> bool {
    let epoch = control().epoch(Ordering::Relaxed);
    let params = control().params_of(epoch);
    let deadline_ns = params.deadline_ns.load(Ordering::Relaxed);
    epoch != 0
        && params.session.load(Ordering::Relaxed) as u8 == session
        && (deadline_ns == 0 || now_ns < time::shift().to_own(deadline_ns))
}

/// Returns the bank and the first tick of the session that a sampled object was counted in.
/// `session` is the low 8 bits of the session's number, `born` the object's birth. Returns `None`
/// if the bank belongs to another session now.
#[inline]
pub fn bank_of_object(session: u8, born: u32, now: u32) -> Option<(Bank<'static>, u32)> {
    let (number, start) = SESSIONS.of_object(session, born, now)?;
    let bank = bank(BASE.get()?, u64::from(number));
    let is_its_bank = bank.header.session.load(Ordering::Relaxed) as u32 == number;
    is_its_bank.then_some((bank, start))
}

/// Returns the bank of a session.
fn bank(base: *mut u8, session: u64) -> Bank<'static> {
    let geometry = Geometry::of_segment(BYTES.load(Ordering::Relaxed));
    // SAFETY: `base` is the mapping of the whole segment, valid while `BASE` has it (a child
    // forgets its sessions before it gives the mapping up). Before a session is published, its bank
    // is backed with memory as far as its header says, and stays so while this process lives.
    let bank = unsafe { Bank::at(base.add(geometry.bank_offset(session)), geometry) };
    bank.restricted_to(tables::accessible_units(session))
}

/// Returns the bank of a session that the calling thread enters, after making its units accessible.
fn open_bank(base: *mut u8, session: u64) -> Bank<'static> {
    let bank = bank(base, session);
    tables::open_units(base, &bank, session, bank.header.units());
    bank
}

/// Session whose bank the kernel refused to back with more memory; 0: none.
static REFUSED_GROWTH: AtomicU64 = AtomicU64::new(0);

/// Reserves another unit of the bank once half of it is used, in a session without a controller.
/// The memory is backed before it is written.
pub fn grow_early(epoch: &Epoch) {
    if is_without_controller(epoch) {
        // Called at most once a second, so a refusal is retried then.
        REFUSED_GROWTH.store(0, Ordering::Relaxed);
        extend(epoch, 2);
    }
}

/// Reserves another unit of a full bank. Usually the controller does so in time; this is for bursts
/// of new stacks between its polls. Returns true if a stack that did not fit should be tried again.
/// `tries` counts the times that another thread had just grown the bank; it starts at 0 for each
/// stack.
#[cold]
pub fn grow(epoch: &Epoch, tries: &mut u8) -> bool {
    const MAX_TRIES: u8 = 4;
    match extend(epoch, 1) {
        Growth::Done => true,
        Growth::Unneeded => {
            *tries += 1;
            *tries <= MAX_TRIES
        }
        Growth::Impossible => false,
    }
}

/// Looks up a record by `find`, and reserves more of the bank while there is no room for it. If a
/// thread frees another thread's object, it may need a record of its own. Without a record, the
/// free would be lost, and the object would seem to live.
#[cold]
pub fn with_room(epoch: &Epoch, find: impl Fn() -> RecordId) -> RecordId {
    let mut tries = 0;
    let mut record = find();
    while record == TABLE_FULL && grow(epoch, &mut tries) {
        record = find();
    }
    record
}

/// Outcome of an attempt to reserve another unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// This thread or another one has reserved it.
    Done,
    /// Not needed: enough is reserved and unused.
    Unneeded,
    Impossible,
}

/// Returns true if less than 1/`part` of the reserved nodes and records is used, not counting those
/// set aside for stacks that do not fit.
fn uses_less_than(epoch: &Epoch, part: u32) -> bool {
    let header = epoch.bank.header;
    let geometry = Geometry::of_segment(BYTES.load(Ordering::Relaxed));
    let units = header.units();
    let nodes = header.node_count.load(Ordering::Relaxed) + FIRST_NODE;
    let records = header.record_count.load(Ordering::Relaxed) + FIRST_RECORD;
    let node_limit = epoch.bank.node_limit() / part;
    let record_limit = geometry.records_in(units) / part;
    nodes < node_limit && records < record_limit - record_limit / 8
}

/// Reserves another unit of the bank if at least 1/`part` of it is used. Takes about 0.2 ms.
/// Kernels before 5.14 cannot do this: there, a session without a controller reserves everything at
/// its start.
fn extend(epoch: &Epoch, part: u32) -> Growth {
    let header = epoch.bank.header;
    let units = header.units();
    if tables::accessible_units(epoch.session).load(Ordering::Relaxed) < units {
        let base = BASE.get();
        let are_open =
            base.is_some_and(|base| tables::open_units(base, &epoch.bank, epoch.session, units));
        return if are_open {
            Growth::Done
        } else {
            Growth::Impossible
        };
    }
    if units >= epoch.bank.max_units() {
        return Growth::Impossible;
    }
    if uses_less_than(epoch, part) {
        return Growth::Unneeded;
    }
    let is_refused = REFUSED_GROWTH.load(Ordering::Relaxed) == epoch.session;
    // A seccomp filter of the program may not allow the call.
    if is_refused || crate::seccomp::is_installed() {
        return Growth::Impossible;
    }
    if tables::populate_units(&epoch.bank, epoch.session, units + 1) {
        Growth::Done
    } else {
        REFUSED_GROWTH.store(epoch.session, Ordering::Relaxed);
        Growth::Impossible
    }
}

/// Reserves more of the bank before the program installs a seccomp filter; afterwards only a
/// controller can. Safe in a signal handler that interrupted an allocation.
#[cold]
pub fn grow_before_filter() {
    let epoch = control().epoch(Ordering::Relaxed);
    let params = control().params_of(epoch);
    let Some(base) = BASE.get() else { return };
    // An earlier filter may already forbid the call.
    if epoch == 0 || !SEGMENT_STATE.is_own() || crate::seccomp::is_installed() {
        return;
    }
    let session = params.session.load(Ordering::Relaxed);
    let saved = sys::errno();
    let bank = bank(base, session);
    let units = bank
        .geometry()
        .units_within(FILTERED_BANK_BYTES)
        .min(bank.max_units());
    let _ = tables::populate_units(&bank, session, units);
    sys::set_errno(saved);
}

/// Maximum number of bytes that are reserved of a bank before a seccomp filter is installed.
const FILTERED_BANK_BYTES: u64 = 6 << 20;

/// Backs `bytes` of a session's code objects with memory. Returns false if that fails.
#[cold]
pub fn reserve_codes(epoch: &Epoch, bytes: usize) -> bool {
    tables::populate_codes(&epoch.bank, epoch.session, bytes)
}

/// Returns true if this process started the session itself.
fn is_without_controller(epoch: &Epoch) -> bool {
    let params = control().params_of(epoch.number);
    params.controller_pid.load(Ordering::Relaxed) == 0
}

/// Returns true if an epoch that was entered before is still in force.
#[inline]
pub fn is_current(epoch: &Epoch) -> bool {
    let deadline_ns = epoch.published_deadline_ns;
    Setting::is_current(control(), epoch.number, epoch.session, deadline_ns)
}

/// Records the time of the process's exit. Ages of live objects are relative to it.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_fork"))]
pub fn record_exit(status: &Status) {
    status
        .exited
        .store(time::now_ns().max(1), Ordering::Relaxed);
}

/// Ends a session whose deadline has passed.
#[cold]
pub fn expire(epoch: &Epoch, now_ns: u64) {
    let ended = Setting::end(control(), epoch.number);
    if let (true, Some(status)) = (ended, status()) {
        let at = time::shift().to_machine(now_ns);
        status.ended_ns.store(at, Ordering::Relaxed);
        status.ended_session.store(epoch.session, Ordering::Release);
    }
}
