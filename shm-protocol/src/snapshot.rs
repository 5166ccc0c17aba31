//! Reading a segment: views over private copies of its bytes.
//!
//! Every byte is the target's word and may be a lie. Views check each index before
//! use, so wrong bytes give wrong numbers or an [`Invalid`], never a fault, a hang or
//! a read elsewhere. Strings come out as raw bytes; who prints them escapes them.

use crate::bank::Geometry;
use crate::layout::{
    ABI_VERSION, AllocatorStats, BANK_HEADER_BYTES, BankHeader, Control, Counters, HEADER_BYTES,
    IDENTITY_OFFSET, Identity, MAGIC, MODULE_CAPACITY, MODULE_PATH_BYTES, MODULES_OFFSET, Module,
    ModuleTable, Node, Params, Record, STATUS_OFFSET, ShardTotals, Status,
};
use crate::record::{BYTE_ONE, FIRST_RECORD, OBJECT_ONE, TIME_ONE, VARIANCE_ONE};
use crate::segment::Session;
use crate::tree::{FIRST_NODE, NodeId, TRUNCATED};
use core::mem::{offset_of, size_of};

/// Why bytes are not a segment of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    /// Fewer bytes than a header.
    TooShort,
    /// No magic: not a segment, or its agent has not finished making it.
    NoMagic,
    /// Another version of the layout: theirs, ours.
    Version(u32, u32),
    /// The sizes in the header contradict the file's.
    Sizes,
    /// A node whose caller is not older than itself.
    Cycle(NodeId),
}

impl core::fmt::Display for Invalid {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::TooShort => write!(f, "the file is shorter than a segment's header"),
            Self::NoMagic => write!(f, "it does not begin like a segment of mem-profiler"),
            Self::Version(theirs, ours) => {
                write!(
                    f,
                    "its agent speaks protocol version {theirs}, this program {ours}"
                )
            }
            Self::Sizes => write!(f, "the sizes in its header contradict the file's size"),
            Self::Cycle(node) => write!(f, "the tree is damaged at node {node}"),
        }
    }
}

impl core::error::Error for Invalid {}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    if let Some(part) = at.checked_add(8).and_then(|end| bytes.get(at..end)) {
        word.copy_from_slice(part);
    }
    u64::from_le_bytes(word)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut word = [0; 4];
    if let Some(part) = at.checked_add(4).and_then(|end| bytes.get(at..end)) {
        word.copy_from_slice(part);
    }
    u32::from_le_bytes(word)
}

fn text_at(bytes: &[u8], at: usize, len: usize, room: usize) -> &[u8] {
    let end = at.saturating_add(len.min(room));
    bytes.get(at..end).unwrap_or_default()
}

/// A copy of the first [`HEADER_BYTES`] of a segment, checked.
#[derive(Clone, Copy)]
pub struct Header<'a> {
    bytes: &'a [u8],
}

impl<'a> Header<'a> {
    /// Checks magic, version and sizes against the file's size.
    ///
    /// # Errors
    /// [`Invalid`], with both versions where they differ.
    pub fn new(bytes: &'a [u8], file_bytes: usize) -> Result<Self, Invalid> {
        if bytes.len() < HEADER_BYTES {
            return Err(Invalid::TooShort);
        }
        let identity = |field: usize| IDENTITY_OFFSET + field;
        if u64_at(bytes, identity(offset_of!(Identity, magic))) != MAGIC {
            return Err(Invalid::NoMagic);
        }
        let version = u32_at(bytes, identity(offset_of!(Identity, abi_version)));
        if version != ABI_VERSION {
            return Err(Invalid::Version(version, ABI_VERSION));
        }
        let header = u32_at(bytes, identity(offset_of!(Identity, header_bytes)));
        let segment = u64_at(bytes, identity(offset_of!(Identity, segment_bytes)));
        if header as usize != HEADER_BYTES || segment != file_bytes as u64 {
            return Err(Invalid::Sizes);
        }
        Ok(Self { bytes })
    }

    fn identity64(&self, field: usize) -> u64 {
        u64_at(self.bytes, IDENTITY_OFFSET + field)
    }

    fn identity32(&self, field: usize) -> u32 {
        u32_at(self.bytes, IDENTITY_OFFSET + field)
    }

