//! The segment from inside the process: commands, the session's bank, the segment's life cycle.
//!
//! Commands, identity and status are mapped over a static of this library: testing whether sampling
//! is on needs no pointer, and the answer is "no" before there is a segment. While no session runs,
//! nothing else is mapped. The first thread that notices a session maps the tables, which needs
//! neither path nor descriptor.

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

pub use fork::{is_guest, is_owners, is_waiting, leave, pending_cpu_rate, wait_as_child};
pub use life::{
    has_own, is_in_anothers_memory, is_programs_own, last_session, leave_at_once, remove,
    take_for_own,
};
pub use mark::{claim_leaving, is_copy};
pub use shards::{release_shard, take_shard};
#[cfg(not(test))]
pub use tables::shrink;

use crate::sys::{self, PAGE};
use crate::thinning;
use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use shm_protocol::cpu::CpuSetting;
use shm_protocol::layout::{
    AgentMemory, CONTROL_BYTES, Control, MODULES_OFFSET, ModuleTable, REFUSES_MEMORY,
    REFUSES_SECCOMP, STATUS_OFFSET, Status,
};
use shm_protocol::owner::{self, Life, Mapping, Met, Sessions, Setting};
use shm_protocol::record::FIRST_RECORD;
use shm_protocol::tree::FIRST_NODE;
use shm_protocol::{Bank, Geometry, clock, segment};

/// [`CONTROL_BYTES`] in whole pages.
const VIEW: usize = CONTROL_BYTES.next_multiple_of(PAGE);

/// Memory for the view of commands, identity and status.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub struct ControlView(UnsafeCell<[u8; VIEW]>);
// SAFETY: accessed as `Control` and `Status`, which are all atomics, and as `Identity`, which is
// written only while no other process knows of the segment.
unsafe impl Sync for ControlView {}

/// View of the commands, see [`control`]. The first word is the epoch: at first [`FIRST_EPOCH`].
pub static CONTROL: ControlView = ControlView(UnsafeCell::new({
    let mut view = [0; VIEW];
    *view.first_chunk_mut().unwrap() = FIRST_EPOCH.to_le_bytes();
    view
}));

/// Epoch until the first allocation, which so takes the slow path, where the environment is read.
/// No thread has met it.
const FIRST_EPOCH: u32 = if cfg!(test) { 0 } else { u32::MAX - 1 };

/// Whether it is still that.
pub fn is_first_epoch() -> bool {
    FIRST_EPOCH != 0 && control().epoch(Ordering::Relaxed) == FIRST_EPOCH
}

/// Ends [`FIRST_EPOCH`]: sampling is off until there is a segment. At the first allocation.
pub fn await_start() {
    control().epoch.store(0, Ordering::Relaxed);
}

/// The commands. All zero (off) from the first allocation until a segment is mapped here.
#[inline(always)]
pub fn control() -> &'static Control {
    // SAFETY: static, aligned, large enough; any bytes are a valid Control.
    unsafe { &*CONTROL.0.get().cast::<Control>() }
}

/// Whether an allocation of `size` bytes is not sampled, because sampling is off or the countdown
/// has not expired; counts it down. A size that is negative as a signed number would wind it up.
#[inline(always)]
pub fn skips_sampling(size: usize) -> bool {
    const MOST: usize = isize::MAX as usize;
    let epoch = control().epoch(Ordering::Relaxed);
    epoch == 0 || size <= MOST && crate::arch::counts_down(epoch, size)
}

// Everything that a fork reads and writes is kept together (`mem_agent_state`), since each page
// that the child touches costs it a page fault.

/// Whose segment the view shows.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static LIFE: Life = Life::new();

/// Number of segments that this process has made: a new one lacks what earlier ones recorded.
static SEGMENTS: AtomicU32 = AtomicU32::new(0);
/// Where the whole segment is mapped.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static BASE: Mapping = Mapping::new();
/// Size of the whole segment, as this process chose it.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static BYTES: AtomicUsize = AtomicUsize::new(0);

/// Status that the agent publishes; `None` if there is no segment.
pub fn status() -> Option<&'static Status> {
    // SAFETY: inside the view, which is never unmapped and all of which is backed by memory
    // (`shm_protocol::segment::create` wrote it); all atomics.
    let status = unsafe { &*CONTROL.0.get().byte_add(STATUS_OFFSET).cast::<Status>() };
    LIFE.is_own().then_some(status)
}

