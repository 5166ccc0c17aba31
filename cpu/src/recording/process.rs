//! One program in one process: its threads, its stacks, its time.

use super::Time;
use crate::machine::Machine;
use crate::mixer::ByAddress;
use crate::python::Python;
use crate::script::Script;
use crate::space::Space;
use crate::stacks::{Count, Stacks};

/// Maximum number of threads of a process whose stacks are kept apart.
const MOST_THREADS: usize = 1000;
/// Maximum CPU time that a process is believed to have used, whatever it says of itself.
const MOST_NS: u64 = 1 << 62;

/// What is known of a program's run besides its stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Samples.
    pub samples: u64,
    /// The CPU time that they stand for, in nanoseconds.
    pub ns: u64,
    /// Samples whose stack could not be followed to its end, by [`unwind::Cause`].
    pub truncated: [u64; 6],
    /// Samples without a stack: of code of 32 bits in a program of 64.
    pub without_stack: u64,
    /// Samples whose stack had no room in the table.
    pub table_full: u64,
    /// Time of threads that ended without another sample.
    pub rest_ns: u64,
    /// Time that threads waited.
    pub waiting_ns: u64,
    /// Time that they waited without a sample.
    pub waited_ns: u64,
    /// Time in the kernel, where that may not be sampled.
    pub hidden_ns: u64,
    /// Samples that were due and are missing: there was no room for them, their signal came too
    /// late, or their stack changed while it was read.
    pub lost: u64,
    /// Threads in which the signal that takes samples was blocked, the most at a time.
    pub blocked: u64,
    /// Whether threads have no timer of those that take samples: the kernel gave it none.
    pub lacks_timers: bool,
}

impl Counts {
    pub(super) fn add(&mut self, time: Time, ns: u64) {
        self.samples += 1;
        match time {
            Time::Running => self.ns += ns,
            Time::Waiting => self.waiting_ns += ns,
        }
    }

    /// All samples whose stack is not complete.
    #[must_use]
    pub fn all_truncated(&self) -> u64 {
        self.truncated.iter().sum()
    }
}

/// One program in one process.
pub struct Process {
    /// The process.
    pub pid: i32,
    /// Its number among all programs that were recorded.
    pub serial: u64,
    /// Its code.
    pub space: Space,
    /// Its stacks: lookup addresses of the user's frames, and of the kernel's functions, and frames of
    /// its `script`. Their threads are numbered from 1 by their places in `threads`.
    pub stacks: Stacks,
    /// The lines of an interpreter's functions that are among their frames.
    pub script: Script,
    /// What reads these from outside.
    pub(super) python: Python,
    /// Its threads that were sampled, with their names as they were then.
    pub threads: Vec<(i32, Vec<u8>)>,
    numbers: ByAddress<u64, u32>,
    /// Counts.
    pub counts: Counts,
    /// Whether the process has ended, or executes another program.
    pub is_over: bool,
    /// CPU time of the process when this program began to be sampled, and when it was last read.
    pub(super) clock: (u64, u64),
    /// The same when the process began to be sampled, even if it ran another program then.
    pub(super) origin: u64,
    /// The same when it was sampled for the last time.
    end: Option<u64>,
    /// CPU time that the engine itself has counted.
    pub counted_ns: Option<u64>,
    /// CPU time by its clock when that was last read, and what was known of it by then.
    compared: (u64, u64),
    /// The machine that its program is for, if that is another one, once it was examined.
    machine: Option<Option<Machine>>,
    /// Whether a sample had that machine's registers.
    runs_there: bool,
    /// Whether it was requested by its number.
    pub(super) is_named: bool,
    /// Whether an earlier program of the process is kept.
    pub(super) was_kept: bool,
}

impl Process {
    pub(super) fn new(pid: i32, space: Space, clock: u64) -> Self {
        Self {
            pid,
            serial: 0,
            space,
            stacks: Stacks::default(),
            script: Script::default(),
            python: Python::default(),
            threads: Vec::new(),
            numbers: ByAddress::default(),
            counts: Counts::default(),
            is_over: false,
            clock: (clock, clock),
            origin: clock,
            end: None,
            counted_ns: None,
            compared: (0, 0),
            machine: None,
            runs_there: false,
            is_named: false,
            was_kept: false,
        }
    }

