//! One waiting thread: where it sleeps, and its samples.

use std::io;
use std::time::{Duration, Instant};

use super::Waiting;
use super::clock::{Clock, Meter};
use crate::memory::Copied;
use crate::recording::{Process, Recording, Sample, StackId, Time};
use crate::registers::Live;
use crate::stacks::Count;
use proc::Reread;

/// Initial and maximum size of stack copies in bytes.
const INITIAL_STACK_BYTES: usize = 16 << 10;
const MAX_STACK_BYTES: usize = 8 << 20;

/// Thread that is observed.
pub(super) struct Thread {
    pub(super) pid: i32,
    /// File with its CPU time, its time in run queues, and how often it was given a processor.
    clock: Reread,
    /// File that says where it sleeps.
    place: Reread,
    meter: Meter,
    /// Last sample of a sleep, if there is one.
    slept: Option<Slept>,
    /// Stack in the recording that counts its time in run queues.
    queue: Option<StackId>,
    /// Size of copies of its stack, in bytes.
    stack: usize,
}

/// Sample of a sleep.
struct Slept {
    /// Contents of `place`.
    text: Vec<u8>,
    /// Number of times the thread had been given a processor.
    turns: u64,
    /// Stack in the recording.
    stack: StackId,
}

impl Thread {
    pub(super) fn new(pid: i32, tid: i32) -> io::Result<Self> {
        let open = |name| Reread::new(format!("/proc/{pid}/task/{tid}/{name}"));
        let clock = open("schedstat")?;
        Ok(Self {
            pid,
            meter: Meter::new(Clock::read(&clock)?, Instant::now()),
            clock,
            place: open("syscall")?,
            slept: None,
            queue: None,
            stack: INITIAL_STACK_BYTES,
        })
    }

    /// Reads its times.
    pub(super) fn read_times(&mut self) -> io::Result<()> {
        self.meter.last = (Clock::read(&self.clock)?, Instant::now());
        Ok(())
    }

    /// Counts the time that has no sample and will get none.
    pub(super) fn settle(&mut self, recording: &mut Recording) {
        let left = self.meter.asleep() + self.meter.queued();
        self.meter = Meter::new(self.meter.last.0, self.meter.last.1);
        if let Some(process) = recording.process(self.pid) {
            process.counts.waited_ns += left.as_nanos() as u64;
        }
    }

    /// Takes a sample, if one is due. `exe`: the file that its process executes.
    pub(super) fn look(
        &mut self,
        tid: i32,
        exe: Option<(u64, u64)>,
        period: Duration,
        buffer: &mut Vec<u8>,
        recording: &mut Recording,
    ) -> io::Result<()> {
        self.read_times()?;
        if recording.process(self.pid).is_some_and(Process::is_foreign) {
            return Ok(());
        }
        if self.meter.queued() >= period / 2 {
            self.count_queue(tid, recording);
        }
        // The thread has slept less than half a period since its last sample.
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
        let unchanged = unchanged.filter(|last| last.text == text[..len] && last.turns == turns);
        if let Some(last) = unchanged
            && recording.again(self.pid, last.stack, ns)
        {
            self.meter.base = self.meter.last;
            return Ok(());
        }
        // If the process executes another program, its code is not known yet.
        if exe.is_some() && proc::executable(self.pid).is_some_and(|now| Some(now) != exe) {
            return Ok(());
        }
        self.sample(tid, &text[..len], &place, buffer, recording);
        Ok(())
    }

    /// Takes a sample of where it sleeps and has slept since it last ran.
    fn sample(
        &mut self,
        tid: i32,
        text: &[u8],
        place: &Place,
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
            // The thread has run meanwhile, so the values may be of two moments.
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
            self.slept = Some(Slept {
                text: text.to_vec(),
                turns,
                stack: taken.place,
            });
        }
        if memory.is_short && read == self.stack {
            self.stack = (self.stack * 2).min(MAX_STACK_BYTES);
        }
    }

    /// Takes a sample of its time in run queues. There is no stack that would be of interest.
    fn count_queue(&mut self, tid: i32, recording: &mut Recording) {
        let ns = self.meter.queued().as_nanos() as u64;
        let known = self.queue;
        if !known.is_some_and(|place| recording.again(self.pid, place, ns)) {
            let Some(process) = recording.process(self.pid) else {
                return;
            };
            // Ids are reused, so the last one counts; 0: the thread has no number yet.
            let numbered = process.threads.iter().rposition(|(known, _)| *known == tid);
            let thread = numbered.map_or(0, |at| at as u32 + 1);
            let count = Count { samples: 1, ns };
            let frames = std::iter::once(Waiting::QUEUE);
            let (place, _) = process.stacks.add(thread, frames, count);
            process.counts.samples += 1;
            process.counts.waiting_ns += ns;
            // Not cached until the thread has a number.
            self.queue = numbered.map(|_| (process.serial, place));
        }
        self.meter.queued_ns = self.meter.last.0.queued_ns;
    }

    /// Returns where it sleeps, and the length of the file's contents. Returns `None` if it does
    /// not sleep.
    fn asleep(&self, text: &mut [u8; 256]) -> Option<(usize, Place)> {
        let len = self.place.read(text).ok()?;
        Some((len, Place::parse(&text[..len])?))
    }
}

/// Stack pointer and program counter of a sleeping thread.
#[derive(Debug, PartialEq)]
struct Place {
    sp: u64,
    pc: u64,
}

impl Place {
    /// Parses `NUMBER ARGUMENT… SP PC`, or `-1 SP PC` outside system calls. Returns `None` for
    /// `running`.
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
