//! A bank: the table of one session, carved out of the segment.

use crate::codes::{CODE_STEP, Codes, MAX_CODE_BYTES};
use crate::layout::{
    BANK_HEADER_BYTES, BankHeader, EARLY_STEPS, HEADER_BYTES, Node, RESERVE_STEPS, Record,
    ShardTotals, THREAD_ADDRESS, THREADS_KEPT,
};
use crate::record::{FreeSample, MAX_RECORDS, NewSample, RecordId, Records, TABLE_FULL, add};
use crate::sync::{AtomicU32, Ordering};
use crate::tree::{MAX_NODES, Place, ROOT, TRUNCATED, Tree};
use core::mem::size_of;

/// Division of a bank of a given size: an eighth or so for slots, two slots a
/// node, an eighth for code objects, the rest for records. Before the slots lie the early ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Bytes of the whole bank.
    pub bank_bytes: usize,
    /// Early slots of the tree, a power of two: two for each node of [`EARLY_STEPS`].
    pub early_slots: usize,
    /// Slots of the tree, a power of two.
    pub slots: usize,
    /// Nodes of the tree.
    pub nodes: usize,
    /// Records.
    pub records: usize,
    /// Bytes for code objects.
    pub codes: usize,
}

impl Geometry {
    /// The geometry of the banks of a segment of `segment_bytes`.
    #[must_use]
    pub fn of_segment(segment_bytes: usize) -> Self {
        let banks = segment_bytes.saturating_sub(HEADER_BYTES);
        let bank_bytes = (banks / 2) & !0xffff;
        let slots = (bank_bytes / 48)
            .next_power_of_two()
            .min(2 * MAX_NODES as usize + 2);
        let early_slots = slots / usize::from(RESERVE_STEPS) * usize::from(EARLY_STEPS);
        let nodes = (slots / 2).min((MAX_NODES & !63) as usize);
        let codes = (bank_bytes / 8).clamp(CODE_STEP, MAX_CODE_BYTES) & !(CODE_STEP - 1);
        let codes = codes.min(bank_bytes);
        let index = (early_slots + slots) * size_of::<u32>();
        let used = BANK_HEADER_BYTES + index + nodes * size_of::<Node>() + codes;
        let records = bank_bytes.saturating_sub(used) / size_of::<Record>();
        Self {
            bank_bytes,
            early_slots,
            slots,
            nodes,
            records: records.min(MAX_RECORDS as usize),
            codes,
        }
    }

    /// Offset of a bank in the segment.
    #[must_use]
    pub fn bank_offset(&self, bank: u64) -> usize {
        HEADER_BYTES + (bank & 1) as usize * self.bank_bytes
    }

    /// Offset of the early slots in the bank.
    #[must_use]
    pub fn early_slots_offset(&self) -> usize {
        BANK_HEADER_BYTES
    }

    /// Offset of the slots in the bank.
    #[must_use]
    pub fn slots_offset(&self) -> usize {
        self.early_slots_offset() + self.early_slots * size_of::<u32>()
    }

    /// Offset of the nodes in the bank.
    #[must_use]
    pub fn nodes_offset(&self) -> usize {
        self.slots_offset() + self.slots * size_of::<u32>()
    }

    /// Offset of the records in the bank.
    #[must_use]
    pub fn records_offset(&self) -> usize {
        self.nodes_offset() + self.nodes * size_of::<Node>()
    }

    /// Offset of the code objects in the bank: its last bytes.
    #[must_use]
    pub fn codes_offset(&self) -> usize {
        self.bank_bytes - self.codes
    }

    /// Bytes of the tree's slots that must are backed by memory when `steps` are reserved, from
    /// [`early_slots_offset`](Self::early_slots_offset).
    #[must_use]
    pub fn slot_bytes_in(&self, steps: u8) -> usize {
        let later = if steps > EARLY_STEPS { self.slots } else { 0 };
        (self.early_slots + later) * size_of::<u32>()
    }

    /// Nodes usable when `steps` of [`RESERVE_STEPS`] are reserved.
    #[inline]
    #[must_use]
    pub fn nodes_in(&self, steps: u8) -> u32 {
        portion(self.nodes, steps)
    }

    /// Records usable when `steps` of [`RESERVE_STEPS`] are reserved.
    #[inline]
    #[must_use]
    pub fn records_in(&self, steps: u8) -> u32 {
        portion(self.records, steps)
    }
}

#[inline]
fn portion(all: usize, steps: u8) -> u32 {
    (all / usize::from(RESERVE_STEPS) * usize::from(steps.min(RESERVE_STEPS))) as u32
}

