//! Times for which a thread slept and waited for a processor, by the kernel's clocks.

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
    /// Number of times it was given a processor.
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

/// Accounting of a thread's waiting time. Differences are taken from the last sample, not from one
/// reading to the next, since the kernel adds time in a queue when it is over, and running time
/// whenever it chooses.
pub(super) struct Meter {
    /// Values at the last sample of a sleep.
    pub(super) base: (Clock, Instant),
    /// Values at the last reading.
    pub(super) last: (Clock, Instant),
    /// Time in run queues that is covered by samples, in ns.
    pub(super) queued_ns: u64,
}

impl Meter {
    pub(super) fn new(clock: Clock, now: Instant) -> Self {
        Self {
            base: (clock, now),
            last: (clock, now),
            queued_ns: clock.queued_ns,
        }
    }

    /// Returns the time asleep without a sample.
    pub(super) fn asleep(&self) -> Duration {
        let ((from, start), (to, end)) = (self.base, self.last);
        let ran = to.ns.saturating_sub(from.ns);
        let queued = to.queued_ns.saturating_sub(from.queued_ns);
        let awake = Duration::from_nanos(ran.saturating_add(queued));
        end.saturating_duration_since(start).saturating_sub(awake)
    }

    /// Returns the time in queues without a sample.
    pub(super) fn queued(&self) -> Duration {
        Duration::from_nanos(self.last.0.queued_ns.saturating_sub(self.queued_ns))
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
}
