//! Waiting for conditions.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time after which an expected event is taken for missing.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Asks until there is an answer; panics, naming what was waited for, without one.
pub fn until<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + WAIT_TIMEOUT;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {WAIT_TIMEOUT:?} for {what}");
        sleep(Duration::from_millis(5));
    }
}
