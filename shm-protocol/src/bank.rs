//! Banks: views of the tables of one session in the segment.

// Decision 04: two banks that sessions use in turn.
use crate::codes::{CODE_STEP, Codes, MAX_CODE_BYTES};
use crate::layout::{
    BANK_HEADER_BYTES, BankHeader, HEADER_BYTES, MAX_RECORDED_THREADS, MERGED_ADDRESS, Node,
    Record, ShardTotals, THREAD_ADDRESS,
};
use crate::record::{
    FreeSample, NewSample, RecordId, RecordKey, RecordLimits, Records, TABLE_FULL, add,
};
use crate::sync::{AtomicU32, Ordering};
use crate::tree::{Levels, MAX_NODES, PathNode, ROOT, TRUNCATED, Tree};
use core::mem::size_of;

/// Layout of a bank of a given size. An eighth is for code objects. The rest is divided into units,
/// each with a number of nodes and records and their part of the hash table's slots. Memory is
/// committed in whole units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Size of the whole bank in bytes.
    pub bank_bytes: usize,
    /// Number of units.
    pub units: u32,
    /// Number of nodes of a unit, a power of two.
    pub unit_nodes: u32,
    /// Number of nodes of the tree.
    pub nodes: usize,
    /// Number of records.
    pub records: usize,
    /// Size of the code area in bytes.
    pub codes: usize,
    /// Layout of the tree's slots.
    pub levels: Levels,
}

impl Geometry {
    /// Number of nodes for each record. Programs need four to seven.
    const NODES_PER_RECORD: u32 = 4;
    /// Maximum number of nodes of a unit.
    const MAX_UNIT_NODES: u32 = 4096;
    /// Minimum number of nodes of a unit.
    const MIN_UNIT_NODES: u32 = 64;
    /// Minimum number of units, unless they would have fewer than `MIN_UNIT_NODES` nodes.
    const MIN_UNITS: usize = 64;

    /// Returns the geometry of the banks of a segment of `segment_bytes`.
    #[must_use]
    pub fn of_segment(segment_bytes: usize) -> Self {
        let banks = segment_bytes.saturating_sub(HEADER_BYTES);
        let bank_bytes = (banks / 2) & !0xffff;
        let codes = (bank_bytes / 8).clamp(CODE_STEP, MAX_CODE_BYTES) & !(CODE_STEP - 1);
        let codes = codes.min(bank_bytes);
        let room = bank_bytes.saturating_sub(BANK_HEADER_BYTES + codes);
        // Size of four nodes with their record and slots. A node needs two slots, but all slot
        // tables together have up to 10/3 times as many: the last table is up to twice as large as
        // needed, and the earlier ones add less than two thirds of its size.
        let four_nodes_bytes =
            4 * size_of::<Node>() + size_of::<Record>() + size_of::<[u32; 8]>() * 10 / 3;
        let nodes = (room / four_nodes_bytes * 4).min(MAX_NODES as usize);
        let logarithm = (nodes / Self::MIN_UNITS).max(1).ilog2();
        let unit_nodes = (1 << logarithm).clamp(Self::MIN_UNIT_NODES, Self::MAX_UNIT_NODES);
        let units = nodes as u32 / unit_nodes;
        let records = units * (unit_nodes / Self::NODES_PER_RECORD);
        Self {
            bank_bytes,
            units,
            unit_nodes,
            nodes: (units * unit_nodes) as usize,
            records: records as usize,
            codes,
            levels: Levels::new(unit_nodes.ilog2(), units),
        }
    }

    /// Returns the offset of a bank in the segment.
    #[must_use]
    pub fn bank_offset(&self, bank: u64) -> usize {
        HEADER_BYTES + (bank & 1) as usize * self.bank_bytes
    }

    /// Returns the offset of the slots in the bank.
    #[must_use]
    pub fn slots_offset(&self) -> usize {
        BANK_HEADER_BYTES
    }