/// Pointer to the part of the view at `offset`.
pub fn at<T>(offset: usize) -> Option<*mut T> {
    debug_assert!(offset + size_of::<T>() <= CONTROL_BYTES);
    // SAFETY: callers pass offsets of the layout, which lie inside the view.
    LIFE.is_own()
        .then(|| unsafe { CONTROL.0.get().byte_add(offset).cast() })
}

/// Makes the segment, and begins the session if the environment requests one, or `samples_all`.
/// Called at start-up; `address_space` is the limit on it, in bytes; `memory` is the agent's own.
pub fn start(address_space: u64, samples_all: bool, memory: AgentMemory) {
    identity::start(memory);
    mark::start();
    fork::start();
    life::start(address_space, samples_all);
}

/// Number of the current segment among those that this process has made.
pub fn segment_number() -> u32 {
    SEGMENTS.load(Ordering::Relaxed)
}

/// The table of modules; `None` before a session has begun in this process.
pub fn modules() -> Option<*mut ModuleTable> {
    // SAFETY: inside the whole segment; `attach` mapped it for a session, whose starter has backed
    // this part with memory.
    BASE.get()
        .map(|base| unsafe { base.add(MODULES_OFFSET).cast() })
}

/// Puts a private, empty page over the view of commands, identity and status.
fn cover_view() -> bool {
    // SAFETY: our own static, whole pages of it; any bytes are a view.
    unsafe { sys::cover(CONTROL.0.get().cast(), VIEW) }
}

/// Records in the status why there is no sampling.
fn refuse(reason: u32, errno: i32) {
    if let Some(status) = status() {
        status.refuses_errno.store(errno as u32, Ordering::Relaxed);
        status.refuses.store(reason, Ordering::Release);
    }
}

/// Records that there is no sampling because memory ran out, with `errno`.
#[cold]
pub fn refuse_for_memory() {
    refuse(REFUSES_MEMORY, sys::errno());
}

