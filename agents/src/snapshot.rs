//! Copies a session's tables out of the segment, for every dump and live view.
//!
//! The target keeps counting during the copy. Every stack in the copy is complete, because records
//! are read before the nodes they refer to, and a node never changes once a record refers to it. A
//! record may be read in the middle of an update; the error is at most the one sample in flight.

use std::collections::HashMap;
use std::collections::hash_map::Entry as MapEntry;
use std::io;

use shm_protocol::clock::TICK_NS;
use shm_protocol::codes::frame_of;
use shm_protocol::layout::{BANK_HEADER_BYTES, Node, Record};
use shm_protocol::segment::{IntervalPeriod, Session};
use shm_protocol::snapshot::{
    BankSummary, CostView, CpuView, PeakView, RecordView, Table, ThreadView, Totals, thread_of,
};
use shm_protocol::tree::{FIRST_NODE, NodeId, ROOT};

use crate::clock::Time;
use crate::interpreted;
use crate::segment::{Refusal, Segment, io_error};
use crate::stack_groups;

/// Number of records per read. Reading in chunks keeps the unused end of the table from becoming
/// resident here.
const CHUNK_RECORDS: usize = 4096;
/// Maximum number of frames in one stack. The agent stores fewer; a damaged segment may claim more.
pub const MAX_DEPTH: usize = 8192;
/// Size of a record, in bytes.
const RECORD_BYTES: usize = size_of::<Record>();
/// Size of a node, in bytes.
const NODE_BYTES: usize = size_of::<Node>();

/// Outer end of a stack.
pub struct StackEnd {
    /// True if the stack reaches the thread's start; false if it is truncated.
    pub whole: bool,
    /// Index of the thread, if the session records stacks per thread.
    pub thread: Option<u32>,
}

/// Reason why a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A later session has reused the bank of this one.
    #[error("the data of session {0} were overwritten by a later session")]
    Overwritten(u64),
    /// The segment cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<io::Error> for SnapshotError {
    fn from(error: io::Error) -> Self {
        Self::Refused(error.into())
    }
}

/// Sums per stack at a session's high-water mark.
pub struct PeakSums {
    /// Time since the session's start, in ns.
    pub at_ns: u64,
    /// Sums per stack, as returned by [`Snapshot::read_sums`].
    pub sums: Vec<RecordView>,
}

/// Copy of a session's tables, with one record per stack and size class.
pub struct Snapshot {
    /// Session that was copied.
    pub session: Session,
    /// Totals of all samples.
    pub totals: Totals,
    /// Counters of the agent, by name.
    pub counters: Vec<(String, u64)>,
    /// Number of threads that have taken part in the session.
    pub threads: u64,
    /// Threads whose stacks are recorded separately; empty if stacks are not recorded per thread.
    pub thread_entries: Vec<ThreadView>,
    /// Time of the snapshot, or the session's end if it has ended, in ns of the segment's clock.
    pub end_ns: u64,
    /// `end_ns` on all clocks.
    pub end: Time,
    /// True for a snapshot of an earlier moment (a peak), as opposed to the moment of reading.
    pub is_past: bool,
    /// Sampling intervals of the session, in order of time.
    pub intervals: Vec<IntervalPeriod>,
    cost: Option<CostView>,
    /// Smallest interval of the session, in bytes. Every sample stands for at least this many
    /// bytes, so it is the unit in which estimates are expressed.
    pub least_interval: u64,
    /// Memory occupied by the segment, in bytes: an upper bound for what the agent has written.
    pub segment_bytes: u64,
    /// Sums of the samples for which the table had no free record.
    pub table_full: RecordView,
    /// CPU-time records, one per stack.
    pub cpu: Vec<RecordView>,
    /// CPU-time counters that belong to no stack.
    pub cpu_totals: CpuView,
    /// Leaf nodes of the stacks that allocated the objects before which the program has written
    /// (underruns).
    pub overwritten: Vec<NodeId>,
    nodes: Vec<u8>,
    codes: Vec<u8>,
    stacks: Vec<RecordView>,
    groups: Vec<u32>,
}

