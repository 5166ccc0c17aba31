//! Head of a bank: how full it is, counters, running totals.

use super::{Invalid, u32_at, u64_at};
use crate::bank::Geometry;
use crate::counters::{self, Counter, Counters};
use crate::cpu::{CPU_CAUSES, CpuState, CpuTotals};
use crate::layout::{
    BANK_HEADER_BYTES, BankHeader, INTERVALS_KEPT, IntervalEntry, IntervalLog, OVERWRITTEN_KEPT,
    PeakState, ShardTotals, THREADS_KEPT, ThreadEntry, ThreadTable, reserved_units,
};
use crate::record::{BYTE_ONE, FIRST_RECORD};
use crate::segment::IntervalPeriod;
use crate::tree::FIRST_NODE;
use core::mem::{offset_of, size_of};

/// A bank's header, read from a copy.
#[derive(Clone, Copy)]
pub struct BankSummary<'a> {
    bytes: &'a [u8],
    geometry: Geometry,
}

impl<'a> BankSummary<'a> {
    /// Over a copy of the bank's first [`BANK_HEADER_BYTES`].
    ///
    /// # Errors
    /// [`Invalid::TooShort`].
    pub fn new(bytes: &'a [u8], geometry: Geometry) -> Result<Self, Invalid> {
        if bytes.len() < BANK_HEADER_BYTES {
            return Err(Invalid::TooShort);
        }
        Ok(Self { bytes, geometry })
    }

    /// The session whose data the bank holds; 0: none.
    #[must_use]
    pub fn session(&self) -> u64 {
        u64_at(self.bytes, offset_of!(BankHeader, session))
    }

    /// Units of nodes and records that are backed by memory.
    #[must_use]
    pub fn units(&self) -> u32 {
        let reserved = reserved_units(self.bytes[offset_of!(BankHeader, reserved_step)]);
        let grown = u32_at(self.bytes, offset_of!(BankHeader, grown_units));
        reserved.max(grown).min(self.geometry.units)
    }

    /// Maximum number of units that the agent may add to.
    #[must_use]
    pub fn most_units(&self) -> u32 {
        match u32_at(self.bytes, offset_of!(BankHeader, most_units)) {
            0 => self.geometry.units,
            most => most.min(self.geometry.units),
        }
    }

