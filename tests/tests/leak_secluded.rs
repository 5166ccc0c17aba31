//! Objects that are known only from memory to which the process has no access, which its copies
//! lack or get empty, or which nobody else can read.

use std::collections::BTreeMap;

use mem_tests::leaks::{kinds, planted, report};
use mem_tests::older_kernels::without_pagemap_scan;
use mem_tests::{Scratch, run};
use serde_json::Value;

/// Returns what a report says could not be examined, besides the registers of a process that was not
/// stopped.
fn notes(report: &Value) -> Vec<&str> {
    let notes = report["notes"].as_array().expect("notes").iter();
    let notes = notes.filter_map(Value::as_str);
    notes
        .filter(|note| !note.starts_with("it was not stopped"))
        .collect()
}

#[test]
fn memory_without_access_or_missing_in_copies_keeps_objects() {
    let scratch = Scratch::new();
    let program = scratch.compile("secluded.c", &[]);
    let (target, session) = planted(&scratch, &program);
    let pid = target.pid().to_string();
    let command = |options: &[&str]| {
        let mut command = scratch.profiler();
        command.args(["leaks", "--json", "-p", &pid]).args(options);
        command
    };
    let check = |options: &[&str]| report(&run(&mut command(options)));
    // Kernels before 6.7 list all pages of a region, not the present ones alone.
    let check_on_older_kernel = |options: &[&str]| {
        let mut command = command(options);
        without_pagemap_scan(&mut command);
        report(&run(&mut command))
    };
    let loss = |name: &str, bytes: f64| ((name.to_owned(), "direct".to_owned()), (1.0, bytes));
    let expected = BTreeMap::from([loss("lost_plain", 180.0)]);
    let ways: [&[&str]; 3] = [&[], &["--stop"], &["--gentle=2"]];
    for options in ways {
        for found in [check(options), check_on_older_kernel(options)] {
            assert_eq!(kinds(&found), expected, "{options:?}: {found:#}");
            assert!(notes(&found).is_empty(), "{options:?}: {found:#}");
        }
    }
    let kept = check(&["--path", "kept_wiped_without_access"]);
    let root = kept["objects"][0]["root"].as_str().expect("a root");
    let is_mapping = root.starts_with("mapping of the program's own, at ");
    assert!(is_mapping, "{kept:#}");
    session.stop();
}

/// What only secret memory (`memfd_secret`) points to is reported as lost, and that is said.
#[test]
fn memory_that_nobody_else_can_read_is_mentioned() {
    // SAFETY: has one argument, a number of flags.
    let file = unsafe { libc::syscall(libc::SYS_memfd_secret, 0) };
    assert!(
        file >= 0,
        "secret memory: {}",
        std::io::Error::last_os_error()
    );
    // SAFETY: the test's own descriptor.
    unsafe { libc::close(file as i32) };
    let scratch = Scratch::new();
    let program = scratch.compile("secluded.c", &["-DSECRET"]);
    let (target, session) = planted(&scratch, &program);
    let pid = target.pid().to_string();
    for options in [&[][..], &["--stop"], &["--gentle=2"]] {
        let mut command = scratch.profiler();
        let command = command.args(["leaks", "--json", "-p", &pid]).args(options);
        let found = report(&run(command));
        let note =
            "1 parts of its memory cannot be read: what only they point to is reported as lost";
        assert_eq!(notes(&found), [note], "{options:?}");
        assert_eq!(kinds(&found).len(), 2, "{options:?}: {found:#}");
    }
    session.stop();
}
