//! Recorded samples, by process and program.

mod process;

use std::collections::{BTreeMap, HashMap};

use unwind::Cause;
use unwind::stack::Memory;

use crate::kernel::Symbols;
use crate::machine::Machine;
use crate::python;
use crate::registers::LiveRegisters;
use crate::space::{Range, Space};
use crate::stacks::Count;
use crate::walk::Unwinder;

pub use process::{Counts, Process};

/// Outermost frame of a truncated stack.
pub const TRUNCATED: u64 = 0x100;
/// Only frame of the stacks that did not fit into the tree.
pub const TABLE_FULL: u64 = 0x101;
/// Only kernel frame if the kernel's functions are not known.
pub const KERNEL: u64 = u64::MAX;
/// Lowest address of the kernel.
pub const FIRST_OF_KERNEL: u64 = 1 << 63;

/// Stack in a recording: serial number of the program, and node in the program's tree.
pub type StackId = (u64, u32);

/// Sample, as taken by any engine.
pub struct Sample<'a> {
    /// Process id.
    pub pid: i32,
    /// Thread id.
    pub tid: i32,
    /// Registers of the thread; `None` if they cannot be used.
    pub live: Option<&'a LiveRegisters>,
    /// Kernel frames, innermost first.
    pub kernel: &'a mut dyn Iterator<Item = u64>,
    /// Interpreter frames, if these were read.
    pub script: Option<python::PythonFrames>,
    /// Time that the sample stands for, in nanoseconds.
    pub ns: u64,
    /// Kind of that time.
    pub time: Time,
}

/// State of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Time {
    /// Running on a processor.
    Running,
    /// Waiting.
    Waiting,
}

/// Result of recording a sample.
#[derive(Clone, Copy, Debug)]
pub struct Recorded {
    /// Serial number of the program, and node of the stack in its tree.
    pub stack: StackId,
    /// Reason why the stack is truncated, or `None` if it is complete.
    pub cut: Option<Cause>,
}

/// Processes without a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unsampled {
    /// Number of processes.
    pub processes: u64,
    /// CPU time in nanoseconds of these processes, and of programs without a sample in other
    /// processes.
    pub ns: u64,
}

/// Result of a recording.
pub struct RecordingResult {
    /// Programs that were sampled or named by the user, in the order in which they ended.
    pub processes: Vec<Process>,
    /// All other processes.
    pub unsampled: Unsampled,
    /// Unsampled programs for other machines: for each machine, the pid of one of them and their
    /// number.
    pub foreign: BTreeMap<Machine, (i32, usize)>,
    /// Functions of the kernel.
    pub symbols: Symbols,
}

/// Recording of samples.
#[derive(Default)]
pub struct Recording {
    /// Processes that have not exited, with the programs that they run, by pid.
    processes: HashMap<i32, Process>,
    /// Programs that have ended and are part of the result.
    ended: Vec<Process>,
    unsampled: Unsampled,
    /// Unsampled programs for other machines; see [`RecordingResult::foreign`].
    foreign: BTreeMap<Machine, (i32, usize)>,
    /// Serial numbers of programs that were dropped since the last [`Self::take_dropped`].
    dropped: Vec<u64>,
    unwinder: Unwinder,
    /// Symbols of interpreters.
    interpreters: python::Files,
    /// Functions of the kernel.
    symbols: Symbols,
    /// Buffer for the frames of a sample.
    frames: Vec<u64>,
    /// Number of programs so far.
    serial: u64,
    /// True if children of recorded processes are recorded too.
    children: bool,
}

impl Recording {
    /// Starts an empty recording. If `children`, children of recorded processes are recorded too.
    #[must_use]
    pub fn new(children: bool) -> Self {
        Self {
            symbols: Symbols::read(),
            children,
            ..Self::default()
        }
    }

    /// Returns the functions of the kernel.
    #[must_use]
    pub fn symbols(&self) -> &Symbols {
        &self.symbols
    }

    /// Starts to record a process that the user named. It is part of the result even without
    /// samples.
    pub fn add(&mut self, pid: i32) {
        if !self.processes.contains_key(&pid) {
            let clock = proc::cpu_ns(pid).unwrap_or(0);
            let mut process = Process::new(pid, Space::of(pid), clock);
            process.is_named = true;
            self.insert(process);
        }
    }

    /// Starts to record a process that was created after the engine started.
    pub fn add_new(&mut self, pid: i32) {
        self.insert(Process::new(pid, Space::of(pid), 0));
    }

    /// Adds a process that has exited, so that its mappings cannot be read any more.
    pub fn add_dead(&mut self, pid: i32) {
        self.insert(Process::new(pid, Space::empty(pid), 0));
    }

