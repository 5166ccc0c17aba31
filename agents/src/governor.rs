//! Bounds of the interval that an agent adapts to a limit on its cost. The agent decides
//! (`agent/src/governor.rs`); the controller names the limit.

use shm_protocol::segment::IntervalPeriod;

/// Minimum interval at the start, in bytes: the first samples must not cost more than the limit
/// allows.
pub const FLOOR: u64 = 64;
/// Maximum interval, in bytes.
pub const CEILING: u64 = 1 << 30;
/// Interval at the start of a session for which none is given, in bytes.
pub const DEFAULT_INTERVAL: u64 = 1024;
/// Limit on the share of the CPU time of such a session.
pub const DEFAULT_SHARE: f64 = 0.05;
/// Ratio of cost to limit above which the limit is exceeded, because measurements scatter.
const EXCESS: f64 = 1.1;

/// Returns a limit as the segment has it, in millionths of the CPU time; 0 without a limit.
pub fn millionths(share: Option<f64>) -> u64 {
    share.map_or(0, |share| (share * 1e6).round() as u64)
}

/// Returns true if sampling costs more than `share` although the interval is at its maximum.
pub fn is_helpless(last: Option<IntervalPeriod>, share: f64) -> bool {
    last.is_some_and(|period| {
        let cost = period.overhead.map_or(0.0, |share| f64::from(share) / 1e6);
        period.interval >= CEILING && cost > share * EXCESS
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
        assert!(is_helpless(period(CEILING, Some(2000)), 0.001));
        assert!(!is_helpless(period(CEILING, Some(1000)), 0.001));
        assert!(!is_helpless(period(CEILING / 2, Some(2000)), 0.001));
        assert!(!is_helpless(period(CEILING, None), 0.001));
        assert!(!is_helpless(None, 0.001));
    }

    #[test]
    fn limits_are_stored_in_millionths() {
        assert_eq!(millionths(None), 0);
        assert_eq!(millionths(Some(0.05)), 50_000);
        assert_eq!(millionths(Some(0.0001)), 100);
    }
}