    /// Pid in the process's own pid namespace.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.identity32(offset_of!(Identity, pid))
    }

    /// User that the process ran as when it made the segment.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.identity32(offset_of!(Identity, uid))
    }

    /// Field 22 of `/proc/PID/stat`.
    #[must_use]
    pub fn start_time(&self) -> u64 {
        self.identity64(offset_of!(Identity, start_time))
    }

    /// Boot id of the kernel it ran under.
    #[must_use]
    pub fn boot_id(&self) -> &'a [u8] {
        text_at(
            self.bytes,
            IDENTITY_OFFSET + offset_of!(Identity, boot_id),
            16,
            16,
        )
    }

    /// When the segment was made, Unix ns.
    #[must_use]
    pub fn created_unix_ns(&self) -> u64 {
        self.identity64(offset_of!(Identity, created_unix_ns))
    }

    /// When the segment was made, ns of [`crate::clock::now_ns`].
    #[must_use]
    pub fn created_ns(&self) -> u64 {
        self.identity64(offset_of!(Identity, created_ns))
    }

    /// Whether the program kept its own allocator.
    #[must_use]
    pub fn system_allocator(&self) -> bool {
        self.identity32(offset_of!(Identity, allocator)) == 1
    }

    /// Pid of the parent whose segment this one replaced at fork, or 0.
    #[must_use]
    pub fn forked_from(&self) -> u32 {
        self.identity32(offset_of!(Identity, forked_from))
    }

    /// Path of the executable, as the process saw it; not checked to be text.
    #[must_use]
    pub fn exe(&self) -> &'a [u8] {
        let len = self.identity32(offset_of!(Identity, exe_len)) as usize;
        text_at(
            self.bytes,
            IDENTITY_OFFSET + offset_of!(Identity, exe),
            len,
            1024,
        )
    }

    /// Build id of the executable; may be empty.
    #[must_use]
    pub fn exe_build_id(&self) -> &'a [u8] {
        let len = self.identity32(offset_of!(Identity, exe_build_id_len)) as usize;
        text_at(
            self.bytes,
            IDENTITY_OFFSET + offset_of!(Identity, exe_build_id),
            len,
            32,
        )
    }

    /// Version of the agent.
    #[must_use]
    pub fn agent_version(&self) -> &'a [u8] {
        let at = IDENTITY_OFFSET + offset_of!(Identity, agent_version);
        let text = text_at(self.bytes, at, 32, 32);
        text.split(|b| *b == 0).next().unwrap_or_default()
    }

    /// The epoch in force; 0: sampling is off.
    #[must_use]
    pub fn epoch(&self) -> u8 {
        self.bytes[offset_of!(Control, epoch)]
    }

    /// The last session that was published, running or not; `None` before the first.
    #[must_use]
    pub fn session(&self) -> Option<Session> {
        let last = self.bytes[offset_of!(Control, last_epoch)];
        let at = offset_of!(Control, params) + usize::from(last & 1) * size_of::<Params>();
        let field = |field: usize| u64_at(self.bytes, at + field);
        let session = Session {
            number: field(offset_of!(Params, session)),
            interval: field(offset_of!(Params, interval)),
            deadline_ns: field(offset_of!(Params, deadline_ns)),
            start_ns: field(offset_of!(Params, start_ns)),
            start_unix_ns: field(offset_of!(Params, start_unix_ns)),
            controller_pid: field(offset_of!(Params, controller_pid)),
        };
        (last != 0 && session.number != 0).then_some(session)
    }

    fn status(&self, field: usize) -> u64 {
        u64_at(self.bytes, STATUS_OFFSET + field)
    }

    /// Last session that ended by itself at its deadline, and when (ns of the clock).
    #[must_use]
    pub fn expired(&self) -> (u64, u64) {
        (
            self.status(offset_of!(Status, expired_session)),
            self.status(offset_of!(Status, expired_ns)),
        )
    }

    /// Last session that was written out.
    #[must_use]
    pub fn collected_session(&self) -> u64 {
        self.status(offset_of!(Status, collected_session))
    }

    /// Whether the process ended in order.
    #[must_use]
    pub fn exited(&self) -> bool {
        self.status(offset_of!(Status, exited)) != 0
    }

    /// Address space reserved for sampled objects.
    #[must_use]
    pub fn range_bytes(&self) -> u64 {
        self.status(offset_of!(Status, range_bytes))
    }

    /// Modules that found no room.
    #[must_use]
    pub fn modules_lost(&self) -> u64 {
        self.status(offset_of!(Status, modules_lost))
    }

    /// The allocator's statistics by name, in bytes, and when they were taken (ns of the
    /// clock); `None` if never.
    #[must_use]
    pub fn allocator_stats(&self) -> Option<(u64, [(&'static str, u64); 6])> {
        let field = |field: usize| self.status(offset_of!(Status, allocator) + field);
        let taken = field(offset_of!(AllocatorStats, taken_ns));
        (taken != 0).then(|| {
            let stats = [
                ("allocated", field(offset_of!(AllocatorStats, allocated))),
                ("active", field(offset_of!(AllocatorStats, active))),
                ("metadata", field(offset_of!(AllocatorStats, metadata))),
                ("resident", field(offset_of!(AllocatorStats, resident))),
                ("mapped", field(offset_of!(AllocatorStats, mapped))),
                ("retained", field(offset_of!(AllocatorStats, retained))),
            ];
            (taken, stats)
        })
    }

    /// The modules, in order of discovery.
    pub fn modules(&self) -> impl Iterator<Item = ModuleView<'a>> + use<'a> {
        let bytes = self.bytes;
        let count = u32_at(bytes, MODULES_OFFSET + offset_of!(ModuleTable, count)) as usize;
        (0..count.min(MODULE_CAPACITY)).filter_map(move |i| ModuleView::at(bytes, i))
    }
}

/// An executable mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModuleView<'a> {
    /// First address.
    pub start: u64,
    /// One past the last.
    pub end: u64,
    /// Offset of `start` in the file.
    pub file_offset: u64,
    /// Path as the process saw it; not checked to be text.
    pub path: &'a [u8],
    /// Build id; may be empty.
    pub build_id: &'a [u8],
    /// Tick at which it was found unloaded.
    pub unloaded_tick: Option<u32>,
}

