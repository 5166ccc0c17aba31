//! Tests with reads of synthetic stacks.

use super::*;
use std::vec;

#[test]
fn words_are_read_across_pages_and_misaligned_ones_refused() {
    let words = vec![7u64; 4096];
    let base = words.as_ptr() as u64;
    let mut stack = Stack::at(base);
    assert_eq!(stack.read(base), Ok(7));
    assert_eq!(stack.read(base + 8 * 4000), Ok(7));
    assert_eq!(stack.read(base + 4), Err(Cause::OutOfStack));
}

#[test]
fn words_below_an_interrupted_stack_pointer_are_read_across_a_page() {
    let words = vec![7u64; 4096];
    let page = (words.as_ptr() as u64 + 2 * PAGE) & !(PAGE - 1);
    let mut stack = Stack::new(Ends::default());
    assert_eq!(stack.move_to(page), Ok(()));
    assert_eq!(stack.read(page - 16), Ok(7));
    assert_eq!(stack.read(page), Ok(7));
    assert_eq!(
        stack.move_to(8),
        Err(Cause::OutOfStack),
        "nothing is mapped there"
    );
}

#[test]
fn memory_below_the_stack_or_above_its_ceiling_is_not_read() {
    let words = vec![7u64; 4096];
    let base = words.as_ptr() as u64;
    let mut stack = Stack::new(Ends::default());
    assert!(!stack.enter(base + 8192, base + 16384));
    assert_eq!(stack.read(base), Err(Cause::OutOfStack));
    assert_eq!(stack.read(base + 16384), Err(Cause::OutOfStack));
    assert_eq!(stack.read(base + 8192), Ok(7));
    assert_eq!(stack.read(!7), Err(Cause::OutOfStack));
}

const SLACK: Ends = Ends {
    first: 0,
    first_thread: 0,
    thread_slack: 512,
};

/// Returns memory that serves as a stack, and the end of that stack.
fn memory() -> (vec::Vec<u64>, u64) {
    let words = vec![7u64; 8 * 512];
    let end = words.as_ptr() as u64 + 8 * 8 * 512;
    (words, end)
}

#[test]
fn a_walk_that_ends_near_the_stack_end_identifies_the_own_stack() {
    let (_words, end) = memory();
    let mut stack = Stack::new(SLACK);
    assert!(!stack.enter(end - 9000, end));
    stack.update_bounds(Some(end - 500), || end - 9000);
    assert!(stack.enter(end - 9000, end));
    assert!(!stack.enter(end - 20_000, end), "deeper is not known yet");
    stack.update_bounds(Some(end - 500), || end - 20_000);
    assert!(stack.enter(end - 20_000, end));
    assert!(stack.enter(end - 9000, end));
    assert_eq!(stack.read(end), Err(Cause::OutOfStack));
}

#[test]
fn foreign_stacks_are_probed_again_by_each_walk() {
    let (_words, end) = memory();
    for (outermost, same_stack_sp) in [(None, 0), (Some(end - 600), end - 9000)] {
        let mut stack = Stack::new(SLACK);
        assert!(!stack.enter(end - 9000, end));
        stack.update_bounds(outermost, || same_stack_sp);
        assert!(!stack.enter(end - 9000, end), "{outermost:?}");
        assert_eq!(stack.span().0, stack.span().1, "nothing is known");
    }
}

#[test]
fn memory_beyond_a_stack_switch_is_not_the_own_stack() {
    let (_words, end) = memory();
    let mut stack = Stack::new(SLACK);
    stack.enter(end - 20_000, end);
    stack.update_bounds(Some(end - 500), || end - 3000);
    assert!(stack.enter(end - 3000, end));
    assert!(!stack.enter(end - 20_000, end));
}

#[test]
fn the_main_threads_stack_needs_no_complete_walk() {
    let (_words, end) = memory();
    let mut stack = Stack::new(Ends {
        first: end,
        ..Ends::default()
    });
    stack.enter(end - 9000, 0);
    stack.update_bounds(None, || 0);
    assert!(stack.enter(end - 9000, 0));
}

