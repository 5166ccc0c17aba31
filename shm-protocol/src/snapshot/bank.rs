//! Header of a bank: number of entries in use, counters, running totals.

use super::{Invalid, u32_at, u64_at};
use crate::bank::Geometry;
use crate::counters::{self, Counter, Counters};
use crate::cpu::{CPU_CAUSES, CpuState, CpuTotals};
use crate::layout::{
    BANK_HEADER_BYTES, BankHeader, CostLog, IntervalEntry, IntervalLog, MAX_INTERVALS,
    MAX_OVERWRITTEN_OBJECTS, MAX_RECORDED_THREADS, PeakState, ShardTotals, ThreadEntry,
    ThreadTable, reserved_units,
};
use crate::record::{BYTE_ONE, FIRST_RECORD};
use crate::segment::IntervalPeriod;
use crate::tree::FIRST_NODE;
use core::mem::{offset_of, size_of};

/// View of a copy of a bank's header.
#[derive(Clone, Copy)]
pub struct BankSummary<'a> {
    bytes: &'a [u8],
    geometry: Geometry,
}

impl<'a> BankSummary<'a> {
    /// Returns a view of a copy of the bank's first [`BANK_HEADER_BYTES`].
    ///
    /// # Errors
    /// [`Invalid::TooShort`].
    pub fn new(bytes: &'a [u8], geometry: Geometry) -> Result<Self, Invalid> {
        if bytes.len() < BANK_HEADER_BYTES {
            return Err(Invalid::TooShort);
        }
        Ok(Self { bytes, geometry })
    }

    /// Returns the session whose data the bank holds; 0 if none.
    #[must_use]
    pub fn session(&self) -> u64 {
        u64_at(self.bytes, offset_of!(BankHeader, session))
    }

    /// Returns the number of committed units of nodes and records.
    #[must_use]
    pub fn units(&self) -> u32 {
        let reserved = reserved_units(self.bytes[offset_of!(BankHeader, reserved_step)]);
        let grown = u32_at(self.bytes, offset_of!(BankHeader, grown_units));
        reserved.max(grown).min(self.geometry.units)
    }

    /// Returns the maximum number of units that the agent may commit.
    #[must_use]
    pub fn max_units(&self) -> u32 {
        match u32_at(self.bytes, offset_of!(BankHeader, max_units)) {
            0 => self.geometry.units,
            max => max.min(self.geometry.units),
        }
    }