impl<'a> ModuleView<'a> {
    fn at(bytes: &'a [u8], index: usize) -> Option<Self> {
        let base = MODULES_OFFSET + offset_of!(ModuleTable, entries) + index * size_of::<Module>();
        let paths = MODULES_OFFSET + offset_of!(ModuleTable, paths);
        let word = |field: usize| u64_at(bytes, base + field);
        let half = |field: usize| u32_at(bytes, base + field);
        if half(offset_of!(Module, ready)) != 1 {
            return None;
        }
        let path_at = (half(offset_of!(Module, path_offset)) as usize).min(MODULE_PATH_BYTES);
        let path_len = half(offset_of!(Module, path_len)) as usize;
        let id_len = half(offset_of!(Module, build_id_len)) as usize;
        let module = Self {
            start: word(offset_of!(Module, start)),
            end: word(offset_of!(Module, end)),
            file_offset: word(offset_of!(Module, file_offset)),
            path: text_at(
                bytes,
                paths + path_at,
                path_len,
                MODULE_PATH_BYTES - path_at,
            ),
            build_id: text_at(bytes, base + offset_of!(Module, build_id), id_len, 32),
            unloaded_tick: Some(half(offset_of!(Module, unloaded_tick))).filter(|tick| *tick != 0),
        };
        (module.start < module.end).then_some(module)
    }
}

/// What a bank's header says.
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

    /// Steps reserved, of [`crate::layout::RESERVE_STEPS`].
    #[must_use]
    pub fn reserved_steps(&self) -> u8 {
        self.bytes[offset_of!(BankHeader, reserved_steps)]
    }

    /// Nodes to read, fixed ones included.
    #[must_use]
    pub fn nodes(&self) -> usize {
        let made = u32_at(self.bytes, offset_of!(BankHeader, node_count)) as usize;
        let limit = self.geometry.nodes_in(self.reserved_steps()) as usize;
        (made + FIRST_NODE as usize).min(limit)
    }

    /// Records to read, the fixed one included.
    #[must_use]
    pub fn records(&self) -> usize {
        let made = u32_at(self.bytes, offset_of!(BankHeader, record_count)) as usize;
        let limit = self.geometry.records_in(self.reserved_steps()) as usize;
        (made + FIRST_RECORD as usize).min(limit)
    }

    /// Counter by its offset in [`Counters`].
    fn counter(&self, field: usize) -> u64 {
        u64_at(self.bytes, offset_of!(BankHeader, counters) + field)
    }

    /// Threads that met the session's epochs. 0 after a while: nothing allocates through
    /// the agent.
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

    /// Samples without a stack.
    #[must_use]
    pub fn no_stack(&self) -> u64 {
        self.counter(offset_of!(Counters, no_stack))
    }

    /// Stacks cut by the cause at an index of [`crate::layout::TRUNCATION_CAUSES`].
    #[must_use]
    pub fn truncated(&self, cause: usize) -> u64 {
        self.counter(offset_of!(Counters, truncated) + cause.min(7) * 8)
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

/// Running totals of a session.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Totals {
    /// Samples taken.
    pub samples: u64,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Estimated bytes allocated in the session and still live.
    pub live_bytes: f64,
    /// Nanoseconds that the timed samples took in the agent.
    pub timed_ns: u64,
    /// Samples that were timed.
    pub timed: u64,
}