    /// Returns the offset of the nodes in the bank.
    #[must_use]
    pub fn nodes_offset(&self) -> usize {
        self.slots_offset() + self.levels.slot_count() * size_of::<u32>()
    }

    /// Returns the offset of the records in the bank.
    #[must_use]
    pub fn records_offset(&self) -> usize {
        self.nodes_offset() + self.nodes * size_of::<Node>()
    }

    /// Returns the offset of the code objects in the bank: its last bytes.
    #[must_use]
    pub fn codes_offset(&self) -> usize {
        self.bank_bytes - self.codes
    }

    /// Returns the number of bytes of slots to commit together with `units` units.
    #[must_use]
    pub fn slot_bytes_in(&self, units: u32) -> usize {
        self.levels.committed_slots(units.min(self.units)) * size_of::<u32>()
    }

    /// Returns the number of nodes in `units` units.
    #[inline]
    #[must_use]
    pub fn nodes_in(&self, units: u32) -> u32 {
        units.min(self.units) * self.unit_nodes
    }

    /// Returns the number of records in `units` units.
    #[inline]
    #[must_use]
    pub fn records_in(&self, units: u32) -> u32 {
        self.nodes_in(units) / Self::NODES_PER_RECORD
    }

    /// Returns the number of bytes of slots, nodes and records in `units` units.
    #[must_use]
    pub fn bytes_in(&self, units: u32) -> usize {
        let nodes = self.nodes_in(units) as usize * size_of::<Node>();
        let records = self.records_in(units) as usize * size_of::<Record>();
        self.slot_bytes_in(units) + nodes + records
    }

    /// Returns the largest number of units that take at most `bytes`, but at least one.
    #[must_use]
    pub fn units_within(&self, bytes: u64) -> u32 {
        let mut fits = 1;
        let mut too_many = self.units + 1;
        while fits + 1 < too_many {
            let middle = fits.midpoint(too_many);
            if self.bytes_in(middle) as u64 <= bytes {
                fits = middle
            } else {
                too_many = middle
            }
        }
        fits
    }
}

/// One node in this many is reserved for [`Bank::merged_record`], which counts stacks that find no
/// room.
const RESERVED_NODES_ONE_IN: u32 = 16;
/// One record in this many is reserved for [`Bank::merged_record`], and for frees by other threads
/// than the allocating one.
const RESERVED_RECORDS_ONE_IN: u32 = 8;
/// Maximum number of callers that are followed in a stack.
const MAX_DEPTH: usize = 8192;

/// Writer's view of a bank.
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
    /// Number of units that this process can access; `None` if it can access all.
    accessible: Option<&'a AtomicU32>,
}

impl<'a> Bank<'a> {
    /// Returns a view of the bank at `base`.
    ///
    /// # Safety
    /// `base` is page-aligned, the `geometry.bank_bytes` bytes at `base` are mapped shared,
    /// readable and writable for `'a`, and the reserved part is committed.
    #[must_use]
    pub unsafe fn at(base: *const u8, geometry: Geometry) -> Self {
        // SAFETY: the caller keeps the bank mapped. `Geometry` keeps every part inside it and
        // aligned, and all types are atomics, for which any bytes are valid.
        unsafe {
            let header = &*base.cast::<BankHeader>();
            let slots = core::slice::from_raw_parts(
                base.add(geometry.slots_offset()).cast::<AtomicU32>(),
                geometry.levels.slot_count(),
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
                tree: Tree::new(slots, geometry.levels, nodes, &header.node_count),
                records: Records::new(records, &header.record_count, &header.peak.epoch),
                codes: Codes::new(codes, &header.code_words, &header.code_bytes),
                geometry,
                accessible: None,
            }
        }
    }

    /// Restricts the view to the first `units` units, which this process can access.
    #[must_use]
    pub fn restricted_to(self, units: &'a AtomicU32) -> Self {
        let accessible = Some(units);
        Self { accessible, ..self }
    }

