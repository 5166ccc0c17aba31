//! Layout of a bank: header, nodes of the calling-context tree, records.

// Decision 68: the table grows while memory is left.
use crate::counters::Counters;
use crate::cpu::CpuTotals;
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// Size of a bank's header in bytes.
pub const BANK_HEADER_BYTES: usize = 8192;
/// Number of shards with a single writer. All other threads share one more.
#[cfg(not(loom))]
pub const EXCLUSIVE_SHARDS: u32 = 32;
/// Number of exclusive shards under the model checker, which tracks every word separately.
#[cfg(loom)]
pub const EXCLUSIVE_SHARDS: u32 = 2;
/// Shard of all other threads, which write it with locked instructions.
pub const SHARED_SHARD: u32 = EXCLUSIVE_SHARDS;

/// Number of units for each value of [`BankHeader::reserved_step`]. Each step adds a sixteenth, or
/// at least one unit. Units are the pieces in which a bank's tables are committed (see `Geometry`).
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

/// Returns the number of units for a value of [`BankHeader::reserved_step`].
#[inline]
#[must_use]
pub fn reserved_units(step: u8) -> u32 {
    u32::from(STEP_UNITS[usize::from(step)])
}

/// Returns the first step that has at least this many units.
#[must_use]
pub fn step_of(units: u32) -> u8 {
    let step = STEP_UNITS.partition_point(|of_step| u32::from(*of_step) < units);
    step.min(STEP_UNITS.len() - 1) as u8
}

/// Header of a bank. Zeroed: a valid empty bank of session 0.
#[repr(C)]
pub struct BankHeader {
    /// Session whose data this bank holds.
    pub session: AtomicU64,
    /// Number of units that a controller has committed, as a step ([`reserved_units`]). A single
    /// byte, so that no reader can see a partial write.
    pub reserved_step: AtomicU8,
    /// Zero.
    pub reserved: [u8; 3],
    /// Number of units that the agent has committed; see [`Self::units`].
    pub grown_units: AtomicU32,
    /// Number of nodes claimed, not counting the fixed ones.
    pub node_count: AtomicU32,
    /// Number of records claimed, not counting the fixed one.
    pub record_count: AtomicU32,
    /// Number of words used in the code area, see [`crate::codes`].
    pub code_words: AtomicU32,
    /// Number of committed bytes in the code area.
    pub code_bytes: AtomicU32,
    /// Maximum number of units that the agent may commit; 0 if it may commit all.
    pub max_units: AtomicU32,
    /// Zero.
    pub reserved2: u32,
    /// Zero.
    pub reserved3: [u64; 3],
    /// Counters of the session that do not belong to a stack.
    pub counters: Counters,
    /// Running totals of each shard; the shared one is last.
    pub totals: [ShardTotals; EXCLUSIVE_SHARDS as usize + 1],
    /// Interval history.
    pub intervals: IntervalLog,
    /// Threads whose stacks are recorded per thread.
    pub threads: ThreadTable,
    /// Totals of CPU sampling.
    pub cpu: CpuTotals,
    /// Leaf nodes of the first few stacks whose objects were found with overwritten headers; unused
    /// entries are 0.
    pub overwritten: [AtomicU32; MAX_OVERWRITTEN_OBJECTS],
    /// Peak of the live heap.
    pub peak: PeakState,
    /// Cost of sampling.
    pub cost: CostLog,
}

/// Cost of a session's sampling, as the agent measures it. Only the agent writes it.
#[repr(C, align(64))]
pub struct CostLog {
    /// CPU time of the process in the session, when the cost was last added up, in ns.
    pub cpu_ns: AtomicU64,
    /// CPU time that sampling took until then, in ns, estimated.
    pub spent_ns: AtomicU64,
    /// Ratio of the CPU time that a sample costs the process to the time that it spends in the
    /// agent, as the bits of an `f64`; 0 if not known yet.
    pub factor: AtomicU64,
    /// Variance of `factor`, as the bits of an `f64`.
    pub factor_variance: AtomicU64,
    /// Trials in which the sample was taken.
    pub taken: TrialSums,
    /// Trials in which the sample was left out.
    pub skipped: TrialSums,
    /// Time that the samples of `taken` spent in the agent, in ns.
    pub inside_ns: AtomicU64,
    /// Excess time of each thread's first samples, in ns: the part of each sample's time that
    /// exceeds the maximum counted in [`ShardTotals::agent_ns`]. Not multiplied by `factor`.
    pub first_ns: AtomicU64,
    /// Excess time of later samples, such as those of deep stacks, extrapolated, in ns. Not
    /// multiplied by `factor`.
    pub long_ns: AtomicU64,
    /// Zero.
    pub reserved: [u64; 3],
}

