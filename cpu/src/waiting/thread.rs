//! Samples of one waiting thread.

use std::io;
use std::time::{Duration, Instant};

use super::Waiting;
use super::clock::{Clock, Meter, Reading};
use crate::continued::{Continued, RestBuffers};
use crate::memory::Copied;
use crate::recording::{Process, Recording, Sample, StackId, Time};
use crate::registers::LiveRegisters;
use crate::stacks::Count;
use proc::Reread;

/// Initial and maximum size of stack copies in bytes.
const INITIAL_STACK_BYTES: usize = 16 << 10;
const MAX_STACK_BYTES: usize = 8 << 20;

/// Buffers for the copy of a sleeping thread's stack.
#[derive(Default)]
pub(super) struct StackCopy {
    buffer: Vec<u8>,
    /// For what is read after the copy.
    rest: RestBuffers,
}

/// Thread that is observed.
pub(super) struct Thread {
    pub(super) pid: i32,
    /// File with its CPU time, its time in run queues, and how often it was given a processor.
    clock: Reread,
    /// `/proc/PID/task/TID/syscall`: where the thread sleeps.
    syscall: Reread,
    meter: Meter,
    /// Last sample of a sleep, if there is one.
    last_sleep: Option<SleepSample>,
    /// Stack in the recording that counts its time in run queues.
    queue_stack: Option<StackId>,
    /// Size of copies of its stack, in bytes.
    stack_bytes: usize,
}

