//! A C library without `_dl_find_object`: modules are found in the maps.

use std::path::PathBuf;

use heap_format::Profile;
use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Steps, artifacts, sums};

/// A library that hides the symbol.
fn hider(scratch: &Scratch) -> PathBuf {
    let flags = ["-shared", "-nostdlib", "-Wl,--defsym,_dl_find_object=0"];
    scratch.compile_as("unfindable.c", "libunfindable.so", &flags)
}

/// Starts `steps.c` with the symbol hidden from the agent.
fn start(scratch: &Scratch) -> Steps {
    let hider = hider(scratch);
    Steps::start_with(scratch, &[], |command| {
        let agent = artifacts::agent();
        command.env(
            "LD_PRELOAD",
            format!("{}:{}", hider.display(), agent.display()),
        );
    })
}

fn truncated(profile: &Profile) -> bool {
    let mut counters = profile.facts.counters.iter();
    counters.any(|(name, count)| name.starts_with("truncated") && *count > 0)
}

/// The program, its totals, and the dump of a session.
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

/// As every program for aarch64 is linked: with room for pages of 64 KiB between its segments. lld
/// puts the header and the code into different ones.
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
fn an_unloaded_library_is_noticed_and_told_from_the_next() {
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

/// lld puts the first code of a small library into the page of its header. On machines with pages
/// of 64 KiB most are small.
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