#[test]
fn memory_below_the_main_threads_pointer_is_not_its_stack() {
    let (_words, end) = memory();
    let mut stack = Stack::new(Ends {
        first_thread: end,
        ..SLACK
    });
    stack.enter(end - 9000, end);
    stack.update_bounds(Some(end - 500), || end - 9000);
    assert!(!stack.enter(end - 9000, end));
}

/// Reads one word of each page of a stack, from the lowest up to the first that cannot be read.
/// Returns the number of pages read.
fn read_through(stack: &mut Stack, words: &[u64]) -> usize {
    const WORDS: usize = PAGE as usize / 8;
    stack.enter(words.as_ptr() as u64, 0);
    let pages = words.chunks(WORDS).map(|page| page.as_ptr() as u64);
    pages.take_while(|at| stack.read(*at).is_ok()).count()
}

#[test]
fn the_probing_budget_for_deep_foreign_stacks_shrinks() {
    let words = vec![7u64; 200 * 512];
    let mut stack = Stack::new(Ends::default());
    let walks: vec::Vec<_> = (0..500).map(|_| read_through(&mut stack, &words)).collect();
    assert!(walks[..40].iter().all(|pages| *pages == 200), "{walks:?}");
    let min = usize::from(Budget::READ_PER_WALK);
    let late = &walks[100..];
    assert!(late.iter().all(|pages| *pages >= min), "{walks:?}");
    let average = late.iter().sum::<usize>() / late.len();
    assert!(average <= min + 1, "{average}");
    // A shallow stack is read completely.
    assert_eq!(read_through(&mut stack, &words[..20 * 512]), 20);
}

#[test]
fn wide_gaps_are_probed_until_the_budget_is_spent() {
    let words = vec![7u64; 1000 * 512];
    let low = words.as_ptr() as u64;
    let high = words.as_ptr() as u64 + 990 * PAGE;
    let mut stack = Stack::new(Ends::default());
    let walk = |stack: &mut Stack| {
        stack.enter(low, 0);
        assert_eq!((stack.read(low), stack.read(high)), (Ok(7), Ok(7)));
        (stack.moved(), stack.span().0)
    };
    assert_eq!(walk(&mut stack), (false, low & !(PAGE - 1)));
    let all: vec::Vec<_> = (0..100).map(|_| walk(&mut stack)).collect();
    let left_out = (true, high & !(PAGE - 1));
    let count = all.iter().filter(|walk| **walk == left_out).count();
    assert!(count >= 90, "{all:?}");
    assert_eq!(stack.read(low), Err(Cause::OutOfStack), "no way back");
}

#[test]
fn memory_past_a_hole_is_read_and_the_hole_is_not() {
    let words = vec![7u64; 64 * 512];
    let low = (words.as_ptr() as u64 + PAGE) & !(PAGE - 1);
    let hole = low + 20 * PAGE;
    let beyond = low + 21 * PAGE;
    unsafe extern "C" {
        fn mprotect(at: u64, len: usize, access: i32) -> i32;
    }
    // SAFETY: the page belongs to the vector, and nothing accesses it directly until it is
    // restored.
    assert_eq!(unsafe { mprotect(hole, PAGE as usize, 0) }, 0);
    let mut stack = Stack::new(Ends::default());
    stack.enter(low, 0);
    assert_eq!(stack.read(low), Ok(7));
    assert_eq!(stack.read(hole + 8), Err(Cause::OutOfStack));
    assert_eq!(stack.read(low + 8), Ok(7), "known memory remains known");
    assert_eq!(stack.read(beyond), Ok(7));
    assert!(stack.moved());
    // SAFETY: restores the access to the same page.
    assert_eq!(unsafe { mprotect(hole, PAGE as usize, 3) }, 0);
}
