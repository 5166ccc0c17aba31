//! Programs whose allocations do not reach the agent: a message says so for each, with the reason.
//! Programs that allocate nothing are not suspected.

use mem_tests::{Outcome, Scratch, Session, Target, artifacts, run};

/// Starts a build of `own_malloc.c` under the agent.
fn start(scratch: &Scratch, flags: &[&str]) -> Target {
    let program = scratch.compile("own_malloc.c", &[flags, &["-fno-builtin"]].concat());
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    target
}

/// Runs a session during which the program takes these steps.
fn session(scratch: &Scratch, target: &mut Target, steps: &[&str]) -> Outcome {
    let session = Session::of(scratch, target.pid(), "64");
    for step in steps {
        target.say(step);
        assert_eq!(target.hear_until("ok"), [""; 0]);
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome
}

/// Returns the output of `list` and `why`.
fn asked(scratch: &Scratch, target: &Target) -> [String; 2] {
    let pid = target.pid().to_string();
    let list = run(scratch.profiler().args(["list", "-p", &pid]));
    let why = run(scratch.profiler().args(["why", "-p", &pid]));
    [list, why].map(|outcome| {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        outcome.stderr
    })
}

/// Returns the output of `run` for the same program.
fn under_run(scratch: &Scratch) -> String {
    let mut command = scratch.profiler();
    let agent = artifacts::agent();
    command.arg("run").arg("--agent").arg(agent);
    let outcome = run(command.arg(scratch.file("own_malloc")));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stderr
}

#[test]
fn a_linked_allocator_is_reported_in_busy_and_idle_programs() {
    let cases: [(&[&str], &str); 5] = [
        (&["-DPREFIX="], "defines malloc itself"),
        (&["-DPREFIX=", "-s"], "defines malloc itself"),
        (&["-DPREFIX=", "-DHIDDEN"], "has a malloc of its own"),
        (&["-DPREFIX=je_"], "(je_malloc)"),
        (&["-DPREFIX=tc_", "-DHIDDEN"], "(tc_malloc)"),
    ];
    for (flags, says) in cases {
        let scratch = Scratch::new();
        let mut target = start(&scratch, flags);
        let outcome = session(&scratch, &mut target, &["allocate 10000"]);
        let few = session(&scratch, &mut target, &["allocate 10000", "library 5"]);
        let [list, why] = asked(&scratch, &target);
        for said in [outcome.stderr, few.stderr, list, why, under_run(&scratch)] {
            assert!(said.contains("warning: "), "{flags:?}: {said}");
            assert!(said.contains(says), "{flags:?}: {said}");
        }
        target.finish_well();
    }
}

#[test]
fn a_stripped_programs_hidden_allocator_is_known_by_its_messages() {
    let flags = [
        "-DPREFIX=je_",
        "-DHIDDEN",
        "-s",
        "-DMESSAGE=\"<jemalloc>: %s\\n\"",
    ];
    let scratch = Scratch::new();
    let mut target = start(&scratch, &flags);
    let outcome = session(&scratch, &mut target, &["allocate 10000", "library 5"]);
    for said in [outcome.stderr, under_run(&scratch)] {
        assert!(said.contains("warning: "), "{said}");
        assert!(said.contains("<jemalloc>"), "{said}");
    }
    target.finish_well();
}

#[test]
fn a_library_before_the_agent_is_named() {
    let scratch = Scratch::new();
    let flags = ["-DPREFIX=", "-DLIBRARY", "-shared", "-fPIC", "-fno-builtin"];
    let library = scratch.compile_as("own_malloc.c", "libother.so", &flags);
    let program = scratch.compile("own_malloc.c", &[]);
    let agent = artifacts::agent();
    let mut command = scratch.preloaded(program);
    let preload = format!("{}:{}", library.display(), agent.display());
    let mut target = Target::start(command.env("LD_PRELOAD", preload));
    assert_eq!(target.hear(), "ready");
    let outcome = session(&scratch, &mut target, &["allocate 10000"]);
    let [list, why] = asked(&scratch, &target);
    for said in [outcome.stderr, list, why] {
        assert!(said.contains("libother.so"), "{said}");
        assert!(said.contains("first in LD_PRELOAD"), "{said}");
    }
    target.finish_well();
}

#[test]
fn programs_that_allocate_nothing_or_pass_it_on_are_not_suspected() {
    // Idle; stripped and idle; seen, although through its own malloc.
    let cases: [(&[&str], &[&str]); 3] = [
        (&[], &[]),
        (&["-s"], &["library 5"]),
        (&["-DPREFIX=", "-DPASSES_ON"], &["allocate 10000"]),
    ];
    for (flags, steps) in cases {
        let scratch = Scratch::new();
        let mut target = start(&scratch, flags);
        let outcome = session(&scratch, &mut target, steps);
        assert!(
            !outcome.stderr.contains("warning"),
            "{flags:?}: {outcome:?}"
        );
        target.finish_well();
    }
    let scratch = Scratch::new();
    let target = start(&scratch, &[]);
    for said in asked(&scratch, &target) {
        assert!(!said.contains("allocator"), "{said}");
    }
    assert!(!under_run(&scratch).contains("warning: own_malloc:"));
}
