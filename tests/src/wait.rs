//! Waiting for conditions.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// After this long, what was waited for is not going to happen.
pub const PATIENCE: Duration = Duration::from_secs(300);

/// Asks until there is an answer; panics, naming what was waited for, without one.
pub fn until<T>(what: &str, mut answer: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(Instant::now() < end, "waited {PATIENCE:?} for {what}");
        sleep(Duration::from_millis(5));
    }
}
