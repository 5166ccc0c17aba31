//! What forked children do to their parent's table, and what they cost.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::frail::{WELL, frail, preload};
use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, artifacts, sums};

/// Checks that children that free inherited objects and allocate their own, in a session that
/// samples everything, leave no traces in the parent's profile.
fn children_leave_the_table_alone(program: &mut Steps, session: Session, ways: &[&str]) {
    program.step("keep 60");
    for how in ways {
        program.step("keep 10");
        assert_eq!(program.step(&format!("child {how} 20")), [WELL], "{how}");
        program.step("drop 5");
    }
    let expected = program.expected();
    let outcome = session.stop();
    // The children have ended before.
    let parents = outcome.dumps().pop().expect("a dump");
    let profile = profile::open(&parents).expect("a dump that can be read");
    let found = sums(&profile, &[&program.program], "site_");
    assert!(!found.contains_key("site_child"), "{outcome:?}");
    assert_exact(&expected, &found);
}

#[test]
fn a_child_of_any_kind_leaves_its_parents_table_alone() {
    let scratch = Scratch::new();
    let mut program = frail(&scratch, |_| {});
    let session = Session::of(&scratch, program.pid(), "1");
    let ways = ["fork", "_Fork", "clone", "clone_newpid", "unshare"];
    children_leave_the_table_alone(&mut program, session, &ways);
    program.target.finish_well();
}

/// Returns the pid of the one process that runs this program.
fn pid_of(program: &Path) -> u32 {
    let entries = fs::read_dir("/proc").expect("proc").flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let runs = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|p| p == program);
    let found: Vec<_> = pids.filter(runs).collect();
    assert_eq!(found.len(), 1, "{found:?}");
    found[0]
}

/// Parent and child both have pid 1, each in its own namespace.
#[test]
fn a_child_with_its_parents_pid_leaves_its_table_alone() {
    let scratch = Scratch::new();
    let program = scratch.compile("frail.c", &[]);
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "--kill-child", "env"])
        .arg(preload(&artifacts::agent(), true))
        .arg(&program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut program = Steps::run(program, &mut command);
    let pid = pid_of(&program.program).to_string();
    let args = ["-c", "1", "-p", &pid, "-o"];
    let session = Session::start(scratch.profiler().args(args).arg(scratch.file("prof_")));
    scratch.wait_for_sampling(1);
    let ways = ["clone_newpid", "unshare"];
    children_leave_the_table_alone(&mut program, session, &ways);
    program.target.finish_well();
}

/// Returns the fewest system calls that a child made which `frail` forked, ended at once.
fn calls_of_a_child(with: bool, in_session: bool) -> usize {
    let scratch = Scratch::new();
    let program = scratch.compile("frail.c", &[]);
    let log = scratch.file("calls");
    let mut command = Command::new("strace");
    command
        .args(["-f", "-ff", "-e", "signal=none", "-o"])
        .arg(&log)
        .args([
            "env".as_ref(),
            preload(&artifacts::agent(), with).as_os_str(),
        ])
        .arg(&program)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut steps = Steps::run(program, &mut command);
    let pid = pid_of(&steps.program);
    let session = in_session.then(|| Session::of(&scratch, pid, "1024"));
    steps.step("keep 1000");
    for _ in 0..5 {
        assert_eq!(steps.step("child fork 0"), [WELL]);
    }
    if let Some(session) = session {
        assert_eq!(session.stop().code, Some(0));
    }
    steps.target.finish_well();
    let calls = |entry: fs::DirEntry| {
        let name = entry.file_name().to_string_lossy().into_owned();
        let child = name.starts_with("calls.") && !name.ends_with(&format!(".{pid}"));
        let lines = || {
            fs::read_to_string(entry.path())
                .expect("a log")
                .lines()
                .count()
        };
        child.then(lines)
    };
    let logs = fs::read_dir(scratch.files()).expect("our own").flatten();
    logs.filter_map(calls).min().expect("children")
}

#[test]
fn a_child_that_ends_at_once_costs_next_to_no_system_call() {
    let plain = calls_of_a_child(false, false);
    let idle = calls_of_a_child(true, false);
    let sampled = calls_of_a_child(true, true);
    println!(
        "calls in a forked child: {plain} without the agent, {idle} idle, {sampled} in a session"
    );
    assert!(idle <= plain + 2, "{idle} idle, {plain} without the agent");
    assert!(
        sampled <= plain + 6,
        "{sampled} in a session, {plain} without the agent"
    );
}
