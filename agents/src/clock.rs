//! Reads the machine's clocks, which segments use. This program may be in another time namespace.

use proc::clock_shift;
use shm_protocol::clock;

/// Returns the machine's `CLOCK_MONOTONIC_COARSE`, in ns.
pub fn now_ns() -> u64 {
    clock_shift().to_machine(clock::now_ns())
}

/// Returns the time since the machine's boot, in ns.
pub fn boot_ns() -> u64 {
    clock::boot_ns().wrapping_sub(clock_shift().boottime_ns as u64)
}

/// Point in time on each of the machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Time {
    /// Time of the segment's clock, [`now_ns`].
    pub ns: u64,
    /// Unix time, in nanoseconds.
    pub unix_ns: u64,
    /// Time since boot, in nanoseconds. `None` for a time before the last boot.
    pub boot_ns: Option<u64>,
}

impl Time {
    /// Returns the present time.
    pub fn now() -> Self {
        Self {
            ns: now_ns(),
            unix_ns: clock::unix_ns(),
            boot_ns: Some(boot_ns()),
        }
    }

    /// Returns the point at which the segment's clock read `ns`, which must not be later than
    /// `self`.
    #[must_use]
    pub fn at(self, ns: u64) -> Self {
        let earlier = self.ns.saturating_sub(ns);
        Self {
            ns: self.ns - earlier,
            unix_ns: self.unix_ns.saturating_sub(earlier),
            boot_ns: self.boot_ns.map(|boot| boot.saturating_sub(earlier)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_earlier_time_is_earlier_by_each_clock() {
        let time = Time {
            ns: 70,
            unix_ns: 1000,
            boot_ns: Some(90),
        };
        let earlier = Time {
            ns: 40,
            unix_ns: 970,
            boot_ns: Some(60),
        };
        assert_eq!(time.at(40), earlier);
        assert_eq!(time.at(80), time, "a later time is clamped");
        // A clock that was set to 1970 a moment ago.
        let set = Time { unix_ns: 5, ..time };
        assert_eq!(
            set.at(40),
            Time {
                unix_ns: 0,
                ..earlier
            }
        );
    }

    #[test]
    fn time_since_boot_is_at_least_the_monotonic_time() {
        let now = Time::now();
        assert!(now.boot_ns.expect("of this boot") >= now.ns);
    }
}
