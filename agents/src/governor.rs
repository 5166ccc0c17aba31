//! Bounds of the sampling interval in sessions with a limit on the cost. The agent adapts the
//! interval (`agent/src/governor.rs`); the controller sets the limit.

use shm_protocol::segment::IntervalPeriod;

/// Minimum initial interval, in bytes. Limits the cost of the samples before the first adaptation.
pub const MIN_INTERVAL: u64 = 64;
/// Maximum interval, in bytes.
pub const MAX_INTERVAL: u64 = 1 << 30;
/// Interval at the start of a session for which none is given, in bytes.
pub const DEFAULT_INTERVAL: u64 = 1024;
/// Default limit on sampling, as a fraction of the CPU time.
pub const DEFAULT_MAX_OVERHEAD: f64 = 0.05;
/// Ratio of cost to limit above which the limit counts as exceeded. Above 1, since measurements
/// scatter.
const EXCESS_RATIO: f64 = 1.1;

/// Converts a limit to the segment's unit, millionths of the CPU time; 0: no limit.
pub fn millionths(share: Option<f64>) -> u64 {
    share.map_or(0, |share| (share * 1e6).round() as u64)
}

/// Returns true if sampling costs more than `share` although the interval is at its maximum.
pub fn exceeds_at_max_interval(last: Option<IntervalPeriod>, share: f64) -> bool {
    last.is_some_and(|period| {
        let cost = period.overhead.map_or(0.0, |share| f64::from(share) / 1e6);
        period.interval >= MAX_INTERVAL && cost > share * EXCESS_RATIO
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_is_missed_only_at_the_widest_interval() {
        let period = |interval, overhead| {
            Some(IntervalPeriod {
                from_ns: 0,
                interval,
                overhead,
            })
        };
        assert!(exceeds_at_max_interval(
            period(MAX_INTERVAL, Some(2000)),
            0.001
        ));
        assert!(!exceeds_at_max_interval(
            period(MAX_INTERVAL, Some(1000)),
            0.001
        ));
        assert!(!exceeds_at_max_interval(
            period(MAX_INTERVAL / 2, Some(2000)),
            0.001
        ));
        assert!(!exceeds_at_max_interval(period(MAX_INTERVAL, None), 0.001));
        assert!(!exceeds_at_max_interval(None, 0.001));
    }

    #[test]
    fn limits_are_stored_in_millionths() {
        assert_eq!(millionths(None), 0);
        assert_eq!(millionths(Some(0.05)), 50_000);
        assert_eq!(millionths(Some(0.0001)), 100);
    }
}
