//! Page-fault engine: the kernel samples the page faults of processes (`perf_event_open`), with the
//! address, registers and stack of each. Afterwards, the page table shows which pages still exist,
//! so that these can be assigned to the stacks that touched them first.
//!
//! Each thread has three events per processor, which its new threads inherit. Two of them sample
//! minor and major faults at a rate (samples per second): the kernel samples every fault while
//! these are rare, and increases the period when they become frequent. It does so with a delay, so
//! a few faults of huge pages after many of small ones would be missed. The third event therefore
//! samples all faults with a fixed period. Faults of child processes are not sampled.
//!
//! Pages that come into existence without a fault (`MAP_POPULATE`, `mlock`, io_uring, `mremap` to
//! another address) are not seen, nor are faults that the kernel takes on the process's behalf if
//! the kernel may not be sampled.

// Decision 88: resident memory is found in the page table, and only its stacks are sampled.

mod page_set;
mod touches;

use std::collections::HashMap;
use std::collections::HashSet;
use std::ops::Range;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proc::{Pages, page_size};
use profile::maps::Entry;

use crate::continued::{Continued, RestBuffers};
use crate::copies::{CopyStatistics, INITIAL_STACK_BYTES};
use crate::event::{Counted, EventConfig};
use crate::machine::Machine;
use crate::memory::Copied;
use crate::mixer::IntMap;
use crate::perf::{best_allowed_config, range};
use crate::record::{self, Record};
use crate::recording::{self, Recording};
use crate::refusal::Refusal;
use crate::rings::Rings;
use page_set::PageSet;
use touches::{Fault, Touches};
pub use touches::{Origin, PageCount};

/// Maximum time between collections.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// Period, in faults, of the event with a fixed one. At 1 GiB/s, it takes 4096 samples a second,
/// which cost less than 2 % of the time.
const FIXED_PERIOD: u64 = 64;

/// Event of a thread on a processor.
struct Event {
    /// Open for as long as faults are sampled.
    _fd: OwnedFd,
    pid: i32,
}

/// Properties of an opened event.
#[derive(Clone, Copy)]
struct EventInfo {
    /// Thread that it was opened for.
    tid: i32,
    is_major: bool,
    /// True if its period is fixed.
    is_fixed: bool,
}

/// Pages that a fault made resident.
struct FaultedPages {
    /// Number of pages that the fault certainly made resident.
    pages: u64,
    /// Number of pages that the fault may have made resident.
    reach: u64,
}

/// Memory of one program.
struct Memory {
    touches: Touches,
    pages: Pages,
    /// Number of pages that each stack has touched, by its node.
    touched: IntMap<u32, u64>,
}

/// Existing pages of one mapping, by origin.
pub type ByOrigin = Vec<(Origin, PageCount)>;

/// Page-fault engine.
pub struct Faults {
    config: EventConfig,
    rings: Rings,
    events: Vec<Event>,
    /// Properties of events by id.
    infos: HashMap<u64, EventInfo>,
    /// Threads that have events of their own (not just inherited ones), with their processes.
    own: HashMap<i32, i32>,
    processes: Vec<i32>,
    /// Memory by serial number of the program.
    memories: HashMap<u64, Memory>,
    copies: CopyStatistics,
    rest: RestBuffers,
    /// Number of lost samples.
    pub lost: u64,
    /// Time of the last check for processes that have exited.
    exits_checked: Instant,
}

impl Faults {
    /// Determines what the kernel permits, and maps the ring buffers. `rate` is the number of
    /// samples per second and thread that the kernel aims at.
    pub fn open(rate: u32) -> Result<Self, Refusal> {
        let config = EventConfig {
            counted: Counted::MinorFaults,
            period: FIXED_PERIOD,
            rate: Some(u64::from(rate.max(1))),
            stack_bytes: INITIAL_STACK_BYTES,
            wakes_per_sample: false,
            kernel: true,
            clock: false,
            children: false,
            threads_only: true,
            from_exec: false,
        };
        let numbers = proc::processors();
        let config = best_allowed_config(config, &numbers)?;
        Ok(Self {
            config,
            rings: Rings::open(&numbers)?,
            events: Vec::new(),
            infos: HashMap::new(),
            own: HashMap::new(),
            processes: Vec::new(),
            memories: HashMap::new(),
            copies: CopyStatistics::default(),
            rest: RestBuffers::default(),
            lost: 0,
            exits_checked: Instant::now(),
        })
    }

