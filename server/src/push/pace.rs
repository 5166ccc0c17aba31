//! Delay between retries. Doubles with each failure, up to a minute, with jitter so that a fleet
//! does not retry at the same moment.

use std::time::{Duration, Instant};

/// Delay after the first failure.
const INITIAL_DELAY: Duration = Duration::from_secs(1);
/// Maximum delay, unless the receiver states one.
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Maximum delay that a receiver may state.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// State of the retries.
#[derive(Debug, Default)]
pub struct Pace {
    failures: u32,
    /// Time before which nothing is sent; `None` after a success.
    next_attempt: Option<Instant>,
}

impl Pace {
    /// Returns the time to wait before the next attempt.
    pub fn remaining(&self) -> Duration {
        let until = self
            .next_attempt
            .map(|until| until.saturating_duration_since(Instant::now()));
        until.unwrap_or_default()
    }

    /// Returns the number of failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// Records that the receiver accepted a profile.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records a failure, with the delay that the receiver stated. Returns true if the failure
    /// should be reported.
    pub fn failed(&mut self, after: Option<Duration>) -> bool {
        let doubled = INITIAL_DELAY
            .saturating_mul(1 << self.failures.min(10))
            .min(MAX_DELAY);
        let wait = after.map_or_else(|| jittered(doubled), |after| after.min(MAX_RETRY_AFTER));
        self.next_attempt = Some(Instant::now() + wait);
        self.failures += 1;
        // Reports the first failure, and then about one every quarter of an hour.
        self.failures % 16 == 1
    }
}

/// Returns a random time between half of `wait` and all of it.
fn jittered(wait: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0) as u32;
    wait.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retries_back_off_up_to_a_minute_or_as_requested() {
        let mut pace = Pace::default();
        assert!(pace.remaining().is_zero());
        for failure in 0..20 {
            let message = pace.failed(None);
            assert_eq!(message, failure % 16 == 0);
            let longest = Duration::from_secs(1 << failure.min(6)).min(MAX_DELAY);
            let remaining = pace.remaining();
            assert!(
                remaining <= longest && remaining > longest / 2 - Duration::from_millis(200),
                "{remaining:?}"
            );
        }
        pace.failed(Some(Duration::from_secs(7)));
        assert!(
            pace.remaining() > Duration::from_secs(6) && pace.remaining() <= Duration::from_secs(7)
        );
        pace.succeeded();
        assert!(pace.remaining().is_zero() && pace.failures() == 0);
    }
}
