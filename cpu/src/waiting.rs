//! Waiting threads, observed without stopping them: the kernel shows where a thread sleeps
//! (`/proc/PID/task/TID/syscall`), and its stack does not change meanwhile.
//!
//! Each sample stands for the time that the thread waited since its last one. The time in which it
//! could have run, but was in a processor's run queue, is reported separately: it is not sleep.

use std::collections::HashMap;
use std::io;
use std::time::{Duration, Instant};

use crate::memory::Copied;
use crate::perf::Sampling;
use crate::proc::{self, Program, Reread};
use crate::programs::add_children;
use crate::recording::{Process, Recording, Sample, Time};
use crate::refusal::Refusal;
use crate::registers::Live;
use crate::stacks::Count;

/// Stack that is copied at first, and at most.
const FIRST_STACK: usize = 16 << 10;
const MOST_STACK: usize = 8 << 20;
/// Time between looks for new threads.
const SEARCH: Duration = Duration::from_millis(50);
/// A look for children, which reads all processes, takes at most this part of the time.
const SEARCH_SHARE: u32 = 20;

struct Thread {
    pid: i32,
    /// Its CPU time, its time in queues, and how often it was given a processor.
    clock: Reread,
    /// Where it sleeps.
    place: Reread,
    meter: Meter,
    /// Where it slept at its last sample, how often it had run by then, and its place in the table.
    slept: Option<(Vec<u8>, u64, (u64, u32))>,
    /// The place in the table of its time in queues.
    queue: Option<(u64, u32)>,
    /// Its stack's copies have this size.
    stack: usize,
}

/// What `schedstat` says of a thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Clock {
    /// CPU time.
    ns: u64,
    /// Time in queues of processors.
    queued_ns: u64,
    /// How often it was given a processor.
    turns: u64,
}

impl Clock {
    fn read(file: &Reread) -> io::Result<Self> {
        let mut text = [0; 96];
        let read = file.read(&mut text)?;
        Self::parse(&text[..read]).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut numbers = text.split_ascii_whitespace().map(str::parse);
        let mut number = || numbers.next()?.ok();
        Some(Self {
            ns: number()?,
            queued_ns: number()?,
            turns: number()?,
        })
    }
}

/// How long a thread waited. It counts from the last sample on, not from one reading to the next:
/// the kernel adds time in a queue when that is over, and running time whenever it chooses.
struct Meter {
    /// At the last sample of a sleep.
    base: (Clock, Instant),
    /// At the last look.
    last: (Clock, Instant),
    /// Its time in queues that has samples.
    queued_ns: u64,
}

impl Meter {
    fn new(clock: Clock, now: Instant) -> Self {
        Self {
            base: (clock, now),
            last: (clock, now),
            queued_ns: clock.queued_ns,
        }
    }

    /// Time asleep without a sample.
    fn asleep(&self) -> Duration {
        let ((from, start), (to, end)) = (self.base, self.last);
        let ran = to.ns.saturating_sub(from.ns);
        let queued = to.queued_ns.saturating_sub(from.queued_ns);
        let awake = Duration::from_nanos(ran.saturating_add(queued));
        end.saturating_duration_since(start).saturating_sub(awake)
    }

    /// Time in queues without a sample.
    fn queued(&self) -> Duration {
        Duration::from_nanos(self.last.0.queued_ns.saturating_sub(self.queued_ns))
    }
}

/// The program that a process ran at the last search.
struct Known {
    program: Program,
    /// Its number in the recording.
    serial: u64,
    /// Another one was seen, which has not been reported yet.
    is_doubtful: bool,
}

/// The engine.
pub struct Waiting {
    period: Duration,
    threads: HashMap<i32, Thread>,
    programs: HashMap<i32, Known>,
    /// Whether children are looked for: the better engine, which attaches to nothing when it
    /// starts a program, reports them itself.
    children: bool,
    is_attached: bool,
    next: Instant,
    searched: Option<Instant>,
    /// When children are looked for again.
    next_children: Instant,
    buffer: Vec<u8>,
}

impl Waiting {
    /// Stands in stacks for the queue of a processor.
    pub const QUEUE: u64 = 0x500;

    /// Nothing is examined yet.
    #[must_use]
    pub fn new(sampling: Sampling) -> Self {
        Self {
            period: Duration::from_secs(1) / sampling.rate.max(1),
            threads: HashMap::new(),
            programs: HashMap::new(),
            children: sampling.children,
            is_attached: false,
            next: Instant::now(),
            searched: None,
            next_children: Instant::now(),
            buffer: Vec::new(),
        }
    }

