//! Where there is little of something: address space, room for segments, table.

use mem_tests::limits::{Scarce, limit};
use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, sums};

#[test]
fn a_small_address_space_costs_no_allocation_and_no_count() {
    for megabytes in [4096, 600, 200] {
        let scratch = Scratch::new();
        let mut program = Steps::start_with(&scratch, &[], |command| {
            limit(command, Scarce::AddressSpace, megabytes << 20);
        });
        let session = Session::of(&scratch, program.pid(), "1");
        program.step("keep 1000");
        program.step("huge 30000000");
        let expected = program.expected();
        let profile = session.stop().profile();
        let found = sums(&profile, &[&program.program], "site_");
        let untracked = profile.facts.counters["untracked"];
        for (name, site) in &expected {
            let detail = found[name].detail;
            assert_eq!(
                detail.alloc_objects, site.values[0],
                "{name} in {megabytes} MB"
            );
            assert_eq!(
                detail.alloc_bytes, site.values[1],
                "{name} in {megabytes} MB"
            );
        }
        if untracked == 0 {
            assert_exact(&expected, &found);
        }
        program.target.finish_well();
    }
}

#[test]
fn a_program_that_may_have_next_to_nothing_still_runs() {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |command| {
        limit(command, Scarce::AddressSpace, 40 << 20);
    });
    program.step("keep 1000");
    program.target.finish_well();
}

#[test]
fn a_program_runs_where_the_shared_directory_is_missing() {
    let scratch = Scratch::new();
    let nowhere = scratch.file("nowhere");
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_DIR", &nowhere);
    });
    program.step("keep 1000");
    let outcome = mem_tests::run(scratch.profiler().args(["-p", &program.pid().to_string()]));
    outcome.refused(1, &["carries the agent", "no segment", "MEM_PROFILER_DIR"]);
    program.target.finish_well();
}

#[test]
fn a_full_table_keeps_every_byte_in_the_open() {
    let scratch = Scratch::new();
    // The smallest table there is: its stacks are soon more than it has room for.
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_TABLE", "1");
    });
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 10");
    for depth in 1..400 {
        program.step(&format!("deep {}", depth * 25));
    }
    let profile = session.stop().profile();
    let found = sums(&profile, &[&program.program], "site_");
    let lost = profile.facts.counters["table_full"];
    let column = profile.type_index("alloc_objects").expect("a heap profile");
    let full = profile.stacks.iter().enumerate().filter(|(_, stack)| {
        let leaf = profile.locations[stack[0] as usize].address;
        heap_format::marker_at(leaf).is_some_and(|marker| marker.name == "[table full]")
    });
    let full: i64 = full.map(|(at, _)| profile.values_of(at)[column]).sum();
    assert!(
        lost > 0,
        "a table this small is full: {:?}",
        profile.facts.counters
    );
    assert_eq!(full as u64, lost);
    assert_eq!(found["site_main"].detail.alloc_objects, 10.0);
    program.target.finish_well();
}
