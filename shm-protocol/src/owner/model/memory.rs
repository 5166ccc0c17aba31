//! Segment in memory, made of words that the model checker tracks.

use crate::bank::{Bank, Geometry};
use crate::cpu::{CpuParams, CpuSetting};
use crate::layout::{
    BankHeader, Control, IntervalEntry, IntervalLog, MIN_SEGMENT_BYTES, Node, Params, PeakState,
    Record, ShardTotals, ThreadEntry, ThreadTable,
};
use crate::record::{NewSample, RecordKey};
use crate::segment::{Errno, SegmentFile, Session, Store};
use crate::sync::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::tree::{Levels, PathNode, ROOT};
use core::mem::{offset_of, size_of};
use std::vec::Vec;

/// Number of units of a bank that are reserved: the first table suffices.
const UNITS: u32 = 1;
/// Binary logarithm of the slots of that table.
const SLOTS_LOG2: u32 = 1;
/// Numbers of nodes and records: enough for one stack, including nodes that racing threads claim
/// and do not use, and for a record per shard.
const NODES: usize = 5;
const RECORDS: usize = 5;
/// Number of shards; thread N uses shard N.
pub const SHARDS: u32 = 2;

/// Memory of a bank.
pub struct BankWords {
    header: BankHeader,
    slots: Vec<AtomicU32>,
    nodes: Vec<Node>,
    records: Vec<Record>,
}

/// Memory of a segment.
pub struct Segment {
    pub control: Control,
    banks: [BankWords; 2],
}

fn word64() -> AtomicU64 {
    AtomicU64::new(0)
}

fn word32() -> AtomicU32 {
    AtomicU32::new(0)
}

fn params() -> Params {
    Params {
        session: word64(),
        interval: word64(),
        deadline_ns: word64(),
        start_ns: word64(),
        start_unix_ns: word64(),
        controller_pid: word64(),
        range_limit: word64(),
        thinning: word64(),
        max_overhead: word64(),
    }
}

pub fn totals() -> ShardTotals {
    ShardTotals {
        samples: word64(),
        alloc_bytes: word64(),
        freed_bytes: word64(),
        agent_ns: word64(),
        timed: word64(),
        unsettled: word64(),
        unsettled_limit: word64(),
        reserved: 0,
    }
}

fn cpu_params() -> CpuParams {
    CpuParams {
        rate: word64(),
        avoid: word64(),
    }
}

fn header() -> BankHeader {
    let entry = || IntervalEntry {
        from_ns: word64(),
        interval: word64(),
        overhead: word64(),
    };
    BankHeader {
        session: word64(),
        reserved_step: AtomicU8::new(0),
        reserved: [0; 3],
        grown_units: word32(),
        node_count: word32(),
        record_count: word32(),
        code_words: word32(),
        code_bytes: word32(),
        max_units: word32(),
        reserved2: 0,
        reserved3: [0; 3],
        // SAFETY: the struct has core's atomics and integers, for which zeros are valid.
        counters: unsafe { core::mem::zeroed() },
        totals: core::array::from_fn(|_| totals()),
        intervals: IntervalLog {
            count: word64(),
            least: word64(),
            reserved: [0; 6],
            entries: core::array::from_fn(|_| entry()),
        },
        threads: ThreadTable {
            count: word32(),
            reserved: 0,
            entries: core::array::from_fn(|_| ThreadEntry {
                tid: word32(),
                reserved: 0,
                name: core::array::from_fn(|_| word64()),
            }),
        },
        // SAFETY: the struct has core's atomics, for which zeros are valid.
        cpu: unsafe { core::mem::zeroed() },
        peak: PeakState {
            epoch: word32(),
            tick: word32(),
            next_level: word64(),
            settled: word64(),
            reserved: [0; 5],
        },
        overwritten: core::array::from_fn(|_| word32()),
        // SAFETY: the struct has core's atomics and integers, for which zeros are valid.
        cost: unsafe { core::mem::zeroed() },
    }
}

pub fn record() -> Record {
    Record {
        node: word32(),
        next: word32(),
        shard: AtomicU16::new(0),
        size_class: AtomicU16::new(0),
        peak_epoch: word32(),
        alloc_samples: word64(),
        alloc_objects: word64(),
        alloc_bytes: word64(),
        alloc_birth: word64(),
        alloc_variance: word64(),
        alloc_object_variance: word64(),
        free_samples: word64(),
        free_objects: word64(),
        free_bytes: word64(),
        free_birth: word64(),
        free_death: word64(),
        free_variance: word64(),
        free_object_variance: word64(),
        free_short: word64(),
        kept_epoch: word32(),
        live_squares_high: AtomicU32::new(0),
        live_squares: AtomicU64::new(0),
        kept: core::array::from_fn(|_| word64()),
    }
}

