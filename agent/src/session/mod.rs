//! The segment, seen from inside: commands, the bank of the session, its life.
//!
//! The control page is mapped over a static of this library, so that reading "is
//! sampling on" needs no pointer and answers "no" before there is a segment.

mod identity;
mod life;
mod sweep;
pub mod time;

pub use identity::read_file;
pub use life::after_unseen_fork;

use core::cell::UnsafeCell;
use core::ffi::c_void;
use core::mem::size_of;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use shm_protocol::layout::{
    Control, MODULES_OFFSET, ModuleTable, Node, RESERVE_STEPS, Record, SHARED_SHARD, STATUS_OFFSET,
    Status,
};
use shm_protocol::{Bank, Geometry, clock};

/// Largest page of the machines that we run on.
pub const PAGE: usize = if cfg!(target_arch = "aarch64") {
    65536
} else {
    4096
};

/// Memory for a page of control.
#[cfg_attr(target_arch = "aarch64", repr(C, align(65536)))]
#[cfg_attr(not(target_arch = "aarch64"), repr(C, align(4096)))]
pub struct ControlPage(UnsafeCell<[u8; PAGE]>);
// SAFETY: only ever seen as `Control`, which is all atomics.
unsafe impl Sync for ControlPage {}

/// Where the commands are; see [`control`]. Its first byte is the epoch.
pub static CONTROL: ControlPage = ControlPage(UnsafeCell::new([0; PAGE]));

/// The commands. All zero (off) until a segment is mapped here.
#[inline(always)]
pub fn control() -> &'static Control {
    // SAFETY: static, aligned, large enough; any bytes are a valid Control.
    unsafe { &*CONTROL.0.get().cast::<Control>() }
}

/// Where the segment is mapped; null: there is none.
static BASE: AtomicPtr<u8> = AtomicPtr::new(core::ptr::null_mut());
static BYTES: AtomicUsize = AtomicUsize::new(0);

fn base() -> Option<*mut u8> {
    Some(BASE.load(Ordering::Acquire)).filter(|base| !base.is_null())
}

/// What the agent tells.
pub fn status() -> Option<&'static Status> {
    // SAFETY: the segment stays mapped, its status is reserved, all atomics.
    base().map(|base| unsafe { &*base.add(STATUS_OFFSET).cast::<Status>() })
}

/// A part of the segment by its offset.
pub fn at<T>(offset: usize) -> Option<*mut T> {
    // SAFETY: callers pass offsets of the layout, which lie inside the segment.
    base().map(|base| unsafe { base.add(offset).cast() })
}

/// The table of modules, which has memory behind it only once a session was prepared.
pub fn modules() -> Option<*mut ModuleTable> {
    at(MODULES_OFFSET)
}

/// What a thread needs of the epoch it samples in.
#[derive(Clone, Copy)]
pub struct Epoch {
    /// Its number.
    pub number: u8,
    /// The session's number.
    pub session: u64,
    /// Mean bytes between samples.
    pub interval: u64,
    /// End, ns of this process's coarse clock; 0: none.
    pub deadline_ns: u64,
    /// The same of the machine's clock, as it was published.
    pub published_deadline_ns: u64,
    /// First tick of the session, of this process's clock.
    pub start_tick: u32,
    /// Where to count.
    pub bank: Bank<'static>,
}

/// The sessions whose banks are in use, by parity: number and first tick. For frees by
/// threads that never sampled in them.
static SESSIONS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
static STARTS: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];

/// The epoch in force, or `None`: off, or not meant for a bank that is ready.
pub fn current() -> Option<Epoch> {
    let control = control();
    let number = control.epoch.load(core::sync::atomic::Ordering::Acquire);
    let params = &control.params[usize::from(number & 1)];
    let session = params.session.load(Ordering::Relaxed);
    if number == 0 || session == 0 {
        return None;
    }
    let bank = bank(session)?;
    let shift = time::shift();
    let start_tick = clock::tick_of(shift.to_own(params.start_ns.load(Ordering::Relaxed)));
    let published_deadline_ns = params.deadline_ns.load(Ordering::Relaxed);
    let deadline_ns = match published_deadline_ns {
        0 => 0,
        machine_ns => shift.to_own(machine_ns),
    };
    if bank.header.session.load(Ordering::Relaxed) != session {
        return None;
    }
    STARTS[session as usize & 1].store(start_tick, Ordering::Relaxed);
    SESSIONS[session as usize & 1].store(session, Ordering::Release);
    Some(Epoch {
        number,
        session,
        interval: params.interval.load(Ordering::Relaxed).max(1),
        deadline_ns,
        published_deadline_ns,
        start_tick,
        bank,
    })
}

/// The bank and the first tick of the session that a sampled object was counted in,
/// given the last 8 bits of its number and the object's birth. `None`: another session
/// has the bank now.
#[inline]
pub fn of_object(session: u8, born: u32) -> Option<(Bank<'static>, u32)> {
    let number = SESSIONS[usize::from(session & 1)].load(Ordering::Acquire);
    let start = STARTS[usize::from(session & 1)].load(Ordering::Relaxed);
    let same = number as u8 == session && (born.wrapping_sub(start) as i32) >= 0;
    if !same {
        return None;
    }
    let bank = bank(number)?;
    (bank.header.session.load(Ordering::Relaxed) == number).then_some((bank, start))
}

