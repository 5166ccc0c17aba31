//! A C library without `_dl_find_object`: modules are found in the maps.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Steps, artifacts, sums};
use profile::Profile;

/// Returns a library that hides the symbol.
fn hider(scratch: &Scratch) -> PathBuf {
    let flags = ["-shared", "-nostdlib", "-Wl,--defsym,_dl_find_object=0"];
    scratch.compile_as("unfindable.c", "libunfindable.so", &flags)
}

/// Starts `steps.c` with the symbol hidden from the agent.
fn start(scratch: &Scratch) -> Steps {
    let preloaded = [hider(scratch), artifacts::agent().to_owned()];
    let preloaded = preloaded.each_ref().map(|path| path.as_os_str());
    Steps::start_with(scratch, &[], |command| {
        command.env("LD_PRELOAD", preloaded.join(OsStr::new(":")));
    })
}

fn truncated(profile: &Profile) -> bool {
    let mut counters = profile.facts.counters.iter();
    counters.any(|(name, count)| name.starts_with("truncated") && *count > 0)
}

/// Checks that the dump of a session has exactly the program's totals.
fn check_exact(mut program: Steps, scratch: &Scratch) {
    let session = mem_tests::Session::of(scratch, program.pid(), "1");
    program.step("keep 300");
    program.step("keys 5");
    program.step("deep 50");
    let expected = program.expected();
    let profile = session.stop().profile();
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    assert!(!truncated(&profile), "{:?}", profile.facts.counters);
    program.target.finish_well();
}

/// Programs for aarch64 are linked like this: with room for pages of 64 KiB between segments. lld
/// puts the header and the code into different segments.
#[test]
fn a_program_with_gaps_between_its_segments_is_unwound_and_named() {
    let gaps = ["-fuse-ld=lld", "-Wl,-z,max-page-size=65536"];
    for kind in [&["-no-pie"][..], &["-fPIE", "-pie"]] {
        let scratch = Scratch::new();
        let program = scratch.compile_as("steps.c", "gaps", &[kind, &gaps].concat());
        let mut command = scratch.preloaded(&program);
        check_exact(Steps::run(program.clone(), &mut command), &scratch);
        let hidden = format!(
            "{}:{}",
            hider(&scratch).display(),
            artifacts::agent().display()
        );
        command.env("LD_PRELOAD", hidden);
        check_exact(Steps::run(program, &mut command), &scratch);
    }
}

#[test]
fn threads_that_come_later_leave_the_modules_in_place() {
    let scratch = Scratch::new();
    let mut program = start(&scratch);
    let session = mem_tests::Session::of(&scratch, program.pid(), "1");
    // Threads that end by `pthread_exit` need the symbol themselves.
    program.step("keys 300");
    let expected = program.expected();
    let profile = session.stop().profile();
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    let past: Vec<_> = profile.mappings.iter().filter(|m| m.past).collect();
    assert!(past.is_empty(), "{past:?}");
    assert_eq!(profile.facts.counters["modules_lost"], 0);
    assert!(!truncated(&profile), "{:?}", profile.facts.counters);
    program.target.finish_well();
}

#[test]
fn an_unloaded_library_is_noticed_and_distinguished_from_the_next() {
    let scratch = Scratch::new();
    let libraries = ["liba.so", "libb.so"]
        .map(|name| scratch.compile_as("plugin.c", name, &["-shared", "-fPIC"]));
    let mut program = start(&scratch);
    let session = mem_tests::Session::of(&scratch, program.pid(), "1");
    let objects = [30.0, 50.0];
    for (library, objects) in libraries.iter().zip(objects) {
        program.step(&format!("plugin {} {objects}", library.display()));
    }
    let profile = session.stop().profile();
    for (library, objects) in libraries.iter().zip(objects) {
        let found = sums(&profile, &[library], "site_plugin");
        assert_eq!(found["site_plugin"].detail.alloc_objects, objects);
        let mut mappings = profile.mappings.iter().filter(|m| m.path == *library);
        assert!(mappings.all(|m| m.past), "{}", library.display());
    }
    assert!(!truncated(&profile), "{:?}", profile.facts.counters);
    program.target.finish_well();
}

/// lld puts the first code of a small library into the page of its header. With pages of 64 KiB,
/// most libraries are small.
#[test]
fn code_in_the_page_of_the_header_is_unwound_and_named() {
    let scratch = Scratch::new();
    let flags = ["-shared", "-fPIC", "-fuse-ld=lld"];
    let library = scratch.compile_as("plugin.c", "liblld.so", &flags);
    let mut program = start(&scratch);
    let session = mem_tests::Session::of(&scratch, program.pid(), "1");
    program.step(&format!("plugin {} 30", library.display()));
    let profile = session.stop().profile();
    let found = sums(&profile, &[&library], "site_plugin");
    assert_eq!(found["site_plugin"].detail.alloc_objects, 30.0);
    let mut mappings = profile.mappings.iter().filter(|m| m.path == library);
    assert!(
        mappings.any(|m| m.file_offset == 0),
        "the linker left a gap"
    );
    assert!(!truncated(&profile), "{:?}", profile.facts.counters);
    program.target.finish_well();
}

