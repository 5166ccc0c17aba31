//! Stacks that are longer than the kernel copies, in CPU profiles by each engine.

use mem_tests::cpu::{COMPLETE_DEEP, Read};
use mem_tests::{Scratch, code, run};

/// Frames of the recursion whose stacks are a third of a megabyte, and three megabytes.
const DEPTHS: [usize; 2] = [300, 2900];

/// Samples a recursion of this depth, which repeats if `again`. Returns the profile and the maximum
/// number of recursive frames in a stack.
fn sampled(engine: &str, depth: usize, again: bool) -> (Read, usize) {
    let scratch = Scratch::new();
    let program = scratch.compile("abyss.c", &["-O1", "-fno-optimize-sibling-calls"]);
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", engine, "-F", "250", "-o"]);
    command.arg(scratch.file("p_")).arg("--").arg(&program);
    command.args(["0.8", &depth.to_string()]);
    let outcome = run(command.args(again.then_some("again")));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let read = Read::only(&outcome);
    let binaries = [code::Code::of(&program)];
    let frames = read.stacks().map(|(stack, ..)| {
        let names = code::names(&read.profile, stack, &binaries);
        names.iter().filter(|name| **name == "site_down").count()
    });
    let most = frames.max().expect("a stack");
    (read, most)
}

#[test]
fn stacks_longer_than_a_copy_are_followed_to_their_end() {
    for engine in ["perf", "timers", "ptrace"] {
        for depth in DEPTHS {
            let (read, frames) = sampled(engine, depth, false);
            read.assert_complete(COMPLETE_DEEP);
            assert_eq!(frames, depth + 1, "{engine}");
        }
    }
}

/// The part of a stack that was not copied may have changed when it is read. The stack is then
/// truncated, and never a mixture of two.
#[test]
fn stacks_that_come_and_go_are_followed_too() {
    for engine in ["perf", "ptrace"] {
        let (read, frames) = sampled(engine, DEPTHS[0], true);
        read.assert_complete(COMPLETE_DEEP);
        assert_eq!(frames, DEPTHS[0] + 1, "{engine}");
    }
}