    /// Returns true if faults that the kernel takes on behalf of the process are sampled.
    #[must_use]
    pub fn sees_kernel(&self) -> bool {
        self.config.kernel
    }

    /// Returns the maximum time until samples should be collected.
    #[must_use]
    pub fn max_wait(&self) -> Duration {
        COLLECT_INTERVAL
    }

    /// Returns the descriptors that become readable when there is much to collect.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.descriptors()
    }

    /// Starts to sample a process, which must be recorded. Reads which of its pages exist.
    pub fn attach(&mut self, pid: i32, recording: &mut Recording) -> Result<(), Refusal> {
        let Some(process) = recording.process(pid) else {
            return Err(Refusal::Gone { pid });
        };
        let serial = process.serial;
        let mut pages = Pages::of(pid);
        if !pages.is_known() {
            return Err(if proc::has_exited(pid) {
                Refusal::Gone { pid }
            } else {
                Refusal::Foreign { pid }
            });
        }
        if let Err(refusal) = self.open_threads(pid) {
            self.close(pid);
            return Err(refusal);
        }
        // Faults while the pages are read are sampled, so that none is missed.
        let text = proc::maps(pid).unwrap_or_default();
        let ranges: Vec<Range<u64>> = scannable(&text).collect();
        let mut touches = Touches::new(huge_pages());
        touches.begin(PageSet::read(&mut pages, &ranges));
        let memory = Memory {
            touches,
            pages,
            touched: IntMap::default(),
        };
        self.memories.insert(serial, memory);
        self.processes.push(pid);
        Ok(())
    }

    /// Opens events for all threads of a process. Repeats until no thread is new, since a thread
    /// created by one without events has none.
    fn open_threads(&mut self, pid: i32) -> Result<(), Refusal> {
        proc::allow_files();
        let mut tried = HashSet::new();
        let mut any_opened = false;
        loop {
            let mut new = proc::threads(pid);
            new.retain(|tid| tried.insert(*tid));
            if new.is_empty() {
                return if any_opened {
                    Ok(())
                } else {
                    Err(Refusal::Gone { pid })
                };
            }
            for tid in new {
                any_opened |= self.open_thread(pid, tid)?;
            }
        }
    }

    /// Opens a thread's events. Returns false if the thread has exited.
    fn open_thread(&mut self, pid: i32, tid: i32) -> Result<bool, Refusal> {
        let adaptive = self.config;
        // If two events of the same kind sample one fault, the kernel (6.18) gives both samples the
        // id of the first event. So this event is of another kind.
        let fixed = EventConfig {
            counted: Counted::AllFaults,
            rate: None,
            ..adaptive
        };
        let major = EventConfig {
            counted: Counted::MajorFaults,
            ..adaptive
        };
        for config in [adaptive, fixed, major] {
            for processor in &self.rings.processors {
                match processor.open(&config, tid) {
                    Ok((fd, id)) => {
                        let info = EventInfo {
                            tid,
                            is_major: config.counted == Counted::MajorFaults,
                            is_fixed: config.rate.is_none(),
                        };
                        self.infos.insert(id, info);
                        self.events.push(Event { _fd: fd, pid });
                    }
                    Err(error) => match error.raw_os_error() {
                        Some(libc::ESRCH) => return Ok(false),
                        Some(libc::ENODEV) => {}
                        _ => return Err(Refusal::of_thread(pid, error, self.events.len() / 3)),
                    },
                }
            }
        }
        self.own.insert(tid, pid);
        Ok(true)
    }

    /// Closes all events of a process.
    fn close(&mut self, pid: i32) {
        self.events.retain(|event| event.pid != pid);
        self.own.retain(|_, own_pid| *own_pid != pid);
        self.processes.retain(|other| *other != pid);
    }

    /// Processes the records written since the last time.
    pub fn collect(&mut self, recording: &mut Recording) {
        self.drain(recording);
        if let Some(larger) = self.copies.larger(self.config.stack_bytes) {
            self.config.stack_bytes = larger;
            self.reopen(recording);
        }
        if self.exits_checked.elapsed() >= COLLECT_INTERVAL {
            self.exits_checked = Instant::now();
            for pid in recording.poll_exited() {
                self.close(pid);
                recording.handle_exit(pid);
            }
        }
    }

    /// Reopens all events after the size of stack copies has changed. Faults in between are not
    /// sampled.
    fn reopen(&mut self, recording: &mut Recording) {
        self.events.clear();
        self.drain(recording);
        self.copies = CopyStatistics::default();
        // Records of the old events may still wait, so their properties are kept.
        self.own.clear();
        for pid in self.processes.clone() {
            // Fails if the process has exited, which needs no samples then.
            let _ = self.open_threads(pid);
        }
    }

    fn drain(&mut self, recording: &mut Recording) {
        let mut rings = std::mem::take(&mut self.rings);
        let adaptive = self.config.sample_type();
        let fixed = EventConfig {
            rate: None,
            ..self.config
        }
        .sample_type();
        let infos = &self.infos;
        let fields = |id| {
            let info: Option<&EventInfo> = infos.get(&id);
            if info.is_some_and(|info| info.is_fixed) {
                fixed
            } else {
                adaptive
            }
        };
        let mut round = rings.read(&fields, self.config.stack_bytes);
        for (_, record) in round.records.drain(..) {
            self.apply(record, recording);
        }
        let waiting = round.waiting;
        rings.end_round(&waiting);
        self.rings = rings;
    }

    fn apply(&mut self, record: Record<'_>, recording: &mut Recording) {
        match record {
            Record::Sample(sample) => self.sample(&sample, recording),
            Record::Fork { pid, parent, .. } if pid != parent => {
                if let Some(memory) = self.memory(parent, recording) {
                    memory.touches.fork();
                }
            }
            Record::Exit { pid, tid } => {
                self.own.remove(&tid);
                if let Some(process) = recording.process(pid) {
                    process.thread_ended(tid);
                }
                if let Some(memory) = self.memory(pid, recording) {
                    memory.touches.end_thread(tid);
                }
            }
            Record::Exec { pid } => self.exec(pid, recording),
            Record::Mapped(mapped) => recording.handle_mapping(mapped.pid, range(&mapped)),
            Record::Lost(count) => self.lost += count,
            Record::Clock { .. } | Record::Fork { .. } => {}
        }
    }

    /// Handles an exec: all memory of the new program came into existence during sampling.
    fn exec(&mut self, pid: i32, recording: &mut Recording) {
        let Some(old) = recording.process(pid).map(|process| process.serial) else {
            return;
        };
        self.memories.remove(&old);
        // The thread that called exec takes over the id of the main thread, with its own events.
        self.own.retain(|_, own_pid| *own_pid != pid);
        recording.handle_exec(pid);
        if let Some(process) = recording.process(pid) {
            let memory = Memory {
                touches: Touches::new(huge_pages()),
                pages: Pages::of(pid),
                touched: IntMap::default(),
            };
            self.memories.insert(process.serial, memory);
        }
    }

    /// Returns the memory of a process's program.
    fn memory(&mut self, pid: i32, recording: &mut Recording) -> Option<&mut Memory> {
        let serial = recording.process(pid)?.serial;
        self.memories.get_mut(&serial)
    }

    fn sample(&mut self, sample: &record::Sample<'_>, recording: &mut Recording) {
        let Some(event) = self.infos.get(&sample.id).copied() else {
            return;
        };
        // A thread created during attach may have inherited events in addition to its own.
        let has_own = self.own.contains_key(&sample.tid);
        if event.tid != sample.tid && has_own {
            return;
        }
        let Some(address) = sample.address else {
            return;
        };
        let Some(process) = recording.process(sample.pid) else {
            return;
        };
        if sample.is_32_bit && process.is_foreign_by(Machine::UNKNOWN_32_BIT) {
            return;
        }
        let sp = sample
            .registers
            .map_or(0, |live| live.unwind_registers().sp);
        let copied = Copied::new(sp, sample.stack);
        let mut continued = Continued::new(copied, sample.pid, &mut self.rest);
        let recorded_sample = recording::Sample {
            pid: sample.pid,
            tid: sample.tid,
            live: sample.registers.as_ref(),
            kernel: &mut record::kernel_addresses(sample.kernel),
            script: None,
            ns: 0,
            time: recording::Time::Running,
        };
        let Some(recorded) = recording.sample(recorded_sample, &mut continued) else {
            return;
        };
        let is_short = continued.is_short() && sample.stack_is_full;
        self.copies
            .count(is_short, recorded.cut.is_some(), continued.needed);
        let (serial, stack) = recorded.stack;
        let Some(memory) = self.memories.get_mut(&serial) else {
            return;
        };
        let page = address / page_size();
        let faulted = memory.faulted_pages(page);
        memory.touches.add(Fault {
            page,
            tid: sample.tid,
            stack,
            faults: sample.period.filter(|_| !event.is_fixed),
            pages: faulted.reach,
            is_major: event.is_major,
        });
        // The event with a fixed period samples the same faults again, so it does not count here.
        if !event.is_fixed
            && let Some(faults) = sample.period
        {
            let sum = memory.touched.entry(stack).or_default();
            *sum = sum.saturating_add(faults.saturating_mul(faulted.pages));
        }
    }

    /// Collects for the last time.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.drain(recording);
        self.events.clear();
    }

    /// Assigns the pages of a program that exist now to their origins, for each of `mappings`, which
    /// must be sorted. Returns `None` if its page table cannot be read.
    pub fn assign(&mut self, serial: u64, mappings: &[Range<u64>]) -> Option<Vec<ByOrigin>> {
        let memory = self.memories.get_mut(&serial)?;
        mappings
            .iter()
            .map(|range| memory.assign(range.clone()))
            .collect()
    }

    /// Returns the number of pages that each stack of a program has touched, by its node.
    #[must_use]
    pub fn touched(&self, serial: u64) -> Vec<(u32, u64)> {
        let memory = self.memories.get(&serial);
        let touched = memory.into_iter().flat_map(|memory| &memory.touched);
        let mut touched: Vec<(u32, u64)> = touched.map(|(node, pages)| (*node, *pages)).collect();
        touched.sort_unstable();
        touched
    }
}

