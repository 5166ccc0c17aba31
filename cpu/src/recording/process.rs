//! Recording of one program in one process: threads, stacks, times.

use super::{StackId, Time};
use crate::machine::Machine;
use crate::mixer::IntMap;
use crate::python::Python;
use crate::script::Script;
use crate::space::Space;
use crate::stacks::{Count, Stacks};

/// Maximum number of threads of a process whose stacks are recorded per thread.
const MAX_THREADS: usize = 1000;
/// Maximum plausible CPU time of a process, in nanoseconds.
const MAX_NS: u64 = 1 << 62;

/// Readings of a process's clock while one of its programs is sampled, in ns of CPU time.
#[derive(Clone, Copy)]
pub(super) struct ClockSpan {
    /// Value when sampling of the program started.
    pub(super) begun: u64,
    /// Value when it was last read.
    pub(super) last: u64,
}

impl ClockSpan {
    /// Returns the CPU time between the two readings.
    fn ns(self) -> u64 {
        self.last.saturating_sub(self.begun)
    }

    /// Adds a reading.
    fn update(&mut self, now: u64) {
        self.last = self.last.max(now);
    }
}

/// Comparison of a process's clock with what is accounted for, in ns.
#[derive(Clone, Copy, Default)]
struct Comparison {
    /// CPU time by the clock since sampling started.
    by_clock: u64,
    /// Part of it that was accounted for.
    accounted: u64,
}

/// Machine that a program was built for.
#[derive(Clone, Copy)]
enum ProgramMachine {
    /// Not determined yet.
    Unknown,
    /// This machine.
    Native,
    /// Another machine.
    Foreign(Machine),
}

impl ProgramMachine {
    fn foreign(self) -> Option<Machine> {
        match self {
            Self::Foreign(machine) => Some(machine),
            Self::Unknown | Self::Native => None,
        }
    }
}

/// Counts and times of a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Number of samples.
    pub samples: u64,
    /// CPU time that the samples stand for, in nanoseconds.
    pub ns: u64,
    /// Number of samples with a truncated stack, by [`unwind::Cause`].
    pub truncated: [u64; 6],
    /// Number of samples without a stack: 32-bit code in a 64-bit program.
    pub without_stack: u64,
    /// Number of samples whose stack did not fit into the tree.
    pub table_full: u64,
    /// CPU time in ns that no sample covers, mostly of threads after their last sample.
    pub rest_ns: u64,
    /// Time in ns that threads waited and that samples cover.
    pub waiting_ns: u64,
    /// Time in ns that threads waited and that no sample covers.
    pub waited_ns: u64,
    /// CPU time in ns in the kernel, if that may not be sampled.
    pub hidden_ns: u64,
    /// Number of samples that were due but are missing: the buffer was full, the signal came too
    /// late, or the stack changed while it was read.
    pub lost: u64,
    /// Maximum number of threads that blocked the sampling signal at one time.
    pub blocked: u64,
    /// True if some threads have no sampling timer, because the kernel gave them none.
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

    /// Returns the number of samples with a truncated stack.
    #[must_use]
    pub fn all_truncated(&self) -> u64 {
        self.truncated.iter().sum()
    }
}

