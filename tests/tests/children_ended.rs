//! Servers that fork for each request: their children leave nothing behind, though no other program starts
//! that could remove it.

use std::fs;

use mem_tests::{Scratch, run};

/// Files of segments that are left once so many children have ended, `how`, and their parent.
fn left(count: u32, how: &str) -> usize {
    let scratch = Scratch::new();
    let program = scratch.compile("ends_children.c", &["-O0"]);
    let mut command = scratch.preloaded(&program);
    let outcome = run(command.args([&count.to_string(), how]));
    assert_eq!(outcome.stdout, "done\n", "{outcome:?}");
    fs::read_dir(scratch.shared()).expect("our own").count()
}

#[test]
fn children_that_end_by_exit_leave_nothing() {
    assert_eq!(left(50, "exit"), 0);
}
