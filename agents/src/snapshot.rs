//! A session's table, copied out of the segment: what every dump and view starts from.
//!
//! The target continues to count while we copy. Records are read before the nodes that they name,
//! and a node never changes once a record names it, so every stack is whole; a record may be read
//! between two of its sums, which is at most the sample in flight.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::io;

use shm_protocol::clock::TICK_NS;
use shm_protocol::codes::frame_of;
use shm_protocol::layout::{BANK_HEADER_BYTES, Node, Record};
use shm_protocol::segment::{IntervalPeriod, Session};
use shm_protocol::snapshot::{
    BankSummary, CpuView, PeakView, RecordView, Table, ThreadView, Totals, thread_of,
};
use shm_protocol::tree::{FIRST_NODE, NodeId, ROOT};

use crate::clock::Time;
use crate::interpreted;
use crate::segment::{Refusal, Segment, io_error};
use crate::stack_groups;

/// Records read at a time, so that the empty rest of a table takes no memory.
const CHUNK: usize = 4096;
/// Frames of one stack that are followed. The agent keeps fewer; damage may claim more.
pub const MAX_DEPTH: usize = 8192;
const RECORD: usize = size_of::<Record>();
const NODE: usize = size_of::<Node>();

/// Where a stack ends.
pub struct StackEnd {
    /// At the thread's start.
    pub whole: bool,
    /// Index of the thread, if it is kept apart.
    pub thread: Option<u32>,
}

/// Why there is no snapshot.
#[derive(Debug, thiserror::Error)]
pub enum Gone {
    /// The bank is another session's by now.
    #[error("the data of session {0} were overwritten by a later session")]
    Overwritten(u64),
    /// The segment cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<io::Error> for Gone {
    fn from(error: io::Error) -> Self {
        Self::Refused(error.into())
    }
}

/// A copy of a session's table, one record per stack and size class.
pub struct Snapshot {
    /// The session.
    pub session: Session,
    /// Running totals.
    pub totals: Totals,
    /// The agent's counters by name.
    pub counters: Vec<(String, u64)>,
    /// Threads that noticed the session.
    pub threads: u64,
    /// Those whose stacks are kept apart.
    pub thread_entries: Vec<ThreadView>,
    /// When it was taken, or when the session ended: ns of the segment's clock.
    pub end_ns: u64,
    /// A time by all clocks.
    pub end: Time,
    /// Whether it is of an earlier moment than the one at which it was read.
    pub is_past: bool,
    /// The intervals in order, where they changed in the session.
    pub intervals: Vec<IntervalPeriod>,
    /// The smallest interval of the session. Every sample stands for as many bytes at
    /// least, so all estimates can be expressed in it.
    pub least_interval: u64,
    /// Memory that the segment takes: what can have been written at most.
    pub segment_bytes: u64,
    /// Samples that found no room in the table.
    pub table_full: RecordView,
    /// The sums of CPU time of each stack.
    pub cpu: Vec<RecordView>,
    /// What was counted of CPU time besides.
    pub cpu_totals: CpuView,
    /// Leaves of the stacks that allocated objects before which the program has written.
    pub overwritten: Vec<NodeId>,
    nodes: Vec<u8>,
    codes: Vec<u8>,
    stacks: Vec<RecordView>,
    groups: Vec<u32>,
}

impl Snapshot {
    /// Samples whose objects had no place where they are followed: they are in no live value.
    pub fn untracked(&self) -> u64 {
        self.counter("untracked")
    }

    /// Those of [`untracked`](Self::untracked) that jemalloc allocated elsewhere, whatever was requested: in
    /// threads that were ending, and for itself.
    pub fn untracked_elsewhere(&self) -> u64 {
        self.counter("untracked_elsewhere").min(self.untracked())
    }

    /// Threads that were not sampled: what they allocated is in no value.
    pub fn unsampled_threads(&self) -> u64 {
        self.counter("unsampled_threads")
    }

