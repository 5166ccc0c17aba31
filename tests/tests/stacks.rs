//! Stacks of every kind: each allocation is counted where it was made.

use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, sums};

/// Runs a step in a session that samples everything; checks the totals, and that no stack
/// was truncated.
fn exact_and_whole(step: &str) -> profile::Profile {
    let scratch = Scratch::new();
    let mut program = Steps::start(&scratch);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step(step);
    let expected = program.expected();
    let profile = session.stop().profile();
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    program.target.finish_well();
    profile
}

fn truncated(profile: &profile::Profile) -> u64 {
    let counters = profile.facts.counters.iter();
    counters
        .filter(|(name, _)| name.starts_with("truncated"))
        .map(|(_, n)| n)
        .sum()
}

#[test]
fn a_stack_of_16_kib_is_enough() {
    assert_eq!(truncated(&exact_and_whole("small_stack")), 0);
}

#[test]
fn five_thousand_frames_are_counted_and_marked_truncated() {
    let profile = exact_and_whole("deep 5000");
    let deepest = profile.stacks.iter().map(<[u32]>::len).max();
    let whole = deepest > Some(5000);
    let truncated = truncated(&profile) > 0;
    assert!(
        whole != truncated,
        "{deepest:?} frames, truncated: {truncated}"
    );
}

#[test]
fn a_thousand_frames_are_whole() {
    let profile = exact_and_whole("deep 1000");
    assert!(profile.stacks.iter().any(|stack| stack.len() > 1000));
    assert_eq!(truncated(&profile), 0);
}

#[test]
fn coroutines_on_stacks_of_their_own_are_counted() {
    exact_and_whole("coroutines");
}

#[test]
fn a_handler_on_an_alternate_stack_may_allocate() {
    let profile = exact_and_whole("raised 200");
    assert!(!profile.stacks.is_empty());
}

#[test]
fn one_huge_object_is_exact() {
    exact_and_whole("huge 3000000000");
}