    /// Returns the number of nodes to read, fixed ones included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        let claimed = u32_at(self.bytes, offset_of!(BankHeader, node_count)) as usize;
        let limit = self.geometry.nodes_in(self.units()) as usize;
        (claimed + FIRST_NODE as usize).min(limit)
    }

    /// Returns the number of records to read, the fixed one included.
    #[must_use]
    pub fn records(&self) -> usize {
        let claimed = u32_at(self.bytes, offset_of!(BankHeader, record_count)) as usize;
        let limit = self.geometry.records_in(self.units()) as usize;
        (claimed + FIRST_RECORD as usize).min(limit)
    }

    /// Returns the number of bytes of code objects to read.
    #[must_use]
    pub fn code_bytes(&self) -> usize {
        let used = u32_at(self.bytes, offset_of!(BankHeader, code_words)) as usize;
        let reserved = u32_at(self.bytes, offset_of!(BankHeader, code_bytes)) as usize;
        let room = reserved.min(self.geometry.codes);
        used.saturating_add(2).saturating_mul(4).min(room)
    }

    /// Returns a counter, given its offset in [`Counters`].
    fn counter(&self, field: usize) -> u64 {
        u64_at(self.bytes, offset_of!(BankHeader, counters) + field)
    }

    /// Returns the number of threads that noticed the session. If it remains 0, nothing allocates
    /// through the agent.
    #[must_use]
    pub fn threads(&self) -> u64 {
        self.counter(offset_of!(Counters, threads))
    }

    /// Returns the number of samples under `[table full]`.
    #[must_use]
    pub fn table_full(&self) -> u64 {
        self.counter(offset_of!(Counters, table_full))
    }

    /// Returns the number of samples whose free could not be tracked.
    #[must_use]
    pub fn untracked(&self) -> u64 {
        self.counter(offset_of!(Counters, untracked))
    }

    /// Returns all counters, with their values.
    pub fn counters(&self) -> impl Iterator<Item = (Counter, u64)> + use<'_, 'a> {
        counters::ALL
            .iter()
            .map(|counter| (*counter, self.counter(counter.offset)))
    }

    /// Returns the totals of CPU sampling.
    #[must_use]
    pub fn cpu(&self) -> CpuView {
        let at = offset_of!(BankHeader, cpu);
        let u64_field = |field: usize| u64_at(self.bytes, at + field);
        let u32_field = |field: usize| u32_at(self.bytes, at + field);
        let truncated = offset_of!(CpuTotals, truncated);
        CpuView {
            state: CpuState::from_number(u32_field(offset_of!(CpuTotals, state))),
            errno: u32_field(offset_of!(CpuTotals, errno)),
            signal: u32_field(offset_of!(CpuTotals, signal)),
            threads: u64_field(offset_of!(CpuTotals, threads)),
            unarmed: u64_field(offset_of!(CpuTotals, unarmed)),
            samples: u64_field(offset_of!(CpuTotals, samples)),
            ns: u64_field(offset_of!(CpuTotals, ns)),
            overruns: u64_field(offset_of!(CpuTotals, overruns)),
            postponed: u64_field(offset_of!(CpuTotals, postponed)),
            full_samples: u64_field(offset_of!(CpuTotals, full_samples)),
            full_ns: u64_field(offset_of!(CpuTotals, full_ns)),
            truncated: core::array::from_fn(|cause| u64_field(truncated + 8 * cause)),
            process_ns: u64_field(offset_of!(CpuTotals, process_ns)),
        }
    }

    /// Returns the last peak of the live heap.
    #[must_use]
    pub fn peak(&self) -> PeakView {
        let u32_field = |field: usize| u32_at(self.bytes, offset_of!(BankHeader, peak) + field);
        PeakView {
            epoch: u32_field(offset_of!(PeakState, epoch)),
            tick: u32_field(offset_of!(PeakState, tick)),
        }
    }

    /// Returns the leaves of the first stacks whose objects were found with overwritten headers.
    pub fn overwritten(&self) -> impl Iterator<Item = u32> + use<'a> {
        let bytes = self.bytes;
        let leaf =
            move |index: usize| u32_at(bytes, offset_of!(BankHeader, overwritten) + 4 * index);
        (0..MAX_OVERWRITTEN_OBJECTS)
            .map(leaf)
            .filter(|leaf| *leaf != 0)
    }

    /// Returns the threads whose stacks are recorded per thread, in the order of their indices.
    pub fn thread_entries(&self) -> impl Iterator<Item = ThreadView> + use<'a> {
        let table = offset_of!(BankHeader, threads);
        let count = u32_at(self.bytes, table + offset_of!(ThreadTable, count)) as usize;
        let bytes = self.bytes;
        (0..count.min(MAX_RECORDED_THREADS)).map(move |index| {
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

    /// Returns the smallest interval of the session, or `None` if the interval is fixed.
    #[must_use]
    pub fn least_interval(&self) -> Option<u64> {
        let is_adapted = self.log(offset_of!(IntervalLog, count)) != 0;
        is_adapted.then(|| self.log(offset_of!(IntervalLog, least)).max(1))
    }

    /// Returns the interval history; empty if the interval is fixed.
    pub fn intervals(&self) -> impl Iterator<Item = IntervalPeriod> + use<'_, 'a> {
        let count = self.log(offset_of!(IntervalLog, count));
        let count = count.min(MAX_INTERVALS as u64) as usize;
        (0..count).map(|index| {
            let at = offset_of!(IntervalLog, entries) + index * size_of::<IntervalEntry>();
            let u64_field = |field: usize| self.log(at + field);
            let overhead = u64_field(offset_of!(IntervalEntry, overhead)).checked_sub(1);
            IntervalPeriod {
                from_ns: u64_field(offset_of!(IntervalEntry, from_ns)),
                interval: u64_field(offset_of!(IntervalEntry, interval)),
                overhead: overhead.and_then(|share| u32::try_from(share).ok()),
            }
        })
    }

    /// Returns what sampling has cost, or `None` if it was not measured yet.
    #[must_use]
    pub fn cost(&self) -> Option<CostView> {
        let at = offset_of!(BankHeader, cost);
        let u64_field = |field: usize| u64_at(self.bytes, at + field);
        let number = |field: usize| f64::from_bits(u64_field(field));
        let cpu_ns = u64_field(offset_of!(CostLog, cpu_ns));
        let spent_ns = u64_field(offset_of!(CostLog, spent_ns));
        let factor = number(offset_of!(CostLog, factor));
        let variance = number(offset_of!(CostLog, factor_variance)) / (factor * factor);
        let is_measured = cpu_ns != 0 && variance.is_finite() && variance >= 0.0;
        is_measured.then_some(CostView {
            cpu_ns,
            spent_ns: spent_ns.min(cpu_ns),
            variance,
        })
    }

    /// Returns the sums over all shards.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let shards = crate::layout::EXCLUSIVE_SHARDS as usize + 1;
        let mut totals = Totals::default();
        let mut alloc = 0u64;
        let mut freed = 0u64;
        for shard in 0..shards {
            let at = offset_of!(BankHeader, totals) + shard * size_of::<ShardTotals>();
            let field = |field: usize| u64_at(self.bytes, at + field);
            totals.samples = totals
                .samples
                .wrapping_add(field(offset_of!(ShardTotals, samples)));
            alloc = alloc.wrapping_add(field(offset_of!(ShardTotals, alloc_bytes)));
            freed = freed.wrapping_add(field(offset_of!(ShardTotals, freed_bytes)));
            let ns = field(offset_of!(ShardTotals, agent_ns));
            let timed = field(offset_of!(ShardTotals, timed));
            totals.timed_ns = totals.timed_ns.wrapping_add(ns);
            totals.timed = totals.timed.wrapping_add(timed);
        }
        totals.alloc_bytes = alloc as f64 / BYTE_ONE;
        totals.live_bytes = (alloc.wrapping_sub(freed) as i64).max(0) as f64 / BYTE_ONE;
        totals
    }
}