    /// Largest interval of the session.
    pub fn largest_interval(&self) -> u64 {
        let changed = self.intervals.iter().map(|period| period.interval);
        changed
            .fold(self.session.interval, u64::max)
            .max(self.least_interval)
    }

    /// What the program has written outside its objects, as the agent has noticed.
    pub fn overwritten(&self) -> heap_format::overwritten::Overwritten {
        heap_format::overwritten::Overwritten::of(&self.counters.iter().cloned().collect())
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.counters.iter();
        let named = counters.filter(|(known, _)| *known == name);
        named.map(|(_, count)| count).sum()
    }

    /// Copies the table of `session`, whose counting ended at `end`.
    pub fn read(segment: &Segment, session: &Session, end: Time) -> Result<Self, Gone> {
        Self::read_at(segment, session, end, NOW)
    }

    /// Copies the table as it is [now](NOW), or as it was at a peak.
    fn read_at(segment: &Segment, session: &Session, end: Time, peak: u32) -> Result<Self, Gone> {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let mut merger = read_merged(segment, session, peak)?;
        let bank = current(segment, session, &mut buffer)?;
        let nodes = read_nodes(segment, session, within(segment, bank.nodes(), NODE)?)?;
        let bank = current(segment, session, &mut buffer)?;
        let codes = read_codes(segment, session, &bank)?;
        let groups = stack_groups::arrange(&Table::new(&nodes, &[]), &mut merger.stacks);
        let totals = match peak {
            NOW => bank.totals(),
            _ => merger.totals(&bank.totals()),
        };
        let snapshot = Self {
            session: *session,
            totals,
            counters: counters(&bank, &totals),
            threads: bank.threads(),
            thread_entries: bank.thread_entries().collect(),
            end_ns: end.ns,
            end,
            is_past: false,
            intervals: bank.intervals().collect(),
            least_interval: least_interval(session, &bank),
            segment_bytes: segment.memory_bytes()?,
            table_full: merger.table_full,
            cpu: merger.cpu,
            cpu_totals: bank.cpu(),
            overwritten: bank.overwritten().collect(),
            nodes,
            codes,
            stacks: merger.stacks,
            groups,
        };
        current(segment, session, &mut buffer)?;
        Ok(snapshot)
    }

    /// Copies the table as it was at the maximum of the live heap in `session`. `None`: that is the
    /// present state, or, where the session is still running, about the present state.
    pub fn read_peak(
        segment: &Segment,
        session: &Session,
        end: Time,
    ) -> Result<Option<Self>, Gone> {
        at_peak(segment, session, |peak| {
            let at = peak_time(session, peak.tick, end);
            let mut snapshot = Self::read_at(segment, session, at, peak.epoch)?;
            snapshot.is_past = true;
            let live = snapshot.totals.live_bytes;
            Ok((snapshot, live))
        })
    }

    /// Like [`read_peak`](Self::read_peak), of the sums that [`read_sums`](Self::read_sums) returns;
    /// with their time since the session's start, in nanoseconds.
    pub fn read_peak_sums(
        segment: &Segment,
        session: &Session,
    ) -> Result<Option<(u64, Vec<RecordView>)>, Gone> {
        at_peak(segment, session, |peak| {
            let merger = read_merged(segment, session, peak.epoch)?;
            let live = merger.totals(&Totals::default()).live_bytes;
            let at = u64::from(peak.tick).saturating_mul(TICK_NS);
            Ok(((at, merger.over_sizes()), live))
        })
    }

    /// The sums of each stack, thread and size class, those of one stack next to each other;
    /// [`Snapshot::addresses`] has their frames.
    pub fn records(&self) -> &[RecordView] {
        &self.stacks
    }

    /// How many of [`Snapshot::records`] each stack has, in their order.
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// The sums of each stack of each thread, over all sizes.
    pub fn stacks(&self) -> Vec<RecordView> {
        over_sizes(&self.stacks)
    }

