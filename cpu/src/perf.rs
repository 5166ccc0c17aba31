//! The first engine: the kernel takes the samples (`perf_event_open`), and copies the registers and
//! stack for each.
//!
//! Where system-wide sampling is permitted, each processor has one event, and samples of other
//! processes are discarded: this costs the target nothing at context switches, however many threads
//! it has. What a sample stands for is determined from its process's clock (`Meters`).
//!
//! Elsewhere, and for programs that we start, whose children must not be missed however short-lived
//! they are, each thread has one event per processor, and all events of a processor write to its
//! ring. New threads inherit them. Each sample comes with its event's clock, so that it is known
//! what it stands for, whatever was lost before it.

// Decision 38: CPU time is sampled from outside.
mod opening;
#[cfg(all(test, target_arch = "x86_64"))]
mod peer;
mod processors;
mod threads;

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::clocks::{At, Clocks, Share};
use crate::continued::{Continued, Rest};
use crate::event::Attribute;
use crate::machine::Machine;
use crate::memory::Copied;
use crate::meter::Scale;
use crate::meters::Meters;
use crate::record::{self, Mapped, Record};
use crate::recording::{self, Recording};
use crate::refusal::Refusal;
use crate::ring::Ring;
use crate::space::Range;
use opening::{LEAST_RING, Processor, RING_BYTES, allowed};
use processors::may_sample_all;

/// Stack that is copied at first.
const FIRST_STACK: u32 = 16 << 10;
/// The most that the kernel copies.
const MOST_STACK: u32 = 65_528;
/// Maximum size of a sample besides the copy of the stack: 127 kernel addresses, registers, and
/// single fields.
const BESIDE_STACK: usize = 2 << 10;
/// Copies grow when this many of them are too short, or one led to a stack that was cut off, and
/// more than one in [`TOLERATED`].
const ENOUGH: u64 = 3;
const TOLERATED: u64 = 500;
/// The shortest time between samples, in nanoseconds, of which each is examined when it comes: what
/// lies beyond the end of a copy is gone as soon as a function there calls another one. Nothing
/// else comes so often that it would cost more than the samples themselves.
const LEAST_AT_ONCE: u64 = 1_000_000;
/// If they come more often, copies are examined soon for this long after one that was too short.
const START: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(10);
/// Time between looks at the processes.
const LOOK: Duration = Duration::from_millis(100);

/// What is sampled, and how often.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Samples in a second of CPU time.
    pub rate: u32,
    /// Whether children of the processes are sampled too.
    pub children: bool,
}

/// An event, and whose it is.
struct Event {
    fd: OwnedFd,
    pid: i32,
    id: u64,
}

/// Samples by the size of their copies.
#[derive(Clone, Copy, Debug, Default)]
struct Judged {
    samples: u64,
    /// Those whose copy was too short.
    short: u64,
    /// Those of them whose stack was cut off.
    cut: u64,
    /// The most that was requested of a stack, in bytes.
    needed: u64,
}

/// The engine.
pub struct Perf {
    attribute: Attribute,
    processors: Vec<Processor>,
    events: Vec<Event>,
    processes: Vec<i32>,
    /// Clocks of processes, where it is processors that are sampled.
    meters: Option<Meters<processors::Kernel>>,
    /// What the events have counted.
    clocks: Clocks,
    /// CPU time of processes before their events were opened again.
    counted: HashMap<i32, u64>,
    /// Records of which earlier ones may come, and room for those that come next.
    bytes: (Vec<u8>, Vec<u8>),
    /// The samples since the copies have this size.
    judged: Judged,
    /// Records that were lost, of events of threads.
    pub lost: u64,
    /// When the newest process was added, the copies grew, or one was too short.
    started: Instant,
    /// What lay beyond the end of a copy.
    rest: Rest,
    /// When the processes were examined.
    looked: Instant,
}

impl Perf {
    /// Finds out what is allowed, and maps the rings.
    pub fn open(sampling: Sampling) -> Result<Self, Refusal> {
        let period = 1_000_000_000 / u64::from(sampling.rate.max(1));
        let attribute = Attribute {
            period,
            stack_bytes: FIRST_STACK,
            at_once: period >= LEAST_AT_ONCE,
            kernel: true,
            clock: true,
            children: sampling.children,
            threads_only: true,
            from_exec: false,
        };
        let numbers = proc::processors();
        let mut attribute = allowed(attribute, &numbers)?;
        let meters = (!sampling.children && may_sample_all(&attribute, &numbers)).then(|| {
            attribute.clock = false;
            Meters::new(attribute.period, processors::Kernel)
        });
        let processors = opening::processors(&numbers)
            .map_err(|error| Refusal::of_rings(error, numbers.len() * Ring::size(LEAST_RING)))?;
        Ok(Self {
            clocks: Clocks::new(attribute.period, !attribute.kernel),
            attribute,
            processors,
            events: Vec::new(),
            processes: Vec::new(),
            meters,
            counted: HashMap::new(),
            bytes: (Vec::new(), Vec::new()),
            judged: Judged::default(),
            lost: 0,
            started: Instant::now(),
            rest: Rest::default(),
            looked: Instant::now(),
        })
    }

