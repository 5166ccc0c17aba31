//! Captures do not affect signals and group-stops.
#![cfg(target_arch = "x86_64")]

mod common;

use std::time::Duration;

use capture::{Refusal, Stopped};
use common::{Target, wait_until};

#[test]
fn a_signal_during_a_capture_is_delivered_once() {
    for (call, threads) in [("spin", "0"), ("read", "0"), ("futex", "5")] {
        let target = Target::start(&[call, threads]);
        let mut stopped = target.stop().expect("stopped");
        target.signal(libc::SIGUSR1);
        let copy = stopped.copy().expect("a copy");
        target.signal(libc::SIGRTMIN());
        stopped.resume();
        drop(copy);
        let outcome = target.finish();
        outcome.assert_clean();
        assert_eq!(outcome.usr1, 2, "{call}: {outcome:?}");
    }
}

#[test]
fn no_signal_is_lost_or_duplicated() {
    let target = Target::start(&["spin", "3"]);
    let pid = target.pid();
    let sender = std::thread::spawn(move || {
        for _ in 0..4000 {
            // SAFETY: the call takes no pointers.
            assert_eq!(unsafe { libc::kill(pid, libc::SIGRTMIN()) }, 0);
            std::thread::sleep(Duration::from_micros(100));
        }
    });
    let mut captures = 0;
    while !sender.is_finished() {
        drop(target.capture());
        captures += 1;
    }
    sender.join().expect("sent");
    let outcome = target.finish();
    outcome.assert_clean();
    assert_eq!(outcome.usr1, 4000, "{captures} captures");
}

fn is_stopped(target: &Target) -> bool {
    target.states().iter().all(|state| state == "T")
}

#[test]
fn a_stopped_program_stays_stopped() {
    for (call, threads) in [("spin", "0"), ("read", "0"), ("futex", "5")] {
        let target = Target::start(&[call, threads]);
        target.signal(libc::SIGSTOP);
        wait_until("the stop", || is_stopped(&target));
        for _ in 0..3 {
            drop(target.capture());
            target.wait_until_released();
            wait_until("the stop", || is_stopped(&target));
        }
        target.signal(libc::SIGCONT);
        target.finish().assert_clean();
    }
}

#[test]
fn a_stop_signal_during_a_capture_takes_effect() {
    for (call, threads) in [("spin", "0"), ("read", "0"), ("futex", "5")] {
        let target = Target::start(&[call, threads]);
        let mut stopped = target.stop().expect("stopped");
        target.signal(libc::SIGSTOP);
        let copy = stopped.copy().expect("a copy");
        stopped.resume();
        drop(copy);
        wait_until("the stop", || is_stopped(&target));
        let mut stopped = target.stop().expect("stopped");
        target.signal(libc::SIGCONT);
        let copy = stopped.copy().expect("a copy");
        stopped.resume();
        drop(copy);
        target.finish().assert_clean();
    }
}

#[test]
fn a_process_that_is_killed_during_a_capture_is_refused() {
    for threads in ["0", "8"] {
        let mut target = Target::start(&["spin", threads]);
        let mut stopped = target.stop().expect("stopped");
        target.signal(libc::SIGKILL);
        let refusal = stopped.copy().err().expect("refused");
        assert!(matches!(refusal, Refusal::Ended { .. }), "{refusal}");
        stopped.resume();
        // Its parent is notified.
        target.child.wait().expect("its exit");
        assert_eq!(target.other_processes(), [0; 0]);
    }
}

#[test]
fn a_process_that_repeatedly_calls_exec_continues() {
    let target = Target::start(&["exec", "3"]);
    let mut captured = 0;
    for _ in 0..100 {
        match Stopped::stop(target.pid(), Duration::from_secs(10)) {
            Ok(mut stopped) => captured += u32::from(stopped.copy().is_ok()),
            Err(Refusal::Executed { .. } | Refusal::Ended { .. }) => {}
            Err(refusal) => panic!("{refusal}"),
        }
    }
    assert!(captured > 0);
    target.wait_until_released();
    target.assert_runs();
}

#[test]
fn a_process_that_is_killed_at_any_time_leaves_nothing() {
    for delay in 0..40 {
        let mut target = Target::start(&["spin", "4"]);
        let pid = target.pid();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(delay * 100));
            // SAFETY: the call takes no pointers.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        });
        match target.stop().and_then(|mut stopped| stopped.copy()) {
            // A copy may have been completed before the kill.
            Ok(copy) => drop(copy),
            Err(Refusal::Ended { .. } | Refusal::Zombie { .. }) => {}
            Err(refusal) => panic!("{delay}: {refusal}"),
        }
        killer.join().expect("killed");
        target.child.wait().expect("its exit");
        wait_until("the copy's exit", || target.other_processes().is_empty());
    }
}
