//! Processes that outlive the process that started them, and those that share another one's memory.

use std::fs;
use std::process::{Command, Stdio};

use mem_tests::target::has_ended;
use mem_tests::{Scratch, Session, Target, artifacts, run, wait};

/// Returns the pid that a daemon has written.
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
    let said =
        format!("daemon ({pid}) continues, and was not sampled: mem_profiler -p {pid} samples it");
    assert!(outcome.stderr.contains(&said), "{outcome:?}");
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

#[test]
fn cpu_run_says_which_daemon_it_leaves_behind() {
    for engine in ["perf", "timers"] {
        let scratch = Scratch::new();
        let program = scratch.compile("daemon.c", &["-O0"]);
        let mut command = scratch.profiler();
        command.args(["cpu", "run", "--engine", engine, "-o"]);
        command.arg(scratch.file("run_")).arg("--");
        let outcome = run(command.arg(&program).arg(scratch.file("daemon")));
        let pid = pid_of_daemon(&scratch);
        let said = format!("daemon ({pid}) continues, and ");
        let advised = format!("mem_profiler cpu -p {pid} samples it");
        assert!(outcome.stderr.contains(&said), "{engine}: {outcome:?}");
        assert!(outcome.stderr.contains(&advised), "{engine}: {outcome:?}");
        fs::write(scratch.file("daemon.go"), "").unwrap();
        fs::write(scratch.file("daemon.end"), "").unwrap();
        wait::until("the daemon's end", || has_ended(pid).then_some(()));
    }
}

/// Wrappers like `env -i` and `sudo` clear the environment. The wrapper itself is sampled.
#[test]
fn run_names_programs_that_have_lost_the_agent() {
    let scratch = Scratch::new();
    let file = scratch.file("end");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1"]);
    command.arg(artifacts::profiler()).args(["run", "-o"]);
    command.arg(scratch.file("run_"));
    // Ends with the scratch directory, too, if this test fails.
    let loops = "while [ -d \"${0%/*}\" ] && [ ! -e \"$0\" ]; do sleep 0.02; done";
    command.args(["--", "env", "-i", "PATH=/usr/bin:/bin", "sh", "-c", loops]);
    command.arg(&file).env("MEM_PROFILER_DIR", scratch.shared());
    let mut target = Target::start(command.stdout(Stdio::piped()));
    let line = target.hear();
    let said = "has executed sh, which is not sampled: its environment has no LD_PRELOAD";
    assert!(line.contains(said), "{line}");
    fs::write(&file, "").unwrap();
    target.finish_well();
}

/// A program that ends at once is not found in `/proc`.
#[test]
fn run_names_a_short_program_that_has_lost_the_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("tidy.cpp", &["-pthread"]);
    for (prefix, is_lost) in [(&["env", "-i"][..], true), (&["env", "A=1"], false)] {
        let mut command = scratch.profiler();
        command.args(["run", "-o", "p_", "--"]).args(prefix);
        let outcome = run(command.arg(&program));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        // The second where it was found in `/proc` after all.
        let said = [
            " was named tidy at its end: if it executed that without LD_PRELOAD ",
            " has executed tidy, which is not sampled: its environment has no LD_PRELOAD ",
        ];
        let is_said = said.iter().any(|said| outcome.stderr.contains(said));
        assert_eq!(is_said, is_lost, "{prefix:?}: {outcome:?}");
    }
}

/// What a child has executed cannot be read once its parent has reaped it, but it did not exit.
#[test]
fn run_names_children_that_executed_a_short_program_without_the_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("tidy.cpp", &["-pthread"]);
    let said = " did not exit: killed, or executed a program without the agent ";
    for (script, lost) in [
        ("\"$0\"; env -i \"$0\"; true", Some("env (")),
        (
            "sh -c 'env -u LD_PRELOAD \"$1\"; true' x \"$0\"; true",
            Some("env ("),
        ),
        ("setsid env -i \"$0\"; true", Some("env (")),
        (
            "env A=1 \"$0\"; (\"$0\"); setsid \"$0\"; sh -c '\"$1\"; true' x \"$0\"; true",
            None,
        ),
    ] {
        let mut command = scratch.profiler();
        command.args(["run", "-o", "p_", "--", "sh", "-c", script]);
        let outcome = run(command.arg(&program));
        assert_eq!(outcome.code, Some(0), "{script}: {outcome:?}");
        let line = outcome.stderr.lines().find(|line| line.contains(said));
        // It may have been seen in `/proc` while it ran.
        let seen = "which is not sampled: its environment has no LD_PRELOAD";
        match lost {
            None => assert_eq!(line, None, "{script}: {outcome:?}"),
            Some(name) => assert!(
                line.is_some_and(|line| line.contains(name)) || outcome.stderr.contains(seen),
                "{script}: {outcome:?}"
            ),
        }
    }
}

/// Checks that the session of a program continues when a child that shares its memory calls `exit`.
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

/// The limits are the child's, but it shares its parent's allocator, which keeps the addresses that
/// it would keep without a limit.
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
