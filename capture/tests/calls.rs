//! Captures do not disturb what the target's threads are doing.
#![cfg(target_arch = "x86_64")]

mod common;

use std::time::{Duration, Instant};

use common::Target;

/// Captures a program several times while its main thread is in a system call.
fn captured_in(call: &str, number: i64, threads: &str) -> common::Outcome {
    let target = Target::start(&[call, threads]);
    for _ in 0..5 {
        target.wait_for_call(number);
        let (copy, _) = target.capture();
        drop(copy);
        target.wait_until_released();
    }
    if call == "sigsuspend" {
        target.wait_for_call(number);
        target.signal(libc::SIGUSR1);
    }
    let outcome = target.finish();
    outcome.assert_clean();
    outcome
}

fn assert_continues(call: &str, number: i64) {
    for threads in ["0", "6"] {
        let outcome = captured_in(call, number, threads);
        assert_eq!(outcome.interrupted, 0, "{call}: {outcome:?}");
    }
}

#[test]
fn nanosleep_sleeps_its_full_time() {
    for threads in ["0", "6"] {
        let target = Target::start(&["nanosleep", threads]);
        let began = Instant::now();
        target.wait_for_call(libc::SYS_clock_nanosleep);
        // The last captures are late: if the sleep started over, it would last too long.
        for due in [0, 0, 0, 500, 2000] {
            std::thread::sleep(Duration::from_millis(due).saturating_sub(began.elapsed()));
            if began.elapsed() < Duration::from_secs(3) {
                drop(target.capture());
                target.wait_until_released();
            }
        }
        let outcome = target.finish();
        outcome.assert_clean();
        assert_eq!(outcome.interrupted, 0);
        assert!((4000..5500).contains(&outcome.ms), "{outcome:?}");
    }
}

#[test]
fn futex_wait_wakes() {
    assert_continues("futex", libc::SYS_futex);
}

#[test]
fn timed_futex_wait_wakes() {
    assert_continues("timed", libc::SYS_futex);
}

#[test]
fn read_gets_its_byte() {
    assert_continues("read", libc::SYS_read);
}

#[test]
fn poll_continues() {
    assert_continues("poll", libc::SYS_poll);
}

#[test]
fn poll_with_a_timeout_continues() {
    assert_continues("polltimed", libc::SYS_poll);
}

#[test]
fn sigsuspend_waits_for_its_signal() {
    assert_continues("sigsuspend", libc::SYS_rt_sigsuspend);
}

#[test]
fn epoll_is_interrupted_at_most_once_per_stop() {
    for threads in ["0", "6"] {
        let outcome = captured_in("epoll", libc::SYS_epoll_wait, threads);
        assert!(outcome.interrupted <= 5, "{outcome:?}");
    }
}

#[test]
fn registers_red_zone_and_vectors_survive() {
    for threads in ["0", "6"] {
        let target = Target::start(&["spin", threads]);
        for _ in 0..20 {
            drop(target.capture());
        }
        target.wait_until_released();
        let outcome = target.finish();
        outcome.assert_clean();
    }
}