impl Snapshot {
    /// Returns the number of samples whose objects are not tracked. They are missing from live
    /// values.
    pub fn untracked(&self) -> u64 {
        self.counter("untracked")
    }

    /// Returns the number of [untracked](Self::untracked) samples that jemalloc could not place in
    /// the range of sampled objects: allocations of exiting threads and of jemalloc itself.
    pub fn untracked_elsewhere(&self) -> u64 {
        self.counter("untracked_elsewhere").min(self.untracked())
    }

    /// Returns the number of threads that could not be sampled. Their allocations are missing from
    /// all values.
    pub fn unsampled_threads(&self) -> u64 {
        self.counter("unsampled_threads")
    }

    /// Returns what the session's sampling has cost, if it was measured.
    pub fn cost(&self) -> Option<profile::Cost> {
        self.cost.map(|cost| profile::Cost {
            cpu_ns: cost.cpu_ns,
            spent_ns: cost.spent_ns,
            error_ns: (cost.spent_ns as f64 * cost.variance.sqrt()) as u64,
        })
    }

    /// Returns the largest interval of the session, in bytes.
    pub fn largest_interval(&self) -> u64 {
        let changed = self.intervals.iter().map(|period| period.interval);
        changed
            .fold(self.session.interval, u64::max)
            .max(self.least_interval)
    }

    /// Returns the counts of writes outside objects that the agent has detected.
    pub fn overwritten(&self) -> profile::overwritten::Overwritten {
        profile::overwritten::Overwritten::from_counters(&self.counters.iter().cloned().collect())
    }

    fn counter(&self, name: &str) -> u64 {
        let counters = self.counters.iter();
        let named = counters.filter(|(counter, _)| *counter == name);
        named.map(|(_, count)| count).sum()
    }

    /// Copies the tables of `session`; `end` is when its counting ended.
    pub fn read(segment: &Segment, session: &Session, end: Time) -> Result<Self, SnapshotError> {
        Self::read_at(segment, session, end, NOW)
    }

    /// Copies the tables as of peak epoch `peak`, or [`NOW`].
    fn read_at(
        segment: &Segment,
        session: &Session,
        end: Time,
        peak: u32,
    ) -> Result<Self, SnapshotError> {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let mut merger = read_merged(segment, session, peak)?;
        let bank = session_bank(segment, session, &mut buffer)?;
        let nodes = read_nodes(
            segment,
            session,
            clamp_count(segment, bank.nodes(), NODE_BYTES)?,
        )?;
        let bank = session_bank(segment, session, &mut buffer)?;
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
            cost: bank.cost(),
            least_interval: min_interval(session, &bank),
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
        session_bank(segment, session, &mut buffer)?;
        Ok(snapshot)
    }

    /// Copies the tables as of the session's high-water mark. Returns `None` if the heap is at its
    /// high-water mark now. While the session runs, that is known only approximately.
    pub fn read_peak(
        segment: &Segment,
        session: &Session,
        end: Time,
    ) -> Result<Option<Self>, SnapshotError> {
        read_at_latest_peak(segment, session, |peak| {
            let peak_time = peak_time(session, peak.tick, end);
            let mut snapshot = Self::read_at(segment, session, peak_time, peak.epoch)?;
            snapshot.is_past = true;
            let live = snapshot.totals.live_bytes;
            Ok((snapshot, live))
        })
    }

    /// Reads only the sums per stack ([`read_sums`](Self::read_sums)) as of the high-water mark.
    /// Returns `None` under the same condition as [`read_peak`](Self::read_peak).
    pub fn read_peak_sums(
        segment: &Segment,
        session: &Session,
    ) -> Result<Option<PeakSums>, SnapshotError> {
        read_at_latest_peak(segment, session, |peak| {
            let merger = read_merged(segment, session, peak.epoch)?;
            let live = merger.totals(&Totals::default()).live_bytes;
            let at_ns = u64::from(peak.tick).saturating_mul(TICK_NS);
            let sums = merger.sum_size_classes();
            Ok((PeakSums { at_ns, sums }, live))
        })
    }

