//! Perf engine: the kernel takes the samples (`perf_event_open`) and copies registers and stack for
//! each.
//!
//! If system-wide sampling is permitted, each processor has one event, and samples of other
//! processes are discarded. This costs the target nothing at context switches, however many threads
//! it has. Samples are weighted by their process's clock (`Meters`).
//!
//! Otherwise, and for programs started by the profiler, each thread has one event per processor,
//! and all events of a processor write to one ring buffer. New threads and children inherit the
//! events, so that even short-lived ones are not missed. Each sample comes with its event's clock,
//! so its weight is known even if earlier samples were lost.

// Decision 38: CPU time is sampled from outside.
mod opening;
#[cfg(all(test, target_arch = "x86_64"))]
mod peer;
mod processors;
mod threads;

use std::collections::HashMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::clocks::{Clocks, CpuTime, Origin};
use crate::continued::{Continued, RestBuffers};
use crate::copies::{CopyStatistics, INITIAL_STACK_BYTES};
use crate::event::{Counted, EventConfig};
use crate::machine::Machine;
use crate::memory::Copied;
use crate::meter::Weighting;
use crate::meters::Meters;
use crate::record::{self, Mapped, Record};
use crate::recording::{self, Recording};
use crate::refusal::Refusal;
use crate::rings::Rings;
use crate::space::{FileId, Range};
pub(crate) use opening::best_allowed_config;
use processors::may_sample_all;

/// Minimum sampling period, in nanoseconds, for which each sample is processed immediately, before
/// the part of the stack beyond the copy changes. With a shorter period, waking up for each sample
/// would cost more than the samples themselves.
const MIN_WAKING_PERIOD_NS: u64 = 1_000_000;
/// Time after a short copy during which samples are processed every [`BOOST_INTERVAL`], if they
/// come too often to be processed immediately.
const BOOST_DURATION: Duration = Duration::from_secs(1);
const BOOST_INTERVAL: Duration = Duration::from_millis(10);
/// Time between checks for processes that have exited.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Sampling parameters.
#[derive(Clone, Copy, Debug)]
pub struct Sampling {
    /// Number of samples per second of CPU time.
    pub rate: u32,
    /// True if children of the processes are sampled too.
    pub children: bool,
}

/// Event, with the process that it belongs to.
struct Event {
    fd: OwnedFd,
    pid: i32,
    id: u64,
}

/// Perf engine.
pub struct Perf {
    config: EventConfig,
    rings: Rings,
    events: Vec<Event>,
    processes: Vec<i32>,
    /// Meters of processes if processors are sampled; `None` if threads are.
    meters: Option<Meters<processors::Kernel>>,
    /// Counts of the events.
    clocks: Clocks,
    /// CPU time of processes in ns before their events were reopened.
    ns_before_reopening: HashMap<i32, u64>,
    /// Statistics on stack copies of the current size.
    copies: CopyStatistics,
    /// Number of lost records of threads' events.
    pub lost: u64,
    /// Time when a process was last added, copies grew, or a copy was too short. Samples are
    /// processed more often for [`BOOST_DURATION`] after it.
    boosted_since: Instant,
    /// Buffer for the stack beyond the end of a copy.
    rest: RestBuffers,
    /// Time of the last check for processes that have exited.
    exits_checked: Instant,
}

impl Perf {
    /// Determines what the kernel permits, and maps the ring buffers.
    pub fn open(sampling: Sampling) -> Result<Self, Refusal> {
        let period = 1_000_000_000 / u64::from(sampling.rate.max(1));
        let config = EventConfig {
            counted: Counted::Time,
            period,
            rate: None,
            stack_bytes: INITIAL_STACK_BYTES,
            wakes_per_sample: period >= MIN_WAKING_PERIOD_NS,
            kernel: true,
            clock: true,
            children: sampling.children,
            threads_only: true,
            from_exec: false,
        };
        let numbers = proc::processors();
        let mut config = best_allowed_config(config, &numbers)?;
        let meters = (!sampling.children && may_sample_all(&config, &numbers)).then(|| {
            config.clock = false;
            Meters::new(config.period, processors::Kernel)
        });
        let rings = Rings::open(&numbers)?;
        Ok(Self {
            clocks: Clocks::new(config.period, !config.kernel),
            config,
            rings,
            events: Vec::new(),
            processes: Vec::new(),
            meters,
            ns_before_reopening: HashMap::new(),
            copies: CopyStatistics::default(),
            lost: 0,
            boosted_since: Instant::now(),
            rest: RestBuffers::default(),
            exits_checked: Instant::now(),
        })
    }

