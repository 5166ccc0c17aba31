//! Leak hunt of `docs/hunt` on a program of other authors: its commands, as they are written, lead
//! to the line that leaks.

use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::pages::Page;
use mem_tests::{Outcome, Scratch, Target, artifacts, run, wait};

/// The most commands from the symptom to the line.
const MOST_COMMANDS: usize = 3;
/// Leak in ujson, as the report names it.
const LEAK: &str = "/lib/ultrajsonenc.c:150 in Buffer_Realloc";
/// Advice for CPython.
const HINT: &str = "PYTHONMALLOC=malloc";

fn docs() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Returns our commands on the worker's dumps, in their order.
fn commands() -> Vec<String> {
    let page = Page::read("docs/hunt/README.md".as_ref());
    let ours = |line: &String| {
        line.starts_with("mem_p") && (line.contains("worker_") || line.contains("python3"))
    };
    page.commands().into_iter().filter(ours).collect()
}

/// Returns the worker with ujson 5.3.0, in a process with the agent.
fn worker(scratch: &Scratch) -> Target {
    let mut install = Command::new(docs().join("hunt/install"));
    let install = install.arg(scratch.files()).arg("python");
    let installed = run(install.stdin(Stdio::null()));
    assert_eq!(installed.code, Some(0), "{installed:?}");
    let mut command = scratch.preloaded(scratch.file("venv/bin/python"));
    let script = docs().join("hunt/worker.py");
    let target = Target::start(command.arg(script).args(["1000000", "100"]));
    wait::until("the agent", || {
        let listed = run(scratch.profiler().arg("list"));
        listed.stdout.contains("idle").then_some(())
    });
    target
}

/// Returns a line of the page with our programs in the search path.
fn perform(scratch: &Scratch, line: &str) -> Outcome {
    let programs = artifacts::profiler();
    let programs = programs.parent().expect("a directory").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let paths = std::iter::once(programs).chain(std::env::split_paths(&path));
    let mut command = Command::new("sh");
    command
        .args(["-c", line])
        .env("PATH", std::env::join_paths(paths).expect("no colons"))
        .env("MEM_PROFILER_DIR", scratch.shared())
        .current_dir(scratch.files())
        .stdin(Stdio::null());
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{line}: {outcome:?}");
    outcome
}

#[test]
fn its_commands_lead_to_the_line_that_leaks() {
    let commands = commands();
    assert!(commands.len() <= MOST_COMMANDS, "{commands:?}");
    let scratch = Scratch::new();
    let worker = worker(&scratch);
    let outcomes: Vec<_> = commands.iter().map(|c| perform(&scratch, c)).collect();
    let [session, suspects, lost] = &outcomes[..] else {
        panic!("a session, its suspects, what is lost: {commands:?}");
    };
    let first = &session.stderr;
    assert_eq!(first.matches(HINT).count(), 1, "{first}");
    assert!(first.contains("--leaks"), "{first}");
    let suspects = &suspects.stdout;
    let suspect = suspects.lines().find(|line| line.trim().starts_with("at "));
    assert!(
        suspect.is_some_and(|line| line.ends_with(LEAK)),
        "{suspects}"
    );
    let lost = &lost.stdout;
    let (_, worst) = lost.split_once("Direct leak: ").unwrap_or_default();
    let worst = worst.split("\n\n").next().unwrap_or_default();
    let of_failed = ["Buffer_Realloc", "objToJSON"].map(|name| worst.contains(name));
    assert_eq!(of_failed, [true; 2], "{lost}");

    let why = run(scratch
        .profiler()
        .args(["why", "-p", &worker.pid().to_string()]));
    assert_eq!(why.stderr.matches(HINT).count(), 1, "{why:?}");
}

#[test]
fn cpython_without_an_allocator_of_its_own_gets_no_hint() {
    let scratch = Scratch::new();
    let script = "import sys; print('ready', flush=True); [bytes(99) for _ in sys.stdin]";
    for (value, hints) in [("malloc", 0), ("pymalloc", 1)] {
        let mut command = scratch.preloaded("/usr/bin/python3");
        let command = command.env(HINT.split_once('=').expect("a name").0, value);
        let mut target = Target::start(command.args(["-c", script]));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid().to_string();
        for arguments in [
            &["-s", "0.1", "-o", "hint_", "-p", &pid][..],
            &["why", "-p", &pid],
        ] {
            let outcome = run(scratch.profiler().args(arguments));
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            assert_eq!(
                outcome.stderr.matches(HINT).count(),
                hints,
                "{value}: {outcome:?}"
            );
        }
    }
}