    /// Returns the records by stack, thread and size class; the records of one stack are adjacent.
    /// [`Snapshot::addresses`] returns the frames of a record's stack.
    pub fn records(&self) -> &[RecordView] {
        &self.stacks
    }

    /// Returns the number of adjacent [records](Self::records) of each stack.
    pub fn groups(&self) -> &[u32] {
        &self.groups
    }

    /// Returns the sums per stack and thread, over all size classes.
    pub fn stacks(&self) -> Vec<RecordView> {
        sum_size_classes(&self.stacks)
    }

    /// Reads only what [`Snapshot::stacks`] returns, which is cheaper than a snapshot. The first
    /// entry stands for `[table full]`, with leaf 0.
    pub fn read_sums(
        segment: &Segment,
        session: &Session,
    ) -> Result<Vec<RecordView>, SnapshotError> {
        Ok(read_merged(segment, session, NOW)?.sum_size_classes())
    }

    /// Reads the leaf node and size class of every record, by record number. The class is
    /// [`NO_CLASS`] for a record without samples.
    pub fn read_stacks(
        segment: &Segment,
        session: &Session,
    ) -> Result<Vec<(NodeId, u32)>, SnapshotError> {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = session_bank(segment, session, &mut buffer)?;
        let records = clamp_count(segment, bank.records(), RECORD_BYTES)?;
        let mut stacks = Vec::with_capacity(records);
        each_record(segment, session, records, NOW, |record| {
            let class = if record.is_empty() {
                NO_CLASS
            } else {
                record.size_class
            };
            stacks.push((record.node, class));
        })?;
        session_bank(segment, session, &mut buffer)?;
        Ok(stacks)
    }

    /// Returns the number of ticks from the session's start to the time of the snapshot.
    pub fn end_tick(&self) -> u32 {
        use shm_protocol::clock::tick_of;
        tick_of(self.end_ns).wrapping_sub(tick_of(self.session.start_ns))
    }

    /// Returns the table of the interpreter's code objects that nodes refer to; see
    /// [`interpreted`].
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// Returns the number of nodes in the stack tree, including the fixed ones (roots).
    pub fn node_count(&self) -> usize {
        Table::new(&self.nodes, &[]).node_count()
    }

    /// Returns a node's caller, which always has a lower number, and the node's return address.
    /// Returns `None` for fixed nodes, unused nodes and damaged nodes.
    pub fn node(&self, node: NodeId) -> Option<(NodeId, u64)> {
        Table::new(&self.nodes, &[]).node(node).ok().flatten()
    }

    /// Writes the return addresses of a stack to `out`, innermost first, without interpreter
    /// frames. Returns true if the stack reaches the thread's start.
    pub fn addresses(&self, leaf: NodeId, out: &mut Vec<u64>) -> bool {
        let whole = self.frames(leaf, out);
        out.retain(|&address| frame_of(address).is_none());
        whole && !out.is_empty()
    }

    /// Returns true if `address` is a shim: a frame of the interpreter that it does not show in its
    /// own tracebacks.
    pub fn is_shim(&self, address: u64) -> bool {
        interpreted::is_shim(&self.codes, address)
    }

    /// Like [`addresses`](Self::addresses), but with interpreter frames (to be named by
    /// [`interpreted`]), except for [shims](Self::is_shim).
    pub fn frames(&self, leaf: NodeId, out: &mut Vec<u64>) -> bool {
        out.clear();
        let table = Table::new(&self.nodes, &[]);
        let mut node = leaf;
        while out.len() < MAX_DEPTH {
            match table.node(node) {
                Ok(Some((parent, address))) => {
                    let is_frame = thread_of(address).is_none() && !self.is_shim(address);
                    if is_frame {
                        out.push(address);
                    }
                    node = parent;
                }
                Ok(None) => return node == ROOT && !out.is_empty(),
                Err(_) => return false,
            }
        }
        false
    }

