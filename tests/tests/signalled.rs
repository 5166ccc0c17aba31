//! Signals that the environment assigns to gperftools' profilers: they have the same effect as
//! there, and kill no program.

use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::{Outcome, Scratch, run};

const SIGNAL: &str = "12";

fn program(scratch: &Scratch) -> std::path::PathBuf {
    scratch.compile("signalled.c", &["-fno-builtin"])
}

fn with(command: &mut Command, environment: &[(&str, &str)]) -> Outcome {
    let outcome = run(command
        .envs(environment.iter().copied())
        .stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{environment:?}: {outcome:?}");
    assert!(outcome.stdout.ends_with("alive\n"), "{outcome:?}");
    outcome
}

/// Returns the live objects and bytes of a dump.
fn alive(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap_or_else(|e| panic!("{path:?}: {e}"));
    let first = text.lines().next().expect("a first line").to_owned();
    first.trim_start_matches("heap profile: ").to_owned()
}

#[test]
fn each_signal_writes_a_dump_of_all_that_was_allocated() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    let prefix = scratch.file("p");
    let prefix = prefix.to_str().expect("a path");
    let environment = [("HEAPPROFILE", prefix), ("HEAPPROFILESIGNAL", SIGNAL)];
    let mut command = scratch.preloaded(&program);
    with(&mut command, &environment);
    for number in ["0001", "0002"] {
        let said = alive(Path::new(&format!("{prefix}.{number}.heap")));
        let objects = said.split(':').next().and_then(|n| n.parse::<u32>().ok());
        assert!(objects.is_some_and(|n| n >= 100), "{said}");
    }
}

#[test]
fn a_child_writes_dumps_of_its_own_name() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    let prefix = scratch.file("p");
    let prefix = prefix.to_str().expect("a path");
    let environment = [("HEAPPROFILE", prefix), ("HEAPPROFILESIGNAL", SIGNAL)];
    let outcome = with(scratch.preloaded(&program).arg("fork"), &environment);
    assert!(
        outcome.stdout.contains("child\nits status 0\n"),
        "{outcome:?}"
    );
    let files = std::fs::read_dir(scratch.files()).expect("files").flatten();
    let names: Vec<_> = files
        .map(|f| f.file_name().into_string().expect("a name"))
        .collect();
    let of_child = |name: &&String| name.starts_with("p_") && name.ends_with(".heap");
    assert!(
        names.iter().any(|name| of_child(&name)),
        "{names:?}: {outcome:?}"
    );
}

#[test]
fn no_program_dies_of_a_signal_whose_file_is_not_named() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    for [variable, file] in [
        ["HEAPPROFILESIGNAL", "HEAPPROFILE"],
        ["CPUPROFILESIGNAL", "CPUPROFILE"],
    ] {
        let outcome = with(&mut scratch.preloaded(&program), &[(variable, SIGNAL)]);
        let advice = format!("{variable} names no file: set {file} as well");
        assert!(outcome.stderr.contains(&advice), "{outcome:?}");
    }
}

#[test]
fn a_program_finds_the_signal_unused() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    for variable in ["HEAPPROFILESIGNAL", "CPUPROFILESIGNAL"] {
        let outcome = with(
            scratch.preloaded(&program).arg("free"),
            &[(variable, SIGNAL)],
        );
        assert_eq!(
            outcome.stdout, "handler 0\nbefore 0\nalive\n",
            "{outcome:?}"
        );
    }
}
