//! The bytes of a bank: its header, the calling-context tree's nodes, and the records.

// Decision 68: the table grows while memory is left.
use crate::counters::Counters;
use crate::cpu::CpuTotals;
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Size of a bank's header.
pub const BANK_HEADER_BYTES: usize = 8192;
/// Threads with counters of their own; the others share one shard.
#[cfg(not(loom))]
pub const EXCLUSIVE_SHARDS: u32 = 32;
/// As many as a model has threads: the model checker follows every word by itself.
#[cfg(loom)]
pub const EXCLUSIVE_SHARDS: u32 = 2;
/// The shard of all other threads, written with locked instructions.
pub const SHARED_SHARD: u32 = EXCLUSIVE_SHARDS;

/// Units of each step of [`BankHeader::reserved_step`]: every step adds one unit, or a sixteenth.
static STEP_UNITS: [u16; 256] = {
    let mut units = [0u16; 256];
    let mut step = 1;
    while step < units.len() {
        let before = units[step - 1];
        let more = if before < 32 { 1 } else { before / 16 };
        units[step] = before.saturating_add(more);
        step += 1;
    }
    units
};

/// Units that a step of [`BankHeader::reserved_step`] stands for.
#[inline]
#[must_use]
pub fn reserved_units(step: u8) -> u32 {
    u32::from(STEP_UNITS[usize::from(step)])
}

/// The first step that stands for at least this many units.
#[must_use]
pub fn step_of(units: u32) -> u8 {
    let less = STEP_UNITS.partition_point(|of_step| u32::from(*of_step) < units);
    less.min(STEP_UNITS.len() - 1) as u8
}

/// Start of a bank. All zero is a valid empty bank whose session is 0.
#[repr(C)]
pub struct BankHeader {
    /// Session whose data this bank holds.
    pub session: AtomicU64,
    /// Units of nodes and records that a controller has put memory behind, as a step of
    /// [`reserved_units`]: one byte, so that no write to it can be
    /// seen half done.
    pub reserved_step: AtomicU8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Units that the agent itself has put memory behind; see [`Self::units`].
    pub grown_units: AtomicU32,
    /// Nodes claimed after the fixed ones.
    pub node_count: AtomicU32,
    /// Records claimed after the fixed one.
    pub record_count: AtomicU32,
    /// Words of code objects written, see [`crate::codes`].
    pub code_words: AtomicU32,
    /// Bytes for code objects that are backed by memory.
    pub code_bytes: AtomicU32,
    /// Maximum number of units that the agent may put memory behind; 0: all that there are.
    pub most_units: AtomicU32,
    /// Zero.
    pub reserved2: u32,
    /// Zero.
    pub reserved3: [u64; 3],
    /// Counters, apart from the stacks.
    pub counters: Counters,
    /// Running totals per shard; the last is the shared one.
    pub totals: [ShardTotals; EXCLUSIVE_SHARDS as usize + 1],
    /// Interval history.
    pub intervals: IntervalLog,
    /// Threads whose stacks are kept apart.
    pub threads: ThreadTable,
    /// CPU time.
    pub cpu: CpuTotals,
    /// Stacks that allocated objects before which the program has written, by their leaves: the first ones.
    /// 0: none.
    pub overwritten: [AtomicU32; OVERWRITTEN_KEPT],
    /// Maximum of the live heap.
    pub peak: PeakState,
}

/// Maximum of the session's live bytes, found by the first free after it.
#[repr(C, align(64))]
pub struct PeakState {
    /// Number of the last peak; 0 before the first. Records keep their sums of that moment.
    pub epoch: AtomicU32,
    /// Tick of that peak, since the session's start.
    pub tick: AtomicU32,
    /// Estimated live bytes that would be a new peak, fixed point: a step above the last one's.
    pub next_level: AtomicU64,
    /// Estimated live bytes now, fixed point, without what shards have not settled yet.
    pub settled: AtomicU64,
    /// Zero.
    pub reserved: [u64; 5],
}

/// Stacks of overwritten objects that are kept.
pub const OVERWRITTEN_KEPT: usize = 4;

impl BankHeader {
    /// Units of nodes and records that are backed by memory. Controller and agent each write a
    /// count of their own, so that neither can take back what the other has added.
    #[inline]
    #[must_use]
    pub fn units(&self) -> u32 {
        let reserved = reserved_units(self.reserved_step.load(Ordering::Acquire));
        reserved.max(self.grown_units.load(Ordering::Acquire))
    }
}

/// Threads of a session whose stacks are kept apart. The stacks of the others are under
/// [`crate::tree::ROOT`] and [`crate::tree::TRUNCATED`] themselves.
#[cfg(not(loom))]
pub const THREADS_KEPT: usize = 64;
/// No model has any.
#[cfg(loom)]
pub const THREADS_KEPT: usize = 1;
/// Address of the node above the stacks of thread 0 of the [`ThreadTable`], of thread 1 behind
/// it, and so on: in the first page, where no code is.
pub const THREAD_ADDRESS: u64 = 0x400;

/// Address of the node below a frame that stands for all further frames of stacks which found no
/// room in the table.
pub const MERGED_ADDRESS: u64 = 0x501;

