//! Files of processes that ended where they could not know what they may do: without `/proc`.

use std::fs;
use std::process::Command;

use mem_tests::{Scratch, artifacts, run};

/// Starts of a program that ends at once.
const STARTS: usize = 450;
/// One start in 16 removes what earlier ones left, by chance: that none of this many does has a
/// probability of 3e-10.
const MAX_LEFT: usize = 340;

#[test]
fn processes_without_proc_leave_a_bounded_number_of_files() {
    let scratch = Scratch::new();
    let script = format!(
        "mount -t tmpfs none /proc && for i in $(seq {STARTS}); do \
         MEM_PROFILER_DIR={} LD_PRELOAD={} /bin/true || exit 1; done",
        scratch.shared().display(),
        artifacts::agent().display()
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let left = fs::read_dir(scratch.shared())
        .expect("the directory")
        .count();
    assert!(left <= MAX_LEFT, "{left} files are left of {STARTS} starts");
    assert!(left > 0, "the processes had a /proc");
}