    /// Whether the kernel's part is sampled.
    #[must_use]
    pub fn sees_kernel(&self) -> bool {
        self.attribute.kernel
    }

    /// Bytes of each processor's buffer, and of one that is as large as it should be, if it is
    /// smaller than that.
    #[must_use]
    pub fn small_buffers(&self) -> Option<(usize, usize)> {
        let bytes = self.processors.first()?.ring.bytes();
        (bytes < RING_BYTES).then_some((bytes, RING_BYTES))
    }

    /// The longest time until samples should be collected.
    #[must_use]
    pub fn due(&self) -> Duration {
        match self.started.elapsed() < START && !self.attribute.at_once {
            true => SOON,
            false => LOOK,
        }
    }

    /// Samples a process from now on.
    pub fn attach(&mut self, pid: i32, recording: &mut Recording) -> Result<(), Refusal> {
        self.started = Instant::now();
        let opened = match self.meters.is_some() {
            true => self.open_processors(pid, recording),
            false => self.open_threads(pid),
        };
        match opened {
            Ok(()) => self.processes.push(pid),
            Err(_) => self.close(pid),
        }
        opened
    }

    /// Samples what this thread starts from now on, from when it executes a program.
    pub fn attach_children(&mut self) -> Result<(), Refusal> {
        // SAFETY: no memory is passed.
        let own = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        self.attribute.from_exec = true;
        let opened = self.open_thread(own, own);
        self.attribute.from_exec = false;
        opened.map(drop)
    }

