//! Reads of memory made by hand.

use super::*;
use std::vec;

#[test]
fn words_are_read_across_pages_and_misalignment_refused() {
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
fn nothing_below_the_stack_or_above_its_ceiling_is_read() {
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

/// Memory in the place of a stack that ends at the second value.
fn memory() -> (vec::Vec<u64>, u64) {
    let words = vec![7u64; 8 * 512];
    let end = words.as_ptr() as u64 + 8 * 8 * 512;
    (words, end)
}

#[test]
fn a_thread_s_own_stack_is_known_by_a_walk_that_ends_close_to_its_end() {
    let (_words, end) = memory();
    let mut stack = Stack::new(SLACK);
    assert!(!stack.enter(end - 9000, end));
    stack.settle(Some(end - 500), || end - 9000);
    assert!(stack.enter(end - 9000, end));
    assert!(!stack.enter(end - 20_000, end), "deeper is not known yet");
    stack.settle(Some(end - 500), || end - 20_000);
    assert!(stack.enter(end - 20_000, end));
    assert!(stack.enter(end - 9000, end));
    assert_eq!(stack.read(end), Err(Cause::OutOfStack));
}

#[test]
fn every_other_stack_is_queried_again() {
    let (_words, end) = memory();
    for (outermost, steady) in [(None, 0), (Some(end - 600), end - 9000)] {
        let mut stack = Stack::new(SLACK);
        assert!(!stack.enter(end - 9000, end));
        stack.settle(outermost, || steady);
        assert!(!stack.enter(end - 9000, end), "{outermost:?}");
        assert_eq!(stack.span().0, stack.span().1, "nothing is known");
    }
}

#[test]
fn what_a_switch_lies_between_is_not_the_thread_s_own() {
    let (_words, end) = memory();
    let mut stack = Stack::new(SLACK);
    stack.enter(end - 20_000, end);
    stack.settle(Some(end - 500), || end - 3000);
    assert!(stack.enter(end - 3000, end));
    assert!(!stack.enter(end - 20_000, end));
}

#[test]
fn the_first_thread_s_stack_needs_no_complete_walk() {
    let (_words, end) = memory();
    let mut stack = Stack::new(Ends {
        first: end,
        ..Ends::default()
    });
    stack.enter(end - 9000, 0);
    stack.settle(None, || 0);
    assert!(stack.enter(end - 9000, 0));
}

#[test]
fn what_lies_below_the_first_thread_s_pointer_is_no_stack_of_its_own() {
    let (_words, end) = memory();
    let mut stack = Stack::new(Ends {
        first_thread: end,
        ..SLACK
    });
    stack.enter(end - 9000, end);
    stack.settle(Some(end - 500), || end - 9000);
    assert!(!stack.enter(end - 9000, end));
}