/// Sample of a sleep.
struct SleepSample {
    /// Contents of the `syscall` file.
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
            meter: Meter::new(Reading {
                clock: Clock::read(&clock)?,
                at: Instant::now(),
            }),
            clock,
            syscall: open("syscall")?,
            last_sleep: None,
            queue_stack: None,
            stack_bytes: INITIAL_STACK_BYTES,
        })
    }

    /// Reads the thread's clocks.
    pub(super) fn read_times(&mut self) -> io::Result<()> {
        self.meter.last = Reading {
            clock: Clock::read(&self.clock)?,
            at: Instant::now(),
        };
        Ok(())
    }

    /// Counts the time that has no sample and will get none.
    pub(super) fn count_unsampled(&mut self, recording: &mut Recording) {
        let left = self.meter.time_asleep() + self.meter.time_queued();
        self.meter = Meter::new(self.meter.last);
        if let Some(process) = recording.process(self.pid) {
            process.counts.waited_ns += left.as_nanos() as u64;
        }
    }

    /// Takes a sample, if one is due. `exe` is the file that the thread's process executes, if
    /// known.
    pub(super) fn sample_if_due(
        &mut self,
        tid: i32,
        exe: Option<(u64, u64)>,
        period: Duration,
        copy: &mut StackCopy,
        recording: &mut Recording,
    ) -> io::Result<()> {
        self.read_times()?;
        if recording.process(self.pid).is_some_and(Process::is_foreign) {
            return Ok(());
        }
        if self.meter.time_queued() >= period / 2 {
            self.count_queue(tid, recording);
        }
        if self.meter.time_asleep() < period / 2 {
            return Ok(());
        }
        let mut text = [0; 256];
        let Some((len, position)) = self.sleep_position(&mut text) else {
            return Ok(());
        };
        let ns = self.meter.time_asleep().as_nanos() as u64;
        let turns = self.meter.last.clock.turns;
        if let Some(last) = &self.last_sleep
            && last.text == text[..len]
            && last.turns == turns
        {
            // The thread still sleeps where it did at its last sample.
            let is_counted = recording.count_repeat(self.pid, last.stack, ns);
            if is_counted {
                self.meter.base = self.meter.last;
                return Ok(());
            }
        }
        // If the process executes another program by now, that program's code is not known yet.
        if exe.is_some() && proc::executable(self.pid).is_some_and(|now| Some(now) != exe) {
            return Ok(());
        }
        self.sample(tid, &text[..len], &position, copy, recording);
        Ok(())
    }

    /// Samples the stack of the sleeping thread.
    fn sample(
        &mut self,
        tid: i32,
        text: &[u8],
        position: &Position,
        copy: &mut StackCopy,
        recording: &mut Recording,
    ) {
        let turns = self.meter.last.clock.turns;
        let StackCopy { buffer, rest } = copy;
        buffer.resize(self.stack_bytes, 0);
        let read = capture::read_memory(self.pid, position.sp, buffer);
        let mut after = [0; 256];
        let still_asleep = self
            .sleep_position(&mut after)
            .is_some_and(|(n, _)| after[..n] == *text)
            && Clock::read(&self.clock).is_ok_and(|clock| clock.turns == turns);
        if !still_asleep {
            // The thread has run since, so registers and stack may not belong together.
            if let Some(process) = recording.process(self.pid) {
                process.counts.lost += 1;
            }
            return;
        }
        let live = LiveRegisters::of_sleeper(position.sp, position.pc);
        let copied = Copied::new(position.sp, &buffer[..read]);
        let mut memory = Continued::new(copied, self.pid, rest);
        let kernel_function = proc::wchan(self.pid, tid);
        let kernel = kernel_function.and_then(|name| recording.symbols().find(&name));
        let sample = Sample {
            pid: self.pid,
            tid,
            live: Some(&live),
            kernel: &mut kernel.into_iter(),
            script: None,
            ns: self.meter.time_asleep().as_nanos() as u64,
            time: Time::Waiting,
        };
        if let Some(taken) = recording.sample(sample, &mut memory) {
            self.meter.base = self.meter.last;
            self.last_sleep = Some(SleepSample {
                text: text.to_vec(),
                turns,
                stack: taken.stack,
            });
        }
        if memory.is_short() && read == self.stack_bytes {
            self.stack_bytes = (self.stack_bytes * 2).min(MAX_STACK_BYTES);
        }
    }

    /// Takes a sample of the thread's time in run queues, without its stack.
    fn count_queue(&mut self, tid: i32, recording: &mut Recording) {
        let ns = self.meter.time_queued().as_nanos() as u64;
        let is_counted =
            (self.queue_stack).is_some_and(|stack| recording.count_repeat(self.pid, stack, ns));
        if !is_counted {
            let Some(process) = recording.process(self.pid) else {
                return;
            };
            // Thread ids are reused, so the last entry counts. Number 0 stands for a thread that
            // has no entry yet.
            let index = process.threads.iter().rposition(|(known, _)| *known == tid);
            let thread = index.map_or(0, |index| index as u32 + 1);
            let count = Count { samples: 1, ns };
            let frames = std::iter::once(Waiting::QUEUE);
            let (node, _) = process.stacks.add(thread, frames, count);
            process.counts.samples += 1;
            process.counts.waiting_ns += ns;
            // The stack is not cached until the thread has a number.
            self.queue_stack = index.map(|_| (process.serial, node));
        }
        self.meter.queued_ns = self.meter.last.clock.queued_ns;
    }

    /// Reads the `syscall` file into `text`. Returns its length, and the registers of the sleeping
    /// thread. Returns `None` if the thread does not sleep.
    fn sleep_position(&self, text: &mut [u8; 256]) -> Option<(usize, Position)> {
        let len = self.syscall.read(text).ok()?;
        Some((len, Position::parse(&text[..len])?))
    }
}

/// Stack pointer and program counter of a sleeping thread.
#[derive(Debug, PartialEq)]
struct Position {
    sp: u64,
    pc: u64,
}

impl Position {
    /// Parses `NUMBER ARGUMENT… SP PC`, or `-1 SP PC` outside system calls. Returns `None` for
    /// `running`.
    fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        let mut last = text.split_ascii_whitespace().rev();
        let mut word = || u64::from_str_radix(last.next()?.strip_prefix("0x")?, 16).ok();
        let pc = word()?;
        let sp = word()?;
        Some(Self { sp, pc })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registers_of_a_sleeping_thread_are_parsed() {
        let text = b"7 0x7ffe 0x1 0x0 0x0 0x0 0x0 0x7ffe01 0x7f02\n";
        let position = Position {
            sp: 0x7ffe01,
            pc: 0x7f02,
        };
        assert_eq!(Position::parse(text), Some(position));
        assert_eq!(
            Position::parse(b"-1 0x10 0x20\n"),
            Some(Position { sp: 0x10, pc: 0x20 })
        );
        assert_eq!(Position::parse(b"running\n"), None);
        assert_eq!(Position::parse(b""), None);
    }
}
