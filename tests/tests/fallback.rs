//! A C library without `_dl_find_object`: modules are found in the maps.

use heap_format::Profile;
use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Steps, artifacts, sums};

/// Starts `steps.c` with the symbol hidden from the agent.
fn start(scratch: &Scratch) -> Steps {
    let flags = ["-shared", "-nostdlib", "-Wl,--defsym,_dl_find_object=0"];
    let hider = scratch.compile_as("unfindable.c", "libunfindable.so", &flags);
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
