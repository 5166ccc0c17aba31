//! Python frames outside of simple scripts: in tasks of asyncio and uvloop, in greenlets and
//! gevent, in virtual environments, and in statically linked interpreters.

use std::process::Command;

use mem_tests::pythons::{self, by_stack, profiled};
use mem_tests::{Scratch, artifacts, run, venv};

/// greenlet, as of PyPI.
const GREENLET: &str = "greenlet==3.2.4";
const GEVENT: [&str; 2] = ["gevent==26.9.0", "greenlet==3.5.6"];
const UVLOOP: &str = "uvloop==0.23.0";

/// A stack has the coroutines that await each other, and those of the event loop that runs the
/// task. All tasks with the same coroutines are one stack, whatever their names.
#[test]
fn a_task_of_asyncio_is_identified_by_its_coroutines() {
    for python in pythons::all() {
        let scratch = Scratch::new();
        let script = artifacts::source("python_tasks.py");
        let found = by_stack(&profiled(&scratch, &python, &[&script]));
        let inner = "store (python_tasks.py:18)";
        for (outer, bytes) in [
            ("upload (python_tasks.py:23)", 2e6),
            ("fetch (python_tasks.py:27)", 15e5),
        ] {
            let begins = format!("{inner};{outer};");
            let of = |stack: &&String| stack.starts_with(&begins);
            let stacks: Vec<&String> = found.keys().filter(of).collect();
            let [stack] = stacks[..] else {
                panic!("{}: {stacks:#?}", python.display());
            };
            let live = found[stack];
            assert!(
                (bytes..bytes * 1.02).contains(&live),
                "{}: {live} of {bytes}",
                python.display()
            );
            // From 3.11 on with the class: `Handle._run`.
            let frames: Vec<&str> = stack.split(';').collect();
            let task = frames[2];
            assert!(task.contains("_run (events.py:"), "{stack}");
            assert!(stack.contains("run_forever (base_events.py:"), "{stack}");
            let last = "<module> (python_tasks.py:37)";
            assert_eq!(frames.last(), Some(&last), "{stack}");
        }
    }
}

#[test]
fn each_greenlet_has_its_own_frames() {
    let python = venv::python("greenlet-3.2.4", &[GREENLET]);
    let scratch = Scratch::new();
    let truth = scratch.file("truth");
    let script = artifacts::source("python_greenlets.py");
    let profile = profiled(&scratch, &python, &[&script, &truth]);
    pythons::compare(&profile, &truth, 14);
}

/// Greenlets have their own frames in gevent's thread pool, too.
#[test]
fn greenlets_of_gevent_have_their_own_frames() {
    let python = venv::python("gevent-26.9.0", &GEVENT);
    let scratch = Scratch::new();
    let truth = scratch.file("truth");
    let script = artifacts::source("python_gevent.py");
    let profile = profiled(&scratch, &python, &[&script, &truth]);
    pythons::compare(&profile, &truth, 11);
}

/// uvloop's event loop is not written in Python, but runs the coroutines.
#[test]
fn a_task_of_uvloop_is_identified_by_its_coroutines() {
    let python = venv::python("uvloop-0.23.0", &[UVLOOP]);
    let scratch = Scratch::new();
    let [script, tasks] = ["python_uvloop.py", "python_tasks.py"].map(artifacts::source);
    let found = by_stack(&profiled(&scratch, &python, &[&script, &tasks]));
    for (outer, bytes) in [
        ("upload (python_tasks.py:23)", 2e6),
        ("fetch (python_tasks.py:27)", 15e5),
    ] {
        let begins = format!("store (python_tasks.py:18);{outer};Runner.run (runners.py:");
        let live = found.iter().filter(|(stack, _)| stack.starts_with(&begins));
        let live: f64 = live.map(|(_, bytes)| bytes).sum();
        assert!(
            (bytes..bytes * 1.02).contains(&live),
            "{live} of {bytes}: {found:#?}"
        );
    }
}

/// Checks the other interpreters, with greenlet as it is built for each of them.
#[test]
fn greenlets_have_their_frames_in_other_versions() {
    for version in ["3.9", "3.10", "3.12", "3.13", "3.14"] {
        let ends = format!("/python{version}");
        let python = pythons::all().into_iter().find(|path| {
            let path = path.to_str().expect("a path of ours");
            path.ends_with(&ends)
        });
        let python = python.expect("one of the interpreters");
        let scratch = Scratch::new();
        let truth = scratch.file("truth");
        let packages = scratch.file("packages");
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "-q", "install", "--no-deps", GREENLET]);
        pip.args(["--only-binary=:all:", "--implementation", "cp"]);
        pip.args(["--python-version", version, "--target"]);
        let outcome = run(pip.arg(&packages));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let script = artifacts::source("python_greenlets.py");
        let mut command = scratch.profiler();
        command.env("PYTHONPATH", &packages);
        let profile = pythons::profiled_by(command, &scratch, &python, &[&script, &truth]);
        pythons::compare(&profile, &truth, 14);
    }
}

/// Debian's `python3` does not use a shared Python library, and a virtual environment refers to it.
#[test]
fn an_interpreter_may_be_linked_statically_and_in_an_environment() {
    let scratch = Scratch::new();
    let made = scratch.file("environment");
    let mut venv = Command::new("/usr/bin/python3");
    venv.args(["-m", "venv", "--without-pip"]).arg(&made);
    let outcome = run(&mut venv);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let python = made.join("bin/python");
    let script = "import sys; print(sys.prefix != sys.base_prefix); \
                  print('libpython' in open('/proc/self/maps').read())";
    let outcome = run(Command::new(&python).args(["-c", script]));
    assert_eq!(outcome.stdout, "True\nFalse\n", "{outcome:?}");
    let truth = scratch.file("truth");
    let script = artifacts::source("python_truth.py");
    let profile = profiled(&scratch, &python, &[&script, &truth]);
    pythons::compare(&profile, &truth, 200);
    let said = profile.facts.python.unwrap_or_default();
    assert!(
        said.starts_with("3.11.") && said.ends_with(": named"),
        "{said}"
    );
}