impl Memory {
    /// Determines how many pages a fault of `page` made resident.
    fn faulted_pages(&mut self, page: u64) -> FaultedPages {
        let size = page_size();
        let mut faulted = FaultedPages { pages: 1, reach: 1 };
        self.pages.runs(page * size..(page + 1) * size, &mut |run| {
            if run.is_huge {
                faulted.pages = huge_pages();
                faulted.reach = huge_pages();
            } else if run.is_file {
                // The kernel may map a whole folio of the page cache, or the pages around.
                faulted.reach = huge_pages();
            }
        });
        faulted
    }

    fn assign(&mut self, range: Range<u64>) -> Option<ByOrigin> {
        let size = page_size();
        let pages = range.start / size..range.end.div_ceil(size);
        if self.touches.has_any(pages.clone()) {
            let touches = &mut self.touches;
            touches.unmark(pages.clone());
            let is_read = self
                .pages
                .runs(range.clone(), &mut |run| touches.mark(&run, size));
            if !is_read {
                return None;
            }
        }
        let cells = self.touches.cells(pages);
        let mut sums: HashMap<Origin, PageCount> = HashMap::new();
        let touches = &self.touches;
        let is_read = self.pages.runs(range, &mut |run| {
            touches.assign(&run, size, &cells, &mut |origin, count| {
                let sum = sums.entry(origin).or_default();
                sum.resident += count.resident;
                sum.swapped += count.swapped;
            });
        });
        let mut sums: ByOrigin = sums.into_iter().collect();
        sums.retain(|(_, count)| *count != PageCount::default());
        sums.sort_unstable_by_key(|(origin, _)| *origin);
        is_read.then_some(sums)
    }
}

/// Returns the number of pages in a huge page: the number of 8-byte entries in one page of the page
/// table.
fn huge_pages() -> u64 {
    page_size() / 8
}

/// Returns the mappings that may have pages of the process.
fn scannable(maps: &[u8]) -> impl Iterator<Item = Range<u64>> {
    let entries = Entry::all(maps).filter(|entry| entry.path != b"[vsyscall]");
    entries.map(|entry| entry.start..entry.end)
}
