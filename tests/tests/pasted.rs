//! Suggested commands do what the message says when they are pasted into a shell.

use std::path::Path;
use std::process::Command;

use mem_tests::session::tool;
use mem_tests::{Outcome, Scratch, run};

/// Runs the command behind `next:`, up to the remark in brackets.
fn paste(outcome: &Outcome) -> Outcome {
    let mut lines = outcome.stderr.lines();
    let next = lines
        .find_map(|line| line.split_once("next: "))
        .expect("a command")
        .1;
    let command = next.split(" (").next().expect("a command");
    let directory = mem_tests::artifacts::parser();
    let directory = directory
        .parent()
        .expect("a directory")
        .to_str()
        .expect("a path");
    let path = format!("{directory}:{}", std::env::var("PATH").expect("a path"));
    run(Command::new("bash").args(["-c", command]).env("PATH", path))
}

fn sampled(scratch: &Scratch, program: &Path, prefix: &str) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "-o"]).arg(scratch.file(prefix));
    let outcome = run(command.arg("--").arg(program).args(["0.5", "two"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome
}

#[test]
fn a_name_with_control_characters_can_be_pasted() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let outcome = sampled(&scratch, &program, "a\nb\x1b'c_");
    let report = paste(&outcome);
    assert_eq!(report.code, Some(0), "{outcome:?} {report:?}");
    assert!(report.stdout.contains("part_"), "{report:?}");
}

#[test]
fn a_program_without_a_build_id_is_named() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &["-Wl,--build-id=none"]);
    let headers = tool("readelf", ["-n".as_ref(), program.as_os_str()]);
    assert!(!headers.contains("Build ID"), "{headers}");
    let outcome = sampled(&scratch, &program, "p_");
    let report = paste(&outcome);
    assert!(outcome.stderr.contains("mem_parser -p "), "{outcome:?}");
    assert_eq!(report.code, Some(0), "{outcome:?} {report:?}");
    assert!(report.stdout.contains("part_"), "{report:?}");
}

/// A dump contains the path of the program twice; a terminal may show one of the two.
#[test]
fn a_program_whose_path_has_control_characters_is_found() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let strange = scratch.file("a\nb\x1b[31m \\c'?");
    std::fs::copy(&program, &strange).expect("a program");
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", "1", "-o"])
        .arg(scratch.file("p_"));
    let outcome = run(command.arg("--").arg(&strange).args(["0.1", "two"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let report = paste(&outcome);
    assert_eq!(report.code, Some(0), "{outcome:?} {report:?}");
    assert!(report.stdout.contains(" main\n"), "{report:?}");
}