    /// Reads what [`Snapshot::stacks`] gives alone, which takes less than a snapshot; the first
    /// are the sums of `[table full]`, which has the leaf 0.
    pub fn read_sums(segment: &Segment, session: &Session) -> Result<Vec<RecordView>, Gone> {
        Ok(read_merged(segment, session, NOW)?.over_sizes())
    }

    /// The stack and the size class of each record, by its number; the class is [`NO_CLASS`] where
    /// nothing was counted.
    pub fn read_stacks(segment: &Segment, session: &Session) -> Result<Vec<(NodeId, u32)>, Gone> {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = current(segment, session, &mut buffer)?;
        let records = within(segment, bank.records(), RECORD)?;
        let mut stacks = Vec::with_capacity(records);
        each_record(segment, session, (records, NOW), |record| {
            let class = match record.is_empty() {
                true => NO_CLASS,
                false => record.size_class,
            };
            stacks.push((record.node, class));
        })?;
        current(segment, session, &mut buffer)?;
        Ok(stacks)
    }

    /// Ticks from the session's start to the snapshot.
    pub fn end_tick(&self) -> u32 {
        use shm_protocol::clock::tick_of;
        tick_of(self.end_ns).wrapping_sub(tick_of(self.session.start_ns))
    }

    /// The code objects of an interpreter that its nodes name, for `interpreted`.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Number of nodes of the tree, the fixed ones included.
    pub fn node_count(&self) -> usize {
        Table::new(&self.nodes, &[]).node_count()
    }

    /// A node's caller, which is older, and its return address; `None` for one of the
    /// fixed nodes, for one never filled in, and for one that is damaged.
    pub fn node(&self, node: NodeId) -> Option<(NodeId, u64)> {
        Table::new(&self.nodes, &[]).node(node).ok().flatten()
    }

    /// Return addresses of the stack that ends in `leaf`, leaf first, without an interpreter's
    /// frames, and whether it continues to the thread's start.
    pub fn addresses(&self, leaf: NodeId, out: &mut Vec<u64>) -> bool {
        let whole = self.frames(leaf, out);
        out.retain(|&address| frame_of(address).is_none());
        whole && !out.is_empty()
    }

    /// Whether a node stands for a frame that the interpreter does not show either.
    pub fn is_shim(&self, address: u64) -> bool {
        interpreted::is_shim(&self.codes, address)
    }

    /// The same with an interpreter's frames, for which `interpreted` has names, except for
    /// [shims](Self::is_shim).
    pub fn frames(&self, leaf: NodeId, out: &mut Vec<u64>) -> bool {
        out.clear();
        let table = Table::new(&self.nodes, &[]);
        let mut at = leaf;
        while out.len() < MAX_DEPTH {
            match table.node(at) {
                Ok(Some((parent, address))) => {
                    let is_frame = thread_of(address).is_none() && !self.is_shim(address);
                    out.extend(Some(address).filter(|_| is_frame));
                    at = parent;
                }
                Ok(None) => return at == ROOT && !out.is_empty(),
                Err(_) => return false,
            }
        }
        false
    }

    /// The same, with the thread that the stack is of.
    pub fn stack(&self, leaf: NodeId, out: &mut Vec<u64>) -> StackEnd {
        let whole = self.frames(leaf, out) && !out.is_empty();
        let table = Table::new(&self.nodes, &[]);
        let mut thread = None;
        let mut at = leaf;
        for _ in 0..MAX_DEPTH {
            match table.node(at) {
                Ok(Some((parent, address))) => {
                    thread = thread_of(address).or(thread);
                    at = parent;
                }
                _ => break,
            }
        }
        StackEnd { whole, thread }
    }
}

/// The records of a session, merged, as they are [now](NOW) or were at a peak.
fn read_merged(segment: &Segment, session: &Session, peak: u32) -> Result<Merger, Gone> {
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = current(segment, session, &mut buffer)?;
    let records = within(segment, bank.records(), RECORD)?;
    let mut merger = Merger::default();
    read_records(segment, session, (records, peak), &mut merger)?;
    current(segment, session, &mut buffer)?;
    Ok(merger)
}