    /// Looks at a process from now on, if that is allowed.
    pub fn attach(&mut self, pid: i32) -> Result<(), Refusal> {
        if let Some(refusal) = Refusal::of_tracing(pid) {
            return Err(refusal);
        }
        match self.search(pid) {
            Ok(()) if self.threads.values().any(|thread| thread.pid == pid) => {}
            Ok(()) if proc::is_over(pid) => return Err(Refusal::Gone { pid }),
            Ok(()) => {
                let error = "this kernel has no schedstat or syscall there";
                let error = io::Error::new(io::ErrorKind::NotFound, error);
                return Err(Refusal::Proc { pid, error });
            }
            Err(error) if proc::is_full(&error) => {
                let threads = self.threads.len();
                return Err(Refusal::Files { threads });
            }
            Err(error) => return Err(Refusal::of_proc(pid, error)),
        }
        self.is_attached = true;
        Ok(())
    }

    /// When [`collect`](Self::collect) is due.
    #[must_use]
    pub fn due(&self) -> Duration {
        self.next.saturating_duration_since(Instant::now())
    }

    /// Looks at all threads.
    pub fn collect(&mut self, recording: &mut Recording) {
        if Instant::now() < self.next {
            return;
        }
        self.next = Instant::now() + self.period;
        if self.searched.is_none_or(|at| at.elapsed() >= SEARCH) {
            self.searched = Some(Instant::now());
            self.search_all(recording);
        }
        let (buffer, period, programs) = (&mut self.buffer, self.period, &self.programs);
        self.threads.retain(|&tid, thread| {
            let exe = programs.get(&thread.pid).map(|known| known.program.exe);
            match thread.look((tid, exe), period, buffer, recording) {
                Err(error) if proc::is_gone(&error) => {
                    thread.settle(recording);
                    if let Some(process) = recording.process(thread.pid) {
                        process.thread_ended(tid);
                    }
                    false
                }
                // Without a descriptor there is only less to see: the next look makes up for it.
                _ => true,
            }
        });
    }

    /// Counts what has no sample yet.
    pub fn finish(&mut self, recording: &mut Recording) {
        for thread in self.threads.values_mut() {
            // For one that has just ended, what is known counts.
            let _ = thread.pass();
            thread.settle(recording);
        }
    }

    fn search_all(&mut self, recording: &mut Recording) {
        if self.children && self.is_attached && Instant::now() >= self.next_children {
            let start = Instant::now();
            add_children(recording);
            self.next_children = Instant::now() + start.elapsed() * SEARCH_SHARE;
        }
        for pid in recording.pids() {
            self.notice(pid, recording);
            // What cannot be read now may be the next time.
            let _ = self.search(pid);
            // A first thread that ends stays in the list, and waits for nothing.
            if self.threads.contains_key(&pid)
                && capture::living_thread(pid) != pid
                && let Some(mut first) = self.threads.remove(&pid)
            {
                first.settle(recording);
            }
        }
        self.programs
            .retain(|pid, _| recording.process(*pid).is_some());
    }