fn bank(session: u64) -> Option<Bank<'static>> {
    let base = base()?;
    let geometry = Geometry::of_segment(BYTES.load(Ordering::Relaxed));
    // SAFETY: inside the mapped segment; the bank of a session is reserved before the
    // session is published, and its header says how far.
    Some(unsafe { Bank::at(base.add(geometry.bank_offset(session)), geometry) })
}

/// Lets a session that nobody outside looks after have more of its bank, once half of
/// what it has is used: the pages are there before they are written. Kernels that cannot
/// do this (before 5.14) got all of it at the start.
pub fn grow(epoch: &Epoch) {
    let header = epoch.bank.header;
    let steps = header
        .reserved_steps
        .load(core::sync::atomic::Ordering::Relaxed);
    let geometry = Geometry::of_segment(BYTES.load(Ordering::Relaxed));
    let half = |count: &AtomicU32, limit: u32| count.load(Ordering::Relaxed) > limit / 2;
    let crowded = half(&header.node_count, geometry.nodes_in(steps))
        || half(&header.record_count, geometry.records_in(steps));
    if steps >= RESERVE_STEPS || !crowded || !is_alone(epoch) {
        return;
    }
    let more = (steps * 2).min(RESERVE_STEPS);
    let Some(base) = base() else { return };
    let bank = geometry.bank_offset(epoch.session);
    let nodes = |steps| {
        bank + geometry.nodes_offset() + geometry.nodes_in(steps) as usize * size_of::<Node>()
    };
    let records = |steps| {
        bank + geometry.records_offset() + geometry.records_in(steps) as usize * size_of::<Record>()
    };
    let populated =
        populate(base, nodes(steps), nodes(more)) && populate(base, records(steps), records(more));
    if populated {
        header
            .reserved_steps
            .store(more, core::sync::atomic::Ordering::Release);
    }
}

/// Whether the session was started by this process itself.
fn is_alone(epoch: &Epoch) -> bool {
    let params = &control().params[usize::from(epoch.number & 1)];
    params.controller_pid.load(Ordering::Relaxed) == 0
}

/// Puts memory behind a part of the segment; whether it did.
fn populate(base: *mut u8, from: usize, to: usize) -> bool {
    let from = from & !(PAGE - 1);
    let len = to.next_multiple_of(PAGE) - from;
    // SAFETY: inside the mapped segment; writing the pages in changes none of their bytes.
    unsafe { libc::madvise(base.add(from).cast(), len, MADV_POPULATE_WRITE) == 0 }
}

/// Whether the kernel can do that: tried on a page of our own.
fn can_populate(page: *mut c_void) -> bool {
    // SAFETY: a mapped, writable page.
    unsafe { libc::madvise(page, PAGE, MADV_POPULATE_WRITE) == 0 }
}

/// Linux 5.14.
const MADV_POPULATE_WRITE: libc::c_int = 23;

/// Whether an epoch that was entered is still the one of its number: numbers come back
/// after some two hundred changes, and a thread may sleep through all of them.
#[inline]
pub fn is_current(epoch: &Epoch) -> bool {
    let params = &control().params[usize::from(epoch.number & 1)];
    params.session.load(Ordering::Relaxed) == epoch.session
        && params.deadline_ns.load(Ordering::Relaxed) == epoch.published_deadline_ns
}

/// Ends the session whose deadline has passed.
#[cold]
pub fn expire(epoch: &Epoch, now_ns: u64) {
    let control = control();
    let ended = control.epoch.compare_exchange(
        epoch.number,
        0,
        core::sync::atomic::Ordering::AcqRel,
        core::sync::atomic::Ordering::Relaxed,
    );
    if let (Ok(_), Some(status)) = (ended, status()) {
        let at = time::shift().to_machine(now_ns);
        status.expired_ns.store(at, Ordering::Relaxed);
        status
            .expired_session
            .store(epoch.session, Ordering::Release);
    }
}

/// Shards that a thread may own, by bit; the others use [`SHARED_SHARD`].
static SHARDS: AtomicU32 = AtomicU32::new(0);

/// Takes a shard for the calling thread.
pub fn take_shard() -> u32 {
    let mut taken = SHARDS.load(Ordering::Relaxed);
    loop {
        let free = (!taken).trailing_zeros();
        if free >= SHARED_SHARD {
            return SHARED_SHARD;
        }
        let now = taken | 1 << free;
        match SHARDS.compare_exchange_weak(taken, now, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return free,
            Err(other) => taken = other,
        }
    }
}

/// Gives a shard back.
pub fn release_shard(shard: u32) {
    if shard < SHARED_SHARD {
        SHARDS.fetch_and(!(1 << shard), Ordering::Release);
    }
}

/// After a fork: only the calling thread is left.
fn keep_only_shard(shard: Option<u32>) {
    let kept = shard
        .filter(|shard| *shard < SHARED_SHARD)
        .map_or(0, |shard| 1 << shard);
    SHARDS.store(kept, Ordering::Relaxed);
}
