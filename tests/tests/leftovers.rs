//! Files of processes that ended without `/proc`, and therefore did not know which files they may
//! remove.

use std::fs;
use std::os::unix::fs::MetadataExt;
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

/// Children that a process forks without `/proc`.
const CHILDREN: usize = 60;

#[test]
fn children_without_proc_are_swept_by_later_programs() {
    let scratch = Scratch::new();
    let program = scratch.compile("forked_children.c", &["-O0"]);
    // Of 200 starts, none sweeps with a probability of 2e-6.
    let script = format!(
        "mount -t tmpfs none /proc && export MEM_PROFILER_DIR={} LD_PRELOAD={} && {} {CHILDREN} && \
         for i in $(seq 200); do /bin/true || exit 1; done",
        scratch.shared().display(),
        artifacts::agent().display(),
        program.display()
    );
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--mount", "sh", "-c", &script]);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let pids: Vec<&str> = outcome.stdout.lines().collect();
    assert_eq!(pids.len(), CHILDREN, "{outcome:?}");
    let files = fs::read_dir(scratch.shared()).expect("the directory");
    let names: Vec<String> = files
        .map(|file| {
            file.expect("a file")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    let left = pids.iter().filter(|pid| {
        let part = format!(".{pid}.");
        names.iter().any(|name| name.contains(&part))
    });
    assert_eq!(left.count(), 0, "{names:?} of {pids:?}");
}

#[test]
fn a_process_that_does_not_learn_its_pid_leaves_nothing() {
    let scratch = Scratch::new();
    let filter = scratch.compile("forbids_getpid.c", &["-O0"]);
    let mut command = Command::new(filter);
    command
        .args(["/bin/echo", "done"])
        .env("MEM_PROFILER_DIR", scratch.shared())
        .env("LD_PRELOAD", artifacts::agent());
    let outcome = run(&mut command);
    assert_eq!(
        (outcome.code, &*outcome.stdout),
        (Some(0), "done\n"),
        "{outcome:?}"
    );
    let left = fs::read_dir(scratch.shared()).expect("the directory");
    // The filter's own program knows its pid, but has become another one.
    let left: Vec<_> = left.flatten().map(|entry| entry.file_name()).collect();
    let without_pid = u32::MAX.to_string();
    let is_unowned = |name: &std::ffi::OsString| name.to_string_lossy().contains(&without_pid);
    assert!(!left.iter().any(is_unowned), "{left:?}");
}

/// Starts of a program while profiles of others are left. That none of them looks at what is left
/// has a probability of 4e-9.
const LATER_STARTS: usize = 300;

/// Returns the time of the last change to each profile's memory or metadata, in ns of the system
/// clock, of those profiles whose unused memory has been released.
fn released(scratch: &Scratch) -> Vec<(String, i64)> {
    let entries = fs::read_dir(scratch.shared()).expect("the directory");
    let mut released = Vec::new();
    for entry in entries.flatten() {
        let status = entry.metadata().expect("a profile");
        if status.mtime() == 0 {
            let name = entry.file_name().to_string_lossy().into_owned();
            released.push((name, status.ctime() * 1_000_000_000 + status.ctime_nsec()));
        }
    }
    released.sort();
    released
}

#[test]
fn unused_memory_of_a_profile_is_released_once() {
    /// More than keep their unused memory.
    const PROFILES: usize = 12;
    let scratch = Scratch::new();
    for _ in 0..PROFILES {
        let mut command = scratch.preloaded("sh");
        let killed = run(command
            .args(["-c", "kill -9 $$"])
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", "1"));
        assert_eq!(killed.code, None, "{killed:?}");
    }
    let start = || {
        for _ in 0..LATER_STARTS {
            let outcome = run(&mut scratch.preloaded("/bin/true"));
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
        }
        released(&scratch)
    };
    let first = start();
    assert!(!first.is_empty(), "no start looked at what was left");
    assert_eq!(start(), first);
    // The remaining segment is still a profile.
    let outcome = run(scratch.profiler().args(["recover", "-o", "d_"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}
