//! Waiting for conditions.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time after which an expected event counts as missing.
pub const WAIT_TIMEOUT: Duration = Duration::from_secs(300);

/// Polls until `answer` returns a value. Panics after a timeout, naming `what` was waited for.
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
