//! Disks that are too small for a dump: messages name the required and the free space, and no more
//! is required than the dump takes.

use std::fs;

use mem_tests::tiny_filesystem::TinyFilesystem;
use mem_tests::{Scratch, Steps, run};

/// Returns the bytes as the tools write them, for sizes below a MiB.
fn shown(bytes: u64) -> String {
    format!("{:.1} KiB", bytes as f64 / 1024.0)
}

#[test]
fn a_small_disk_is_enough_for_a_small_dump() {
    let scratch = Scratch::new();
    let directory = scratch.file("tiny");
    let _tiny = TinyFilesystem::mount(&directory, "512k");
    let program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let outcome = run(scratch
        .profiler()
        .args(["-s", "0.1", "-p", &pid, "-o"])
        .arg(directory.join("prof_")));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn what_a_dump_needs_and_what_is_free_is_said() {
    let scratch = Scratch::new();
    let directory = scratch.file("tiny");
    let _tiny = TinyFilesystem::mount(&directory, "4k");
    let mut program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let session = mem_tests::Session::start(
        scratch
            .profiler()
            .args(["-c", "1", "-p", &pid, "-o"])
            .arg(directory.join("prof_")),
    );
    scratch.wait_for_sampling(program.pid());
    program.step("keep 100");
    let refused = session.stop();
    let args = ["dump", "-p", &pid, "-o", "elsewhere_"];
    let outcome = run(scratch.profiler().args(args));
    let dump = scratch.files().join(outcome.dump());
    let needed = fs::metadata(dump).expect("a dump").len();
    // Numbers and times in it may differ by a few digits.
    let mut near = (needed - 200..needed + 200).map(|bytes| format!("needs {}, ", shown(bytes)));
    let is_said = near.any(|part| refused.stderr.contains(&part));
    assert!(is_said, "{needed}: {refused:?}");
    refused.refused(1, &["4.0 KiB are free", "mem_profiler dump"]);
}

#[test]
fn a_full_disk_is_found_before_the_session() {
    let scratch = Scratch::new();
    let directory = scratch.file("tiny");
    let tiny = TinyFilesystem::mount(&directory, "64k");
    tiny.fill();
    let program = Steps::start(&scratch);
    let pid = program.pid().to_string();
    let outcome = run(scratch
        .profiler()
        .args(["-s", "100", "-p", &pid, "-o"])
        .arg(directory.join("prof_")));
    outcome.refused(1, &["needs 4.0 KiB, 0 B are free", "-o"]);
}

#[test]
fn what_a_page_needs_is_said() {
    let scratch = Scratch::new();
    let directory = scratch.file("tiny");
    let _tiny = TinyFilesystem::mount(&directory, "64k");
    let data = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../parser/tests/data/shop.heap"
    );
    let page = directory.join("shop.html");
    let mut parser = scratch.parser();
    let outcome = run(parser.args(["-f", data, "--html", "-o"]).arg(&page));
    outcome.refused(1, &["shop.html", "needs ", "64.0 KiB are free"]);
    let left = fs::read_dir(&directory).expect("the directory").count();
    assert_eq!(left, 0);
}