    /// Takes in the threads of a process that are new.
    fn search(&mut self, pid: i32) -> io::Result<()> {
        let has_first = capture::living_thread(pid) == pid;
        for tid in proc::try_threads(pid)? {
            if self.threads.contains_key(&tid) || tid == pid && !has_first {
                continue;
            }
            match Thread::new(pid, tid) {
                Ok(thread) => {
                    self.threads.insert(tid, thread);
                }
                Err(error) if proc::is_gone(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Notices that a process executes another program. An engine that reports that itself may not
    /// have processed it yet, so it is given time until the next search; meanwhile there are no
    /// samples of the process.
    fn notice(&mut self, pid: i32, recording: &mut Recording) {
        let Some(program) = proc::program(pid) else {
            return;
        };
        let Some(serial) = recording.process(pid).map(|process| process.serial) else {
            return;
        };
        let seen = Known {
            program,
            serial,
            is_doubtful: false,
        };
        let Some(known) = self.programs.get_mut(&pid) else {
            self.programs.insert(pid, seen);
            return;
        };
        if known.program == program || known.serial != serial {
            *known = seen;
        } else if known.program.start != program.start {
            // The pid is another process's by now.
            self.programs.remove(&pid);
            self.leave(pid, recording);
            recording.ended(pid);
        } else if !known.is_doubtful {
            known.is_doubtful = true;
        } else {
            self.leave(pid, recording);
            recording.executed(pid);
            let serial = recording.process(pid).map_or(serial, |new| new.serial);
            self.programs.insert(pid, Known { serial, ..seen });
        }
    }

    /// Counts what there is of the threads of a process, and looks at them no longer.
    fn leave(&mut self, pid: i32, recording: &mut Recording) {
        self.threads.retain(|_, thread| {
            let stays = thread.pid != pid;
            if !stays {
                thread.settle(recording);
            }
            stays
        });
    }
}

impl Thread {
    fn new(pid: i32, tid: i32) -> io::Result<Self> {
        let open = |name| Reread::new(format!("/proc/{pid}/task/{tid}/{name}"));
        let clock = open("schedstat")?;
        Ok(Self {
            pid,
            meter: Meter::new(Clock::read(&clock)?, Instant::now()),
            clock,
            place: open("syscall")?,
            slept: None,
            queue: None,
            stack: FIRST_STACK,
        })
    }

    /// Reads its clock.
    fn pass(&mut self) -> io::Result<()> {
        self.meter.last = (Clock::read(&self.clock)?, Instant::now());
        Ok(())
    }

    /// Counts the time that has no sample, and will have none.
    fn settle(&mut self, recording: &mut Recording) {
        let left = self.meter.asleep() + self.meter.queued();
        self.meter = Meter::new(self.meter.last.0, self.meter.last.1);
        if let Some(process) = recording.process(self.pid) {
            process.counts.waited_ns += left.as_nanos() as u64;
        }
    }

    /// Makes a sample of what it does, if it is due. `exe`: what its process executes.
    fn look(
        &mut self,
        (tid, exe): (i32, Option<(u64, u64)>),
        period: Duration,
        buffer: &mut Vec<u8>,
        recording: &mut Recording,
    ) -> io::Result<()> {
        self.pass()?;
        if recording.process(self.pid).is_some_and(Process::is_foreign) {
            return Ok(());
        }
        if self.meter.queued() >= period / 2 {
            self.count_queue(tid, recording);
        }
        // Less is left of a turn.
        if self.meter.asleep() < period / 2 {
            return Ok(());
        }
        let mut text = [0; 256];
        let Some((len, place)) = self.asleep(&mut text) else {
            return Ok(());
        };
        let ns = self.meter.asleep().as_nanos() as u64;
        let turns = self.meter.last.0.turns;
        let unchanged = self.slept.as_ref();
        let unchanged = unchanged.filter(|(at, then, _)| (&at[..], *then) == (&text[..len], turns));
        if let Some(&(_, _, node)) = unchanged
            && recording.again(self.pid, node, ns)
        {
            self.meter.base = self.meter.last;
            return Ok(());
        }
        // Its code is not known yet, if the process executes another program.
        if exe.is_some() && proc::executable(self.pid).is_some_and(|now| Some(now) != exe) {
            return Ok(());
        }
        self.sample(tid, (&text[..len], place), buffer, recording);
        Ok(())
    }

    /// Makes a sample of where it sleeps, and has slept since it last ran.
    fn sample(
        &mut self,
        tid: i32,
        (text, place): (&[u8], Place),
        buffer: &mut Vec<u8>,
        recording: &mut Recording,
    ) {
        let turns = self.meter.last.0.turns;
        buffer.resize(self.stack, 0);
        let read = capture::read_memory(self.pid, place.sp, buffer);
        let mut after = [0; 256];
        let same = self
            .asleep(&mut after)
            .is_some_and(|(n, _)| after[..n] == *text)
            && Clock::read(&self.clock).is_ok_and(|clock| clock.turns == turns);
        if !same {
            // It ran meanwhile: what was read may be of two moments.
            if let Some(process) = recording.process(self.pid) {
                process.counts.lost += 1;
            }
            return;
        }
        let live = Live::of_sleeper(place.sp, place.pc);
        let mut memory = Copied::new(place.sp, &buffer[..read]);
        let sleeps_in = proc::wchan(self.pid, tid);
        let kernel = sleeps_in.and_then(|name| recording.symbols().find(&name));
        let sample = Sample {
            pid: self.pid,
            tid,
            live: Some(&live),
            kernel: &mut kernel.into_iter(),
            script: None,
            ns: self.meter.asleep().as_nanos() as u64,
            time: Time::Waiting,
        };
        if let Some(taken) = recording.sample(sample, &mut memory) {
            self.meter.base = self.meter.last;
            self.slept = Some((text.to_vec(), turns, taken.place));
        }
        if memory.is_short && read == self.stack {
            self.stack = (self.stack * 2).min(MOST_STACK);
        }
    }

    /// Makes a sample of its time in queues: it has no stack that would say anything.
    fn count_queue(&mut self, tid: i32, recording: &mut Recording) {
        let ns = self.meter.queued().as_nanos() as u64;
        let known = self.queue;
        if !known.is_some_and(|place| recording.again(self.pid, place, ns)) {
            let Some(process) = recording.process(self.pid) else {
                return;
            };
            // The last one of this number, as numbers are used again; 0: it has none yet.
            let numbered = process.threads.iter().rposition(|(known, _)| *known == tid);
            let thread = numbered.map_or(0, |at| at as u32 + 1);
            let count = Count { samples: 1, ns };
            let frames = std::iter::once(Waiting::QUEUE);
            let (place, _) = process.stacks.add(thread, frames, count);
            process.counts.samples += 1;
            process.counts.waiting_ns += ns;
            // It is looked up again until the thread has a number.
            self.queue = numbered.map(|_| (process.serial, place));
        }
        self.meter.queued_ns = self.meter.last.0.queued_ns;
    }

    /// Where it sleeps, and the length of the text that says so; `None`: it does not.
    fn asleep(&self, text: &mut [u8; 256]) -> Option<(usize, Place)> {
        let len = self.place.read(text).ok()?;
        Some((len, Place::parse(&text[..len])?))
    }
}

/// A sleeper's stack pointer and program counter.
#[derive(Debug, PartialEq)]
struct Place {
    sp: u64,
    pc: u64,
}

impl Place {
    /// For `NUMBER ARGUMENT… SP PC`, or `-1 SP PC` outside system calls; `None`: `running`.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut last = text.split_ascii_whitespace().rev();
        let mut word = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        let (pc, sp) = (word()?, word()?);
        Some(Self { sp, pc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_has_three_numbers() {
        let clock = Clock {
            ns: 10,
            queued_ns: 20,
            turns: 3,
        };
        assert_eq!(Clock::parse(b"10 20 3\n"), Some(clock));
        for broken in [&b""[..], b"1 2", b"1 x 3", b"\xff 1 2"] {
            assert_eq!(Clock::parse(broken), None);
        }
    }

    #[test]
    fn the_queue_of_a_processor_is_no_sleep() {
        let start = Instant::now();
        let mut meter = Meter::new(Clock::default(), start);
        let ms = Duration::from_millis;
        // It is in a queue, which the kernel has not added yet, and is given a processor then.
        meter.last = (Clock::default(), start + ms(10));
        assert_eq!((meter.asleep(), meter.queued()), (ms(10), ms(0)));
        let clock = Clock {
            ns: 5_000_000,
            queued_ns: 12_000_000,
            turns: 1,
        };
        meter.last = (clock, start + ms(20));
        assert_eq!((meter.asleep(), meter.queued()), (ms(3), ms(12)));
        meter.queued_ns = 12_000_000;
        assert_eq!((meter.asleep(), meter.queued()), (ms(3), ms(0)));
        meter.base = meter.last;
        assert_eq!((meter.asleep(), meter.queued()), (ms(0), ms(0)));
    }

    #[test]
    fn an_execution_is_reported_once_and_not_at_once() {
        let pid = std::process::id() as i32;
        let mut recording = Recording::new(false);
        recording.add(pid);
        let serial = |recording: &mut Recording| recording.process(pid).map(|p| p.serial);
        let first = serial(&mut recording);
        let mut waiting = Waiting::new(Sampling {
            rate: 99,
            children: false,
        });
        waiting.notice(pid, &mut recording);
        let known = waiting.programs.get_mut(&pid).expect("a program");
        known.program.exe.1 += 1;
        waiting.notice(pid, &mut recording);
        assert_eq!(serial(&mut recording), first);
        waiting.notice(pid, &mut recording);
        let second = serial(&mut recording);
        assert_ne!(second, first);
        waiting.notice(pid, &mut recording);
        waiting.notice(pid, &mut recording);
        assert_eq!(serial(&mut recording), second);
        // Somebody else has reported it.
        let known = waiting.programs.get_mut(&pid).expect("a program");
        known.program.exe.1 += 1;
        recording.executed(pid);
        let third = serial(&mut recording);
        waiting.notice(pid, &mut recording);
        waiting.notice(pid, &mut recording);
        assert_eq!(serial(&mut recording), third);
        let known = waiting.programs.get_mut(&pid).expect("a program");
        known.program.start += 1;
        waiting.notice(pid, &mut recording);
        assert_eq!(serial(&mut recording), None);
    }

    #[test]
    fn a_sleepers_place_is_read() {
        let text = b"7 0x7ffe 0x1 0x0 0x0 0x0 0x0 0x7ffe01 0x7f02\n";
        let place = Place {
            sp: 0x7ffe01,
            pc: 0x7f02,
        };
        assert_eq!(Place::parse(text), Some(place));
        assert_eq!(
            Place::parse(b"-1 0x10 0x20\n"),
            Some(Place { sp: 0x10, pc: 0x20 })
        );
        assert_eq!(Place::parse(b"running\n"), None);
        assert_eq!(Place::parse(b""), None);
    }
}
