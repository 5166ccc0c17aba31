//! Threads continue where they were.
#![cfg(target_arch = "x86_64")]

mod common;

use std::time::{Duration, Instant};

use common::Target;

/// Captures a program some times while its first thread is in a system call.
fn captured_in(call: &str, number: i64, threads: &str) -> common::Outcome {
    let target = Target::start(&[call, threads]);
    for _ in 0..5 {
        target.until_in(number);
        let (copy, _) = target.capture();
        drop(copy);
        target.until_left_alone();
    }
    if call == "sigsuspend" {
        target.until_in(number);
        target.signal(libc::SIGUSR1);
    }
    let outcome = target.finish();
    outcome.assert_clean();
    outcome
}

fn continues(call: &str, number: i64) {
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
        target.until_in(libc::SYS_clock_nanosleep);
        // As often as there is time for, the last time late: what began again would end as late
        // again.
        for due in [0, 0, 0, 500, 2000] {
            std::thread::sleep(Duration::from_millis(due).saturating_sub(began.elapsed()));
            if began.elapsed() < Duration::from_secs(3) {
                drop(target.capture());
                target.until_left_alone();
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
    continues("futex", libc::SYS_futex);
}

#[test]
fn timed_futex_wait_wakes() {
    continues("timed", libc::SYS_futex);
}

#[test]
fn read_gets_its_byte() {
    continues("read", libc::SYS_read);
}

#[test]
fn poll_continues() {
    continues("poll", libc::SYS_poll);
}

#[test]
fn poll_with_a_timeout_continues() {
    continues("polltimed", libc::SYS_poll);
}

#[test]
fn sigsuspend_waits_for_its_signal() {
    continues("sigsuspend", libc::SYS_rt_sigsuspend);
}

#[test]
fn epoll_is_interrupted_once_for_each_stop_at_most() {
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
        target.until_left_alone();
        let outcome = target.finish();
        outcome.assert_clean();
    }
}
