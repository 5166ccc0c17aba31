//! Resident memory by owner: a program's mappings and its heap have known sizes, and are
//! distinguished by address, however old the allocator's figures are.

use std::path::Path;

use mem_tests::{Scratch, Session, Steps, run};
use serde_json::Value;

const MIB: f64 = 1048576.0;
/// Mappings of the program, bytes.
const MAPPED: f64 = (240.0 + 512.0 + 1024.0 + 1536.0) * 16.0 * 1024.0;
/// Stacks, the C library's mappings and pages that are only partly used, bytes.
const TOLERANCE: f64 = 0.5 * MIB;

fn program(scratch: &Scratch) -> Steps {
    let program = scratch.compile("mapped.c", &[]);
    Steps::run(program.clone(), &mut scratch.preloaded(&program))
}

/// Returns the figures of `why` for each part.
fn parts(scratch: &Scratch, pid: u32) -> Value {
    let outcome = run(scratch
        .profiler()
        .args(["why", "--json", "-p", &pid.to_string()]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let answer: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let part = |sum: f64, bytes: &Value| sum + bytes.as_f64().expect("bytes");
    let parts = answer[0]["parts"].as_object().expect("parts");
    let sum = parts.values().fold(0.0, part);
    assert_eq!(Some(sum), answer[0]["rss_bytes"].as_f64(), "{answer}");
    answer[0]["parts"].clone()
}

/// Returns the bytes of a part of `--rss`.
fn part_of_dump(table: &str, name: &str) -> f64 {
    let line = table
        .lines()
        .find(|line| line.contains(&format!("  {name}  ")));
    let line = line.unwrap_or_else(|| panic!("{name}: {table}"));
    let mut words = line.split_whitespace();
    let number: f64 = words.next().and_then(|n| n.parse().ok()).expect("a number");
    match words.next() {
        Some("MiB") => number * MIB,
        Some("KiB") => number * 1024.0,
        unit => panic!("{unit:?}: {table}"),
    }
}

fn assert_near(what: &str, found: f64, truth: f64) {
    assert!(
        (found - truth).abs() < TOLERANCE,
        "{what}: {found}, {truth} in truth"
    );
}

#[test]
fn own_mappings_are_neither_heap_nor_metadata() {
    let scratch = Scratch::new();
    let mut program = program(&scratch);
    let pid = program.pid();
    // The agent publishes the heap's addresses when it samples.
    let session = Session::of(&scratch, pid, "1024");
    program.step("allocate 1 10000 10000");
    // Parts of 0 bytes are left out.
    let own = |parts: &Value| parts["own mappings"].as_f64().unwrap_or(0.0);
    let metadata = |parts: &Value| parts["allocator metadata"].as_f64().expect("bytes");
    let before = parts(&scratch, pid);
    program.step("map");
    let after = parts(&scratch, pid);
    assert_near("mappings", own(&after) - own(&before), MAPPED);
    assert_near("metadata", metadata(&after), metadata(&before));
    // The allocator has published no figures for the heap that is allocated now.
    program.step("allocate 2000 10000 10000");
    let grown = parts(&scratch, pid);
    assert_near("mappings of the grown", own(&grown), own(&after));
    let live = |parts: &Value| {
        let number = |name: &str| parts[name].as_f64().unwrap_or(0.0);
        number("live heap") + number("fragmentation")
    };
    assert_near("heap", live(&grown) - live(&after), 2000.0 * 10240.0);
    // Objects of whole kilobytes have their headers in the agent's table: a 64th of 205 MiB.
    program.step("allocate 15000 14336 1");
    let many = parts(&scratch, pid);
    assert_near("mappings beside headers", own(&many), own(&after));
    let agent = |parts: &Value| parts["agent"].as_f64().expect("bytes");
    let headers = 15000.0 * 14336.0 / 64.0;
    assert_near("headers", agent(&many) - agent(&grown), headers);
    session.stop();
    program.target.finish_well();
}

/// An object of 5 MiB and one byte is in the size class of 6 MiB, and leaves nearly 1 MiB
/// untouched.
#[test]
fn untouched_tails_of_objects_are_not_resident() {
    let scratch = Scratch::new();
    let mut program = program(&scratch);
    let pid = program.pid();
    let session = Session::of(&scratch, pid, "1024");
    program.step("map");
    program.step(&format!("allocate 20 {} {}", (5 << 20) + 1, 5 << 20));
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let dump = scratch.file(&outcome.dump().to_string_lossy());
    let table = rss(&scratch, &dump);
    let live = part_of_dump(&table, "live heap");
    assert_near(&table, live, 100.0 * MIB);
    assert_near(&table, part_of_dump(&table, "own mappings"), MAPPED);
    program.target.finish_well();
}

fn rss(scratch: &Scratch, dump: &Path) -> String {
    let outcome = run(scratch.parser().args(["--rss", "-f"]).arg(dump));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}
