//! Variables of gperftools' heap checker that choose what is reported about leaks, and checks of
//! programs under a debugger.

use std::process::Command;

use mem_tests::leaks::tell;
use mem_tests::tracing::Debugged;
use mem_tests::{Outcome, Scratch, Target, run};

/// Runs `hidden.cpp` with all objects planted and a check at its exit, by `run` and by `HEAPCHECK`.
fn at_exit(scratch: &Scratch, variables: &[(&str, &str)]) -> [Outcome; 2] {
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let mut by_run = scratch.profiler();
    by_run
        .args(["run", "--leak-check", "-o"])
        .arg(scratch.file("p_"));
    by_run.arg("--").arg(&program).arg("plant");
    let mut by_variable: Command = scratch.preloaded(&program);
    by_variable.env("HEAPCHECK", "normal").arg("plant");
    [by_run, by_variable].map(|mut command| run(command.envs(variables.iter().copied())))
}

#[test]
fn leaked_objects_are_listed_and_the_program_leaves_a_core() {
    let scratch = Scratch::new();
    let [by_run, by_variable] = at_exit(&scratch, &[("HEAP_CHECK_IDENTIFY_LEAKS", "1")]);
    assert_eq!(by_run.code, Some(1), "{by_run:?}");
    assert_eq!(by_variable.code, None, "aborted: {by_variable:?}");
    for outcome in [&by_run, &by_variable] {
        let listed = |bytes: u32| {
            let line = format!("leaked {bytes} byte object 0x");
            outcome.stderr.matches(&line).count()
        };
        assert_eq!(
            (listed(100), listed(80), listed(176)),
            (10, 1, 1),
            "{outcome:?}"
        );
    }
    for outcome in at_exit(&scratch, &[("HEAP_CHECK_IDENTIFY_LEAKS", "0")]) {
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
        assert!(!outcome.stderr.contains("byte object"), "{outcome:?}");
    }
}

#[test]
fn a_second_search_shows_whether_alignment_is_the_cause() {
    const TEST: (&str, &str) = ("HEAP_CHECK_TEST_POINTER_ALIGNMENT", "1");
    let scratch = Scratch::new();
    let said = |variables: &[(&str, &str)], what: &str| {
        for outcome in at_exit(&scratch, variables) {
            assert_eq!(outcome.code, Some(1), "{outcome:?}");
            assert!(outcome.stderr.contains(what), "{what}: {outcome:?}");
        }
    };
    said(&[TEST], "Found leaks without pointer alignment as well");
    let unaligned = ("HEAP_CHECK_POINTER_SOURCE_ALIGNMENT", "1");
    said(&[TEST, unaligned], "count already: nothing is left to test");
    // All else that is lost is known: what one unaligned pointer keeps is left.
    let suppressions = scratch.file("known.txt");
    std::fs::write(&suppressions, "leak:^lost_\nleak:^by_tag$\n").expect("written");
    let known = format!("suppressions={}", suppressions.display());
    let known = ("LSAN_OPTIONS", &*known);
    said(&[TEST, known], "Found no leaks without pointer alignment");
}

/// gperftools ignores the variable, and checks after the destructors in every mode.
#[test]
fn the_check_at_exit_comes_after_destructors_whatever_is_asked_for() {
    const SAID: &str = "Leak check _main_ detected leaks of 333 bytes in 2 objects";
    let scratch = Scratch::new();
    let program = scratch.compile("destroyed.cpp", &["-O0"]);
    let linked = ["-O0", "-Wl,--no-as-needed", "-l:libtcmalloc.so.4"];
    let theirs = scratch.compile_as("destroyed.cpp", "theirs", &linked);
    for mode in ["minimal", "normal", "strict", "as-is"] {
        for after in ["0", "1"] {
            let mut ours = scratch.preloaded(&program);
            for command in [&mut ours, &mut Command::new(&theirs)] {
                command.env("HEAPCHECK", mode);
                command.env("HEAP_CHECK_DUMP_DIRECTORY", scratch.files());
                command.env("HEAP_CHECK_AFTER_DESTRUCTORS", after);
                let outcome = run(command);
                assert_eq!(outcome.code, Some(1), "{mode} {after}: {outcome:?}");
                assert!(outcome.stderr.contains(SAID), "{mode} {after}: {outcome:?}");
            }
        }
    }
}

/// The program is searched while it runs, because nobody can stop it while a debugger does.
#[test]
fn a_program_under_a_debugger_is_checked_if_that_is_wanted() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    for (variable, code, said) in [
        ("0", 0, "HEAP_CHECK_RUN_UNDER_GDB=1"),
        ("1", 1, "leaks of 100 bytes in 1 objects"),
    ] {
        let mut command = scratch.preloaded(&program);
        command.env("HEAPCHECK", "normal");
        command.env("HEAP_CHECK_RUN_UNDER_GDB", variable);
        let errors = scratch.file("errors");
        command.stderr(std::fs::File::create(&errors).expect("a file"));
        let mut target = Target::start(&mut command);
        assert_eq!(target.hear(), "ready");
        tell(&mut target, "go 10", "gone");
        let debugged = Debugged::running(target.pid());
        let status = target.finish();
        drop(debugged);
        let stderr = std::fs::read_to_string(&errors).expect("a file");
        assert_eq!(status.code(), Some(code), "{status:?}: {stderr}");
        assert!(stderr.contains(said), "{stderr}");
    }
}