    /// Returns the number of usable units.
    #[inline]
    fn units(&self) -> u32 {
        let units = self.header.units();
        self.accessible
            .map_or(units, |limit| units.min(limit.load(Ordering::Acquire)))
    }

    /// Returns a bank for the model checker.
    #[cfg(all(test, loom))]
    pub(crate) fn of_parts(
        header: &'a BankHeader,
        slots: &'a [AtomicU32],
        nodes: &'a [Node],
        records: &'a [Record],
        geometry: Geometry,
    ) -> Self {
        Self {
            header,
            tree: Tree::new(slots, geometry.levels, nodes, &header.node_count),
            records: Records::new(records, &header.record_count, &header.peak.epoch),
            codes: Codes::new(&[], &header.code_words, &header.code_bytes),
            geometry,
            accessible: None,
        }
    }

    /// Returns the bank's layout.
    #[must_use]
    pub fn geometry(&self) -> &Geometry {
        &self.geometry
    }

    /// Returns true if the bank holds this session's data.
    #[inline]
    #[must_use]
    pub fn holds_session(&self, session: u64) -> bool {
        self.header.session.load(Ordering::Relaxed) == session
    }

    /// Returns the number of nodes that stacks may use. Some committed nodes are reserved for
    /// [`merged_record`](Self::merged_record).
    #[inline]
    #[must_use]
    pub fn node_limit(&self) -> u32 {
        let limit = self.geometry.nodes_in(self.units());
        limit - limit / RESERVED_NODES_ONE_IN
    }

    /// Returns the maximum number of units that the agent may commit.
    #[inline]
    #[must_use]
    pub fn max_units(&self) -> u32 {
        match self.header.max_units.load(Ordering::Relaxed) {
            0 => self.geometry.units,
            max => max.min(self.geometry.units),
        }
    }

    /// Returns the record of `shard` for these objects, or [`TABLE_FULL`] if there is no room.
    #[must_use]
    pub fn record_of(&self, key: RecordKey, shard: u32) -> RecordId {
        let mut limits = self.record_limits();
        limits.limit -= limits.limit / RESERVED_RECORDS_ONE_IN;
        self.record_in(limits, key, shard)
    }

    /// Like [`record_of`](Self::record_of), for objects that another shard has counted. Uses the
    /// reserved records as well.
    #[must_use]
    pub fn record_with_reserve(&self, key: RecordKey, shard: u32) -> RecordId {
        self.record_in(self.record_limits(), key, shard)
    }

    fn record_in(&self, limits: RecordLimits, key: RecordKey, shard: u32) -> RecordId {
        self.tree
            .node(key.leaf)
            .and_then(|node| self.records.find_or_create(node, key, shard, limits))
            .unwrap_or(TABLE_FULL)
    }

    /// Returns the limits of the committed records.
    fn record_limits(&self) -> RecordLimits {
        RecordLimits {
            limit: self.geometry.records_in(self.units()),
            crowded: self.geometry.records_in(self.max_units()) / 2,
        }
    }