    /// Whether it has samples. Those of a program for another machine are of the kernel's work for its
    /// `exec`, before the registers are the other machine's, and do not count.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.counts.samples > 0 && !self.runs_there
    }

    /// The machine that its program is for, if that is another one. A program with samples may have
    /// executed another one before the machine was determined.
    #[must_use]
    pub fn foreign(&self) -> Option<Machine> {
        self.machine.flatten().filter(|_| !self.is_sampled())
    }

    /// Finds out which machine its program is for, once.
    pub(super) fn judge(&mut self) {
        let pid = self.pid;
        self.machine
            .get_or_insert_with(|| Machine::foreign_to_us(pid));
    }

    /// Whether its program is another machine's.
    pub(crate) fn is_foreign(&mut self) -> bool {
        self.judge();
        self.foreign().is_some()
    }

    /// Whether its program is another machine's, of one of whose samples the registers are those of
    /// `machine`, which it is if nothing else can be found out.
    pub(crate) fn is_foreign_by(&mut self, machine: Machine) -> bool {
        if self.machine.is_none() && proc::is_over(self.pid) {
            self.machine = Some(Some(machine));
        }
        self.judge();
        self.runs_there = self.machine.flatten().is_some();
        self.runs_there
    }

    /// The CPU time that it used meanwhile, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        let read = self.clock.1.saturating_sub(self.clock.0);
        read.max(self.counted_ns.unwrap_or(0)).max(self.known_ns())
    }

    /// The number of a thread; 0 for those beyond the maximum, and for one that has returned its
    /// own and is ending.
    pub(super) fn thread(&mut self, tid: i32) -> u32 {
        if tid <= 0 {
            return 0;
        }
        let key = u64::from(tid.cast_unsigned());
        if let Some(known) = self.numbers.get(&key) {
            return *known;
        }
        if self.threads.len() >= MOST_THREADS {
            return 0;
        }
        let name = proc::thread_name(self.pid, tid).unwrap_or_default();
        self.threads.push((tid, name));
        let number = self.threads.len() as u32;
        self.numbers.insert(key, number);
        number
    }

    /// The number of a thread whose name is known; 0 for those that are too many.
    pub fn named_thread(&mut self, tid: i32, name: &[u8]) -> u32 {
        let key = u64::from(tid.cast_unsigned());
        if !self.numbers.contains_key(&key) && self.threads.len() < MOST_THREADS {
            self.threads.push((tid, name.to_vec()));
            self.numbers.insert(key, self.threads.len() as u32);
        }
        self.numbers.get(&key).copied().unwrap_or(0)
    }

    /// A thread ended: another one may get its number.
    pub(crate) fn thread_ended(&mut self, tid: i32) {
        self.numbers.remove(&u64::from(tid.cast_unsigned()));
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_named || self.is_sampled()
    }

    /// Whether nothing was recorded of it, nor requested.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_named && self.counts == Counts::default()
    }

    /// Adds time to samples that were counted without any: those of a place among its stacks, or, as
    /// `None`, what has no stack.
    pub(crate) fn weigh(&mut self, place: Option<(u64, u32)>, ns: u64) {
        match place {
            Some((serial, place)) if serial == self.serial => {
                self.counts.ns += ns;
                self.stacks.again(place, Count { samples: 0, ns });
            }
            _ => self.counts.rest_ns += ns,
        }
    }

    /// What its clock said when it began to be sampled.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.clock.0
    }

    /// It is sampled from when its clock said this.
    pub fn begin(&mut self, clock: u64) {
        self.clock = (clock, clock);
        self.origin = clock;
    }

    /// It was sampled to when its clock said this.
    pub(crate) fn end(&mut self, clock: u64) {
        self.end = Some(clock);
    }

    /// Takes what the engine has counted of the process since it began to be sampled.
    pub(crate) fn counted(&mut self, ns: u64) {
        // Its earlier programs had their part.
        let before = self.clock.0.saturating_sub(self.origin);
        self.counted_ns = Some(ns.saturating_sub(before));
    }

    /// Takes what its clock said when somebody else read it.
    pub fn used(&mut self, clock: u64) {
        self.clock.1 = self.clock.1.max(clock.min(MOST_NS));
    }

    /// Takes what its clock says now, and compares it with what is known.
    pub(super) fn compare(&mut self, now: u64) {
        let now = self.end.map_or(now, |end| end.min(now));
        self.clock.1 = self.clock.1.max(now);
        let read = self.clock.1.saturating_sub(self.clock.0);
        self.compared = (read, self.known_ns());
    }

    /// Makes what samples stand for add up to what its clock said, if that was less.
    ///
    /// The kernel's events count the time for which a thread had a processor, even if interrupts
    /// used it, or another machine did: a process's clock counts neither. A difference below a
    /// 200th, or of less than a second of samples, may be the time between two readings; one above
    /// a tenth has another cause.
    pub(super) fn reconcile(&mut self) {
        const LEAST_NS: u64 = 1_000_000_000;
        let (read, known) = self.compared;
        let earlier = self.clock.0.saturating_sub(self.origin);
        let differs = read < known - known / 200 && read > known - known / 10;
        // An error in the times of earlier programs is one in this one's.
        if !differs || known < LEAST_NS || earlier > known || self.counts.waiting_ns > 0 {
            return;
        }
        let scaled = |ns: u64| (u128::from(ns) * u128::from(read) / u128::from(known)) as u64;
        let apart = self.counts.ns.saturating_sub(self.stacks.ns());
        self.stacks.each_ns(|ns| *ns = scaled(*ns));
        self.counts.ns = self.stacks.ns() + scaled(apart);
        for ns in [&mut self.counts.rest_ns, &mut self.counts.hidden_ns] {
            *ns = scaled(*ns);
        }
        self.counted_ns = self.counted_ns.map(scaled);
        self.compared = (read, self.known_ns());
    }

    /// Takes a guess at time in the kernel, which may not be more than there is.
    pub(crate) fn hide(&mut self, ns: u64) {
        self.counts.hidden_ns += ns.min(self.cpu_ns() - self.known_ns());
    }

    /// Reads its clock: the CPU time that it used since it began to be sampled, in all programs.
    pub(crate) fn elapsed_ns(&mut self) -> u64 {
        if let Some(now) = proc::cpu_ns(self.pid) {
            self.clock.1 = self.clock.1.max(now);
        }
        self.clock.1.saturating_sub(self.origin)
    }

    pub(super) fn known_ns(&self) -> u64 {
        self.counts.ns + self.counts.rest_ns + self.counts.hidden_ns
    }

    /// The part of it that no sample stands for, and that was not hidden.
    #[must_use]
    pub fn unsampled_ns(&self) -> u64 {
        self.cpu_ns() - self.counts.ns - self.counts.hidden_ns
    }
}