fn over_sizes(records: &[RecordView]) -> Vec<RecordView> {
    let mut merger = Merger::default();
    for record in records {
        let mut record = *record;
        record.size_class = 0;
        merger.add(&record);
    }
    merger.stacks
}

fn current<'a>(
    segment: &Segment,
    session: &Session,
    buffer: &'a mut [u8; BANK_HEADER_BYTES],
) -> Result<BankSummary<'a>, Gone> {
    let bank = segment.bank(session.number, buffer)?;
    if bank.session() == session.number {
        Ok(bank)
    } else {
        Err(Gone::Overwritten(session.number))
    }
}

fn least_interval(session: &Session, bank: &BankSummary<'_>) -> u64 {
    let logged = bank.least_interval();
    logged.map_or(session.interval, |least| least.min(session.interval))
}

/// In the place of a peak's number: the present state.
const NOW: u32 = 0;
/// Attempts to read a peak of a heap that grows meanwhile.
const PEAK_READINGS: usize = 4;

/// Returns what `read` makes of the records at the last peak, with their live bytes; `None` if the
/// heap is as high now, or if a new peak came during each of some readings.
fn at_peak<T>(
    segment: &Segment,
    session: &Session,
    read: impl Fn(PeakView) -> Result<(T, f64), Gone>,
) -> Result<Option<T>, Gone> {
    let mut buffer = [0; BANK_HEADER_BYTES];
    for _ in 0..PEAK_READINGS {
        let peak = current(segment, session, &mut buffer)?.peak();
        if peak.epoch == 0 {
            return Ok(None);
        }
        let (result, live) = read(peak)?;
        let bank = current(segment, session, &mut buffer)?;
        if bank.peak() == peak {
            return Ok((bank.totals().live_bytes < live).then_some(result));
        }
    }
    Ok(None)
}

/// Time of a peak, in a session that ended at `end`.
fn peak_time(session: &Session, tick: u32, end: Time) -> Time {
    let since_start = u64::from(tick).saturating_mul(TICK_NS);
    end.at(session.start_ns.saturating_add(since_start))
}

/// No size class.
pub const NO_CLASS: u32 = u32::MAX;

/// Adds up the records of each stack and size class.
#[derive(Default)]
struct Merger {
    stacks: Vec<RecordView>,
    /// By leaf, one more than the index in `stacks` of its last entry.
    indexes: Vec<u32>,
    /// By index in `stacks`, the entry of the same stack before it, likewise.
    others: Vec<u32>,
    table_full: RecordView,
    /// For CPU time, likewise merged.
    cpu: Vec<RecordView>,
    cpu_indexes: HashMap<NodeId, usize>,
}

impl Merger {
    /// The sums of each stack over all sizes, after those of `[table full]`.
    fn over_sizes(&self) -> Vec<RecordView> {
        let mut sums = over_sizes(&self.stacks);
        sums.insert(0, self.table_full);
        sums
    }

    /// Sums over all records; the time spent is that of `whole`.
    fn totals(&self, whole: &Totals) -> Totals {
        let mut totals = Totals {
            samples: 0,
            alloc_bytes: 0.0,
            live_bytes: 0.0,
            ..*whole
        };
        for record in self.stacks.iter().chain([&self.table_full]) {
            let sums = record.sums(0);
            totals.samples = totals.samples.saturating_add(sums.alloc_samples);
            totals.alloc_bytes += sums.alloc_bytes;
            totals.live_bytes += sums.alloc_bytes - sums.free_bytes;
        }
        totals
    }

    fn add_cpu(&mut self, record: &RecordView) {
        match self.cpu_indexes.entry(record.node) {
            MapEntry::Occupied(at) => self.cpu[*at.get()].merge(record),
            MapEntry::Vacant(at) => {
                at.insert(self.cpu.len());
                self.cpu.push(*record);
            }
        }
    }

