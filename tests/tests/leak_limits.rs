//! If a limit leaves no room for a copy, `leaks` names the limit, and the grades of checks that
//! need no copy work.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::cgroup::{Cgroup, with_version_2};
use mem_tests::leaks::{report, tell};
use mem_tests::limits::{Scarce, limit};
use mem_tests::{Outcome, Scratch, Target, artifacts, run};

fn start(scratch: &Scratch, enter: impl FnOnce(&mut Command)) -> Target {
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut command = scratch.preloaded(&program);
    command.env("MEM_PROFILER_START", "1");
    command.env("MEM_PROFILER_INTERVAL", "1");
    enter(&mut command);
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    tell(&mut target, "go 100", "gone");
    target
}

fn check(scratch: &Scratch, target: &Target, options: &[&str]) -> Outcome {
    let pid = target.pid().to_string();
    let mut command = scratch.profiler();
    run(command.args(["leaks", "-p", &pid]).args(options))
}

fn loses_ten(outcome: &Outcome) {
    let report = report(outcome);
    assert_eq!(report["lost_objects"].as_f64(), Some(10.0), "{report}");
}

/// If the limit left no room for the copy's page tables, the kernel would kill the process.
#[test]
fn a_limit_of_memory_costs_no_life() {
    let scratch = Scratch::new();
    let group = Cgroup::new(1 << 30);
    let mut target = start(&scratch, |command| group.put(command));
    loses_ten(&check(&scratch, &target, &["--json"]));
    group.limit_memory(group.memory() + (1 << 20));
    let refused = check(&scratch, &target, &[]);
    refused.refused(
        1,
        &[
            "the memory limit of its control group",
            "--stop",
            "--gentle",
        ],
    );
    loses_ten(&check(&scratch, &target, &["--json", "--stop"]));
    loses_ten(&check(&scratch, &target, &["--json", "--gentle"]));
    group.limit_memory(1 << 30);
    loses_ten(&check(&scratch, &target, &["--json"]));
    tell(&mut target, "go 10", "gone");
    assert_eq!(group.kills(), 0);
    target.kill();
    target.ended();
}

/// If no object could be followed, nothing is known about leaks, so the check fails.
#[test]
fn a_check_that_knows_no_object_fails() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let why = ["no leak check", "has a place", "ulimit -v"];
    let mut command = scratch.profiler();
    command
        .args(["run", "--leak-check", "-o"])
        .arg(scratch.file("p_"));
    command.args(["--", "bash", "-c", "ulimit -v 80000; exec \"$@\"", "bash"]);
    let outcome = run(command.arg(&program).stdin(Stdio::null()));
    outcome.refused(1, &why);
    assert!(!outcome.stderr.contains("no leaks"), "{outcome:?}");
    let mut target = start(&scratch, |command| {
        limit(command, Scarce::AddressSpace, 80 << 20);
    });
    check(&scratch, &target, &[]).refused(1, &why[1..]);
    target.kill();
}

#[test]
fn a_limit_of_memory_is_seen_in_groups_of_version_2() {
    let scratch = Scratch::new();
    let target = start(&scratch, |_| ());
    let tree = scratch.file("cgroup");
    let own = tree.join("box/app");
    fs::create_dir_all(&own).expect("a directory");
    let put = |path: &Path, text: &str| fs::write(path, text).expect("a file");
    put(&tree.join("cgroup.controllers"), "memory");
    put(&own.join("memory.max"), "max\n");
    put(&own.join("memory.current"), "1048575000\n");
    put(&tree.join("box/memory.max"), "1048576000\n");
    put(&tree.join("box/memory.current"), "1048575000\n");
    let check = |stat: &str| {
        put(&tree.join("box/memory.stat"), stat);
        let mut command = scratch.profiler();
        command.args(["leaks", "--json"]);
        run(&mut with_version_2(target.pid(), &tree, command))
    };
    check("anon 1\ninactive_file 4096\n").refused(1, &["leaves 5.0 KiB", "--stop"]);
    loses_ten(&check(
        "anon 1\ninactive_file 41943040\nactive_file 41943040\n",
    ));
}

#[test]
fn a_limit_of_processes_is_named() {
    let scratch = Scratch::new();
    let group = Cgroup::of_processes(1);
    let target = start(&scratch, |command| group.put(command));
    let refused = check(&scratch, &target, &[]);
    let path = group.path().display().to_string();
    refused.refused(1, &["pids.max", &path, "is 1", "--stop", "--gentle"]);
    loses_ten(&check(&scratch, &target, &["--json", "--stop"]));
    let mut target = target;
    target.kill();
    target.ended();
}

#[test]
fn a_user_s_limit_of_processes_is_named() {
    let scratch = Scratch::new();
    for (path, mode) in [(scratch.files(), 0o755), (scratch.shared(), 0o1777)] {
        fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
    }
    // The build's directories may be closed to others.
    let agent = scratch.file("libmem_agent.so");
    fs::copy(artifacts::agent(), &agent).expect("a copy");
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut command = Command::new("prlimit");
    let user = ["--reuid=54322", "--regid=54322", "--clear-groups"];
    command.args(["--nproc=1", "setpriv"]).args(user).arg("env");
    for (name, path) in [
        ("LD_PRELOAD", &*agent),
        ("MEM_PROFILER_DIR", scratch.shared()),
    ] {
        command.arg(format!("{name}={}", path.display()));
    }
    command.args(["MEM_PROFILER_START=1", "MEM_PROFILER_INTERVAL=1"]);
    command
        .arg(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    tell(&mut target, "go 100", "gone");
    let refused = check(&scratch, &target, &[]);
    refused.refused(
        1,
        &[
            "RLIMIT_NPROC allows its user 1 thread; there are 1",
            "--stop",
        ],
    );
    loses_ten(&check(&scratch, &target, &["--json", "--stop"]));
}
