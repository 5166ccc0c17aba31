//! Functions that a program defines for LeakSanitizer: `__lsan_is_turned_off`,
//! `__lsan_default_suppressions`, `__lsan_default_options`.

use std::path::PathBuf;
use std::process::Command;

use mem_tests::{Outcome, Scratch, run};

/// Returns the program with hooks, which it exports.
fn program(scratch: &Scratch) -> PathBuf {
    scratch.compile("lsan_interface.c", &["-O1", "-DHOOKS", "-rdynamic"])
}

/// Runs one case of the program, sampled from its start, with these environment variables.
fn asked(scratch: &Scratch, case: &str, variables: &[(&str, &str)]) -> Outcome {
    let mut command = scratch.preloaded(program(scratch));
    command
        .env("MEM_PROFILER_START", "1")
        .env("MEM_PROFILER_INTERVAL", "1");
    run(command.arg(case).envs(variables.iter().copied()))
}

const LOST: &str = "at first: 0\ndisabled and ignored: 0\nlost: 1\nstill lost: 1\n";
const CLEAN: &str = "at first: 0\ndisabled and ignored: 0\nlost: 0\nstill lost: 0\n";

#[test]
fn hooks_that_say_nothing_change_nothing() {
    let scratch = Scratch::new();
    let outcome = asked(&scratch, "recoverable", &[]);
    assert_eq!(outcome.stdout, LOST, "{outcome:?}");
    let outcome = asked(&scratch, "fatal", &[]);
    assert_eq!(outcome.code, Some(23), "{outcome:?}");
}

#[test]
fn a_program_turns_checks_off() {
    let scratch = Scratch::new();
    let off = [("TURNED_OFF", "1")];
    let outcome = asked(&scratch, "recoverable", &off);
    assert_eq!((&*outcome.stdout, &*outcome.stderr), (CLEAN, ""));
    let outcome = asked(&scratch, "fatal", &off);
    assert_eq!(outcome.stdout, "not reached\n", "{outcome:?}");
    let outcome = asked(&scratch, "recoverable", &[("OPTIONS", "detect_leaks=0")]);
    assert_eq!((&*outcome.stdout, &*outcome.stderr), (CLEAN, ""));
}

#[test]
fn a_program_names_known_leaks() {
    let scratch = Scratch::new();
    let known = |text| asked(&scratch, "recoverable", &[("KNOWN", text)]);
    let outcome = known("# ours\nleak:^leaks$\n");
    assert_eq!((&*outcome.stdout, &*outcome.stderr), (CLEAN, ""));
    let outcome = known("leak:another");
    assert_eq!(outcome.stdout, LOST, "{outcome:?}");
    let outcome = known("leak:^leaks$\nnonsense");
    assert_eq!(
        outcome.stdout, CLEAN,
        "what comes before counts: {outcome:?}"
    );
    let outcome = known("nonsense");
    assert_eq!(outcome.stdout, LOST, "{outcome:?}");
    let warning = "__lsan_default_suppressions(), line 1: \"nonsense\" is not a suppression";
    assert!(outcome.stderr.contains(warning), "{outcome:?}");
}

#[test]
fn a_program_has_options_that_the_variable_overrides() {
    let scratch = Scratch::new();
    let code = |program: &str, variable: &str| {
        let variables = [("OPTIONS", program), ("LSAN_OPTIONS", variable)];
        let outcome = asked(&scratch, "fatal", &variables);
        assert!(outcome.stderr.contains("100 byte(s) leaked"), "{outcome:?}");
        (outcome.code, outcome.stdout)
    };
    let ends = |code| (Some(code), String::new());
    assert_eq!(code("exitcode=7", ""), ends(7));
    assert_eq!(code("verbosity=0:exitcode=7", "exitcode=9"), ends(9));
    assert_eq!(
        code("exitcode=0", ""),
        (Some(0), "not reached\n".to_owned())
    );
}

/// Checks `run --leak-check` and `HEAPCHECK`, which check at the program's exit.
#[test]
fn hooks_are_asked_at_the_programs_exit() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    let by_run = |variables: &[(&str, &str)]| {
        let mut command = scratch.profiler();
        command
            .args(["run", "--leak-check", "-o"])
            .arg(scratch.file("p_"));
        command.arg("--").arg(&program).arg("exit");
        run(command.envs(variables.iter().copied()))
    };
    let by_variable = |variables: &[(&str, &str)]| {
        let mut command: Command = scratch.preloaded(&program);
        command.env("HEAPCHECK", "normal").arg("exit");
        run(command.envs(variables.iter().copied()))
    };
    for is_run in [true, false] {
        let check = |variables: &[(&str, &str)]| match is_run {
            true => by_run(variables),
            false => by_variable(variables),
        };
        let lost = check(&[]);
        assert_eq!(lost.code, Some(1), "{lost:?}");
        assert!(lost.stderr.contains("100 B in 1 object"), "{lost:?}");
        for variables in [("TURNED_OFF", "1"), ("KNOWN", "leak:^leaks$")] {
            let clean = check(&[variables]);
            assert_eq!(clean.code, Some(0), "{variables:?}: {clean:?}");
            assert!(!clean.stderr.contains("Direct leak"), "{clean:?}");
            assert!(!clean.stderr.contains("no leak check"), "{clean:?}");
        }
    }
}
