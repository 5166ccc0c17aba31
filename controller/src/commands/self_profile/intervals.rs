//! gperftools' rules for dumps while a program runs, by its `HEAP_PROFILE_…` variables.

use std::time::{Duration, Instant};

use mem_agents::text;
use shm_protocol::snapshot::Totals;

/// Default of `HEAP_PROFILE_ALLOCATION_INTERVAL`, in bytes.
const ALLOCATION_INTERVAL: u64 = 1 << 30;
/// Default of `HEAP_PROFILE_INUSE_INTERVAL`, in bytes.
const INUSE_INTERVAL: u64 = 100 << 20;

/// Intervals between dumps; 0: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Intervals {
    /// Bytes allocated.
    allocated: u64,
    /// Bytes freed.
    freed: u64,
    /// Growth of the live heap beyond its largest size at a dump, in bytes.
    live: u64,
    /// Seconds.
    time: u64,
}

impl Intervals {
    /// Reads the variables. `warn` is called for values that are no numbers.
    pub fn read(get: impl Fn(&str) -> Option<String>, mut warn: impl FnMut(&str)) -> Self {
        let mut number = |name: &str, default: u64| match get(name) {
            None => default,
            Some(text) => {
                let number = text.trim().parse::<i64>();
                number.map_or_else(
                    |_| {
                        warn(&format!(
                            "{name}={}: not a number; {default} is used instead",
                            text::escape(text.as_bytes())
                        ));
                        default
                    },
                    |number| u64::try_from(number).unwrap_or(0),
                )
            }
        };
        Self {
            allocated: number("HEAP_PROFILE_ALLOCATION_INTERVAL", ALLOCATION_INTERVAL),
            freed: number("HEAP_PROFILE_DEALLOCATION_INTERVAL", 0),
            live: number("HEAP_PROFILE_INUSE_INTERVAL", INUSE_INTERVAL),
            time: number("HEAP_PROFILE_TIME_INTERVAL", 0),
        }
    }
}

/// State since the last dump.
pub struct Progress {
    intervals: Intervals,
    /// Bytes allocated at the last dump.
    allocated: f64,
    /// Bytes freed at the last dump.
    freed: f64,
    /// Largest number of live bytes at a dump.
    max_live: f64,
    last_dump: Instant,
}

impl Progress {
    /// Returns the state at the start of a session.
    pub fn new(intervals: Intervals) -> Self {
        Self {
            intervals,
            allocated: 0.0,
            freed: 0.0,
            max_live: 0.0,
            last_dump: Instant::now(),
        }
    }

    /// Returns the reason for a dump if one is due.
    pub fn dump_reason(&self, totals: &Totals, now: Instant) -> Option<String> {
        let Intervals {
            allocated,
            freed,
            live,
            time,
        } = self.intervals;
        let has_grown =
            |value: f64, last: f64, interval: u64| interval > 0 && value >= last + interval as f64;
        let bytes = totals.alloc_bytes;
        if has_grown(bytes, self.allocated, allocated) {
            Some(format!("{} allocated", text::bytes(bytes)))
        } else if has_grown(freed_bytes(totals), self.freed, freed) {
            Some(format!("{} freed", text::bytes(freed_bytes(totals))))
        } else if has_grown(totals.live_bytes, self.max_live, live) {
            Some(format!("{} in use", text::bytes(totals.live_bytes)))
        } else if time > 0 && now.duration_since(self.last_dump) >= Duration::from_secs(time) {
            Some(format!("{time} s since the last dump"))
        } else {
            None
        }
    }

    /// Records a dump.
    pub fn record_dump(&mut self, totals: &Totals, now: Instant) {
        self.allocated = totals.alloc_bytes;
        self.freed = freed_bytes(totals);
        self.max_live = self.max_live.max(totals.live_bytes);
        self.last_dump = now;
    }
}

fn freed_bytes(totals: &Totals) -> f64 {
    totals.alloc_bytes - totals.live_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> (Intervals, usize) {
        let get = |name: &str| {
            let mut all = variables.iter();
            all.find(|(known, _)| name.ends_with(&format!("_{known}_INTERVAL")))
                .map(|(_, value)| (*value).to_owned())
        };
        let mut warnings = 0;
        (Intervals::read(get, |_| warnings += 1), warnings)
    }

    fn totals(allocated: f64, live: f64) -> Totals {
        Totals {
            alloc_bytes: allocated,
            live_bytes: live,
            ..Totals::default()
        }
    }

    #[test]
    fn defaults_are_those_of_gperftools() {
        let (intervals, warnings) = read(&[("TIME", "x")]);
        let Intervals {
            allocated,
            freed,
            live,
            time,
        } = intervals;
        assert_eq!((allocated, freed), (1 << 30, 0));
        assert_eq!((live, time, warnings), (100 << 20, 0, 1));
        let none = read(&[("ALLOCATION", "0"), ("INUSE", "-1")]).0;
        let progress = Progress::new(none);
        assert_eq!(
            progress.dump_reason(&totals(1e15, 1e15), Instant::now()),
            None
        );
    }

    #[test]
    fn each_interval_counts_from_the_last_dump() {
        let all = [("ALLOCATION", "1000"), ("INUSE", "300"), ("TIME", "5")];
        let mut progress = Progress::new(read(&all).0);
        let start = Instant::now();
        assert_eq!(progress.dump_reason(&totals(299.0, 299.0), start), None);
        assert!(progress.dump_reason(&totals(300.0, 300.0), start).is_some());
        progress.record_dump(&totals(300.0, 300.0), start);
        assert_eq!(progress.dump_reason(&totals(1299.0, 599.0), start), None);
        assert!(progress.dump_reason(&totals(1300.0, 0.0), start).is_some());
        progress.record_dump(&totals(1300.0, 0.0), start);
        // The mark stays at the largest live heap.
        assert_eq!(progress.dump_reason(&totals(1400.0, 599.0), start), None);
        assert!(
            progress
                .dump_reason(&totals(1900.0, 600.0), start)
                .is_some()
        );
        let later = start + Duration::from_secs(5);
        assert!(progress.dump_reason(&totals(1300.0, 0.0), later).is_some());
        let freed = Progress::new(read(&[("DEALLOCATION", "100")]).0);
        assert!(freed.dump_reason(&totals(200.0, 100.0), start).is_some());
        assert_eq!(freed.dump_reason(&totals(200.0, 101.0), start), None);
    }
}