    /// Returns the record of `shard` for objects of a size class from stacks that found no room.
    ///
    /// Such a record is at a child of `path_node`, or of its nearest possible caller, with address
    /// [`MERGED_ADDRESS`]. Returns [`TABLE_FULL`] if there is none. Each time half of the remaining
    /// reserved nodes or records have been used, the maximum depth at which a new one is created is
    /// halved. So some are left for the outermost callers, which all stacks share.
    #[cold]
    #[must_use]
    pub fn merged_record(&self, path_node: PathNode, class: u32, shard: u32) -> RecordId {
        let nodes = self.geometry.nodes_in(self.units());
        let limits = self.record_limits();
        let depth = self.callers(path_node).count();
        // Number of times that the remaining part of `reserved` has been halved.
        let halvings = |free: u32, reserved: u32| {
            let reserved = reserved.max(1);
            (reserved / free.clamp(1, reserved)).ilog2()
        };
        let free = self
            .records
            .free_records(limits)
            .zip(self.tree.free_nodes(nodes));
        let max_depth = free.map(|(free_records, free_nodes)| {
            let of_records = halvings(free_records, limits.limit / RESERVED_RECORDS_ONE_IN);
            let of_nodes = halvings(free_nodes, nodes / RESERVED_NODES_ONE_IN);
            depth >> of_records.max(of_nodes)
        });
        for (at, depth) in self.callers(path_node).zip((0..depth).rev()) {
            let marker = if max_depth.is_some_and(|max| depth <= max) {
                self.tree.child(at, MERGED_ADDRESS, nodes)
            } else {
                self.tree.find(at, MERGED_ADDRESS, nodes)
            };
            if let Some(PathNode { node, .. }) = marker {
                let record = self.record_in(limits, RecordKey::new(node, class), shard);
                if record != TABLE_FULL {
                    return record;
                }
            }
        }
        TABLE_FULL
    }

    /// Returns a node and all of its callers up to the root.
    fn callers(&self, path_node: PathNode) -> impl Iterator<Item = PathNode> {
        core::iter::successors(Some(path_node), |at| self.tree.caller(*at)).take(MAX_DEPTH)
    }

    /// Returns the node of the frame that called the innermost one of a stack.
    #[cold]
    #[must_use]
    pub fn caller_of(&self, leaf: u32) -> PathNode {
        let path_node = self.tree.path_node(leaf, MAX_DEPTH);
        let caller = path_node.and_then(|node| self.tree.caller(node));
        caller.unwrap_or(PathNode::root(ROOT))
    }

    /// Returns the stack and the size class that a record counts.
    #[must_use]
    pub fn stack_of(&self, id: RecordId) -> RecordKey {
        self.records
            .record(id)
            .map_or(RecordKey::new(0, 0), |record| {
                let class = record.size_class.load(Ordering::Relaxed);
                RecordKey::new(record.node.load(Ordering::Relaxed), u32::from(class))
            })
    }

    /// Returns the nodes above the complete and the truncated stacks of thread `tid`, which has
    /// just noticed the session.
    ///
    /// The first [`MAX_RECORDED_THREADS`] threads get nodes of their own, so that their stacks are
    /// recorded per thread, as long as at most a quarter of the nodes is in use. All other threads,
    /// and those whose `tid` is not known (0), share two nodes.
    #[must_use]
    pub fn thread_roots(&self, tid: u32) -> [PathNode; 2] {
        const SHARED: [PathNode; 2] = [PathNode::root(ROOT), PathNode::root(TRUNCATED)];
        let threads = &self.header.threads;
        let used_nodes = self.header.node_count.load(Ordering::Relaxed);
        let entries = threads.count.load(Ordering::Relaxed) as usize;
        if tid == 0
            || entries >= MAX_RECORDED_THREADS
            || used_nodes as usize > self.geometry.nodes / 4
        {
            return SHARED;
        }
        let index = threads.count.fetch_add(1, Ordering::Relaxed);
        let Some(entry) = threads.entries.get(index as usize) else {
            return SHARED;
        };
        entry.tid.store(tid, Ordering::Relaxed);
        let address = THREAD_ADDRESS + u64::from(index);
        SHARED.map(|root| {
            let thread_node = self.tree.child(root, address, self.node_limit());
            thread_node.unwrap_or(root)
        })
    }

