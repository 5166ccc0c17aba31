//! One thread: where it sleeps, and its samples.

use std::io;
use std::time::{Duration, Instant};

use super::Waiting;
use super::clock::{Clock, Meter};
use crate::memory::Copied;
use crate::recording::{Process, Recording, Sample, Time};
use crate::registers::Live;
use crate::stacks::Count;
use proc::Reread;

/// Stack that is copied at first, and at most.
const FIRST_STACK: usize = 16 << 10;
const MOST_STACK: usize = 8 << 20;

/// A thread that is looked at.
pub(super) struct Thread {
    pub(super) pid: i32,
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
            stack: FIRST_STACK,
        })
    }

    /// Reads its clock.
    pub(super) fn pass(&mut self) -> io::Result<()> {
        self.meter.last = (Clock::read(&self.clock)?, Instant::now());
        Ok(())
    }

    /// Counts the time that has no sample, and will have none.
    pub(super) fn settle(&mut self, recording: &mut Recording) {
        let left = self.meter.asleep() + self.meter.queued();
        self.meter = Meter::new(self.meter.last.0, self.meter.last.1);
        if let Some(process) = recording.process(self.pid) {
            process.counts.waited_ns += left.as_nanos() as u64;
        }
    }

    /// Makes a sample of what it does, if it is due. `exe`: what its process executes.
    pub(super) fn look(
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