/// Totals of CPU sampling in a session; see [`CpuTotals`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs, reason = "each field is documented in `CpuTotals`")]
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

/// Cost of a session's sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CostView {
    /// CPU time of the process in the session, in ns.
    pub cpu_ns: u64,
    /// CPU time that sampling took, in ns, estimated.
    pub spent_ns: u64,
    /// Relative variance of `spent_ns`.
    pub variance: f64,
}

/// Peak of the live heap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PeakView {
    /// Number of the peak; see [`Table::records_at_peak`](super::Table::records_at_peak). 0 if the
    /// heap has only grown.
    pub epoch: u32,
    /// Time of the peak, in ticks since the session's start.
    pub tick: u32,
}

/// Thread of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThreadView {
    /// Thread id in the process's own pid namespace; 0 if not known.
    pub tid: u32,
    /// Name, zero-padded; all zero if not known. May be any bytes.
    pub name: [u8; 16],
}

impl ThreadView {
    /// Returns the name; empty if not known.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        let end = self.name.iter().position(|byte| *byte == 0);
        &self.name[..end.unwrap_or(self.name.len())]
    }
}

/// Running totals of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Number of samples.
    pub samples: u64,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Estimated bytes allocated in the session and still live.
    pub live_bytes: f64,
    /// Time that all samples took in the agent, in ns, estimated from the timed ones.
    pub timed_ns: u64,
    /// Number of timed samples.
    pub timed: u64,
}