    /// Counts a sampled allocation in its record and in the totals of `shard`. `exclusive` is true
    /// if the calling thread is the only writer of `shard`. The record may belong to another shard,
    /// since a crowded bank has shared records.
    #[inline]
    pub fn count_new(&self, id: RecordId, shard: u32, sample: &NewSample, exclusive: bool) {
        let owned = exclusive && self.owns(id, shard);
        let bytes = self.records.count_new(id, sample, owned);
        let totals = self.totals(shard);
        add(&totals.samples, 1, exclusive);
        add(&totals.alloc_bytes, bytes, exclusive);
        self.header.peak.count_new(totals, bytes, exclusive);
        if id == TABLE_FULL {
            self.header
                .counters
                .table_full
                .fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a sample of CPU time in its record and in the session's totals. `exclusive` is true
    /// if the calling thread is the only writer of `shard`.
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

    /// Counts the free of a sampled object. `exclusive` is true if the calling thread is the only
    /// writer of `shard`.
    #[inline]
    pub fn count_free(&self, id: RecordId, shard: u32, sample: &FreeSample, exclusive: bool) {
        let owned = exclusive && self.owns(id, shard);
        let totals = self.totals(shard);
        let peak = &self.header.peak;
        peak.before_free(totals, sample.tick);
        let bytes = self.records.count_free(id, sample, owned);
        add(&totals.freed_bytes, bytes, exclusive);
        peak.count_free(totals, bytes, exclusive);
    }

    /// Counts a sampled allocation whose free cannot be observed as if it were freed immediately.
    /// No live value and no peak includes it.
    pub fn count_unseen(&self, id: RecordId, shard: u32, sample: &NewSample, exclusive: bool) {
        let freed = FreeSample {
            born: *sample,
            tick: sample.tick,
        };
        // The free is counted first, so that the live heap is not higher in between.
        self.count_free(id, shard, &freed, exclusive);
        self.count_new(id, shard, sample, exclusive);
    }

    /// Returns the number of samples counted in a record and its estimated live bytes. Returns
    /// zeros for [`TABLE_FULL`], which stands for many stacks.
    #[inline]
    #[must_use]
    pub fn samples_and_live_bytes(&self, id: RecordId) -> (u64, u64) {
        match self.records.record(id).filter(|_| id != TABLE_FULL) {
            Some(record) => record.samples_and_live_bytes(),
            None => (0, 0),
        }
    }

    /// Returns true if a record belongs to `shard`.
    #[inline]
    #[must_use]
    pub fn owns(&self, id: RecordId, shard: u32) -> bool {
        let owner = self
            .records
            .record(id)
            .map(|record| u32::from(record.shard.load(Ordering::Relaxed)));
        id != TABLE_FULL && owner == Some(shard)
    }

    /// Returns the record index of an object's header, or [`TABLE_FULL`] if that record is not
    /// committed. In the latter case, the program has overwritten the header with bytes that pass
    /// the check by chance.
    #[inline]
    #[must_use]
    pub fn committed_or_table_full(&self, id: RecordId) -> RecordId {
        if id < self.geometry.records_in(self.units()) {
            id
        } else {
            TABLE_FULL
        }
    }

    /// Returns the running totals of a shard.
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
    use crate::layout::{
        DEFAULT_SEGMENT_BYTES, MAX_SEGMENT_BYTES, MIN_SEGMENT_BYTES, reserved_units, step_of,
    };
    use crate::record::MAX_RECORDS;

    #[test]
    fn geometry_fits_every_size() {
        let mut bytes = MIN_SEGMENT_BYTES;
        while bytes <= MAX_SEGMENT_BYTES {
            for odd in [0, 4096, 65536 + 5, bytes / 3] {
                let g = Geometry::of_segment((bytes + odd).min(MAX_SEGMENT_BYTES));
                let end = g.records_offset() + g.records * size_of::<Record>();
                assert!(
                    end <= g.codes_offset() && g.codes >= CODE_STEP,
                    "{bytes}: {g:?}"
                );
                assert_eq!(g.codes_offset() % CODE_STEP, 0);
                assert!(end <= g.bank_bytes, "{bytes}: {g:?}");
                assert!(g.bank_offset(1) + g.bank_bytes <= bytes + odd);
                assert!(g.records >= 128 && g.nodes >= 1024, "{bytes}: {g:?}");
                assert!(g.nodes <= MAX_NODES as usize && g.records < MAX_RECORDS as usize);
                assert!(reserved_units(step_of(g.units)) >= g.units, "{g:?}");
                assert_eq!(g.nodes_in(g.units) as usize, g.nodes);
                assert_eq!(g.records_in(g.units) as usize, g.records);
                assert_eq!(g.slot_bytes_in(g.units), g.levels.slot_count() * 4);
                assert_eq!(g.slots_offset() % 64, 0);
                assert_eq!(g.records_offset() % 64, 0);
                let steps = (1..g.units).map(|units| g.bytes_in(units + 1) - g.bytes_in(units));
                let max = steps.max().unwrap();
                assert!(max <= 1 << 20, "{bytes}: a step of {max} bytes, {g:?}");
                for units in [1, 2, g.units / 2, g.units] {
                    assert_eq!(g.units_within(g.bytes_in(units) as u64), units);
                }
                assert_eq!((g.units_within(0), g.units_within(u64::MAX)), (1, g.units));
            }
            bytes *= 2;
        }
    }

    /// A stack without room is counted at its nearest caller that has a record, and only without
    /// such a caller at `[table full]`.
    #[test]
    fn stacks_without_room_are_merged_at_their_callers() {
        let geometry = Geometry::of_segment(MIN_SEGMENT_BYTES);
        let mut words = std::vec![0u64; geometry.bank_bytes / 8 + 8];
        let skip = words.as_ptr().align_offset(64);
        // SAFETY: the memory is zeroed, aligned to a cache line and large enough, and no other
        // thread uses it.
        let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
        bank.header.grown_units.store(4, Ordering::Relaxed);
        let child = |place, address| bank.tree.child(place, address, bank.node_limit());
        let outer = child(PathNode::root(ROOT), 0x1000).unwrap();
        let mut leaves = std::vec::Vec::new();
        while let Some(leaf) = child(outer, 0x2000 + leaves.len() as u64) {
            leaves.push(leaf);
        }
        let address = |node: u32| {
            bank.tree
                .node(node)
                .unwrap()
                .address
                .load(Ordering::Relaxed)
        };
        let kept = bank.merged_record(outer, 3, 0);
        let RecordKey {
            leaf: marker,
            class,
        } = bank.stack_of(kept);
        assert_eq!((address(marker), class), (MERGED_ADDRESS, 3));
        assert_eq!(
            bank.tree
                .path_node(marker, 9)
                .and_then(|at| bank.tree.caller(at)),
            Some(outer)
        );
        assert_eq!(bank.merged_record(outer, 3, 0), kept);

        let mut full = leaves
            .iter()
            .map(|leaf| bank.record_of(RecordKey::new(leaf.node, 3), 0));
        assert!(full.any(|record| record == TABLE_FULL));
        let last = leaves[leaves.len() - 1].node;
        assert_eq!(bank.caller_of(last), outer);
        assert_ne!(
            bank.record_with_reserve(RecordKey::new(last, 3), 0),
            TABLE_FULL
        );
        for class in 0..40 {
            for leaf in &leaves {
                let _ = bank.record_with_reserve(RecordKey::new(leaf.node, class), 0);
            }
        }
        // Without any room, only existing records are used.
        assert_eq!(bank.merged_record(leaves[5], 3, 0), kept);
        assert_eq!(bank.merged_record(leaves[5], 50, 0), TABLE_FULL);
    }

    #[test]
    fn default_segment_holds_a_million_stacks_and_begins_small() {
        let g = Geometry::of_segment(DEFAULT_SEGMENT_BYTES);
        assert!(g.records > 1_000_000 && g.nodes > 5_000_000, "{g:?}");
        assert!(g.bytes_in(1) < 512 << 10, "{g:?}");
        let g = Geometry::of_segment(64 << 20);
        assert!(g.records > 60_000 && g.nodes > 250_000, "{g:?}");
    }
}
