//! If a capturing process is killed at any step, the target is unharmed.
#![cfg(target_arch = "x86_64")]

mod common;

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{Target, compile};

/// Not a test: the process that captures and is killed.
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

/// Captures a program in a process that is killed at this step. Returns false if the capture needs
/// fewer steps.
fn is_killed_at(step: usize, how: &str, target: &Target, library: &Path) -> bool {
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "capturer"])
        .env("CAPTURE_PID", target.pid().to_string())
        .env("LD_PRELOAD", library)
        .env("DIE_AT", step.to_string())
        .env("DIE_HOW", how)
        .stdout(Stdio::null())
        .status()
        .expect("this test's program");
    if status.success() {
        return false;
    }
    assert_eq!(status.signal(), Some(libc::SIGKILL), "step {step}, {how}");
    true
}

/// Kills a capture of one program at each step, and checks that the program is unharmed.
fn assert_survives(call: &str, number: Option<i64>, threads: &str) {
    let library = compile("kill.c", &["-shared", "-fPIC"]);
    for how in ["before", "after"] {
        let mut steps = 0;
        let mut target = Target::start(&[call, threads]);
        loop {
            if let Some(number) = number {
                target.wait_for_call(number);
            }
            let is_killed = is_killed_at(steps + 1, how, &target, &library);
            target.wait_until_released();
            target.assert_runs();
            if !is_killed {
                break;
            }
            steps += 1;
            // The program checks its registers when it finishes.
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
fn a_computing_program_survives() {
    assert_survives("spin", None, "0");
}

#[test]
fn a_reading_program_survives() {
    assert_survives("read", Some(libc::SYS_read), "0");
}

#[test]
fn a_program_waiting_for_a_futex_survives() {
    assert_survives("timed", Some(libc::SYS_futex), "3");
}

#[test]
fn a_polling_program_survives() {
    assert_survives("polltimed", Some(libc::SYS_poll), "0");
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
        .expect("this test's program");
    common::wait_until("the copy", || {
        target.other_processes().len() == 1
            && target.children().is_empty()
            && target.states().len() == 4
    });
    common::wait_until("the release", || {
        common::fields(target.pid(), "TracerPid")
            .iter()
            .all(|tracer| tracer == "0")
    });
    assert_eq!(target.other_processes().len(), 1);
    capturer.kill().expect("killed");
    capturer.wait().expect("its exit");
    target.wait_until_released();
    target.finish().assert_clean();
}