/// The writer's view of a bank.
#[derive(Clone, Copy)]
pub struct Bank<'a> {
    /// Header of the bank.
    pub header: &'a BankHeader,
    /// The calling-context tree.
    pub tree: Tree<'a>,
    /// The counters.
    pub records: Records<'a>,
    /// The code objects of an interpreter.
    pub codes: Codes<'a>,
    geometry: Geometry,
}

impl<'a> Bank<'a> {
    /// The bank at `base`.
    ///
    /// # Safety
    /// `base` is page-aligned and `geometry.bank_bytes` from it are mapped shared, readable and
    /// writable, for `'a`; and the reserved parts are backed by memory.
    #[must_use]
    pub unsafe fn at(base: *const u8, geometry: Geometry) -> Self {
        // SAFETY: the caller vouches for the mapping; Geometry keeps every part inside
        // it and aligned; all types are atomics for which any bytes are valid.
        unsafe {
            let header = &*base.cast::<BankHeader>();
            let early = core::slice::from_raw_parts(
                base.add(geometry.early_slots_offset()).cast::<AtomicU32>(),
                geometry.early_slots,
            );
            let slots = core::slice::from_raw_parts(
                base.add(geometry.slots_offset()).cast::<AtomicU32>(),
                geometry.slots,
            );
            let nodes = core::slice::from_raw_parts(
                base.add(geometry.nodes_offset()).cast::<Node>(),
                geometry.nodes,
            );
            let records = core::slice::from_raw_parts(
                base.add(geometry.records_offset()).cast::<Record>(),
                geometry.records,
            );
            let codes = core::slice::from_raw_parts(
                base.add(geometry.codes_offset()).cast::<AtomicU32>(),
                geometry.codes / 4,
            );
            Self {
                header,
                tree: Tree::new([early, slots], nodes, &header.node_count),
                records: Records::new(records, &header.record_count),
                codes: Codes::new(codes, &header.code_words, &header.code_bytes),
                geometry,
            }
        }
    }

