//! `mem_profiler rss` on programs that touch memory in known ways.
//!
//! The sums by function do not depend on luck: each function has a mapping of its own, whose pages
//! are found in the page table; only which function they belong to is sampled.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::rss;
use mem_tests::{Outcome, Scratch, Target, run, wait};

const MIB: i64 = 1 << 20;
/// Number of samples per second that the kernel aims at, so that each mapping has some.
const OFTEN: [&str; 2] = ["-F", "10000"];

fn start(scratch: &Scratch, program: &Path) -> Target {
    let mut command = Command::new(program);
    command
        .arg(scratch.file("mapped"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    target.hear_until("ready");
    target
}

/// Parses what a program said. Returns bytes by function.
fn said(lines: &[String]) -> BTreeMap<String, i64> {
    let line = |line: &String| {
        let (name, bytes) = line.split_once(' ').expect("a name and a number");
        (name.to_owned(), bytes.parse().expect("a number"))
    };
    lines.iter().map(line).collect()
}

/// Returns the resident memory of a process, as the kernel counts it.
fn kernels_rss(pid: u32) -> i64 {
    let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).expect("it runs");
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"));
    let kib = line.expect("a sum").trim().trim_end_matches(" kB");
    kib.parse::<i64>().expect("a number") * 1024
}

/// Checks that a value is within 3 % of the truth. It may lack `missing` bytes.
fn assert_near(what: &str, found: i64, truth: i64, missing: i64, all: &impl std::fmt::Debug) {
    assert!(
        found * 100 <= 103 * truth && (found + missing) * 100 >= 97 * truth,
        "{what}: {found}, {truth} in truth: {all:?}"
    );
}

fn check(scratch: &Scratch, flags: &[&str]) {
    let program = scratch.compile("toucher.c", flags);
    let mut target = start(scratch, &program);
    let session = rss::attached(scratch, target.pid(), &OFTEN);
    target.say("go");
    let truth = said(&target.hear_until("done"));
    let outcome = session.stop();
    let rss = kernels_rss(target.pid());
    target.finish_well();
    let profile = rss::only(&outcome);
    let sums = rss::by_function(&profile, &program, "touch_");
    let not_sampled = sums["[not sampled]"].resident;
    // Pages far from a sample are said to have none, whether samples were lost because the machine
    // was busy, or the kernel had not adapted their distance yet.
    let missing = not_sampled - 31 * MIB;
    for (name, bytes) in &truth {
        let row = sums.get(name).copied().unwrap_or_default();
        assert_near(name, row.resident, *bytes, missing, &sums);
        assert!(row.touched >= row.resident, "{sums:?}");
    }
    let row = |name: &str| sums.get(name).copied().unwrap_or_default();
    // What was freed is not resident. The function itself may touch a page of code or of its stack.
    assert!(row("touch_churn").resident < MIB, "{sums:?}");
    let churn = row("touch_churn").touched;
    assert!(churn > 0, "{sums:?}");
    // Copies belong to the one that touched the originals, but at the edges.
    assert!(
        row("touch_copies").resident * 100 <= 3 * 64 * MIB,
        "{sums:?}"
    );
    assert!(row("touch_populated").resident < MIB, "{sums:?}");
    assert!(not_sampled >= 31 * MIB, "{sums:?}");
    assert!(
        row("[resident before the start]").resident >= 32 * MIB,
        "{sums:?}"
    );
    let total: i64 = sums.values().map(|row| row.resident).sum();
    assert!(
        (total - rss).abs() * 100 <= rss,
        "{total} of {rss}: {sums:?}"
    );
    let kinds = rss::by_kind(&profile);
    assert!(kinds["memfd"].resident >= 32 * MIB, "{kinds:?}");
    // The kernel may take pages of files away at any time.
    assert!(kinds["file"].resident >= 115 * MIB, "{kinds:?}");
    assert!(kinds["anonymous"].resident >= 256 * MIB, "{kinds:?}");
    assert_eq!(kinds[""].resident, 0, "{kinds:?}");
    assert_eq!(profile.facts.process.as_deref(), Some("toucher"));
}

#[test]
fn resident_memory_belongs_to_those_that_touched_it_first() {
    check(&Scratch::new(), &[]);
}

#[test]
fn static_programs_are_sampled_too() {
    check(&Scratch::new(), &["-static"]);
}

#[test]
fn a_missing_process_is_reported() {
    let scratch = Scratch::new();
    let outcome = run(scratch.profiler().args(["rss", "-p", "no-such-name"]));
    outcome.refused(1, &["no process has this name"]);
    let outcome = run(scratch.profiler().arg("rss"));
    outcome.refused(2, &["-p PID|NAME|CGROUP", "rss run"]);
}

/// The memory of a process that has ended cannot be read any more.
#[test]
fn a_process_that_ends_has_a_profile_of_its_peak() {
    let scratch = Scratch::new();
    let program = scratch.compile("phases.c", &[]);
    let target = Target::start(
        Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let every = [OFTEN[0], OFTEN[1], "--every", "0.1"];
    let session = rss::attached(&scratch, target.pid(), &every);
    pass_the_peak(&scratch, target);
    assert_peak(&session.wait(), &program);
}

#[test]
fn a_program_is_sampled_from_its_start() {
    let scratch = Scratch::new();
    let program = scratch.compile("phases.c", &[]);
    let mut command = scratch.profiler();
    command.args(["rss", "run", "--every", "0.1", "-F", "10000", "-o"]);
    command.arg(scratch.file("r_")).arg("--").arg(&program);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let target = Target::start(&mut command);
    pass_the_peak(&scratch, target);
    let profiles = profiles(&scratch);
    let outcome = Outcome {
        code: Some(0),
        stdout: profiles.join("\n"),
        stderr: String::new(),
    };
    assert_peak(&outcome, &program);
    // All of the program's memory was touched under our eyes.
    let last = profile::open(Path::new(profiles.last().expect("one"))).expect("a profile");
    let sums = rss::by_function(&last, &program, "touch_");
    assert!(
        !sums.contains_key("[resident before the start]"),
        "{sums:?}"
    );
}

#[test]
fn the_exit_status_of_a_program_is_passed_on() {
    let scratch = Scratch::new();
    let status = |script: &str| {
        let mut command = scratch.profiler();
        command
            .args(["rss", "run", "-q", "-o"])
            .arg(scratch.file("r_"));
        run(command.args(["--", "sh", "-c", script])).code
    };
    assert_eq!(status("exit 7"), Some(7));
    let mut command = scratch.profiler();
    let outcome = run(command.args(["rss", "run", "--", "/no/such/program"]));
    outcome.refused(127, &["/no/such/program"]);
}

/// Lets `phases.c` touch memory, waits until a profile has all of it, and lets it end.
fn pass_the_peak(scratch: &Scratch, mut target: Target) {
    target.hear_until("ready");
    target.say("grow");
    target.hear_until("grown");
    let known = profiles(scratch).len();
    // The second one was begun after the growth.
    wait::until("two more profiles", || {
        (profiles(scratch).len() >= known + 2).then_some(())
    });
    target.say("shrink");
    target.hear_until("shrunk");
    target.finish_well();
}

/// Returns the paths of the profiles so far, in order.
fn profiles(scratch: &Scratch) -> Vec<String> {
    let entries = std::fs::read_dir(scratch.files()).expect("a directory");
    let paths = entries.map(|entry| entry.expect("an entry").path().display().to_string());
    let mut paths: Vec<String> = paths.filter(|path| path.ends_with(".rss")).collect();
    paths.sort();
    paths
}

fn assert_peak(outcome: &Outcome, program: &Path) {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let files = rss::files(outcome);
    assert!(files.len() > 2, "{outcome:?}");
    let last = profile::open(files.last().expect("one")).expect("a profile");
    let sums = rss::by_function(&last, program, "touch_");
    for (name, bytes) in [("touch_kept", 64 * MIB), ("touch_peak", 192 * MIB)] {
        let row = sums.get(name).copied().unwrap_or_default();
        // Where samples were lost because the machine was busy, pages are said to have none.
        let not_sampled = sums.get("[not sampled]").copied().unwrap_or_default();
        assert_near(name, row.resident, bytes, not_sampled.resident, &sums);
    }
}