    /// Starts to record a process whose creation was missed. Returns true if it still exists.
    pub(crate) fn adopt(&mut self, pid: i32) -> bool {
        let space = Space::of(pid);
        let exists = !space.ranges().is_empty();
        if exists {
            self.insert(Process::new(pid, space, 0));
        }
        exists
    }

    /// Counts CPU time of an unknown process.
    pub(crate) fn count_unrecorded(&mut self, ns: u64) {
        self.unsampled.ns = self.unsampled.ns.saturating_add(ns);
    }

    /// Returns the processes without a sample that have exited so far.
    #[must_use]
    pub fn unsampled(&self) -> Unsampled {
        self.unsampled
    }

    /// Returns the serial numbers of programs that were dropped since the last call.
    pub fn take_dropped(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.dropped)
    }

    fn insert(&mut self, mut process: Process) {
        self.serial += 1;
        process.serial = self.serial;
        self.processes.insert(process.pid, process);
    }

    /// Returns the recorded processes that have not exited.
    pub fn running(&self) -> impl Iterator<Item = &Process> {
        self.processes.values()
    }

    /// Returns the pids of the recorded processes, in no particular order.
    pub fn pids(&self) -> Vec<i32> {
        self.processes.keys().copied().collect()
    }

    /// Returns a process for modification.
    pub fn process(&mut self, pid: i32) -> Option<&mut Process> {
        self.processes.get_mut(&pid)
    }

    /// Records a sample, if its process is recorded.
    pub fn sample(&mut self, sample: Sample<'_>, memory: &mut impl Memory) -> Option<Recorded> {
        let process = self.processes.get_mut(&sample.pid)?;
        let counts = &mut process.counts;
        self.frames.clear();
        for address in sample.kernel {
            match self.symbols.start(address) {
                Some(start) => self.frames.push(start),
                None if self.frames.last() == Some(&KERNEL) => {}
                None => self.frames.push(KERNEL),
            }
        }
        let mut cut = None;
        let in_kernel = !self.frames.is_empty();
        match sample.live {
            None => counts.without_stack += 1,
            // The thread is in an exec call: the program that made the call no longer exists.
            Some(live) if in_kernel && process.space.find(live.pc()).is_none() => {}
            Some(live) => {
                let walked = self.unwinder.walk(&mut process.space, live, memory);
                let script = &mut process.script;
                let python_frames = sample.script.unwrap_or_default();
                process
                    .python
                    .merge(python_frames, walked.frames, script, &mut self.frames);
                cut = walked.cut;
            }
        }
        if let Some(cause) = cut {
            counts.truncated[cause as usize] += 1;
            self.frames.push(TRUNCATED);
        }
        let count = Count {
            samples: 1,
            ns: sample.ns,
        };
        counts.add(sample.time, sample.ns);
        let thread = process.thread(sample.tid);
        let frames = self.frames.iter().rev().copied();
        let (node, fits) = process.stacks.add(thread, frames, count);
        process.counts.table_full += u64::from(!fits);
        let stack = (process.serial, node);
        Some(Recorded { stack, cut })
    }

    /// Counts time of a thread that still waits with the same stack as at its last sample. Returns
    /// true if its process is still recorded.
    pub(crate) fn count_repeat(&mut self, pid: i32, stack: StackId, ns: u64) -> bool {
        let (serial, node) = stack;
        match self.processes.get_mut(&pid) {
            Some(process) if process.serial == serial => {
                process.counts.add(Time::Waiting, ns);
                process.stacks.add_to(node, Count { samples: 1, ns });
                true
            }
            _ => false,
        }
    }

    /// Returns the recorded processes and their descendants, which are recorded from now on.
    pub(crate) fn family(&mut self) -> Vec<i32> {
        let mut parents: Vec<(i32, i32)> = proc::parents();
        // A child usually has a larger pid than its parent, so parents come first. Other children
        // are found next time.
        parents.sort_unstable();
        for (pid, parent) in parents {
            if !self.processes.contains_key(&pid) {
                self.handle_fork(pid, parent);
            }
        }
        self.processes.keys().copied().collect()
    }

    /// Drops a process and what was recorded of it.
    pub fn forget(&mut self, pid: i32) {
        let process = self.processes.remove(&pid);
        self.dropped.extend(process.map(|process| process.serial));
    }

    /// Handles a new executable mapping.
    pub fn handle_mapping(&mut self, pid: i32, range: Range) {
        if let Some(process) = self.processes.get_mut(&pid) {
            let address = range.start;
            let is_large = range.is_large();
            process.space.map(range);
            if is_large {
                self.unwinder.prepare(&mut process.space, address);
            }
        }
    }

    /// Returns the reader for interpreter frames in a process whose threads are stopped one by one,
    /// or `None` if it has no interpreter.
    pub(crate) fn python(&mut self, pid: i32) -> Option<python::Shared> {
        let process = self.processes.get_mut(&pid)?;
        let python = &mut process.python;
        let space = &mut process.space;
        if let Some((address, names)) = python.find_interpreter(space, &mut self.interpreters) {
            self.unwinder.prepare(space, address);
            let bias = space.module(address + 1)?.bias;
            python.set_interpreter(space, &names, bias, &mut process.script);
        }
        python.prepare_reader(&mut process.script)
    }

    /// Reads large unwind tables before the first sample. If they were read during a sample, the
    /// part of the stack beyond the copy would have changed by then.
    pub fn prepare(&mut self, pid: i32) {
        if let Some(process) = self.processes.get_mut(&pid) {
            for address in process.space.large_range_starts() {
                self.unwinder.prepare(&mut process.space, address);
            }
        }
    }

    /// Handles the creation of a process.
    pub fn handle_fork(&mut self, pid: i32, parent: i32) {
        if !self.children || pid == parent {
            return;
        }
        if let Some(parent) = self.processes.get(&parent) {
            let process = Process::new(pid, parent.space.copy_for_fork(pid), 0);
            match self.processes.get(&pid) {
                // A second event of its parent reports the same fork.
                Some(old) if old.is_empty() => self.forget(pid),
                // The pid was reused.
                _ => self.handle_exit(pid),
            }
            self.insert(process);
        }
    }

    /// Handles an exec.
    pub fn handle_exec(&mut self, pid: i32) {
        let Some(mut old) = self.processes.remove(&pid) else {
            return;
        };
        old.reconcile();
        // CPU time that is not accounted for yet is assigned to the new program.
        old.clock.last = old.clock.begun.saturating_add(old.accounted_ns());
        let mut new = Process::new(pid, Space::empty(pid), old.clock.last);
        new.origin = old.origin;
        // If the old program has no samples, the new one represents the process that the user
        // named.
        new.was_kept = old.was_kept || old.is_sampled();
        new.is_named = old.is_named && !old.is_sampled();
        old.is_named &= !new.is_named;
        old.is_over = true;
        self.store(old);
        self.insert(new);
    }

    /// Handles the exit of a process.
    pub fn handle_exit(&mut self, pid: i32) {
        if let Some(mut process) = self.processes.remove(&pid) {
            process.is_over = true;
            self.unsampled.processes += u64::from(!process.is_kept() && !process.was_kept);
            self.store(process);
        }
    }

    /// Stores a program that has ended. If it has no samples, only its time is kept, since shells
    /// start thousands of such processes.
    fn store(&mut self, process: Process) {
        if process.is_kept() {
            self.ended.push(process);
        } else {
            if let Some(machine) = process.foreign() {
                let known = self.foreign.entry(machine).or_insert((process.pid, 0));
                known.1 += 1;
            }
            self.count_unrecorded(process.cpu_ns());
            self.dropped.push(process.serial);
        }
    }

    /// Reads the clocks of all processes. Returns the pids of those that have exited.
    pub fn poll_exited(&mut self) -> Vec<i32> {
        let mut exited = Vec::new();
        for process in self.processes.values_mut() {
            if let Some(now) = proc::cpu_ns(process.pid) {
                process.compare(now);
            }
            if proc::has_exited(process.pid) {
                exited.push(process.pid);
            }
            process.determine_machine();
            process.space.allow_refresh();
        }
        exited
    }

    /// Ends the recording and returns the result.
    #[must_use]
    pub fn finish(mut self) -> RecordingResult {
        self.poll_exited();
        let mut running: Vec<Process> =
            self.processes.drain().map(|(_, process)| process).collect();
        running.sort_by_key(|process| process.pid);
        for process in running {
            self.unsampled.processes += u64::from(!process.is_kept() && !process.was_kept);
            self.store(process);
        }
        self.ended.iter_mut().for_each(Process::reconcile);
        RecordingResult {
            processes: self.ended,
            unsampled: self.unsampled,
            foreign: self.foreign,
            symbols: self.symbols,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pid that exceeds the kernel's maximum, so that no such process exists.
    const FIRST: i32 = (1 << 28) + 1;

    fn recording(named: &[i32]) -> Recording {
        let mut recording = Recording {
            children: true,
            ..Recording::default()
        };
        named.iter().for_each(|pid| recording.add(*pid));
        recording
    }

    fn count(recording: &mut Recording, pid: i32, samples: u64, rest_ns: u64) {
        let process = recording.process(pid).expect("a process");
        process.counts.samples += samples;
        process.counts.ns += samples * 10;
        process.counts.rest_ns += rest_ns;
    }

    #[test]
    fn unsampled_processes_are_summed_unless_named() {
        let mut recording = recording(&[FIRST]);
        for child in 1..=3 {
            recording.handle_fork(FIRST + child, FIRST);
            // A second record of the same fork.
            recording.handle_fork(FIRST + child, FIRST);
            count(&mut recording, FIRST + child, u64::from(child == 2), 5);
        }
        recording.handle_exit(FIRST + 1);
        recording.handle_exit(FIRST + 2);
        let one = Unsampled {
            processes: 1,
            ns: 5,
        };
        assert_eq!(recording.unsampled(), one);
        assert_eq!(recording.take_dropped(), [2, 4, 6, 3]);
        let ended = recording.finish();
        let pids: Vec<i32> = ended.processes.iter().map(|process| process.pid).collect();
        assert_eq!(pids, [FIRST + 2, FIRST]);
        let two = Unsampled {
            processes: 2,
            ns: 10,
        };
        assert_eq!(ended.unsampled, two);
    }

    #[test]
    fn a_named_process_is_kept_once_across_execs() {
        let mut recording = recording(&[FIRST, FIRST + 1]);
        count(&mut recording, FIRST, 0, 7);
        count(&mut recording, FIRST + 1, 2, 0);
        recording.handle_exec(FIRST);
        recording.handle_exec(FIRST + 1);
        let ended = recording.finish();
        let kept: Vec<_> = (ended.processes.iter())
            .map(|process| (process.pid, process.counts.samples))
            .collect();
        assert_eq!(kept, [(FIRST + 1, 2), (FIRST, 0)]);
        let rest = Unsampled {
            processes: 0,
            ns: 7,
        };
        assert_eq!(ended.unsampled, rest);
    }

    #[test]
    fn samples_are_scaled_down_to_the_process_clock() {
        const MS: u64 = 1_000_000;
        // Process clock, number of samples of 10 ms, and their expected sum: interrupts took 2 %; a
        // difference that may be due to the time between readings; a difference that must have
        // another cause; too few samples.
        for (clock, samples, expected) in [
            (1960 * MS, 200, 1960 * MS),
            (1995 * MS, 200, 2000 * MS),
            (1200 * MS, 200, 2000 * MS),
            (490 * MS, 50, 500 * MS),
        ] {
            let mut recording = recording(&[FIRST]);
            let process = recording.process(FIRST).expect("a process");
            for sample in 0..samples {
                let samples = 1;
                let ns = 10 * MS;
                let frames = [sample % 3].into_iter();
                process.stacks.add(1, frames, Count { samples, ns });
                process.counts.add(Time::Running, ns);
            }
            process.compare(clock);
            let mut ended = recording.finish();
            let process = ended.processes.pop().expect("a process");
            let mut sum = 0;
            process.stacks.each(|_, _, count| sum += count.ns);
            assert_eq!(sum, process.counts.ns);
            assert!(
                sum <= expected && sum > expected - 10,
                "{sum} for {expected}"
            );
            assert_eq!(process.cpu_ns(), clock.max(sum));
        }
    }

    #[test]
    fn each_program_is_scaled_by_its_own_time() {
        const MS: u64 = 1_000_000;
        let mut recording = recording(&[FIRST]);
        for (now, expected) in [(2940 * MS, 2940 * MS), (2942 * MS, 2 * MS)] {
            let process = recording.process(FIRST).expect("a process");
            let ns = if expected > 10 * MS {
                3000 * MS
            } else {
                expected
            };
            process
                .stacks
                .add(1, [7].into_iter(), Count { samples: 1, ns });
            process.counts.add(Time::Running, ns);
            process.compare(now);
            recording.handle_exec(FIRST);
        }
        let times: Vec<_> = (recording.finish().processes.iter())
            .map(|process| process.counts.ns)
            .collect();
        assert_eq!(times[..2], [2940 * MS, 2 * MS]);
    }

    #[test]
    fn the_engines_count_is_divided_among_a_processs_programs() {
        let mut recording = recording(&[FIRST]);
        count(&mut recording, FIRST, 3, 0);
        recording.handle_exec(FIRST);
        count(&mut recording, FIRST, 1, 0);
        let process = recording.process(FIRST).expect("a process");
        process.set_counted(100);
        assert_eq!(process.cpu_ns(), 70);
        // Not more is hidden than is unaccounted for.
        process.add_hidden_ns(80);
        assert_eq!((process.counts.hidden_ns, process.unsampled_ns()), (60, 0));
    }
}