    /// Like [`frames`](Self::frames), but also returns the thread of the stack.
    pub fn stack(&self, leaf: NodeId, out: &mut Vec<u64>) -> StackEnd {
        let whole = self.frames(leaf, out) && !out.is_empty();
        let table = Table::new(&self.nodes, &[]);
        let mut thread = None;
        let mut node = leaf;
        for _ in 0..MAX_DEPTH {
            match table.node(node) {
                Ok(Some((parent, address))) => {
                    thread = thread_of(address).or(thread);
                    node = parent;
                }
                _ => break,
            }
        }
        StackEnd { whole, thread }
    }
}

/// Reads and merges the records of a session as of peak epoch `peak`, or [`NOW`].
fn read_merged(segment: &Segment, session: &Session, peak: u32) -> Result<Merger, SnapshotError> {
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = session_bank(segment, session, &mut buffer)?;
    let records = clamp_count(segment, bank.records(), RECORD_BYTES)?;
    let mut merger = Merger::default();
    read_records(segment, session, records, peak, &mut merger)?;
    session_bank(segment, session, &mut buffer)?;
    Ok(merger)
}

/// Sums the records of each stack over all size classes.
fn sum_size_classes(records: &[RecordView]) -> Vec<RecordView> {
    let mut merger = Merger::default();
    for record in records {
        let mut record = *record;
        record.size_class = 0;
        merger.add(&record);
    }
    merger.stacks
}

/// Returns the session's bank header, or an error if a later session has reused the bank.
fn session_bank<'a>(
    segment: &Segment,
    session: &Session,
    buffer: &'a mut [u8; BANK_HEADER_BYTES],
) -> Result<BankSummary<'a>, SnapshotError> {
    let bank = segment.bank(session.number, buffer)?;
    if bank.session() == session.number {
        Ok(bank)
    } else {
        Err(SnapshotError::Overwritten(session.number))
    }
}

fn min_interval(session: &Session, bank: &BankSummary<'_>) -> u64 {
    let logged = bank.least_interval();
    logged.map_or(session.interval, |min| min.min(session.interval))
}

/// Value of a peak epoch that stands for the present state.
const NOW: u32 = 0;
/// Maximum number of attempts to read a peak while new ones keep replacing it.
const MAX_PEAK_READINGS: usize = 4;

/// Calls `read` for the latest peak. `read` returns a result and the live bytes at that peak.
/// Returns `None` if the heap is at least as large now, or if a new peak was set during every
/// attempt.
fn read_at_latest_peak<T>(
    segment: &Segment,
    session: &Session,
    read: impl Fn(PeakView) -> Result<(T, f64), SnapshotError>,
) -> Result<Option<T>, SnapshotError> {
    let mut buffer = [0; BANK_HEADER_BYTES];
    for _ in 0..MAX_PEAK_READINGS {
        let peak = session_bank(segment, session, &mut buffer)?.peak();
        if peak.epoch == 0 {
            return Ok(None);
        }
        let (result, live) = read(peak)?;
        let bank = session_bank(segment, session, &mut buffer)?;
        if bank.peak() == peak {
            return Ok((bank.totals().live_bytes < live).then_some(result));
        }
    }
    Ok(None)
}

/// Returns the time of the peak at `tick`, in a session that ended at `end`.
fn peak_time(session: &Session, tick: u32, end: Time) -> Time {
    let since_start = u64::from(tick).saturating_mul(TICK_NS);
    end.at(session.start_ns.saturating_add(since_start))
}

/// Size class of a record without samples.
pub const NO_CLASS: u32 = u32::MAX;

/// Merges records of the same stack and size class, which different shards may hold.
#[derive(Default)]
struct Merger {
    stacks: Vec<RecordView>,
    /// By leaf node: index in `stacks` of the leaf's most recent entry, plus one; 0 if none. Head
    /// of a chain of entries.
    indexes: Vec<u32>,
    /// By index in `stacks`: index of the previous entry with the same leaf, plus one; 0 if none.
    /// Link of the chain.
    previous: Vec<u32>,
    table_full: RecordView,
    /// CPU-time records, merged per stack.
    cpu: Vec<RecordView>,
    cpu_indexes: HashMap<NodeId, usize>,
}