/// Sums of trials of one kind. A trial is the time from a due sample until the thread has allocated
/// a fixed number of bytes.
#[repr(C)]
pub struct TrialSums {
    /// Number of trials.
    pub count: AtomicU64,
    /// Sum of their times, in ns.
    pub ns: AtomicU64,
    /// Sum of the squares of their times, in ns².
    pub squares: AtomicU64,
}

/// Peak of the session's live bytes. It is detected by the first free after it.
#[repr(C, align(64))]
pub struct PeakState {
    /// Number of the last peak; 0 before the first. Records keep their sums as of that peak.
    pub epoch: AtomicU32,
    /// Tick of that peak, relative to the session's start.
    pub tick: AtomicU32,
    /// Minimum of estimated live bytes for a new peak, fixed point: a step above the last peak.
    pub next_level: AtomicU64,
    /// Estimated live bytes now, fixed point, without the changes that are still in
    /// [`ShardTotals::unsettled`].
    pub settled: AtomicU64,
    /// Zero.
    pub reserved: [u64; 5],
}

/// Maximum number of stacks of overwritten objects.
pub const MAX_OVERWRITTEN_OBJECTS: usize = 4;

impl BankHeader {
    /// Returns the number of committed units. Controller and agent each write a count of their own,
    /// so neither can undo what the other has added.
    #[inline]
    #[must_use]
    pub fn units(&self) -> u32 {
        let reserved = reserved_units(self.reserved_step.load(Ordering::Acquire));
        reserved.max(self.grown_units.load(Ordering::Acquire))
    }
}

/// Maximum number of threads whose stacks are recorded per thread. Stacks of other threads are
/// directly below [`crate::tree::ROOT`] and [`crate::tree::TRUNCATED`].
#[cfg(not(loom))]
pub const MAX_RECORDED_THREADS: usize = 64;
/// The model checker needs none.
#[cfg(loom)]
pub const MAX_RECORDED_THREADS: usize = 1;
/// Address of the node above the stacks of entry 0 of the [`ThreadTable`]; entry 1 has the next
/// address, and so on. The addresses are in the first page, where there is no code.
pub const THREAD_ADDRESS: u64 = 0x400;

/// Address of the node that stands for all inner frames of stacks which did not fit into the tree.
pub const MERGED_ADDRESS: u64 = 0x501;

/// Threads of a session, in the order in which they noticed it.
#[repr(C)]
pub struct ThreadTable {
    /// Number of threads that requested an entry, including those that got none.
    pub count: AtomicU32,
    /// Zero.
    pub reserved: u32,
    /// Entries.
    pub entries: [ThreadEntry; MAX_RECORDED_THREADS],
}

/// Thread of a session.
#[repr(C)]
pub struct ThreadEntry {
    /// Thread id in the process's own pid namespace; 0 if not known.
    pub tid: AtomicU32,
    /// Zero.
    pub reserved: u32,
    /// Thread name, zero-padded. Filled in by a controller; not used by the agent.
    pub name: [AtomicU64; 2],
}

/// Maximum number of entries of the interval history.
#[cfg(not(loom))]
pub const MAX_INTERVALS: usize = 128;
/// The model checker needs none.
#[cfg(loom)]
pub const MAX_INTERVALS: usize = 1;

/// Interval history of a session whose interval is adapted. Written by the agent and read by
/// whoever writes the profile.
#[repr(C)]
pub struct IntervalLog {
    /// Number of entries; 0 if the interval is fixed.
    pub count: AtomicU64,
    /// Smallest interval of the session, including those that did not fit.
    pub least: AtomicU64,
    /// Zero.
    pub reserved: [u64; 6],
    /// Entries in order of time.
    pub entries: [IntervalEntry; MAX_INTERVALS],
}