    fn add(&mut self, record: &RecordView) {
        let leaf = record.node as usize;
        if self.indexes.len() <= leaf {
            self.indexes.resize((leaf + 1).next_power_of_two(), 0);
        }
        let mut index = self.indexes[leaf] as usize;
        while index != 0 {
            let entry = &mut self.stacks[index - 1];
            if entry.size_class == record.size_class {
                return entry.merge(record);
            }
            index = self.others[index - 1] as usize;
        }
        self.stacks.push(*record);
        self.others.push(self.indexes[leaf]);
        self.indexes[leaf] = self.stacks.len() as u32;
    }
}

/// As many of the entries claimed as the segment has memory for: what was never written need not
/// be read, and a hollow file may claim any number.
fn within(segment: &Segment, claimed: usize, size: usize) -> io::Result<usize> {
    let most = usize::try_from(segment.memory_bytes()? / size as u64).unwrap_or(usize::MAX);
    Ok(claimed.min(most.saturating_add(FIRST_NODE as usize)))
}

fn read_records(
    segment: &Segment,
    session: &Session,
    (count, peak): (usize, u32),
    merger: &mut Merger,
) -> io::Result<()> {
    let nodes = within(segment, segment.view().geometry().nodes, NODE)?;
    let mut number = 0;
    each_record(segment, session, (count, peak), |record| {
        if !record.is_empty() {
            if number == 0 {
                merger.table_full = *record;
            } else if record.cpu().is_some() {
                // Of CPU time, no state of the peak is kept.
                if peak == NOW {
                    merger.add_cpu(record);
                }
            } else if (record.node as usize) < nodes {
                merger.add(record);
            }
        }
        number += 1;
    })
}

/// Hands on the first `count` records in their order, as they are [now](NOW) or were at a peak.
fn each_record(
    segment: &Segment,
    session: &Session,
    (count, peak): (usize, u32),
    mut each: impl FnMut(&RecordView),
) -> io::Result<()> {
    let geometry = segment.view().geometry();
    let base = geometry.bank_offset(session.number) + geometry.records_offset();
    let mut chunk = vec![0; CHUNK.min(count) * RECORD];
    for first in (0..count).step_by(CHUNK) {
        let part = &mut chunk[..CHUNK.min(count - first) * RECORD];
        let got = segment
            .view()
            .read_at(base + first * RECORD, part)
            .map_err(io_error)?;
        let table = Table::new(&[], &part[..got]);
        table.records_at_peak(peak).for_each(|record| each(&record));
    }
    Ok(())
}

fn read_nodes(segment: &Segment, session: &Session, count: usize) -> io::Result<Vec<u8>> {
    let geometry = segment.view().geometry();
    let base = geometry.bank_offset(session.number) + geometry.nodes_offset();
    let mut nodes = vec![0; count.max(FIRST_NODE as usize) * NODE];
    let got = segment.view().read_at(base, &mut nodes).map_err(io_error)?;
    nodes.truncate(got);
    Ok(nodes)
}

/// The code objects that nodes may name: after the nodes were read, so that there is each.
fn read_codes(segment: &Segment, session: &Session, bank: &BankSummary<'_>) -> io::Result<Vec<u8>> {
    let geometry = segment.view().geometry();
    let base = geometry.bank_offset(session.number) + geometry.codes_offset();
    let mut codes = vec![0; within(segment, bank.code_bytes(), 1)?];
    let got = segment.view().read_at(base, &mut codes).map_err(io_error)?;
    codes.truncate(got);
    Ok(codes)
}

fn counters(bank: &BankSummary<'_>, totals: &Totals) -> Vec<(String, u64)> {
    let counted = bank
        .counters()
        .filter(|(counter, count)| counter.always || *count > 0)
        .map(|(counter, count)| (counter.name, count));
    let sums = [
        ("samples", totals.samples),
        ("timed_samples", totals.timed),
        ("timed_ns", totals.timed_ns),
    ];
    let all = sums.into_iter().chain(counted);
    all.map(|(name, count)| (name.to_owned(), count)).collect()
}
