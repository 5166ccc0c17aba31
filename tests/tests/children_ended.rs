//! Servers that fork for each request: what their children leave behind is bounded, though no other
//! program starts that could remove it.

use std::fs;

use mem_tests::cgroup::Cgroup;
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

/// One in 16 looks for such files: that none of 500 does happens once in 10^14 times.
#[test]
fn what_killed_children_leave_is_removed_by_later_ones() {
    let left = left(1000, "kill");
    assert!(left < 500, "{left}");
}

/// One in four removes what is too much: that none of 60, which fill the group, does happens once in 10^7
/// times.
#[test]
fn profiles_of_children_leave_a_control_group_its_memory() {
    for how in ["exit", "kill"] {
        let scratch = Scratch::new();
        let group = Cgroup::new(64 << 20);
        let program = scratch.compile("ends_children.c", &["-O0"]);
        let mut command = scratch.preloaded(&program);
        group.put(&mut command);
        command.args(["600", how]).env("MEM_PROFILER_START", "1");
        let outcome = run(&mut command);
        assert_eq!(outcome.stdout, "done\n", "{how}: {outcome:?}");
        assert_eq!(group.kills(), 0, "{how}");
        let left = fs::read_dir(scratch.shared()).expect("our own").count();
        assert!(left > 8, "{how}: {left} profiles are kept");
        // What is left counts for the group as long as it exists.
        drop(scratch);
    }
}
