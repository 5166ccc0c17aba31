//! A capture that is killed at any step leaves the target unharmed.
#![cfg(target_arch = "x86_64")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Target, compile};

/// Not a test: the process that captures, and is killed.
#[test]
#[ignore = "started by the tests of this file"]
fn capturer() {
    let Ok(pid) = std::env::var("CAPTURE_PID") else {
        return;
    };
    let limit = std::time::Duration::from_secs(10);
    let mut stopped = capture::Stopped::stop(pid.parse().unwrap(), limit).expect("stopped");
    let copy = stopped.copy().expect("a copy");
    stopped.resume();
    if std::env::var("HOLD").is_ok() {
        loop {
            std::thread::park();
        }
    }
    drop(copy);
}

/// Returns true if the capture was killed; false if it needs fewer steps.
fn killed_at(step: usize, how: &str, target: &Target, library: &Path) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "capturer"])
        .env("CAPTURE_PID", target.pid().to_string())
        .env("LD_PRELOAD", library)
        .env("DIE_AT", step.to_string())
        .env("DIE_HOW", how)
        .stdout(Stdio::null())
        .status()
        .expect("ourselves");
    if status.success() {
        return false;
    }
    assert_eq!(status.signal(), Some(libc::SIGKILL), "step {step}, {how}");
    true
}

/// Kills captures of one program at each of their steps.
fn survives(call: &str, number: Option<i64>, threads: &str) {
    let library = compile("kill.c", &["-shared", "-fPIC"]);
    for how in ["before", "after"] {
        let mut steps = 0;
        let mut target = Target::start(&[call, threads]);
        loop {
            if let Some(number) = number {
                target.until_in(number);
            }
            let killed = killed_at(steps + 1, how, &target, &library);
            target.until_left_alone();
            target.assert_runs();
            if !killed {
                break;
            }
            steps += 1;
            // Its registers are looked at when it finishes.
            if steps % 8 == 0 {
                check(target.finish(), steps);
                target = Target::start(&[call, threads]);
            }
        }
        check(target.finish(), steps);
        assert!(steps > 40, "{steps}");
    }
    std::fs::remove_file(library).expect("removed");
}

fn check(outcome: common::Outcome, steps: usize) {
    let clean = (outcome.result, outcome.chld, outcome.bad) == (0, 0, 0);
    assert!(clean, "up to step {steps}: {outcome:?}");
}

#[test]
fn while_it_computes() {
    survives("spin", None, "0");
}

#[test]
fn while_it_reads() {
    survives("read", Some(libc::SYS_read), "0");
}

#[test]
fn while_it_waits_for_a_futex() {
    survives("timed", Some(libc::SYS_futex), "3");
}

#[test]
fn while_it_polls() {
    survives("polltimed", Some(libc::SYS_poll), "0");
}

#[test]
fn a_copy_ends_with_its_capturer() {
    let target = Target::start(&["read", "3"]);
    let mut capturer = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "capturer"])
        .env("CAPTURE_PID", target.pid().to_string())
        .env("HOLD", "1")
        .stdout(Stdio::null())
        .spawn()
        .expect("ourselves");
    common::until("the copy", || {
        target.others().len() == 1 && target.children().is_empty() && target.states().len() == 4
    });
    common::until("the release", || {
        common::fields(target.pid(), "TracerPid")
            .iter()
            .all(|t| t == "0")
    });
    assert_eq!(target.others().len(), 1);
    capturer.kill().expect("killed");
    capturer.wait().expect("its end");
    target.until_left_alone();
    target.finish().assert_clean();
}