/// The threads of a session, in the order in which they met it.
#[repr(C)]
pub struct ThreadTable {
    /// Threads that requested an entry, also those that found none.
    pub count: AtomicU32,
    /// Zero.
    pub reserved: u32,
    /// The entries.
    pub entries: [ThreadEntry; THREADS_KEPT],
}

/// A thread of a session.
#[repr(C)]
pub struct ThreadEntry {
    /// Its number as the process sees it (its own pid namespace); 0: not known.
    pub tid: AtomicU32,
    /// Zero.
    pub reserved: u32,
    /// Its name, zero-padded, which a controller looks up from outside: the agent leaves it alone.
    pub name: [AtomicU64; 2],
}

/// Changes of the interval that are kept.
#[cfg(not(loom))]
pub const INTERVALS_KEPT: usize = 128;
/// No model has any.
#[cfg(loom)]
pub const INTERVALS_KEPT: usize = 1;

/// Interval history of a session whose interval a controller changes, for whoever writes the
/// profile. The agent leaves it alone.
#[repr(C)]
pub struct IntervalLog {
    /// Entries used; 0: the interval never was anybody's to change.
    pub count: AtomicU64,
    /// The smallest interval there was, also in what was left out of the entries.
    pub least: AtomicU64,
    /// Zero.
    pub reserved: [u64; 6],
    /// In order of time.
    pub entries: [IntervalEntry; INTERVALS_KEPT],
}

/// One interval of several.
#[repr(C)]
pub struct IntervalEntry {
    /// From when on, ns of [`crate::clock::now_ns`].
    pub from_ns: AtomicU64,
    /// Mean bytes between samples.
    pub interval: AtomicU64,
    /// Share of the process's CPU time that the agent took in that time, in millionths,
    /// plus one; 0: not measured.
    pub overhead: AtomicU64,
}

/// Totals of one shard in this bank. Single writer, except the shared one.
#[repr(C, align(64))]
pub struct ShardTotals {
    /// Samples.
    pub samples: AtomicU64,
    /// Estimated bytes allocated, fixed point (see [`crate::record`]).
    pub alloc_bytes: AtomicU64,
    /// Estimated bytes freed, fixed point.
    pub freed_bytes: AtomicU64,
    /// Nanoseconds spent in the agent, estimated from timed samples.
    pub agent_ns: AtomicU64,
    /// Samples timed.
    pub timed: AtomicU64,
    /// Change of the live bytes that is not in [`PeakState::settled`] yet, fixed point, modulo 2^64.
    pub unsettled: AtomicU64,
    /// Change up to which it is kept there; 0: not known yet.
    pub unsettled_limit: AtomicU64,
    /// Zero.
    pub reserved: u64,
}

/// A node of the calling-context tree.
#[repr(C)]
pub struct Node {
    /// Return address of this frame; above [`ADDRESS_BITS`](super::ADDRESS_BITS) its module's
    /// instance.
    pub address: AtomicU64,
    /// Index of the caller's node, always smaller than this node's.
    pub parent: AtomicU32,
    /// First of this stack's records, or 0.
    pub records: AtomicU32,
}

/// The counters of one stack and size class, as one shard saw them. Two cache lines: what
/// allocation touches, what free touches. Behind them, their values at the last peak.
#[repr(C, align(64))]
pub struct Record {
    /// Leaf of the stack.
    pub node: AtomicU32,
    /// Next record of the same stack, of any size class and shard, or 0.
    pub next: AtomicU32,
    /// Shard that owns it.
    pub shard: AtomicU16,
    /// Its objects' size: [`crate::record::size_class`].
    pub size_class: AtomicU16,
    /// Last peak since which the sums have changed: `kept` has their values at that peak.
    pub peak_epoch: AtomicU32,
    /// Samples.
    pub alloc_samples: AtomicU64,
    /// Estimated objects allocated, fixed point.
    pub alloc_objects: AtomicU64,
    /// Estimated bytes allocated, fixed point.
    pub alloc_bytes: AtomicU64,
    /// Sum of weight x birth tick (since the session's start).
    pub alloc_birth: AtomicU64,
    /// Variance of `alloc_bytes`, fixed point.
    pub alloc_variance: AtomicU64,
    /// Variance of `alloc_objects`, the bits of an `f64`.
    pub alloc_object_variance: AtomicU64,
    /// Samples freed.
    pub free_samples: AtomicU64,
    /// Estimated objects freed, fixed point.
    pub free_objects: AtomicU64,
    /// Estimated bytes freed, fixed point.
    pub free_bytes: AtomicU64,
    /// Sum of weight x birth tick of what was freed.
    pub free_birth: AtomicU64,
    /// Sum of weight x death tick.
    pub free_death: AtomicU64,
    /// The part of the variance that left with the freed objects.
    pub free_variance: AtomicU64,
    /// The same for the objects' variance.
    pub free_object_variance: AtomicU64,
    /// Estimated objects freed within [`crate::record::SHORT_TICKS`] of their birth, fixed point.
    pub free_short: AtomicU64,
    /// Peak that `kept` is complete for.
    pub kept_epoch: AtomicU32,
    /// Zero.
    pub reserved: [u32; 3],
    /// The sums, from `alloc_samples` to `free_short`, at peak `kept_epoch`.
    pub kept: [AtomicU64; KEPT_SUMS],
}

/// Sums of a record.
pub const KEPT_SUMS: usize = 14;