fn bank_words() -> BankWords {
    let node = |_| Node {
        address: word64(),
        parent: word32(),
        records: word32(),
    };
    BankWords {
        header: header(),
        slots: (0..levels().slot_count()).map(|_| word32()).collect(),
        nodes: (0..NODES).map(node).collect(),
        records: (0..RECORDS).map(|_| record()).collect(),
    }
}

impl BankWords {
    fn bank(&self) -> Bank<'_> {
        Bank::of_parts(
            &self.header,
            &self.slots,
            &self.nodes,
            &self.records,
            Geometry {
                levels: levels(),
                ..geometry()
            },
        )
    }

    /// Returns the number of samples that the totals count, and the number that the records count.
    pub fn samples(&self) -> [u64; 2] {
        let in_totals = (self.header.totals.iter())
            .map(|shard| shard.samples.load(Ordering::Relaxed))
            .sum();
        let in_records = (self.records.iter())
            .map(|record| record.alloc_samples.load(Ordering::Relaxed))
            .sum();
        [in_totals, in_records]
    }

    pub fn session(&self) -> u64 {
        self.header.session.load(Ordering::Relaxed)
    }
}

fn geometry() -> Geometry {
    Geometry::of_segment(MIN_SEGMENT_BYTES)
}

/// Returns a layout of the tree's slots with fewer slots in the first table; offsets in the segment
/// stay the same.
fn levels() -> Levels {
    Levels::new(geometry().unit_nodes.ilog2(), UNITS).with_first_slots(SLOTS_LOG2)
}

/// Counts an allocation of `shard` in a bank. All allocations have the same stack.
pub fn count(bank: &Bank<'_>, shard: u32) {
    let sample = NewSample {
        bytes: 16,
        weight: 1.0,
        tick: 0,
    };
    let leaf = bank.tree.child(PathNode::root(ROOT), 7, bank.node_limit());
    let record = bank.record_of(
        RecordKey::new(leaf.expect("room for the node").node, 4),
        shard,
    );
    bank.count_new(record, shard, &sample, true);
}

/// Returns session `number`, each parameter of which shows which session it belongs to.
pub fn session(number: u64) -> Session {
    Session {
        number,
        interval: number * 10,
        deadline_ns: 0,
        start_ns: number * 1000,
        start_unix_ns: 0,
        controller_pid: 0,
        range_limit: number * 100,
        thinning: number * 1000,
        max_overhead: number * 10_000,
        cpu: CpuSetting {
            rate: number,
            avoid: number * 7,
        },
    }
}

impl Segment {
    pub fn new() -> Self {
        Self {
            control: Control {
                epoch: AtomicU32::new(0),
                last_epoch: AtomicU32::new(0),
                reserved: [0; 56],
                params: [params(), params()],
                cpu: [cpu_params(), cpu_params()],
            },
            banks: [bank_words(), bank_words()],
        }
    }

    pub fn of_session(&self, session: u64) -> &BankWords {
        &self.banks[session as usize & 1]
    }

    pub fn bank(&self, session: u64) -> Bank<'_> {
        self.of_session(session).bank()
    }

    /// Returns the segment as the controller opens it.
    pub fn file(&self) -> SegmentFile<&Self> {
        SegmentFile::over(self, MIN_SEGMENT_BYTES)
    }

    pub fn prepare(&self, number: u64) {
        self.file().prepare_bank(number, UNITS, 0).unwrap();
    }

    /// Returns true if there is or was a session, as seen by a controller.
    pub fn had_session(&self) -> bool {
        let mut last = [0; 4];
        let at = offset_of!(Control, last_epoch);
        self.file().read_at(at, &mut last).unwrap();
        last != [0; 4]
    }

    /// Starts a session like the controller.
    pub fn start_session(&self, number: u64) {
        self.prepare(number);
        self.file().publish(&session(number)).unwrap();
    }

    pub fn stop(&self) {
        self.file().stop().unwrap();
    }

    /// Returns the words that the controller reads and writes, with their offsets; of a session's
    /// counters, only those that the models check.
    fn words(&self) -> Vec<(usize, Word<'_>)> {
        let control = &self.control;
        let mut words = Vec::from([
            (offset_of!(Control, epoch), Word::Lowest(&control.epoch)),
            (
                offset_of!(Control, last_epoch),
                Word::Bytes4(&control.last_epoch),
            ),
        ]);
        for (index, params) in control.params.iter().enumerate() {
            let at = offset_of!(Control, params) + index * size_of::<Params>();
            words.extend([
                (
                    at + offset_of!(Params, session),
                    Word::Bytes8(&params.session),
                ),
                (
                    at + offset_of!(Params, interval),
                    Word::Bytes8(&params.interval),
                ),
                (
                    at + offset_of!(Params, start_ns),
                    Word::Bytes8(&params.start_ns),
                ),
                (
                    at + offset_of!(Params, range_limit),
                    Word::Bytes8(&params.range_limit),
                ),
                (
                    at + offset_of!(Params, thinning),
                    Word::Bytes8(&params.thinning),
                ),
                (
                    at + offset_of!(Params, max_overhead),
                    Word::Bytes8(&params.max_overhead),
                ),
            ]);
        }
        for (index, cpu) in control.cpu.iter().enumerate() {
            let at = offset_of!(Control, cpu) + index * size_of::<CpuParams>();
            words.push((at + offset_of!(CpuParams, rate), Word::Bytes8(&cpu.rate)));
            words.push((at + offset_of!(CpuParams, avoid), Word::Bytes8(&cpu.avoid)));
        }
        for (number, bank) in (0..).zip(&self.banks) {
            bank.words(geometry().bank_offset(number), &mut words);
        }
        words
    }
}

