//! Programs that `MEM_PROFILER_ONLY` does not name behave as if nothing were preloaded.

use std::process::{Command, Stdio};

use mem_tests::harm::{self, Mode, Program};
use mem_tests::{Scratch, run};

const OTHER: (&str, &str) = ("MEM_PROFILER_ONLY", "another_program");

#[test]
fn a_program_that_is_not_named_finds_nothing_of_the_agent() {
    let scratch = Scratch::new();
    let program = scratch.compile("unaltered.c", &["-fno-builtin", "-ldl"]);
    let alone = run(Command::new(&program).stdin(Stdio::null()));
    assert!(alone.stdout.contains("chunk of 112\n"), "{alone:?}");
    let mut command = scratch.preloaded(&program);
    let unnamed = run(command.envs([OTHER]).stdin(Stdio::null()));
    assert_eq!(unnamed.stdout, alone.stdout);
    assert_eq!(unnamed.stderr, alone.stderr);
    let named = run(scratch.preloaded(&program).stdin(Stdio::null()));
    assert!(
        named.stdout.contains("malloc in /libmem_agent.so"),
        "{named:?}"
    );
    let segments = std::fs::read_dir(scratch.shared()).expect("a directory");
    let segments = segments.flatten().count();
    assert_eq!(segments, 0, "one that has ended keeps no segment");
}

#[test]
fn programs_with_operators_and_allocators_of_their_own_are_left_as_they_are() {
    let scratch = Scratch::new();
    let names = [
        "operators_header.cpp",
        "operators_preloaded_before.cpp",
        "plugin_bound.c",
        "own_malloc.cpp",
        "own_malloc_free.cpp",
    ];
    for name in names {
        let program = Program::build(&scratch, &harm::directory().join(name));
        let end = |mode| {
            let mut command = program.command(&scratch, mode);
            run(command.envs([OTHER]).stdin(Stdio::null()))
        };
        let (alone, unnamed) = (end(None), end(Some(Mode::EveryAllocation)));
        assert_eq!(alone.code, Some(0), "{}: {alone:?}", program.name);
        assert_eq!(unnamed.code, alone.code, "{}: {unnamed:?}", program.name);
        assert_eq!(unnamed.stdout, alone.stdout, "{}", program.name);
    }
}