/// The whole segment; maps it if necessary.
fn attach() -> Option<*mut u8> {
    if let Some(base) = BASE.get() {
        return Some(base);
    }
    if !LIFE.is_own() {
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

/// Like [`attach`], for a view that is known to be of this process's own segment, new or not.
fn map_whole() -> Result<*mut u8, segment::Errno> {
    if let Some(base) = BASE.get() {
        return Ok(base);
    }
    let bytes = BYTES.load(Ordering::Relaxed);
    let made = map_unlocked(bytes)?;
    match BASE.offer(made) {
        Ok(()) => Ok(made),
        Err(first) => {
            // SAFETY: the mapping just made, which no other thread knows.
            unsafe { libc::munmap(made.cast(), bytes) };
            Ok(first)
        }
    }
}

/// Maps the whole segment, and leaves it to [`tables`] to back parts of it with memory: a second
/// mapping of locked memory would be locked, too, and backed at once as far as the file reaches.
fn map_unlocked(bytes: usize) -> Result<*mut u8, segment::Errno> {
    let view = CONTROL.0.get().cast::<c_void>();
    // SAFETY: the view of this process's segment: a shared file, whose bytes stay. Others may read
    // and write it meanwhile.
    unsafe {
        let is_locked = sys::is_locked(view);
        if is_locked {
            libc::munlock(view, VIEW);
        }
        let made = segment::whole(view.cast(), bytes);
        if is_locked {
            libc::mlock(view, VIEW);
        }
        made.inspect(|base| tables::close_banks(*base))
    }
}

/// Settings of an epoch, as a thread samples by them.
#[derive(Clone, Copy)]
pub struct Epoch {
    /// Number of the epoch.
    pub number: u32,
    /// The session's number.
    pub session: u64,
    /// Mean bytes between samples; 0: none, CPU time alone is sampled.
    pub interval: u64,
    /// End, in ns of this process's coarse clock; 0: none.
    pub deadline_ns: u64,
    /// The same in ns of the machine's clock, as published.
    pub published_deadline_ns: u64,
    /// First tick of the session, of this process's clock.
    pub start_tick: u32,
    /// Maximum address space for sampled objects; 0: no limit.
    pub range_limit: u64,
    /// For well-known call sites at least one due sample in 2^this is taken; 0: each one.
    pub thinning: u32,
    /// What is wanted of CPU time.
    pub cpu: CpuSetting,
    /// Bank of the session.
    pub bank: Bank<'static>,
}

/// The sessions whose banks are in use.
#[cfg_attr(not(test), unsafe(link_section = "mem_agent_state"))]
static SESSIONS: Sessions = Sessions::new();

/// The epoch in force; `None` if there is none, or if its bank is not ready.
pub fn current() -> Option<Epoch> {
    let shift = time::shift();
    let Met {
        setting,
        bank,
        start_tick,
    } = owner::meet(
        control(),
        &SESSIONS,
        |session| Some(opened(attach()?, session)),
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
        range_limit: setting.range_limit,
        thinning: match setting.interval {
            0 | 1 => 0,
            _ => setting.thinning.min(u64::from(thinning::MOST)) as u32,
        },
        cpu: setting.cpu,
        bank,
    })
}

/// Whether a session, by the last 8 bits of its number, still counts. What is freed after its end
/// was alive then, and its profile is of that moment.
#[inline]
pub fn is_counting(session: u8, now_ns: u64) -> bool {
    let epoch = control().epoch(Ordering::Relaxed);
    let params = control().params_of(epoch);
    let deadline_ns = params.deadline_ns.load(Ordering::Relaxed);
    epoch != 0
        && params.session.load(Ordering::Relaxed) as u8 == session
        && (deadline_ns == 0 || now_ns < time::shift().to_own(deadline_ns))
}

/// The bank and the first tick of the session that a sampled object was counted in,
/// given the last 8 bits of its number and the object's birth. `None`: another session
/// has the bank now.
#[inline]
pub fn of_object(session: u8, born: u32, now: u32) -> Option<(Bank<'static>, u32)> {
    let (number, start) = SESSIONS.of_object(session, born, now)?;
    let bank = bank(BASE.get()?, u64::from(number));
    let holds = bank.header.session.load(Ordering::Relaxed) as u32 == number;
    holds.then_some((bank, start))
}

fn bank(base: *mut u8, session: u64) -> Bank<'static> {
    let geometry = Geometry::of_segment(BYTES.load(Ordering::Relaxed));
    // SAFETY: `base` is the whole segment, mapped for as long as `BASE` says so (a child forgets
    // its sessions before it gives the mapping up). Whoever publishes a session has backed its bank
    // with memory, as far as the bank's header says, and nobody takes that memory away while this
    // process lives.
    let bank = unsafe { Bank::at(base.add(geometry.bank_offset(session)), geometry) };
    bank.within(tables::open(session))
}

/// The bank of a session that the calling thread meets, whose units are made accessible.
fn opened(base: *mut u8, session: u64) -> Bank<'static> {
    let bank = bank(base, session);
    tables::open_units(base, &bank, session, bank.header.units());
    bank
}

/// Session in which the system refused memory for more of the bank; 0: none.
static REFUSED_GROWTH: AtomicU64 = AtomicU64::new(0);

/// Reserves more of the bank of a session without a controller once half of it is used, so that
/// pages exist before they are written.
pub fn grow_early(epoch: &Epoch) {
    if is_alone(epoch) {
        // Tried again once a second at most, so a refusal need not be final.
        REFUSED_GROWTH.store(0, Ordering::Relaxed);
        extend(epoch, 2);
    }
}

/// Reserves more of a bank that is full. A controller does that from outside, in time as a rule;
/// this is for a burst of new stacks before its turn comes. Returns whether a stack that found no
/// room may find some now; `tries` counts how often that was done by another thread, from 0 for
/// each stack.
#[cold]
pub fn grow(epoch: &Epoch, tries: &mut u8) -> bool {
    const MOST: u8 = 4;
    match extend(epoch, 1) {
        Growth::Done => true,
        Growth::Unneeded => {
            *tries += 1;
            *tries <= MOST
        }
        Growth::Impossible => false,
    }
}

/// What came of an attempt to reserve more of a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Growth {
    /// There is more, by this thread or by another.
    Done,
    /// Enough of what is reserved is unused.
    Unneeded,
    Impossible,
}