/// Mappings of a process that has many: the kernel's usual limit is 65,530.
const MANY: usize = 60_000;

/// Returns a program with many mappings, and the file where strace notes when it opens and closes
/// files.
fn start_with_many(scratch: &Scratch) -> (Steps, PathBuf) {
    let trace = scratch.file("trace");
    let steps = scratch.compile("steps.c", &[]);
    let preloaded = format!(
        "LD_PRELOAD={}:{}",
        hider(scratch).display(),
        artifacts::agent().display()
    );
    let mut command = scratch.preloaded("strace");
    // The program is the child, and strace its child: the other way round, its pid is not known.
    command
        .env_remove("LD_PRELOAD")
        .args([
            "-D",
            "-f",
            "--seccomp-bpf",
            "-ttt",
            "-e",
            "trace=openat,close",
        ])
        .args(["-e", "signal=none", "-E", &preloaded, "-o"])
        .args([&trace, &steps]);
    let mut program = Steps::run(steps, &mut command);
    program.step(&format!("map {}", MANY / 2));
    let maps = fs::read_to_string(format!("/proc/{}/maps", program.pid())).expect("its maps");
    assert!(maps.lines().count() >= MANY);
    (program, trace)
}

/// Returns how often the maps were read, and for how long in all.
fn readings(trace: &PathBuf) -> (u64, Duration) {
    let text = fs::read_to_string(trace).expect("the trace");
    let (mut count, mut spent) = (0, 0.0);
    // For each thread, its open descriptor and the time at which it was opened.
    let mut open: HashMap<&str, (&str, f64)> = HashMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (Some(thread), Some(time)) = (words.next(), words.next()) else {
            continue;
        };
        let time: f64 = time.parse().expect("a time");
        if let Some((_, result)) = line.split_once("\"/proc/self/maps\"") {
            let descriptor = result.rsplit(" = ").next().expect("a descriptor");
            open.insert(thread, (descriptor, time));
        }
        let Some((descriptor, since)) = open.get(thread) else {
            continue;
        };
        if line.contains(&format!(" close({descriptor}")) {
            count += 1;
            spent += time - since;
            open.remove(thread);
        }
    }
    (count, Duration::from_secs_f64(spent))
}

#[test]
fn with_many_mappings_they_are_read_once_and_stacks_are_whole() {
    let scratch = Scratch::new();
    let (mut program, totals) = start_with_many(&scratch);
    let (before, _) = readings(&totals);
    let session = mem_tests::Session::of(&scratch, program.pid(), "1");
    // Longer than until the agent looks for changes again.
    let end = Instant::now() + Duration::from_secs(3);
    while Instant::now() < end {
        program.step("keep 10");
        program.step("keys 5");
    }
    let expected = program.expected();
    let profile = session.stop().profile();
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    assert!(!truncated(&profile), "{:?}", profile.facts.counters);
    assert_eq!(readings(&totals).0 - before, 1);
    program.target.finish_well();
}

#[test]
fn libraries_that_come_and_go_among_many_mappings_cost_a_hundredth_of_the_time() {
    let scratch = Scratch::new();
    let (mut program, totals) = start_with_many(&scratch);
    let libraries = ["liba.so", "libb.so"]
        .map(|name| scratch.compile_as("plugin.c", name, &["-shared", "-fPIC"]));
    let session = mem_tests::Session::of(&scratch, program.pid(), "1");
    let begin = Instant::now();
    let (before, _) = readings(&totals);
    let (mut longest, mut last) = (Duration::ZERO, readings(&totals).1);
    let first = last;
    while begin.elapsed() < Duration::from_secs(8) {
        for library in &libraries {
            program.step(&format!("plugin {} 5", library.display()));
            let now = readings(&totals).1;
            (longest, last) = (longest.max(now - last), now);
        }
    }
    let (count, spent) = readings(&totals);
    // Without a limit it would be most of the time. A reading that waits for a processor takes
    // longer than was expected, and so may the next one.
    let most = begin.elapsed() / 50 + Duration::from_millis(20) + 2 * longest;
    assert!(spent - first <= most, "{:?} of {most:?}", spent - first);
    assert!(count > before, "they are not found without reading");
    let profile = session.stop().profile();
    let found = sums(&profile, &[&program.program], "site_");
    assert!(!found.contains_key("site_main"), "{found:?}");
    program.target.finish_well();
}

/// The code at which a program begins has no caller.
#[test]
fn a_stack_ends_where_its_program_begins_even_without_an_unwind_table() {
    let scratch = Scratch::new();
    let start = artifacts::source("start_x86_64.s");
    let flags = ["-nostartfiles", start.to_str().expect("a plain path")];
    let program = scratch.compile_as("steps.c", "bare", &flags);
    let mut command = scratch.preloaded(&program);
    check_exact(Steps::run(program, &mut command), &scratch);
}