    /// What becomes readable when much was written.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.processors
            .iter()
            .map(|processor| processor.owner.as_fd())
    }

    /// Records what was written since the last time.
    pub fn collect(&mut self, recording: &mut Recording) {
        self.drain(recording);
        self.weigh_if_due(recording);
        self.judge(recording);
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.bury(recording);
        }
    }

    /// Makes all that was collected stand for what processes have used by now, for live views.
    pub fn show(&mut self, recording: &mut Recording) {
        self.weigh(Scale::Last, recording);
    }

    /// The last collection: what has no sample by now will have none.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.drain(recording);
        self.bury(recording);
        self.weigh_at_end(recording);
        for pid in recording.pids() {
            self.hide(pid, recording);
        }
    }

    /// Releases those that have ended.
    fn bury(&mut self, recording: &mut Recording) {
        let mut over = recording.look();
        if over.is_empty() {
            return;
        }
        // What they wrote to their end is in the rings by now.
        self.drain(recording);
        self.weigh(Scale::Last, recording);
        // A number may be another one's already.
        over.retain(|pid| proc::is_over(*pid));
        for &pid in &over {
            self.settle(pid, recording);
            recording.ended(pid);
        }
        self.processes.retain(|pid| !over.contains(pid));
        self.clocks.forget(&over);
        if let Some(meters) = &mut self.meters {
            meters.forget(&over);
        }
    }

    /// Applies all records that were written until now, in their order.
    ///
    /// Rings are read one after another: what a later one has may follow what was written
    /// meanwhile to one that was read before. So they are read twice: no record is missing that
    /// is older than the newest of the first time. The others wait for the next time.
    fn drain(&mut self, recording: &mut Recording) {
        let sample_type = self.attribute.sample_type();
        let (mut early, mut late) = std::mem::take(&mut self.bytes);
        let ends = self.take(&mut early);
        let mut records = record::all(&early, &ends, sample_type);
        let newest = records.iter().map(|(time, ..)| *time).max().unwrap_or(0);
        late.clear();
        let ends = self.take(&mut late);
        let mut rest = Vec::new();
        for (time, bytes, record) in record::all(&late, &ends, sample_type) {
            match time <= newest {
                true => records.push((time, bytes, record)),
                false => rest.extend_from_slice(bytes),
            }
        }
        records.sort_by_key(|(time, ..)| *time);
        for (time, _, record) in records {
            self.apply(time, record, recording);
        }
        self.clocks.end_round();
        early.clear();
        early.extend_from_slice(&rest);
        self.bytes = (early, late);
    }

    /// Appends what the rings have; where that of each ends.
    ///
    /// The kernel reports lost records with the next one that it writes, which may not come before
    /// the process has ended: none is known to be lost as long as there was room for one.
    fn take(&mut self, bytes: &mut Vec<u8>) -> Vec<usize> {
        let largest = self.attribute.stack_bytes as usize + BESIDE_STACK;
        let mut ends = vec![bytes.len()];
        for processor in &self.processors {
            let free = processor.ring.take(bytes);
            if free < largest
                && let Some(meters) = &mut self.meters
            {
                meters.some_were_lost();
            }
            ends.push(bytes.len());
        }
        ends
    }

    fn apply(&mut self, time: u64, record: Record<'_>, recording: &mut Recording) {
        match record {
            Record::Sample(sample) => self.sample(time, &sample, recording),
            Record::Clock {
                pid,
                tid,
                id,
                count,
            } => {
                let at = At { time, pid, tid, id };
                if let Some(rest) = self.clocks.read(at, count)
                    && self.is_recorded(pid, rest, recording)
                    && let Some(process) = recording.process(pid)
                {
                    process.counts.rest_ns += rest.ns;
                    process.counts.hidden_ns += rest.hidden;
                }
            }
            Record::Fork {
                pid,
                tid,
                parent,
                parent_tid,
            } => {
                match &mut self.meters {
                    Some(meters) => {
                        let process = meters.process(pid).filter(|_| pid == parent);
                        if let Some(process) = process {
                            process.born(tid);
                        }
                    }
                    None => self.clocks.born(time, (pid, tid), parent_tid),
                }
                recording.forked(pid, parent);
            }
            Record::Exit { pid, tid } => {
                if let Some(process) = recording.process(pid) {
                    process.thread_ended(tid);
                }
                match &mut self.meters {
                    Some(meters) => {
                        if let Some(process) = meters.process(pid) {
                            process.exit(tid);
                        }
                    }
                    None => self.clocks.exit(time, pid, tid),
                }
            }
            Record::Exec { pid } => {
                match self.meters.is_some() {
                    true => self.weigh_before_exec(pid, recording),
                    false => self.clocks.executed(pid),
                }
                recording.executed(pid);
            }
            Record::Mapped(mapped) => recording.mapped(mapped.pid, range(&mapped)),
            Record::Lost(count) => match &mut self.meters {
                // It is not known whose samples they were.
                Some(meters) => meters.some_were_lost(),
                None => self.lost += count,
            },
        }
    }

    /// Whether this process is recorded, from now on if necessary: the record of its start may be
    /// lost.
    fn is_recorded(&self, pid: i32, share: Share, recording: &mut Recording) -> bool {
        let ns = share.ns.saturating_add(share.hidden);
        if recording.process(pid).is_some() {
            return true;
        }
        if !self.attribute.children || ns == 0 {
            return false;
        }
        // All that write to the rings are descendants then.
        let is_there = recording.adopt(pid);
        if !is_there {
            recording.missed(ns);
        }
        is_there
    }

    fn sample(&mut self, time: u64, sample: &record::Sample<'_>, recording: &mut Recording) {
        let at = At {
            time,
            pid: sample.pid,
            tid: sample.tid,
            id: sample.id,
        };
        if self.meters.is_some() && recording.process(sample.pid).is_none() {
            return;
        }
        let share = match self.meters.is_some() {
            // It is weighed later.
            true => Some(Share::default()),
            false => self.clocks.sample(at, sample.count),
        };
        let Some(share) = share else { return };
        if !self.is_recorded(sample.pid, share, recording) {
            return;
        }
        let Some(process) = recording.process(sample.pid) else {
            return;
        };
        process.counts.hidden_ns += share.hidden;
        if sample.is_narrow && process.is_foreign_by(Machine::NARROW) {
            process.counts.rest_ns += share.ns;
            if let Some(meters) = &mut self.meters {
                meters.count(sample.pid, sample.tid, None);
            }
            return;
        }
        let sp = sample.registers.map_or(0, |live| live.followed().sp);
        let copied = Copied::new(sp, sample.stack);
        let mut memory = Continued::new(copied, sample.pid, &mut self.rest);
        let taken = recording::Sample {
            pid: sample.pid,
            tid: sample.tid,
            live: sample.registers.as_ref(),
            kernel: &mut record::kernel_addresses(sample.kernel),
            script: None,
            ns: share.ns,
            time: recording::Time::Running,
        };
        let taken = recording.sample(taken, &mut memory);
        if let (Some(meters), Some(taken)) = (&mut self.meters, &taken) {
            meters.count(sample.pid, sample.tid, Some(taken.place));
        }
        let is_short = taken.is_some() && memory.is_short() && sample.stack_is_full;
        let is_cut = taken.is_some_and(|taken| taken.cut.is_some());
        self.judged.samples += 1;
        self.judged.short += u64::from(is_short);
        self.judged.cut += u64::from(is_short && is_cut);
        self.judged.needed = self.judged.needed.max(memory.needed);
        if is_short {
            self.started = Instant::now();
        }
    }

    /// Copies more of the stacks when too many are too short.
    fn judge(&mut self, recording: &mut Recording) {
        let Judged {
            samples,
            short,
            cut,
            needed,
        } = self.judged;
        let is_bad = (short >= ENOUGH || cut > 0) && short * TOLERATED > samples;
        if !is_bad || self.attribute.stack_bytes >= MOST_STACK {
            return;
        }
        let before = self.attribute.stack_bytes;
        // The kernel takes multiples of eight.
        let needed = u32::try_from(needed.next_multiple_of(8)).unwrap_or(MOST_STACK);
        self.attribute.stack_bytes = (before * 2).max(needed).min(MOST_STACK);
        self.reopen(before, recording);
    }
}

fn range(mapped: &Mapped<'_>) -> Range {
    let end = mapped.start.saturating_add(mapped.len);
    let file = (mapped.device, mapped.inode);
    Range::new((mapped.start, end), mapped.offset, file, mapped.path)
}