    /// Nodes to read, fixed ones included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        let made = u32_at(self.bytes, offset_of!(BankHeader, node_count)) as usize;
        let limit = self.geometry.nodes_in(self.units()) as usize;
        (made + FIRST_NODE as usize).min(limit)
    }

    /// Records to read, the fixed one included.
    #[must_use]
    pub fn records(&self) -> usize {
        let made = u32_at(self.bytes, offset_of!(BankHeader, record_count)) as usize;
        let limit = self.geometry.records_in(self.units()) as usize;
        (made + FIRST_RECORD as usize).min(limit)
    }

    /// Bytes of code objects to read.
    #[must_use]
    pub fn code_bytes(&self) -> usize {
        let used = u32_at(self.bytes, offset_of!(BankHeader, code_words)) as usize;
        let reserved = u32_at(self.bytes, offset_of!(BankHeader, code_bytes)) as usize;
        let room = reserved.min(self.geometry.codes);
        used.saturating_add(2).saturating_mul(4).min(room)
    }

    /// Counter by its offset in [`Counters`].
    fn counter(&self, field: usize) -> u64 {
        u64_at(self.bytes, offset_of!(BankHeader, counters) + field)
    }

    /// Threads that noticed the session's epochs. 0 after a while: nothing allocates through the
    /// agent.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.counter(offset_of!(Counters, threads))
    }

    /// Samples under `[table full]`.
    #[must_use]
    pub fn table_full(&self) -> u64 {
        self.counter(offset_of!(Counters, table_full))
    }

    /// Samples whose free could not be followed.
    #[must_use]
    pub fn untracked(&self) -> u64 {
        self.counter(offset_of!(Counters, untracked))
    }

    /// All counters, with their values.
    pub fn counters(&self) -> impl Iterator<Item = (Counter, u64)> + use<'_, 'a> {
        counters::ALL
            .iter()
            .map(|counter| (*counter, self.counter(counter.offset)))
    }

    /// What was counted of CPU time.
    #[must_use]
    pub fn cpu(&self) -> CpuView {
        let at = offset_of!(BankHeader, cpu);
        let word = |field: usize| u64_at(self.bytes, at + field);
        let half = |field: usize| u32_at(self.bytes, at + field);
        let truncated = offset_of!(CpuTotals, truncated);
        CpuView {
            state: CpuState::from_number(half(offset_of!(CpuTotals, state))),
            errno: half(offset_of!(CpuTotals, errno)),
            signal: half(offset_of!(CpuTotals, signal)),
            threads: word(offset_of!(CpuTotals, threads)),
            unarmed: word(offset_of!(CpuTotals, unarmed)),
            samples: word(offset_of!(CpuTotals, samples)),
            ns: word(offset_of!(CpuTotals, ns)),
            overruns: word(offset_of!(CpuTotals, overruns)),
            postponed: word(offset_of!(CpuTotals, postponed)),
            full_samples: word(offset_of!(CpuTotals, full_samples)),
            full_ns: word(offset_of!(CpuTotals, full_ns)),
            truncated: core::array::from_fn(|cause| word(truncated + 8 * cause)),
            process_ns: word(offset_of!(CpuTotals, process_ns)),
        }
    }

    /// Returns the last maximum of the live heap after which memory was freed.
    #[must_use]
    pub fn peak(&self) -> PeakView {
        let half = |field: usize| u32_at(self.bytes, offset_of!(BankHeader, peak) + field);
        PeakView {
            epoch: half(offset_of!(PeakState, epoch)),
            tick: half(offset_of!(PeakState, tick)),
        }
    }

    /// Leaves of the stacks that allocated objects before which the program has written, as far as they are
    /// kept.
    pub fn overwritten(&self) -> impl Iterator<Item = u32> + use<'a> {
        let bytes = self.bytes;
        let leaf =
            move |index: usize| u32_at(bytes, offset_of!(BankHeader, overwritten) + 4 * index);
        (0..OVERWRITTEN_KEPT).map(leaf).filter(|leaf| *leaf != 0)
    }

    /// The threads whose stacks are kept apart, in the order of their indexes.
    pub fn thread_entries(&self) -> impl Iterator<Item = ThreadView> + use<'a> {
        let table = offset_of!(BankHeader, threads);
        let count = u32_at(self.bytes, table + offset_of!(ThreadTable, count)) as usize;
        let bytes = self.bytes;
        (0..count.min(THREADS_KEPT)).map(move |index| {
            let entries = table + offset_of!(ThreadTable, entries);
            let entry = entries + index * size_of::<ThreadEntry>();
            let name = entry + offset_of!(ThreadEntry, name);
            ThreadView {
                tid: u32_at(bytes, entry + offset_of!(ThreadEntry, tid)),
                name: core::array::from_fn(|at| bytes[name + at]),
            }
        })
    }

    fn log(&self, field: usize) -> u64 {
        u64_at(self.bytes, offset_of!(BankHeader, intervals) + field)
    }

    /// The smallest interval that was in force, where a controller changed it.
    #[must_use]
    pub fn least_interval(&self) -> Option<u64> {
        let governed = self.log(offset_of!(IntervalLog, count)) != 0;
        governed.then(|| self.log(offset_of!(IntervalLog, least)).max(1))
    }

    /// Interval history; empty where no controller changed the interval.
    pub fn intervals(&self) -> impl Iterator<Item = IntervalPeriod> + use<'_, 'a> {
        let count = self.log(offset_of!(IntervalLog, count));
        let count = count.min(INTERVALS_KEPT as u64) as usize;
        (0..count).map(|index| {
            let at = offset_of!(IntervalLog, entries) + index * size_of::<IntervalEntry>();
            let word = |field: usize| self.log(at + field);
            let overhead = word(offset_of!(IntervalEntry, overhead)).checked_sub(1);
            IntervalPeriod {
                from_ns: word(offset_of!(IntervalEntry, from_ns)),
                interval: word(offset_of!(IntervalEntry, interval)),
                overhead: overhead.and_then(|share| u32::try_from(share).ok()),
            }
        })
    }

    /// Sums over the shards.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let shards = crate::layout::EXCLUSIVE_SHARDS as usize + 1;
        let mut totals = Totals::default();
        let (mut alloc, mut freed) = (0u64, 0u64);
        for shard in 0..shards {
            let at = offset_of!(BankHeader, totals) + shard * size_of::<ShardTotals>();
            let field = |field: usize| u64_at(self.bytes, at + field);
            totals.samples = totals
                .samples
                .wrapping_add(field(offset_of!(ShardTotals, samples)));
            alloc = alloc.wrapping_add(field(offset_of!(ShardTotals, alloc_bytes)));
            freed = freed.wrapping_add(field(offset_of!(ShardTotals, freed_bytes)));
            let (ns, timed) = (
                field(offset_of!(ShardTotals, agent_ns)),
                field(offset_of!(ShardTotals, timed)),
            );
            totals.timed_ns = totals.timed_ns.wrapping_add(ns);
            totals.timed = totals.timed.wrapping_add(timed);
        }
        totals.alloc_bytes = alloc as f64 / BYTE_ONE;
        totals.live_bytes = (alloc.wrapping_sub(freed) as i64).max(0) as f64 / BYTE_ONE;
        totals
    }
}

/// What a process counted of its CPU time in a session, see [`CpuTotals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(
    missing_docs,
    reason = "each is the field of `CpuTotals` with its name"
)]
pub struct CpuView {
    pub state: CpuState,
    pub errno: u32,
    pub signal: u32,
    pub threads: u64,
    pub unarmed: u64,
    pub samples: u64,
    pub ns: u64,
    pub overruns: u64,
    pub postponed: u64,
    pub full_samples: u64,
    pub full_ns: u64,
    pub truncated: [u64; CPU_CAUSES],
    pub process_ns: u64,
}

/// A maximum of the live heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakView {
    /// Its number, see [`Table::records_at_peak`](super::Table::records_at_peak); 0: none, the heap
    /// has only grown.
    pub epoch: u32,
    /// Its time, in ticks since the session's start.
    pub tick: u32,
}

/// A thread of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadView {
    /// Its number as the process sees it (its own pid namespace); 0: not known.
    pub tid: u32,
    /// Its name, zero-padded; zeros: not known. Any bytes, of a hostile process.
    pub name: [u8; 16],
}

impl ThreadView {
    /// Its name; empty: not known.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|byte| *byte == 0);
        &self.name[..end.unwrap_or(self.name.len())]
    }
}

/// Running totals of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Samples taken.
    pub samples: u64,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Estimated bytes allocated in the session and still live.
    pub live_bytes: f64,
    /// Nanoseconds that all samples took in the agent, as estimated from the timed ones.
    pub timed_ns: u64,
    /// Samples that were timed.
    pub timed: u64,
}
