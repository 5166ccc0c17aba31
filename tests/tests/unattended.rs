//! Sessions whose controller was killed: `list` says so, and `stop` ends them and writes their
//! profiles.

use std::process::{Command, Stdio};

use mem_tests::cpu::Read;
use mem_tests::timers::{burn, staying};
use mem_tests::{Outcome, Scratch, Session, Steps, Target, artifacts, run, wait};

const SAID: &str = "the mem_profiler that began its session is gone";

fn list(scratch: &Scratch) -> Outcome {
    run(scratch.profiler().arg("list"))
}

/// Waits until `list` reports an unattended session.
fn listed(scratch: &Scratch) -> Outcome {
    wait::until("a session to be unattended", || {
        let listed = list(scratch);
        listed.stderr.contains(SAID).then_some(listed)
    })
}

fn is_attended(scratch: &Scratch) {
    let listed = list(scratch);
    assert!(listed.stdout.contains("sampling "), "{listed:?}");
    assert!(!listed.stdout.contains("unattended"), "{listed:?}");
    assert!(!listed.stderr.contains(SAID), "{listed:?}");
}

/// Returns the command that `list` names, as it names it.
fn paste(scratch: &Scratch, listed: &Outcome) -> Outcome {
    let (_, command) = listed
        .stderr
        .split_once("mem_profiler stop")
        .expect("a command");
    let mut words = command.split_whitespace();
    let option = [words.next(), words.next()].map(|word| word.expect("a word"));
    let mut command = scratch.profiler();
    run(command
        .arg("stop")
        .args(option)
        .arg("-o")
        .arg(scratch.file("left_")))
}

/// Returns a process that burns CPU time until it is killed.
fn burning(scratch: &Scratch) -> Target {
    staying(scratch, &scratch.compile("timed.cpp", &[]), "stays")
}

#[test]
fn sessions_of_the_heap() {
    for length in [&["-s", "600"][..], &[]] {
        let scratch = Scratch::new();
        let mut program = Steps::start(&scratch);
        let mut command = scratch.profiler();
        command.args(["-c", "1", "-o", "p_", "-p", &program.pid().to_string()]);
        let session = Session::start(command.args(length));
        scratch.wait_for_sampling(program.pid());
        program.step("keep 321");
        is_attended(&scratch);
        session.signal(libc::SIGKILL);
        session.wait();
        let listed = listed(&scratch);
        assert!(listed.stdout.contains("sampling, unattended"), "{listed:?}");
        assert!(!listed.stdout.contains("open"), "it has an end: {listed:?}");
        let json = run(scratch.profiler().args(["list", "--json"]));
        assert!(json.stdout.contains("\"unattended\": true"), "{json:?}");
        let stopped = paste(&scratch, &listed);
        assert_eq!(stopped.code, Some(0), "{stopped:?}");
        assert_eq!(stopped.dumps().len(), 1, "{stopped:?}");
        assert!(!scratch.is_sampling(program.pid()));
    }
}

/// A program under `run` begins its session by itself, for one minute unless it is extended.
#[test]
fn sessions_of_run() {
    let scratch = Scratch::new();
    let program = scratch.compile("headless.c", &["-pthread"]);
    let mut command = scratch.profiler();
    command
        .args(["run", "-o", "p_", "--agent"])
        .arg(artifacts::agent());
    command.arg("--").arg(&program);
    let mut profiler = Target::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
    assert_eq!(profiler.hear(), "ready");
    is_attended(&scratch);
    profiler.kill();
    let listed = listed(&scratch);
    assert!(
        listed.stderr.contains("the session continues for"),
        "{listed:?}"
    );
    let stopped = paste(&scratch, &listed);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    let pid = listed.stderr.split_once("-p ").expect("a pid").1;
    let pid = pid.split_whitespace().next().expect("a pid");
    run(Command::new("kill").args(["-9", pid]));
}

fn timed(scratch: &Scratch, target: &Target) -> Session {
    let pid = target.pid().to_string();
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "timers", "-p", &pid, "-o"]);
    let session = Session::start(command.arg(scratch.file("p_")));
    scratch.wait_for_sampling(target.pid());
    session
}

#[test]
fn sessions_of_cpu_time() {
    let scratch = Scratch::new();
    let mut target = burning(&scratch);
    let session = timed(&scratch, &target);
    is_attended(&scratch);
    burn(target.pid(), 0.5);
    session.signal(libc::SIGKILL);
    session.wait();
    let stopped = paste(&scratch, &listed(&scratch));
    let read = Read::only(&stopped);
    assert_eq!(read.sampling.engine, "timers");
    assert!(read.total() > 0.25e9, "{}", read.total());
    assert!(!scratch.is_sampling(target.pid()));
    target.kill();
}

/// If another program ends the session, its own controller writes the profile, once.
#[test]
fn stop_ends_a_session_of_cpu_time() {
    let scratch = Scratch::new();
    let mut target = burning(&scratch);
    let session = timed(&scratch, &target);
    burn(target.pid(), 0.5);
    let pid = target.pid().to_string();
    let dumped = run(scratch.profiler().args(["dump", "-p", &pid]));
    dumped.refused(1, &["samples CPU time only", "mem_profiler stop"]);
    let stopped = run(scratch.profiler().args(["stop", "-p", &pid]));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(
        stopped.stderr.contains("is written by mem_profiler"),
        "{stopped:?}"
    );
    let outcome = session.wait();
    assert!(Read::only(&outcome).total() > 0.25e9, "{outcome:?}");
    target.kill();
}
