//! Divides work between the calling thread and a helper thread. If no thread can be created, the
//! caller does all of it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Computes `part(0)` to `part(count - 1)` on a helper thread while the calling thread runs
/// `other`. The calling thread then helps with the remaining parts. Returns the results in order.
pub fn compute_parts_while<T: Send + Sync, M>(
    count: usize,
    part: impl Fn(usize) -> T + Sync,
    other: impl FnOnce() -> M,
) -> (Vec<T>, M) {
    let next = AtomicUsize::new(0);
    let done: Vec<OnceLock<T>> = (0..count).map(|_| OnceLock::new()).collect();
    let work = || {
        while let number = next.fetch_add(1, Ordering::Relaxed)
            && let Some(done) = done.get(number)
        {
            done.get_or_init(|| part(number));
        }
    };
    let result = run_with_helper(count > 1, work, || {
        let result = other();
        work();
        result
    });
    let results = done.into_iter().filter_map(OnceLock::into_inner);
    (results.collect(), result)
}

/// Runs `own` on the calling thread and, if `use_helper`, `helper` on another thread at the same
/// time. Each must be able to do all the work alone, since no thread may be available.
pub fn run_with_helper<T>(
    use_helper: bool,
    helper: impl FnOnce() + Send,
    own: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        let _helper = use_helper.then(|| thread::Builder::new().spawn_scoped(scope, helper));
        own()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_done_once_and_in_order() {
        for count in [0, 1, 2, 1000] {
            let calls = AtomicUsize::new(0);
            let square = |part| {
                calls.fetch_add(1, Ordering::Relaxed);
                part * part
            };
            let (squares, other) = compute_parts_while(count, square, || "other");
            let expected: Vec<usize> = (0..count).map(|part| part * part).collect();
            assert_eq!((squares, other), (expected, "other"));
            assert_eq!(calls.load(Ordering::Relaxed), count);
        }
    }
}