impl Merger {
    /// Returns the sums per stack over all size classes; the first entry stands for `[table full]`.
    fn sum_size_classes(&self) -> Vec<RecordView> {
        let mut sums = sum_size_classes(&self.stacks);
        sums.insert(0, self.table_full);
        sums
    }

    /// Returns totals over all records. Times are copied from `bank_totals`, since records do not
    /// have them.
    fn totals(&self, bank_totals: &Totals) -> Totals {
        let mut totals = Totals {
            samples: 0,
            alloc_bytes: 0.0,
            live_bytes: 0.0,
            ..*bank_totals
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
            MapEntry::Occupied(entry) => self.cpu[*entry.get()].merge(record),
            MapEntry::Vacant(entry) => {
                entry.insert(self.cpu.len());
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
            index = self.previous[index - 1] as usize;
        }
        self.stacks.push(*record);
        self.previous.push(self.indexes[leaf]);
        self.indexes[leaf] = self.stacks.len() as u32;
    }
}

/// Limits a claimed number of entries of `size` bytes to what the segment's memory can hold. A
/// sparse file may claim any number, and entries that were never written need not be read.
fn clamp_count(segment: &Segment, claimed: usize, size: usize) -> io::Result<usize> {
    let limit = usize::try_from(segment.memory_bytes()? / size as u64).unwrap_or(usize::MAX);
    Ok(claimed.min(limit.saturating_add(FIRST_NODE as usize)))
}

/// Reads the first `count` records, as of peak epoch `peak` or [`NOW`], into `merger`.
fn read_records(
    segment: &Segment,
    session: &Session,
    count: usize,
    peak: u32,
    merger: &mut Merger,
) -> io::Result<()> {
    let nodes = clamp_count(segment, segment.view().geometry().nodes, NODE_BYTES)?;
    let mut number = 0;
    each_record(segment, session, count, peak, |record| {
        if !record.is_empty() {
            if number == 0 {
                merger.table_full = *record;
            } else if record.cpu().is_some() {
                // Peaks do not cover CPU time.
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

/// Calls `each` with the first `count` records in order, as of peak epoch `peak` or [`NOW`].
fn each_record(
    segment: &Segment,
    session: &Session,
    count: usize,
    peak: u32,
    mut each: impl FnMut(&RecordView),
) -> io::Result<()> {
    let geometry = segment.view().geometry();
    let base = geometry.bank_offset(session.number) + geometry.records_offset();
    let mut chunk = vec![0; CHUNK_RECORDS.min(count) * RECORD_BYTES];
    for first in (0..count).step_by(CHUNK_RECORDS) {
        let part = &mut chunk[..CHUNK_RECORDS.min(count - first) * RECORD_BYTES];
        let bytes_read = segment
            .view()
            .read_at(base + first * RECORD_BYTES, part)
            .map_err(io_error)?;
        let table = Table::new(&[], &part[..bytes_read]);
        table.records_at_peak(peak).for_each(|record| each(&record));
    }
    Ok(())
}

fn read_nodes(segment: &Segment, session: &Session, count: usize) -> io::Result<Vec<u8>> {
    let geometry = segment.view().geometry();
    let base = geometry.bank_offset(session.number) + geometry.nodes_offset();
    let mut nodes = vec![0; count.max(FIRST_NODE as usize) * NODE_BYTES];
    let bytes_read = segment.view().read_at(base, &mut nodes).map_err(io_error)?;
    nodes.truncate(bytes_read);
    Ok(nodes)
}

/// Reads the code objects. Called after the nodes were read, so that every code object that a node
/// refers to is included.
fn read_codes(segment: &Segment, session: &Session, bank: &BankSummary<'_>) -> io::Result<Vec<u8>> {
    let geometry = segment.view().geometry();
    let base = geometry.bank_offset(session.number) + geometry.codes_offset();
    let mut codes = vec![0; clamp_count(segment, bank.code_bytes(), 1)?];
    let bytes_read = segment.view().read_at(base, &mut codes).map_err(io_error)?;
    codes.truncate(bytes_read);
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
