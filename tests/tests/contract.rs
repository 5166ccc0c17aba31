//! jemalloc's contract, for sampled objects and for others.

use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::{Scratch, run};

/// What the environment says for every allocation to be sampled.
const EVERY_ALLOCATION: [(&str, &str); 2] =
    [("MEM_PROFILER_START", "1"), ("MEM_PROFILER_INTERVAL", "1")];

fn holds(environment: &[(&str, &str)]) {
    let scratch = Scratch::new();
    let program = scratch.compile("contract.c", &["-fno-builtin"]);
    let mut command = scratch.preloaded(&program);
    command
        .envs(environment.iter().copied())
        .stdin(Stdio::null());
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stdout, "done\n", "{outcome:?}");
}

#[test]
fn it_holds_while_nothing_is_sampled() {
    holds(&[]);
}

#[test]
fn it_holds_for_objects_that_are_sampled() {
    holds(&EVERY_ALLOCATION);
}

#[test]
fn it_holds_where_some_are_sampled() {
    holds(&[
        ("MEM_PROFILER_START", "1"),
        ("MEM_PROFILER_INTERVAL", "4096"),
    ]);
}

/// Checks a program with each allocator, idle and with every allocation sampled.
fn with_each_allocator(scratch: &Scratch, program: &Path, check: impl Fn(&mut Command, &str)) {
    for allocator in ["system", "jemalloc"] {
        for sampled in [false, true] {
            let mut command = scratch.preloaded(program);
            command.env("MEM_PROFILER_ALLOCATOR", allocator);
            command.envs(EVERY_ALLOCATION.iter().filter(|_| sampled).copied());
            check(&mut command, &format!("{allocator}, sampled: {sampled}"));
        }
    }
}

#[test]
fn what_jemallocs_calls_give_the_c_librarys_take() {
    let scratch = Scratch::new();
    let program = scratch.compile("extended.c", &["-fno-builtin"]);
    with_each_allocator(&scratch, &program, |command, detail| {
        let output = command.output().expect("the program");
        let said = String::from_utf8_lossy(&output.stdout);
        assert_eq!(said, "ok\n", "{detail}: {output:?}");
    });
}

#[test]
fn alignments_are_taken_and_refused_as_by_the_c_library() {
    let scratch = Scratch::new();
    let program = scratch.compile("alignments.c", &["-fno-builtin"]);
    let own = run(Command::new(&program).stdin(Stdio::null()));
    assert!(own.stdout.contains("4096 aaa\n"), "{own:?}");
    with_each_allocator(&scratch, &program, |command, detail| {
        assert_eq!(run(command).stdout, own.stdout, "{detail}");
    });
}