/// Entry of the interval history.
#[repr(C)]
pub struct IntervalEntry {
    /// Start of the interval's use, in ns of [`crate::clock::now_ns`].
    pub from_ns: AtomicU64,
    /// Mean bytes between samples.
    pub interval: AtomicU64,
    /// Fraction of the process's CPU time that the agent used while this interval was in use, in
    /// millionths, plus one; 0 if not measured.
    pub overhead: AtomicU64,
}

/// Totals of one shard in this bank. Single writer, except for the shared shard.
#[repr(C, align(64))]
pub struct ShardTotals {
    /// Number of samples.
    pub samples: AtomicU64,
    /// Estimated bytes allocated, fixed point (see [`crate::record`]).
    pub alloc_bytes: AtomicU64,
    /// Estimated bytes freed, fixed point.
    pub freed_bytes: AtomicU64,
    /// Time spent in the agent in ns, estimated from the timed samples.
    pub agent_ns: AtomicU64,
    /// Number of timed samples.
    pub timed: AtomicU64,
    /// Change of the live bytes that is not in [`PeakState::settled`] yet, fixed point, modulo
    /// 2^64.
    pub unsettled: AtomicU64,
    /// Limit of `unsettled` above which it is settled; 0 if not known yet.
    pub unsettled_limit: AtomicU64,
    /// Zero.
    pub reserved: u64,
}

/// Node of the calling-context tree.
#[repr(C)]
pub struct Node {
    /// Return address of this frame; the bits above [`ADDRESS_BITS`](super::ADDRESS_BITS) hold its
    /// module's instance.
    pub address: AtomicU64,
    /// Index of the caller's node, always smaller than this node's.
    pub parent: AtomicU32,
    /// Index of the first of this stack's records; 0 if none.
    pub records: AtomicU32,
}

/// Counters of one stack and size class in one shard. The first cache line is written by
/// allocations, the second by frees. Their values at the last peak follow.
#[repr(C, align(64))]
pub struct Record {
    /// Leaf of the stack.
    pub node: AtomicU32,
    /// Index of the next record of the same stack, of any size class and shard; 0 if none.
    pub next: AtomicU32,
    /// Shard that owns the record.
    pub shard: AtomicU16,
    /// Size class of the objects ([`crate::record::size_class`]), or [`crate::record::CPU_CLASS`].
    pub size_class: AtomicU16,
    /// Number of the latest peak when the sums last changed. `kept` has their values at that peak.
    pub peak_epoch: AtomicU32,
    /// Number of samples.
    pub alloc_samples: AtomicU64,
    /// Estimated objects allocated, fixed point.
    pub alloc_objects: AtomicU64,
    /// Estimated bytes allocated, fixed point.
    pub alloc_bytes: AtomicU64,
    /// Sum of weight × birth tick (relative to the session's start).
    pub alloc_birth: AtomicU64,
    /// Variance of `alloc_bytes`, fixed point.
    pub alloc_variance: AtomicU64,
    /// Variance of `alloc_objects`, as the bits of an `f64`.
    pub alloc_object_variance: AtomicU64,
    /// Number of samples freed.
    pub free_samples: AtomicU64,
    /// Estimated objects freed, fixed point.
    pub free_objects: AtomicU64,
    /// Estimated bytes freed, fixed point.
    pub free_bytes: AtomicU64,
    /// Sum of weight × birth tick of freed objects.
    pub free_birth: AtomicU64,
    /// Sum of weight × death tick.
    pub free_death: AtomicU64,
    /// Part of `alloc_variance` due to freed objects.
    pub free_variance: AtomicU64,
    /// Part of `alloc_object_variance` due to freed objects, as the bits of an `f64`.
    pub free_object_variance: AtomicU64,
    /// Estimated objects freed within [`crate::record::SHORT_TICKS`] of their birth, fixed point.
    pub free_short: AtomicU64,
    /// Number of the peak for which `kept` is complete.
    pub kept_epoch: AtomicU32,
    /// Upper 32 bits of the sum of weight × birth tick² of live objects, modulo 2^96.
    pub live_squares_high: AtomicU32,
    /// Lower 64 bits of that sum. `kept` has no copy of it.
    pub live_squares: AtomicU64,
    /// Sums from `alloc_samples` to `free_short`, as of peak `kept_epoch`.
    pub kept: [AtomicU64; KEPT_SUMS],
}

/// Number of sums of a record.
pub const KEPT_SUMS: usize = 14;