/// Whether less than one `part`th of the nodes and of the records are used that have memory and are
/// not kept for stacks without room.
fn uses_less_than(epoch: &Epoch, part: u32) -> bool {
    let header = epoch.bank.header;
    let geometry = Geometry::of_segment(BYTES.load(Ordering::Relaxed));
    let units = header.units();
    let nodes = header.node_count.load(Ordering::Relaxed) + FIRST_NODE;
    let records = header.record_count.load(Ordering::Relaxed) + FIRST_RECORD;
    let (some, limit) = (
        epoch.bank.node_limit() / part,
        geometry.records_in(units) / part,
    );
    nodes < some && records < limit - limit / 8
}

/// Reserves one more unit of the bank if one `part`th of what is reserved is used: the thread that
/// does it waits for no more than that takes, some 0.2 ms. On kernels that cannot do this (before
/// 5.14), nothing: without a controller, all that there will be was reserved at the start there.
fn extend(epoch: &Epoch, part: u32) -> Growth {
    let header = epoch.bank.header;
    let units = header.units();
    if tables::open(epoch.session).load(Ordering::Relaxed) < units {
        let base = BASE.get();
        let are_open =
            base.is_some_and(|base| tables::open_units(base, &epoch.bank, epoch.session, units));
        return match are_open {
            true => Growth::Done,
            false => Growth::Impossible,
        };
    }
    if units >= epoch.bank.most_units() {
        return Growth::Impossible;
    }
    if uses_less_than(epoch, part) {
        return Growth::Unneeded;
    }
    let refused = REFUSED_GROWTH.load(Ordering::Relaxed) == epoch.session;
    // A filter that the program has installed may not allow this call.
    if refused || crate::seccomp::is_installed() {
        return Growth::Impossible;
    }
    match tables::populate_units(&epoch.bank, epoch.session, units + 1) {
        true => Growth::Done,
        false => {
            REFUSED_GROWTH.store(epoch.session, Ordering::Relaxed);
            Growth::Impossible
        }
    }
}

/// Reserves more of a session's bank before the program puts itself under a filter: afterwards only
/// a controller can. Safe in a signal handler that interrupted an allocation.
#[cold]
pub fn grow_before_filter() {
    let epoch = control().epoch(Ordering::Relaxed);
    let params = control().params_of(epoch);
    let Some(base) = BASE.get() else { return };
    // It may be under one already that forbids this.
    if epoch == 0 || !LIFE.is_own() || crate::seccomp::is_installed() {
        return;
    }
    let session = params.session.load(Ordering::Relaxed);
    let saved = sys::errno();
    let bank = bank(base, session);
    let units = bank
        .geometry()
        .units_within(UNDER_FILTERS)
        .min(bank.most_units());
    let _ = tables::populate_units(&bank, session, units);
    sys::set_errno(saved);
}

/// Maximum number of bytes of the bank of a session that runs when the program puts itself under a
/// filter.
const UNDER_FILTERS: u64 = 6 << 20;

/// Backs this many bytes of a session's code objects with memory. Whether there is.
#[cold]
pub fn reserve_codes(epoch: &Epoch, bytes: usize) -> bool {
    tables::populate_codes(&epoch.bank, epoch.session, bytes)
}

/// Whether the session was started by this process itself.
fn is_alone(epoch: &Epoch) -> bool {
    let params = control().params_of(epoch.number);
    params.controller_pid.load(Ordering::Relaxed) == 0
}

/// Whether an epoch that was entered is still the one that its number stands for.
#[inline]
pub fn is_current(epoch: &Epoch) -> bool {
    let deadline_ns = epoch.published_deadline_ns;
    Setting::is_current(control(), epoch.number, epoch.session, deadline_ns)
}

/// Ends the session whose deadline has passed.
#[cold]
pub fn expire(epoch: &Epoch, now_ns: u64) {
    let ended = Setting::end(control(), epoch.number);
    if let (true, Some(status)) = (ended, status()) {
        let at = time::shift().to_machine(now_ns);
        status.ended_ns.store(at, Ordering::Relaxed);
        status.ended_session.store(epoch.session, Ordering::Release);
    }
}
