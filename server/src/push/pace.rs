//! When to retry: the wait doubles with each failure, up to a minute, with a little jitter, so that
//! a fleet does not retry at the same moment.

use std::time::{Duration, Instant};

const FIRST: Duration = Duration::from_secs(1);
const LONGEST: Duration = Duration::from_secs(60);
/// Longest time that a receiver may ask for.
const MOST_ASKED: Duration = Duration::from_secs(3600);

/// The pace of a sender.
#[derive(Debug, Default)]
pub struct Pace {
    failures: u32,
    until: Option<Instant>,
}

impl Pace {
    /// How long to wait from now on.
    pub fn left(&self) -> Duration {
        let until = self
            .until
            .map(|until| until.saturating_duration_since(Instant::now()));
        until.unwrap_or_default()
    }

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures
    }

    /// The receiver took a profile.
    pub fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// It did not, and may have said when to come back. Whether that is worth a message.
    pub fn failed(&mut self, after: Option<Duration>) -> bool {
        let doubled = FIRST
            .saturating_mul(1 << self.failures.min(10))
            .min(LONGEST);
        let wait = after.map_or_else(|| jittered(doubled), |after| after.min(MOST_ASKED));
        self.until = Some(Instant::now() + wait);
        self.failures += 1;
        // The first time, and then about every quarter of an hour.
        self.failures % 16 == 1
    }
}

/// Between half of it and all of it.
fn jittered(wait: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(0) as u32;
    wait.mul_f64(0.5 + f64::from(random) / f64::from(u32::MAX) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_doubles_up_to_a_minute_or_is_what_the_receiver_says() {
        let mut pace = Pace::default();
        assert!(pace.left().is_zero());
        for failure in 0..20 {
            let said = pace.failed(None);
            assert_eq!(said, failure % 16 == 0);
            let whole = Duration::from_secs(1 << failure.min(6)).min(LONGEST);
            let left = pace.left();
            assert!(
                left <= whole && left > whole / 2 - Duration::from_millis(200),
                "{left:?}"
            );
        }
        pace.failed(Some(Duration::from_secs(7)));
        assert!(pace.left() > Duration::from_secs(6) && pace.left() <= Duration::from_secs(7));
        pace.succeeded();
        assert!(pace.left().is_zero() && pace.failures() == 0);
    }
}