    /// A bank of the model checker's.
    #[cfg(all(test, loom))]
    pub(crate) fn of_parts(
        header: &'a BankHeader,
        [early, slots]: [&'a [AtomicU32]; 2],
        nodes: &'a [Node],
        records: &'a [Record],
        geometry: Geometry,
    ) -> Self {
        Self {
            header,
            tree: Tree::new([early, slots], nodes, &header.node_count),
            records: Records::new(records, &header.record_count),
            codes: Codes::new(&[], &header.code_words, &header.code_bytes),
            geometry,
        }
    }

    /// Whether it is a session's.
    #[inline]
    #[must_use]
    pub fn holds(&self, session: u64) -> bool {
        self.header.session.load(Ordering::Relaxed) == session
    }

    /// Nodes with memory behind them.
    #[inline]
    #[must_use]
    pub fn node_limit(&self) -> u32 {
        self.geometry.nodes_in(self.header.steps())
    }

    /// The record of `shard` for objects of a size class from the stack ending in `leaf`;
    /// [`TABLE_FULL`] if there is no room.
    #[must_use]
    pub fn record_of(&self, (leaf, class): (u32, u32), shard: u32) -> RecordId {
        let steps = self.header.steps();
        self.tree
            .node(leaf)
            .and_then(|node| {
                let limit = self.geometry.records_in(steps);
                self.records.of_shard(node, (leaf, class), shard, limit)
            })
            .unwrap_or(TABLE_FULL)
    }

    /// The stack and the size class whose record it is.
    #[must_use]
    pub fn stack_of(&self, id: RecordId) -> (u32, u32) {
        self.records.record(id).map_or((0, 0), |record| {
            let class = record.size_class.load(Ordering::Relaxed);
            (record.node.load(Ordering::Relaxed), class)
        })
    }

    /// The nodes above the complete and the truncated stacks of a thread that notices the session:
    /// its own, so that its stacks are kept apart, for the first [`THREADS_KEPT`] threads whose
    /// number is known (`tid` is not 0) and while no more than a quarter of the nodes is taken.
    #[must_use]
    pub fn roots_of(&self, tid: u32) -> [Place; 2] {
        const SHARED: [Place; 2] = [Place::root(ROOT), Place::root(TRUNCATED)];
        let threads = &self.header.threads;
        let taken = self.header.node_count.load(Ordering::Relaxed);
        let known = threads.count.load(Ordering::Relaxed) as usize;
        if tid == 0 || known >= THREADS_KEPT || taken as usize > self.geometry.nodes / 4 {
            return SHARED;
        }
        let index = threads.count.fetch_add(1, Ordering::Relaxed);
        let Some(entry) = threads.entries.get(index as usize) else {
            return SHARED;
        };
        entry.tid.store(tid, Ordering::Relaxed);
        let address = THREAD_ADDRESS + u64::from(index);
        SHARED.map(|root| {
            let own = self.tree.child(root, address, self.node_limit());
            own.unwrap_or(root)
        })
    }

    /// Counts a sampled allocation in its record and in the totals of `shard`.
    ///
    /// `exclusive`: the calling thread is the only writer of `shard`. The record may still
    /// be another's (a crowded bank has shared ones): it is asked.
    #[inline]
    pub fn count_new(&self, id: RecordId, shard: u32, sample: &NewSample, exclusive: bool) {
        let owned = exclusive && self.owns(id, shard);
        let bytes = self.records.count_new(id, sample, owned);
        let totals = self.totals(shard);
        add(&totals.samples, 1, exclusive);
        add(&totals.alloc_bytes, bytes, exclusive);
        if id == TABLE_FULL {
            self.header
                .counters
                .table_full
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a sample of CPU time in its record, and in what the session counts of it; `exclusive`
    /// as above.
    pub fn count_cpu(&self, id: RecordId, shard: u32, ns: u64, exclusive: bool) {
        let cpu = &self.header.cpu;
        let (samples, sum) = match id {
            TABLE_FULL => (&cpu.full_samples, &cpu.full_ns),
            _ => (&cpu.samples, &cpu.ns),
        };
        samples.fetch_add(1, core::sync::atomic::Ordering::Relaxed);
        sum.fetch_add(ns, core::sync::atomic::Ordering::Relaxed);
        if id != TABLE_FULL {
            let owned = exclusive && self.owns(id, shard);
            self.records.count_cpu(id, ns, owned);
        }
    }

    /// Counts the free of a sampled object, as [`count_new`](Self::count_new) does its birth.
    #[inline]
    pub fn count_free(&self, id: RecordId, shard: u32, sample: &FreeSample, exclusive: bool) {
        let owned = exclusive && self.owns(id, shard);
        let bytes = self.records.count_free(id, sample, owned);
        add(&self.totals(shard).freed_bytes, bytes, exclusive);
    }

    /// Samples counted in a record, and the estimate of the bytes that are live of them, as far as
    /// that record says; none of [`TABLE_FULL`], which says nothing about one stack.
    #[inline]
    #[must_use]
    pub fn held(&self, id: RecordId) -> (u64, u64) {
        match self.records.record(id).filter(|_| id != TABLE_FULL) {
            Some(record) => record.held(),
            None => (0, 0),
        }
    }

    /// Whether a record is one of `shard`'s.
    #[inline]
    #[must_use]
    pub fn owns(&self, id: RecordId, shard: u32) -> bool {
        let owner = self
            .records
            .record(id)
            .map(|record| record.shard.load(Ordering::Relaxed));
        id != TABLE_FULL && owner == Some(shard)
    }

    /// The running totals of a shard.
    #[inline]
    #[must_use]
    pub fn totals(&self, shard: u32) -> &'a ShardTotals {
        let last = self.header.totals.len() - 1;
        &self.header.totals[(shard as usize).min(last)]
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::layout::{DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES};

    #[test]
    fn geometry_fits_every_size() {
        let mut bytes = MIN_SEGMENT_BYTES;
        while bytes <= MAX_SEGMENT_BYTES {
            for odd in [0, 4096, 65536 + 5] {
                let g = Geometry::of_segment(bytes + odd);
                let end = g.records_offset() + g.records * size_of::<Record>();
                assert!(
                    end <= g.codes_offset() && g.codes >= CODE_STEP,
                    "{bytes}: {g:?}"
                );
                assert_eq!(g.codes_offset() % CODE_STEP, 0);
                assert!(end <= g.bank_bytes, "{bytes}: {g:?}");
                assert!(g.bank_offset(1) + g.bank_bytes <= bytes + odd);
                assert!(g.records >= 128 && g.nodes >= 1024, "{bytes}: {g:?}");
                assert!(g.slots.is_power_of_two() && g.slots >= 2 * g.nodes);
                let early = g.nodes_in(EARLY_STEPS) as usize;
                assert!(g.early_slots.is_power_of_two() && g.early_slots >= 2 * early);
                assert_eq!(g.slots_offset() % 64, 0);
                assert_eq!(g.records_offset() % 64, 0);
            }
            bytes *= 2;
        }
    }

    #[test]
    fn default_segment_holds_a_hundred_thousand_stacks() {
        let g = Geometry::of_segment(DEFAULT_SEGMENT_BYTES);
        assert!(g.records > 100_000 && g.nodes > 500_000, "{g:?}");
    }
}