    /// Returns true if time in the kernel is sampled.
    #[must_use]
    pub fn sees_kernel(&self) -> bool {
        self.config.kernel
    }

    /// Returns the actual and the desired size in bytes of each processor's ring buffer, if the
    /// actual one is smaller.
    #[must_use]
    pub fn small_buffers(&self) -> Option<(usize, usize)> {
        self.rings.small()
    }

    /// Returns the maximum time until samples should be collected.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        if self.boosted_since.elapsed() < BOOST_DURATION && !self.config.wakes_per_sample {
            BOOST_INTERVAL
        } else {
            CHECK_INTERVAL
        }
    }

    /// Starts to sample a process.
    pub fn attach(&mut self, pid: i32, recording: &mut Recording) -> Result<(), Refusal> {
        self.boosted_since = Instant::now();
        let opened = if self.meters.is_some() {
            self.open_processors(pid, recording)
        } else {
            self.open_threads(pid)
        };
        match opened {
            Ok(()) => self.processes.push(pid),
            Err(_) => self.close(pid),
        }
        opened
    }

    /// Starts to sample the processes that this thread starts, each beginning with its exec.
    pub fn attach_children(&mut self) -> Result<(), Refusal> {
        // SAFETY: no memory is passed.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        self.config.from_exec = true;
        let opened = self.open_thread(tid, tid);
        self.config.from_exec = false;
        opened.map(drop)
    }

    /// Returns the descriptors that become readable when there is much to collect.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.descriptors()
    }

    /// Processes the records written since the last time.
    pub fn collect(&mut self, recording: &mut Recording) {
        self.drain(recording);
        self.weigh_if_due(recording);
        self.grow_copies(recording);
        if self.exits_checked.elapsed() >= CHECK_INTERVAL {
            self.exits_checked = Instant::now();
            self.drop_exited(recording);
        }
    }

    /// Weights all samples by the CPU time that processes have used so far, for live views.
    pub fn weight_samples(&mut self, recording: &mut Recording) {
        self.weigh(Weighting::Last, recording);
    }

    /// Collects for the last time. Time without a sample is final from then on.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.drain(recording);
        self.drop_exited(recording);
        self.weigh_at_end(recording);
        for pid in recording.pids() {
            self.add_hidden_time(pid, recording);
        }
    }

    /// Drops processes that have exited.
    fn drop_exited(&mut self, recording: &mut Recording) {
        let mut exited = recording.poll_exited();
        if exited.is_empty() {
            return;
        }
        // By now, the rings hold all records of these processes.
        self.drain(recording);
        self.weigh(Weighting::Last, recording);
        // A pid may have been reused.
        exited.retain(|pid| proc::has_exited(*pid));
        for &pid in &exited {
            self.add_exit_total(pid, recording);
            recording.handle_exit(pid);
        }
        self.processes.retain(|pid| !exited.contains(pid));
        self.clocks.forget(&exited);
        if let Some(meters) = &mut self.meters {
            meters.forget(&exited);
        }
    }

    /// Applies all records written so far, in order.
    fn drain(&mut self, recording: &mut Recording) {
        let sample_type = self.config.sample_type();
        let mut rings = std::mem::take(&mut self.rings);
        let mut round = rings.read(&|_| sample_type, self.config.stack_bytes);
        if let Some(meters) = &mut self.meters {
            (0..round.full).for_each(|_| meters.record_loss());
        }
        for (time, record) in round.records.drain(..) {
            self.apply(time, record, recording);
        }
        self.clocks.end_round();
        let waiting = round.waiting;
        rings.end_round(&waiting);
        self.rings = rings;
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
                let origin = Origin { time, pid, tid, id };
                if let Some(unsampled) = self.clocks.read_final_count(origin, count)
                    && self.is_recorded(pid, unsampled, recording)
                    && let Some(process) = recording.process(pid)
                {
                    process.counts.rest_ns += unsampled.ns;
                    process.counts.hidden_ns += unsampled.hidden;
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
                            process.handle_fork(tid);
                        }
                    }
                    None => self.clocks.handle_fork(time, pid, tid, parent_tid),
                }
                recording.handle_fork(pid, parent);
            }
            Record::Exit { pid, tid } => {
                if let Some(process) = recording.process(pid) {
                    process.thread_ended(tid);
                }
                match &mut self.meters {
                    Some(meters) => {
                        if let Some(process) = meters.process(pid) {
                            process.handle_exit(tid);
                        }
                    }
                    None => self.clocks.handle_exit(time, pid, tid),
                }
            }
            Record::Exec { pid } => {
                if self.meters.is_some() {
                    self.weigh_before_exec(pid, recording)
                } else {
                    self.clocks.handle_exec(pid)
                }
                recording.handle_exec(pid);
            }
            Record::Mapped(mapped) => recording.handle_mapping(mapped.pid, range(&mapped)),
            Record::Lost(count) => match &mut self.meters {
                // It is not known which processes the lost records belong to.
                Some(meters) => meters.record_loss(),
                None => self.lost += count,
            },
        }
    }

    /// Returns true if this process is recorded. Starts recording it if necessary, since the record
    /// of its start may have been lost.
    fn is_recorded(&self, pid: i32, time: CpuTime, recording: &mut Recording) -> bool {
        let ns = time.ns.saturating_add(time.hidden);
        if recording.process(pid).is_some() {
            return true;
        }
        if !self.config.children || ns == 0 {
            return false;
        }
        // If children are sampled, all processes that write to the rings are descendants.
        let is_recorded = recording.adopt(pid);
        if !is_recorded {
            recording.count_unrecorded(ns);
        }
        is_recorded
    }

    fn sample(&mut self, time: u64, sample: &record::Sample<'_>, recording: &mut Recording) {
        let origin = Origin {
            time,
            pid: sample.pid,
            tid: sample.tid,
            id: sample.id,
        };
        if self.meters.is_some() && recording.process(sample.pid).is_none() {
            return;
        }
        let share = if self.meters.is_some() {
            // The meters weight the sample later.
            Some(CpuTime::default())
        } else {
            self.clocks.sample(origin, sample.count)
        };
        let Some(share) = share else { return };
        if !self.is_recorded(sample.pid, share, recording) {
            return;
        }
        let Some(process) = recording.process(sample.pid) else {
            return;
        };
        process.counts.hidden_ns += share.hidden;
        if sample.is_32_bit && process.is_foreign_by(Machine::UNKNOWN_32_BIT) {
            process.counts.rest_ns += share.ns;
            if let Some(meters) = &mut self.meters {
                meters.count(sample.pid, sample.tid, None);
            }
            return;
        }
        let sp = sample
            .registers
            .map_or(0, |live| live.unwind_registers().sp);
        let copied = Copied::new(sp, sample.stack);
        let mut memory = Continued::new(copied, sample.pid, &mut self.rest);
        let recorded_sample = recording::Sample {
            pid: sample.pid,
            tid: sample.tid,
            live: sample.registers.as_ref(),
            kernel: &mut record::kernel_addresses(sample.kernel),
            script: None,
            ns: share.ns,
            time: recording::Time::Running,
        };
        let recorded = recording.sample(recorded_sample, &mut memory);
        if let (Some(meters), Some(recorded)) = (&mut self.meters, &recorded) {
            meters.count(sample.pid, sample.tid, Some(recorded.stack));
        }
        let is_short = recorded.is_some() && memory.is_short() && sample.stack_is_full;
        let is_cut = recorded.is_some_and(|recorded| recorded.cut.is_some());
        self.copies.count(is_short, is_cut, memory.needed);
        if is_short {
            self.boosted_since = Instant::now();
        }
    }

    /// Increases the size of stack copies if too many are too short.
    fn grow_copies(&mut self, recording: &mut Recording) {
        let before = self.config.stack_bytes;
        let Some(larger) = self.copies.larger(before) else {
            return;
        };
        self.config.stack_bytes = larger;
        self.reopen(before, recording);
    }
}

/// Converts a new mapping.
pub(crate) fn range(mapped: &Mapped<'_>) -> Range {
    let end = mapped.start.saturating_add(mapped.len);
    let file = FileId {
        device: mapped.device,
        inode: mapped.inode,
    };
    Range::new(mapped.start, end, mapped.offset, file, mapped.path)
}