/// The tree and the records of a bank, from private copies.
#[derive(Clone, Copy)]
pub struct Table<'a> {
    nodes: &'a [u8],
    records: &'a [u8],
}

impl<'a> Table<'a> {
    /// Over copies of the first [`BankSummary::nodes`] nodes and [`BankSummary::records`]
    /// records.
    #[must_use]
    pub fn new(nodes: &'a [u8], records: &'a [u8]) -> Self {
        Self { nodes, records }
    }

    /// Number of nodes, fixed ones included.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.nodes.len() / size_of::<Node>()
    }

    /// The caller's node and the return address of a node. `None` for the fixed nodes and
    /// for one that was claimed but never filled in.
    ///
    /// # Errors
    /// [`Invalid::Cycle`] if its caller is not older.
    pub fn node(&self, id: NodeId) -> Result<Option<(NodeId, u64)>, Invalid> {
        if id < FIRST_NODE || id as usize >= self.node_count() {
            return Ok(None);
        }
        let at = id as usize * size_of::<Node>();
        let address = u64_at(self.nodes, at + offset_of!(Node, address));
        let parent = u32_at(self.nodes, at + offset_of!(Node, parent));
        match (address, parent < id) {
            (0, _) => Ok(None),
            (_, false) => Err(Invalid::Cycle(id)),
            (_, true) => Ok(Some((parent, address))),
        }
    }

    /// Appends the addresses of the stack that ends in `leaf`, leaf first; tells whether
    /// it is truncated.
    ///
    /// # Errors
    /// [`Invalid::Cycle`] on a damaged tree.
    pub fn stack(&self, leaf: NodeId, mut push: impl FnMut(u64)) -> Result<bool, Invalid> {
        let mut at = leaf;
        while let Some((parent, address)) = self.node(at)? {
            push(address);
            at = parent;
        }
        Ok(at == TRUNCATED)
    }

    /// All records that were filled in; the first is `[table full]`. A stack may have
    /// several.
    pub fn records(&self) -> impl Iterator<Item = RecordView> + use<'a> {
        let bytes = self.records;
        (0..bytes.len() / size_of::<Record>()).map(move |i| RecordView::at(bytes, i))
    }
}

/// The sums of a record, still in fixed point: add those of one stack with
/// [`RecordView::merge`] before converting them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordView {
    /// Leaf of the stack; 0 for `[table full]`.
    pub node: NodeId,
    sums: [u64; 11],
}

const FIELDS: [usize; 11] = [
    offset_of!(Record, alloc_samples),
    offset_of!(Record, alloc_objects),
    offset_of!(Record, alloc_bytes),
    offset_of!(Record, alloc_birth),
    offset_of!(Record, alloc_variance),
    offset_of!(Record, free_samples),
    offset_of!(Record, free_objects),
    offset_of!(Record, free_bytes),
    offset_of!(Record, free_birth),
    offset_of!(Record, free_death),
    offset_of!(Record, free_variance),
];

/// What a stack's records say, in plain units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StackSums {
    /// Samples of allocations.
    pub alloc_samples: u64,
    /// Of those, freed.
    pub free_samples: u64,
    /// Estimated objects allocated.
    pub alloc_objects: f64,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Variance of `alloc_bytes`, bytes².
    pub alloc_variance: f64,
    /// Estimated objects freed.
    pub free_objects: f64,
    /// Estimated bytes freed.
    pub free_bytes: f64,
    /// Variance of the live bytes, bytes².
    pub live_variance: f64,
    /// Sum over live objects of their age, in object-ticks.
    pub live_age_ticks: f64,
    /// Sum over freed objects of their lifetime, in object-ticks.
    pub freed_lifetime_ticks: f64,
}

