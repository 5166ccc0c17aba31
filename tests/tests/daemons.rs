//! Processes that outlive the one that began them, and those that live in another one's memory.

use std::fs;

use mem_tests::target::has_ended;
use mem_tests::{Scratch, Session, Target, run, wait};

/// Pid that a daemon has written.
fn pid_of_daemon(scratch: &Scratch) -> u32 {
    wait::until("the daemon's pid", || {
        let text = fs::read_to_string(scratch.file("daemon.pid")).ok()?;
        text.strip_suffix('\n')?.parse().ok()
    })
}

#[test]
fn a_daemon_that_outlives_run_can_be_sampled_afterwards() {
    let scratch = Scratch::new();
    let program = scratch.compile("daemon.c", &["-O0"]);
    let mut command = scratch.profiler();
    command.args(["run", "-o"]);
    command.arg(scratch.file("run_")).arg("--");
    let outcome = run(command.arg(&program).arg(scratch.file("daemon")));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let entries = || fs::read_dir(scratch.shared()).expect("our own").count();
    assert_eq!(entries(), 0, "the run has removed its directory");

    let pid = pid_of_daemon(&scratch);
    fs::write(scratch.file("daemon.go"), "").unwrap();
    wait::until("the daemon's segment", || scratch.segment(pid));
    let session = run(scratch
        .profiler()
        .args(["-s", "1", "-p", &pid.to_string(), "-o"])
        .arg(scratch.file("later_")));
    let profile = session.profile_of(pid);
    assert!(!profile.stacks.is_empty(), "{session:?}");

    fs::write(scratch.file("daemon.end"), "").unwrap();
    wait::until("the daemon's end", || has_ended(pid).then_some(()));
    assert_eq!(entries(), 0, "nothing is left behind");
}

#[test]
fn run_says_which_daemon_it_leaves_behind() {
    let scratch = Scratch::new();
    let program = scratch.compile("daemon.c", &["-O0"]);
    fs::write(scratch.file("daemon.go"), "").unwrap();
    let mut command = scratch.profiler();
    command.args(["run", "-c", "1", "-o"]);
    command.arg(scratch.file("run_")).arg("--").arg(&program);
    let outcome = run(command.arg(scratch.file("daemon")).arg("late"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let pid = pid_of_daemon(&scratch);
    let said = format!(
        "daemon ({pid}) continues, and is no longer sampled: mem_profiler -p {pid} samples it again"
    );
    assert!(outcome.stderr.contains(&said), "{outcome:?}");

    let advised = run(scratch
        .profiler()
        .args(["-s", "1", "-p", &pid.to_string(), "-o"])
        .arg(scratch.file("later_")));
    let profile = advised.profile_of(pid);
    assert!(!profile.stacks.is_empty(), "{advised:?}");
    fs::write(scratch.file("daemon.end"), "").unwrap();
    wait::until("the daemon's end", || has_ended(pid).then_some(()));
}

/// A child in the memory of a sampled program calls `exit`: the session in the program continues.
fn exits_as_guest(how: &str) {
    let scratch = Scratch::new();
    let program = scratch.compile("guest_exits.c", &["-O0"]);
    let file = scratch.file("end");
    let mut command = scratch.preloaded(&program);
    command.arg(&file).arg(how).env("MEM_PROFILER_START", "1");
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    assert!(scratch.segment(target.pid()).is_some(), "{how}");
    assert!(scratch.is_sampling(target.pid()), "{how}");
    Session::of(&scratch, target.pid(), "1").stop();
    fs::write(&file, "").unwrap();
    target.ended();
}

#[test]
fn exit_in_a_child_of_vfork_leaves_its_parents_segment() {
    exits_as_guest("vfork");
}

#[test]
fn exit_in_a_child_that_shares_memory_leaves_its_parents_segment() {
    exits_as_guest("clone");
}

/// The limits are the child's, the allocator its parent's: it keeps the addresses that it keeps without a limit.
#[test]
fn limits_of_a_vfork_child_are_not_its_parents() {
    let scratch = Scratch::new();
    let program = scratch.compile("vfork_limits.c", &["-O0"]);
    let outcome = run(&mut scratch.preloaded(&program));
    let mapped: Vec<f64> = outcome
        .stdout
        .split_whitespace()
        .map(|number| number.parse().expect("KiB"))
        .collect();
    let [before, after] = mapped[..] else {
        panic!("{outcome:?}");
    };
    assert!((after / before - 1.0).abs() < 0.1, "{outcome:?}");
}
