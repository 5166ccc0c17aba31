//! Processes whose first thread has ended before the others (`pthread_exit` in `main`): the kernel
//! shows neither memory nor program of such a process under its own number, only under those of its
//! other threads.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::cpu::Read;
use mem_tests::{Outcome, Scratch, Target, leaks, run};

/// Returns a process without its first thread, and the program that it runs.
fn target(scratch: &Scratch) -> (Target, PathBuf) {
    let program = scratch.compile("first_thread.c", &["-pthread"]);
    let mut command = Command::new(&program);
    command
        .arg("burn")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    (target, program)
}

fn sampled(scratch: &Scratch, target: &Target, options: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "-s", "1", "-p", &target.pid().to_string(), "-o"]);
    run(command.arg(scratch.file("p_")).args(options))
}

fn check(outcome: &Outcome, program: &Path) {
    let read = Read::only(outcome);
    let found = read.by_function(program, "burn");
    let (burnt, total) = (found.get("burn").copied().unwrap_or(0.0), read.total());
    // All of its CPU time, or the half of the time in which it does not sleep. A loaded machine may
    // give it little of that.
    assert!(
        burnt > 0.02 * total,
        "{burnt} of {total}: {found:?} {outcome:?}"
    );
    assert_eq!(
        read.profile.facts.exe.as_deref(),
        Some(program),
        "{outcome:?}"
    );
    assert!(!outcome.stderr.contains(" 0.0 % of stacks"), "{outcome:?}");
}

#[test]
fn every_engine_samples_it() {
    let scratch = Scratch::new();
    let (target, program) = target(&scratch);
    for options in [
        &["--engine", "perf"][..],
        &["--engine", "ptrace"],
        &["--wall"],
    ] {
        check(&sampled(&scratch, &target, options), &program);
    }
    target.finish_well();
}

#[test]
fn top_names_its_functions() {
    let scratch = Scratch::new();
    let (target, _) = target(&scratch);
    let pid = target.pid().to_string();
    let top = run(scratch
        .profiler()
        .args(["top", "--cpu", "--json", "--once", "-p", &pid]));
    assert_eq!(top.code, Some(0), "{top:?}");
    assert!(top.stdout.contains("\"burn\""), "{top:?}");
    target.finish_well();
}

#[test]
fn its_leaks_are_found() {
    let scratch = Scratch::new();
    let program = scratch.compile("headless.c", &["-pthread"]);
    let (target, session) = leaks::planted(&scratch, &program);
    let pid = target.pid().to_string();
    for how in [&[][..], &["--stop"], &["--gentle"]] {
        let mut command = scratch.profiler();
        command.args(["leaks", "--json", "-p", &pid]).args(how);
        let report = leaks::report(&run(&mut command));
        let lost = ("lost_plain".to_owned(), "direct".to_owned());
        let only = [(lost, (10.0, 1045.0))].into();
        assert_eq!(leaks::kinds(&report), only, "{how:?}: {report:#}");
    }
    session.stop();
    target.finish_well();
}