impl BankWords {
    fn words<'a>(&'a self, at: usize, words: &mut Vec<(usize, Word<'a>)>) {
        let header = &self.header;
        words.extend([
            (
                at + offset_of!(BankHeader, session),
                Word::Bytes8(&header.session),
            ),
            (
                at + offset_of!(BankHeader, reserved_step),
                Word::Byte(&header.reserved_step),
            ),
            (
                at + offset_of!(BankHeader, grown_units),
                Word::Bytes4(&header.grown_units),
            ),
            (
                at + offset_of!(BankHeader, max_units),
                Word::Bytes4(&header.max_units),
            ),
            (
                at + offset_of!(BankHeader, node_count),
                Word::Bytes4(&header.node_count),
            ),
            (
                at + offset_of!(BankHeader, record_count),
                Word::Bytes4(&header.record_count),
            ),
        ]);
        let totals = at + offset_of!(BankHeader, totals) + offset_of!(ShardTotals, samples);
        for (index, shard) in header.totals.iter().enumerate() {
            let at = totals + index * size_of::<ShardTotals>();
            words.push((at, Word::Bytes8(&shard.samples)));
        }
        let slots = at + geometry().slots_offset();
        for (index, slot) in self.slots.iter().enumerate() {
            words.push((slots + index * 4, Word::Bytes4(slot)));
        }
        for (index, node) in self.nodes.iter().enumerate() {
            let at = at + geometry().nodes_offset() + index * size_of::<Node>();
            words.push((at + offset_of!(Node, records), Word::Bytes4(&node.records)));
        }
        for (index, record) in self.records.iter().enumerate() {
            let at = at + geometry().records_offset() + index * size_of::<Record>();
            let samples = at + offset_of!(Record, alloc_samples);
            words.push((samples, Word::Bytes8(&record.alloc_samples)));
        }
    }
}

/// Word of a segment.
enum Word<'a> {
    /// Lowest byte of a word whose other bytes are 0 in all models.
    Lowest(&'a AtomicU32),
    Byte(&'a AtomicU8),
    Bytes4(&'a AtomicU32),
    Bytes8(&'a AtomicU64),
}

impl Word<'_> {
    fn bytes(&self) -> usize {
        match self {
            Word::Lowest(_) | Word::Byte(_) => 1,
            Word::Bytes4(_) => 4,
            Word::Bytes8(_) => 8,
        }
    }
}

impl Store for &Segment {
    fn read_at(&self, offset: usize, buffer: &mut [u8]) -> Result<usize, Errno> {
        buffer.fill(0);
        for (at, word) in self.words() {
            let Some(target) = at.checked_sub(offset).and_then(|at| buffer.get_mut(at..)) else {
                continue;
            };
            if target.is_empty() {
                continue;
            }
            let now = match word {
                Word::Lowest(word) => u64::from(word.load(Ordering::Acquire)),
                Word::Byte(byte) => u64::from(byte.load(Ordering::Acquire)),
                Word::Bytes4(word) => u64::from(word.load(Ordering::Acquire)),
                Word::Bytes8(word) => word.load(Ordering::Acquire),
            };
            let now = now.to_le_bytes();
            target[..word.bytes()].copy_from_slice(&now[..word.bytes()]);
        }
        Ok(buffer.len())
    }

    fn write_at(&self, offset: usize, bytes: &[u8]) -> Result<(), Errno> {
        for (at, word) in self.words() {
            let source = at.checked_sub(offset).and_then(|at| bytes.get(at..));
            let Some(source) = source.filter(|source| !source.is_empty()) else {
                continue;
            };
            let mut now = [0; 8];
            now[..word.bytes()].copy_from_slice(&source[..word.bytes()]);
            let now = u64::from_le_bytes(now);
            // Release: see `Store`.
            match word {
                // An exchange instead of a store: loom does not order stores with the exchange by
                // which a thread ends an epoch.
                Word::Lowest(word) => {
                    word.swap(now as u32, Ordering::Release);
                }
                Word::Byte(byte) => {
                    byte.swap(now as u8, Ordering::Release);
                }
                Word::Bytes4(word) => word.store(now as u32, Ordering::Release),
                Word::Bytes8(word) => word.store(now, Ordering::Release),
            }
        }
        Ok(())
    }

    fn reserve(&self, _: usize, _: usize) -> Result<(), Errno> {
        Ok(())
    }
}