impl RecordView {
    fn at(bytes: &[u8], index: usize) -> Self {
        let base = index * size_of::<Record>();
        Self {
            node: u32_at(bytes, base + offset_of!(Record, node)),
            sums: FIELDS.map(|field| u64_at(bytes, base + field)),
        }
    }

    /// Adds another record of the same stack.
    pub fn merge(&mut self, other: &Self) {
        for (sum, more) in self.sums.iter_mut().zip(other.sums) {
            *sum = sum.wrapping_add(more);
        }
    }

    /// In plain units, `now_tick` ticks after the session's start. Sums that a torn copy
    /// or a hostile target made negative come out as zero.
    #[must_use]
    pub fn sums(&self, now_tick: u32) -> StackSums {
        let [
            n,
            objects,
            bytes,
            birth,
            variance,
            f_n,
            f_objects,
            f_bytes,
            f_birth,
            death,
            f_var,
        ] = self.sums;
        let left = |all: u64, gone: u64| (all.wrapping_sub(gone) as i64).max(0) as f64;
        let live_objects = left(objects, f_objects) / OBJECT_ONE;
        let births = birth.wrapping_sub(f_birth) as i64 as f64 / TIME_ONE;
        StackSums {
            alloc_samples: n,
            free_samples: f_n.min(n),
            alloc_objects: objects as f64 / OBJECT_ONE,
            alloc_bytes: bytes as f64 / BYTE_ONE,
            alloc_variance: variance as f64 / VARIANCE_ONE,
            free_objects: f_objects.min(objects) as f64 / OBJECT_ONE,
            free_bytes: f_bytes.min(bytes) as f64 / BYTE_ONE,
            live_variance: left(variance, f_var) / VARIANCE_ONE,
            live_age_ticks: (live_objects * f64::from(now_tick) - births).max(0.0),
            freed_lifetime_ticks: left(death, f_birth) / TIME_ONE,
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::bank::Bank;
    use crate::layout::RESERVE_STEPS;
    use crate::record::{FreeSample, NewSample};
    use crate::sync::Ordering;
    use crate::tree::ROOT;
    use proptest::prelude::*;
    use std::vec;
    use std::vec::Vec;

    const SEGMENT: usize = 1 << 20;

    fn bank_memory(geometry: Geometry) -> Vec<u64> {
        vec![0u64; geometry.bank_bytes / 8 + 8]
    }

    fn as_bytes(words: &[u64]) -> &[u8] {
        // SAFETY: any initialised u64s are valid bytes.
        unsafe { core::slice::from_raw_parts(words.as_ptr().cast(), words.len() * 8) }
    }

    fn aligned(words: &mut Vec<u64>) -> usize {
        let at = words.as_ptr() as usize;
        (at.next_multiple_of(64) - at) / 8
    }

    #[test]
    fn what_the_writer_counts_the_reader_reads() {
        let geometry = Geometry::of_segment(SEGMENT);
        let mut words = bank_memory(geometry);
        let skip = aligned(&mut words);
        // SAFETY: aligned to a cache line and large enough; single-threaded here.
        let bank = unsafe { Bank::at(words[skip..].as_mut_ptr().cast(), geometry) };
        bank.header
            .reserved_steps
            .store(RESERVE_STEPS, core::sync::atomic::Ordering::Relaxed);
        bank.header.session.store(3, Ordering::Relaxed);
        let outer = bank.tree.child(ROOT, 0x10, bank.node_limit()).unwrap();
        let leaf = bank.tree.child(outer, 0x20, bank.node_limit()).unwrap();
        let cut = bank.tree.child(TRUNCATED, 0x30, bank.node_limit()).unwrap();
        let born = NewSample {
            bytes: 100,
            weight: 2.5,
            tick: 10,
        };
        for shard in [0, 1] {
            bank.count_new(bank.record_of(leaf, shard), shard, &born, true);
        }
        bank.count_free(
            bank.record_of(leaf, 1),
            1,
            &FreeSample { born, tick: 30 },
            true,
        );
        bank.count_new(bank.record_of(cut, 0), 0, &born, true);

        let bytes = &as_bytes(&words)[skip * 8..];
        let summary = BankSummary::new(bytes, geometry).unwrap();
        assert_eq!(
            (summary.session(), summary.nodes(), summary.records()),
            (3, 5, 4)
        );
        assert_eq!(summary.totals().alloc_bytes, 750.0);
        assert_eq!(summary.totals().live_bytes, 500.0);
        let nodes = &bytes[geometry.nodes_offset()..][..summary.nodes() * 16];
        let records = &bytes[geometry.records_offset()..][..summary.records() * 128];
        let table = Table::new(nodes, records);
        let mut addresses = Vec::new();
        assert_eq!(table.stack(leaf, |a| addresses.push(a)), Ok(false));
        assert_eq!(addresses, [0x20, 0x10]);
        assert_eq!(table.stack(cut, |_| ()), Ok(true));
        let mut sum = RecordView::default();
        table
            .records()
            .filter(|r| r.node == leaf)
            .for_each(|r| sum.merge(&r));
        let sums = sum.sums(110);
        assert_eq!((sums.alloc_samples, sums.free_samples), (2, 1));
        assert_eq!((sums.alloc_objects, sums.alloc_bytes), (5.0, 500.0));
        assert_eq!((sums.free_objects, sums.free_bytes), (2.5, 250.0));
        assert_eq!(sums.live_age_ticks, 250.0);
        assert_eq!(sums.freed_lifetime_ticks, 50.0);
        assert!((sums.live_variance - 250.0 * 150.0).abs() <= 0.5 / VARIANCE_ONE);
    }

    proptest! {
        /// Hostile bytes: views may answer anything, but answer.
        #[test]
        fn arbitrary_bytes_never_panic(seed in any::<u64>(), flips in 0usize..4000) {
            let geometry = Geometry::of_segment(SEGMENT);
            let mut bytes = vec![0u8; HEADER_BYTES];
            let mut state = seed | 1;
            let mut next = || { state ^= state << 13; state ^= state >> 7; state ^= state << 17; state };
            for _ in 0..flips {
                let at = next() as usize % bytes.len();
                bytes[at] = next() as u8;
            }
            bytes[IDENTITY_OFFSET..IDENTITY_OFFSET + 8].copy_from_slice(&MAGIC.to_le_bytes());
            bytes[IDENTITY_OFFSET + 8..IDENTITY_OFFSET + 12].copy_from_slice(&ABI_VERSION.to_le_bytes());
            bytes[IDENTITY_OFFSET + 12..IDENTITY_OFFSET + 16].copy_from_slice(&(HEADER_BYTES as u32).to_le_bytes());
            bytes[IDENTITY_OFFSET + 16..IDENTITY_OFFSET + 24].copy_from_slice(&(SEGMENT as u64).to_le_bytes());
            let header = Header::new(&bytes, SEGMENT).unwrap();
            let _ = (header.exe(), header.exe_build_id(), header.agent_version(), header.session());
            for module in header.modules() {
                prop_assert!(module.start < module.end && module.build_id.len() <= 32);
            }
            let summary = BankSummary::new(&bytes, geometry).unwrap();
            prop_assert!(summary.nodes() <= geometry.nodes && summary.records() <= geometry.records);
            let _ = summary.totals();
            let table = Table::new(&bytes[..16 * 1000], &bytes);
            for id in 0..1000 {
                let mut frames = 0;
                let _ = table.stack(id, |_| frames += 1);
                prop_assert!(frames <= 1000);
            }
            for record in table.records() { let _ = record.sums(1); }
        }
    }

    #[test]
    fn other_versions_are_refused_with_both_numbers() {
        let mut bytes = vec![0u8; HEADER_BYTES];
        assert_eq!(
            Header::new(&bytes[..100], SEGMENT).err(),
            Some(Invalid::TooShort)
        );
        assert_eq!(Header::new(&bytes, SEGMENT).err(), Some(Invalid::NoMagic));
        bytes[IDENTITY_OFFSET..IDENTITY_OFFSET + 8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[IDENTITY_OFFSET + 8] = 9;
        assert_eq!(
            Header::new(&bytes, SEGMENT).err(),
            Some(Invalid::Version(9, ABI_VERSION))
        );
        bytes[IDENTITY_OFFSET + 8] = ABI_VERSION as u8;
        assert_eq!(Header::new(&bytes, SEGMENT).err(), Some(Invalid::Sizes));
    }
}
