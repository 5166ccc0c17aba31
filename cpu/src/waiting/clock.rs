//! Times for which a thread slept and waited for a processor, from the kernel's clocks.

use std::io;
use std::time::{Duration, Instant};

use proc::Reread;

/// Contents of a thread's `schedstat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Clock {
    /// CPU time in ns.
    pub(super) ns: u64,
    /// Time in run queues in ns.
    pub(super) queued_ns: u64,
    /// Number of times that the thread was given a processor.
    pub(super) turns: u64,
}

impl Clock {
    pub(super) fn read(file: &Reread) -> io::Result<Self> {
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

/// Values of a thread's clocks at one time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    pub(super) clock: Clock,
    pub(super) at: Instant,
}

/// Accounting of a thread's waiting time. Differences are computed from the reading at the last
/// sample, not from the previous reading, because the kernel adds time in a run queue only when the
/// thread leaves it, and running time only from time to time.
pub(super) struct Meter {
    /// Values at the last sample of a sleep.
    pub(super) base: Reading,
    /// Values at the last reading.
    pub(super) last: Reading,
    /// Time in run queues that is covered by samples, in ns.
    pub(super) queued_ns: u64,
}

impl Meter {
    pub(super) fn new(now: Reading) -> Self {
        Self {
            base: now,
            last: now,
            queued_ns: now.clock.queued_ns,
        }
    }

    /// Returns how long the thread has slept without a sample.
    pub(super) fn time_asleep(&self) -> Duration {
        let before = self.base.clock;
        let now = self.last.clock;
        let ran = now.ns.saturating_sub(before.ns);
        let queued = now.queued_ns.saturating_sub(before.queued_ns);
        let awake = Duration::from_nanos(ran.saturating_add(queued));
        let elapsed = self.last.at.saturating_duration_since(self.base.at);
        elapsed.saturating_sub(awake)
    }

    /// Returns how long the thread has been in run queues without a sample.
    pub(super) fn time_queued(&self) -> Duration {
        Duration::from_nanos(self.last.clock.queued_ns.saturating_sub(self.queued_ns))
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
    fn time_in_a_run_queue_does_not_count_as_sleep() {
        let start = Instant::now();
        let reading = |clock, at| Reading { clock, at };
        let mut meter = Meter::new(reading(Clock::default(), start));
        let ms = Duration::from_millis;
        // The thread is in a run queue, whose time the kernel has not added yet; then it runs.
        meter.last = reading(Clock::default(), start + ms(10));
        assert_eq!((meter.time_asleep(), meter.time_queued()), (ms(10), ms(0)));
        let clock = Clock {
            ns: 5_000_000,
            queued_ns: 12_000_000,
            turns: 1,
        };
        meter.last = reading(clock, start + ms(20));
        assert_eq!((meter.time_asleep(), meter.time_queued()), (ms(3), ms(12)));
        meter.queued_ns = 12_000_000;
        assert_eq!((meter.time_asleep(), meter.time_queued()), (ms(3), ms(0)));
        meter.base = meter.last;
        assert_eq!((meter.time_asleep(), meter.time_queued()), (ms(0), ms(0)));
    }
}
