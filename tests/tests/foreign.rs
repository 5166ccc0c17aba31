//! Stacks that do not belong to their threads, and memory where such a stack was: the program
//! continues, and each allocation is counted where it was made.

use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, sums};

fn start(scratch: &Scratch) -> Steps {
    let program = scratch.compile("foreign.c", &[]);
    let mut command = scratch.preloaded(&program);
    Steps::run(program, &mut command)
}

/// Does a step in a session that samples everything, then deep recursion on the first
/// thread's stack; checks the totals. Then the same where one allocation in a few is sampled.
fn exact(step: &str) {
    let scratch = Scratch::new();
    let mut program = start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(&format!("{step} 3"));
    program.step("deep 1500");
    let expected = program.expected();
    let profile = session.stop().profile();
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    let session = Session::of(&scratch, program.pid(), "1024");
    program.step(&format!("{step} 60"));
    program.step("deep 1500");
    program.target.finish_well();
    assert!(!session.wait().profile().stacks.is_empty());
}

#[test]
fn a_smaller_stack_in_the_place_of_one_that_was_unmapped() {
    exact("unmapped");
}

#[test]
fn a_stack_whose_upper_part_is_unmapped() {
    exact("truncated");
}

#[test]
fn stacks_on_the_heap_freed_and_used_again() {
    exact("on_heap");
}

#[test]
fn stacks_with_guard_pages_side_by_side() {
    exact("guards");
}

#[test]
fn alternate_signal_stacks_unmapped_between() {
    exact("signals");
}

#[test]
fn threads_on_memory_of_the_program_s_own() {
    exact("supplied");
}

#[test]
#[cfg(target_arch = "x86_64")]
fn segments_beside_a_thread_s_own_stack() {
    exact("chained");
}

#[test]
fn stacks_of_one_page() {
    exact("tiny");
}

#[test]
fn signal_stacks_of_8_kib() {
    exact("small_signals");
}