/// One program in one process.
pub struct Process {
    /// Process id.
    pub pid: i32,
    /// Serial number among all recorded programs.
    pub serial: u64,
    /// Executable mappings.
    pub space: Space,
    /// Stacks: lookup addresses of user frames, addresses of kernel functions, and frames of
    /// `script`. Threads are numbered from 1 by their index in `threads`.
    pub stacks: Stacks,
    /// Lines of interpreter functions that appear in stacks.
    pub script: Script,
    /// Reader of interpreter frames.
    pub(super) python: Python,
    /// Threads that were sampled, with their names at that time.
    pub threads: Vec<(i32, Vec<u8>)>,
    /// Numbers of threads by thread id.
    numbers: IntMap<u64, u32>,
    /// Counts and times.
    pub counts: Counts,
    /// True if the process has exited or executes another program.
    pub is_over: bool,
    /// Readings of the process's clock.
    pub(super) clock: ClockSpan,
    /// CPU time of the process in ns when its sampling started, even if it ran another program
    /// then.
    pub(super) origin: u64,
    /// CPU time of the process in ns when its sampling ended; `None` before that.
    end: Option<u64>,
    /// CPU time in ns that the engine itself has counted, if it does.
    pub counted_ns: Option<u64>,
    /// State when the clock was last compared with what is accounted for.
    compared: Comparison,
    machine: ProgramMachine,
    /// True if a sample had the registers of a foreign machine.
    has_foreign_samples: bool,
    /// True if the user named the process.
    pub(super) is_named: bool,
    /// True if an earlier program of the process is part of the result.
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
            numbers: IntMap::default(),
            counts: Counts::default(),
            is_over: false,
            clock: ClockSpan {
                begun: clock,
                last: clock,
            },
            origin: clock,
            end: None,
            counted_ns: None,
            compared: Comparison::default(),
            machine: ProgramMachine::Unknown,
            has_foreign_samples: false,
            is_named: false,
            was_kept: false,
        }
    }

    /// Returns true if the program has samples. Samples of a program for another machine do not
    /// count: they were taken in the kernel during its exec, before the thread had the other
    /// machine's registers.
    #[must_use]
    pub fn is_sampled(&self) -> bool {
        self.counts.samples > 0 && !self.has_foreign_samples
    }

    /// Returns the program's machine if it is a foreign one. A program with samples counts as
    /// native: the process may have executed another program before the machine was determined.
    #[must_use]
    pub fn foreign(&self) -> Option<Machine> {
        self.machine.foreign().filter(|_| !self.is_sampled())
    }

    /// Determines the program's machine if that was not done yet.
    pub(super) fn determine_machine(&mut self) {
        if matches!(self.machine, ProgramMachine::Unknown) {
            self.machine = match Machine::foreign_to_us(self.pid) {
                Some(machine) => ProgramMachine::Foreign(machine),
                None => ProgramMachine::Native,
            };
        }
    }

    /// Returns true if the program is for another machine.
    pub(crate) fn is_foreign(&mut self) -> bool {
        self.determine_machine();
        self.foreign().is_some()
    }

    /// Returns true if the program is for another machine, given a sample with the registers of
    /// `machine`. If the process has exited before its machine was determined, that machine is
    /// assumed.
    pub(crate) fn is_foreign_by(&mut self, machine: Machine) -> bool {
        if matches!(self.machine, ProgramMachine::Unknown) && proc::has_exited(self.pid) {
            self.machine = ProgramMachine::Foreign(machine);
        }
        self.determine_machine();
        self.has_foreign_samples = self.machine.foreign().is_some();
        self.has_foreign_samples
    }

    /// Returns the CPU time used during sampling, in nanoseconds.
    #[must_use]
    pub fn cpu_ns(&self) -> u64 {
        let by_clock = self.clock.ns();
        by_clock
            .max(self.counted_ns.unwrap_or(0))
            .max(self.accounted_ns())
    }

    /// Returns the number of a thread in `threads`, counted from 1. Returns 0 for threads beyond
    /// the maximum, and for one that is exiting and has no thread id any more.
    pub(super) fn thread(&mut self, tid: i32) -> u32 {
        if tid <= 0 {
            return 0;
        }
        let key = u64::from(tid.cast_unsigned());
        if let Some(number) = self.numbers.get(&key) {
            return *number;
        }
        if self.threads.len() >= MAX_THREADS {
            return 0;
        }
        let name = proc::thread_name(self.pid, tid).unwrap_or_default();
        self.threads.push((tid, name));
        let number = self.threads.len() as u32;
        self.numbers.insert(key, number);
        number
    }

    /// Returns the number of a thread with this name, or 0 beyond the maximum.
    pub fn named_thread(&mut self, tid: i32, name: &[u8]) -> u32 {
        let key = u64::from(tid.cast_unsigned());
        if !self.numbers.contains_key(&key) && self.threads.len() < MAX_THREADS {
            self.threads.push((tid, name.to_vec()));
            self.numbers.insert(key, self.threads.len() as u32);
        }
        self.numbers.get(&key).copied().unwrap_or(0)
    }

    /// Handles the exit of a thread, whose id may be reused.
    pub(crate) fn thread_ended(&mut self, tid: i32) {
        self.numbers.remove(&u64::from(tid.cast_unsigned()));
    }

    pub(super) fn is_kept(&self) -> bool {
        self.is_named || self.is_sampled()
    }

    /// Returns true if the process was not named and nothing was recorded of it.
    pub(super) fn is_empty(&self) -> bool {
        !self.is_named && self.counts == Counts::default()
    }

    /// Adds CPU time to samples that were counted before their time was known: to the samples of a
    /// stack or, if that is `None`, to those without a stack.
    pub(crate) fn weigh(&mut self, stack: Option<StackId>, ns: u64) {
        match stack {
            Some((serial, node)) if serial == self.serial => {
                self.counts.ns += ns;
                self.stacks.add_to(node, Count { samples: 0, ns });
            }
            _ => self.counts.rest_ns += ns,
        }
    }

    /// Returns the value of the process's clock when sampling started, in ns.
    #[must_use]
    pub fn start_clock(&self) -> u64 {
        self.clock.begun
    }

    /// Sets the value of the process's clock when sampling started, in ns.
    pub fn set_start_clock(&mut self, clock: u64) {
        self.clock = ClockSpan {
            begun: clock,
            last: clock,
        };
        self.origin = clock;
    }

    /// Sets the value of the process's clock when sampling ended, in ns.
    pub(crate) fn set_end_clock(&mut self, clock: u64) {
        self.end = Some(clock);
    }

    /// Sets the CPU time that the engine has counted since the process's sampling started.
    pub(crate) fn set_counted(&mut self, ns: u64) {
        // Earlier programs of the process have used a part of it.
        let before = self.clock.begun.saturating_sub(self.origin);
        self.counted_ns = Some(ns.saturating_sub(before));
    }

    /// Sets the value of the process's clock in ns, as read by the caller.
    pub fn set_clock(&mut self, clock: u64) {
        self.clock.update(clock.min(MAX_NS));
    }

    /// Sets the current value of the process's clock in ns, and remembers how much of it is
    /// accounted for.
    pub(super) fn compare(&mut self, now: u64) {
        let now = self.end.map_or(now, |end| end.min(now));
        self.clock.update(now);
        self.compared = Comparison {
            by_clock: self.clock.ns(),
            accounted: self.accounted_ns(),
        };
    }

    /// Scales samples down to the CPU time of the process's clock, if that is less.
    ///
    /// The kernel's events count all time for which a thread had a processor, even if interrupts or
    /// another virtual machine used it; a process's clock does not. Differences below a 200th, or
    /// with less than a second of samples, may only be due to the time between two readings.
    /// Differences above a tenth have another cause. In both cases, nothing is scaled.
    pub(super) fn reconcile(&mut self) {
        const MIN_COMPARED_NS: u64 = 1_000_000_000;
        let Comparison {
            by_clock,
            accounted,
        } = self.compared;
        let earlier = self.clock.begun.saturating_sub(self.origin);
        let differs =
            by_clock < accounted - accounted / 200 && by_clock > accounted - accounted / 10;
        // An error in earlier programs' times would distort this one's.
        if !differs
            || accounted < MIN_COMPARED_NS
            || earlier > accounted
            || self.counts.waiting_ns > 0
        {
            return;
        }
        let scaled =
            |ns: u64| (u128::from(ns) * u128::from(by_clock) / u128::from(accounted)) as u64;
        let outside_stacks = self.counts.ns.saturating_sub(self.stacks.ns());
        self.stacks.each_ns(|ns| *ns = scaled(*ns));
        self.counts.ns = self.stacks.ns() + scaled(outside_stacks);
        for ns in [&mut self.counts.rest_ns, &mut self.counts.hidden_ns] {
            *ns = scaled(*ns);
        }
        self.counted_ns = self.counted_ns.map(scaled);
        self.compared.accounted = self.accounted_ns();
    }

    /// Adds an estimate of time in the kernel, limited by the time that is not accounted for.
    pub(crate) fn add_hidden_ns(&mut self, ns: u64) {
        self.counts.hidden_ns += ns.min(self.cpu_ns() - self.accounted_ns());
    }

    /// Reads the process's clock. Returns the CPU time in ns since sampling of the process started,
    /// over all its programs.
    pub(crate) fn elapsed_ns(&mut self) -> u64 {
        if let Some(now) = proc::cpu_ns(self.pid) {
            self.clock.update(now);
        }
        self.clock.last.saturating_sub(self.origin)
    }

    /// Returns the CPU time in ns that is accounted for.
    pub(super) fn accounted_ns(&self) -> u64 {
        self.counts.ns + self.counts.rest_ns + self.counts.hidden_ns
    }

    /// Returns the CPU time in ns that no sample covers and that was not hidden.
    #[must_use]
    pub fn unsampled_ns(&self) -> u64 {
        self.cpu_ns() - self.counts.ns - self.counts.hidden_ns
    }
}
