//! Code that programs generate themselves: stacks are unwound through it to their ends.

use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::cpu::Read;
use mem_tests::{Scratch, artifacts, pythons, run, session::tool};
use profile::{NO_MAPPING, Profile, TRUNCATED_ADDRESS};

/// Returns the dump of a program, profiled from its start. It must do well.
fn profiled(scratch: &Scratch, interval: &str, program: &Path, arguments: &[&str]) -> Profile {
    let mut command: Command = scratch.profiler();
    let prefix = scratch.file("p_");
    command.args(["run", "-c", interval, "-o"]).arg(&prefix);
    command.arg("--").arg(program).args(arguments);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("done"), "{outcome:?}");
    let mut files = std::fs::read_dir(scratch.files()).expect("the files");
    let dump = files.find_map(|file| {
        let path: PathBuf = file.expect("a file").path();
        path.extension()
            .is_some_and(|e| e == "heap")
            .then_some(path)
    });
    let profile = profile::open(&dump.expect("a dump")).expect("a dump that can be read");
    forget_map(&profile);
    profile
}

/// Removes the list of functions that some programs leave behind.
fn forget_map(profile: &Profile) {
    let pid = profile.facts.pid.expect("a process");
    let _ = std::fs::remove_file(format!("/tmp/perf-{pid}.map"));
}

/// Checks that most stacks of a CPU profile are complete. Not all are: functions that are
/// interrupted as they begin have no record yet, and the kernel copies only a part of deep stacks.
fn assert_cpu_profile_is_whole(program: &Path, arguments: &[&str]) {
    let scratch = Scratch::new();
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "-F", "500", "-o"]);
    command.arg(scratch.file("c_")).arg("--");
    let outcome = run(command.arg(program).args(arguments));
    let read = Read::only(&outcome);
    read.assert_complete(0.8);
    forget_map(&read.profile);
}

/// Returns the stacks with the samples that were taken there.
fn stacks(profile: &Profile) -> impl Iterator<Item = (&[u32], u64)> {
    let samples = profile.details.iter().map(|detail| detail.alloc_samples);
    profile.stacks.iter().zip(samples)
}

fn is_truncated(profile: &Profile, stack: &[u32]) -> bool {
    let outermost = stack.last().map(|id| profile.locations[*id as usize]);
    outermost.is_some_and(|location| location.address == TRUNCATED_ADDRESS - 1)
}

/// Returns the number of frames in no module.
fn generated(profile: &Profile, stack: &[u32]) -> usize {
    let frames = stack.iter().map(|id| profile.locations[*id as usize]);
    frames
        .filter(|location| {
            location.mapping == NO_MAPPING && location.address != TRUNCATED_ADDRESS - 1
        })
        .filter(|location| profile.python_name(location).is_none())
        .count()
}

/// Checks that at least `per_thousand` of a thousand samples have complete stacks, and that at
/// least `least` samples have frames of generated code.
fn assert_whole(profile: &Profile, per_thousand: f64, least: u64) {
    let (mut all, mut cut, mut through) = (0, 0, 0);
    for (stack, samples) in stacks(profile) {
        all += samples;
        if is_truncated(profile, stack) {
            cut += samples;
        }
        if generated(profile, stack) > 0 {
            through += samples;
        }
    }
    eprintln!("{cut} of {all} cut short, {through} through generated code");
    assert!(through >= least, "{through} of {all} samples");
    let most = all as f64 * per_thousand / 1000.0;
    assert!(cut as f64 <= most, "{cut} of {all} are cut short");
}

#[test]
fn stacks_of_node_are_whole() {
    let scratch = Scratch::new();
    let script = artifacts::source("generated.js");
    let script = script.to_str().expect("a path of ours");
    let profile = profiled(&scratch, "1", Path::new("node"), &[script, "300"]);
    assert_whole(&profile, 1.0, 1000);
    assert_cpu_profile_is_whole(Path::new("node"), &[script, "1000"]);
}

#[test]
fn stacks_of_java_are_whole_where_it_keeps_frame_pointers() {
    let scratch = Scratch::new();
    let source = artifacts::source("Generated.java");
    let classes = scratch.file("classes");
    let (source, classes) = (source.to_str(), classes.to_str());
    let (source, classes) = (source.expect("a path"), classes.expect("a path"));
    tool("javac", ["-d", classes, source]);
    let arguments = [
        "-XX:+PreserveFramePointer",
        "-cp",
        classes,
        "Generated",
        "20000",
    ];
    let profile = profiled(&scratch, "1", Path::new("java"), &arguments);
    assert_whole(&profile, 1.0, 10_000);
    assert_cpu_profile_is_whole(Path::new("java"), &arguments);
}

/// Each Python function is called through a separate trampoline.
#[test]
fn trampolines_of_python_are_stepped_over() {
    let script = artifacts::source("generated.py");
    let script = script.to_str().expect("a path of ours");
    for python in pythons::all() {
        let has = ["-c", "import sys; sys.exit(sys.version_info < (3, 12))"];
        if run(Command::new(&python).args(has)).code != Some(0) {
            continue;
        }
        let scratch = Scratch::new();
        let arguments = ["-X", "perf", script, "50"];
        let profile = profiled(&scratch, "1", &python, &arguments);
        assert_whole(&profile, 1.0, 1000);
        let (mut all, mut equal) = (0, 0);
        for (stack, samples) in stacks(&profile) {
            let frames = stack.iter().map(|id| &profile.locations[*id as usize]);
            let lines = frames.filter_map(|l| profile.python_name(l)).count();
            let trampolines = generated(&profile, stack);
            // Until it is told to make them, there are none.
            if trampolines > 0 {
                all += samples;
                equal += if lines == trampolines { samples } else { 0 };
            }
        }
        assert_cpu_profile_is_whole(&python, &["-X", "perf", script, "500"]);
        assert!(equal as f64 >= all as f64 * 0.99, "{equal} of {all}");
    }
}
