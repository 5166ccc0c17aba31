//! Servers that fork for each request: their children leave nothing behind, although no other
//! program starts that could remove it.

use std::fs;

use mem_tests::cgroup::Cgroup;
use mem_tests::{Scratch, run};

/// Returns the files of segments that are left once so many children have ended, `how`, and their
/// parent.
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
    assert_eq!(left(50, "quick"), 0);
}

/// Each child leaves a profile, and memory in the directory of the segments counts for the group.
#[test]
fn profiles_of_children_do_not_fill_their_control_group() {
    for (interval, thread) in [("1", ""), ("1024", ""), ("1", "thread")] {
        let scratch = Scratch::new();
        let program = scratch.compile("short_children.c", &["-pthread"]);
        let group = Cgroup::new(64 << 20);
        let mut command = scratch.preloaded(&program);
        command
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", interval);
        group.put(&mut command);
        let outcome = run(command.args(["300", thread]));
        assert_eq!(outcome.stdout, "0 failed\n", "{outcome:?}");
        assert_eq!(group.kills(), 0);
        // The newest are there to be collected.
        let left = fs::read_dir(scratch.shared()).expect("our own").count();
        assert!((2..200).contains(&left), "{left}");
        drop(scratch);
    }
}
