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
fn a_table_of_two_is_one_of_two_mebibytes() {
    for size in ["2", "2M", "2048k"] {
        let scratch = Scratch::new();
        let mut program = Steps::start_with(&scratch, &[], |command| {
            command.env("MEM_PROFILER_TABLE", size);
        });
        let session = Session::of(&scratch, program.pid(), "1");
        program.step("keep 10");
        let files = scratch.shared().read_dir().expect("the shared directory");
        let sizes = files.map(|file| file.unwrap().metadata().unwrap().len());
        assert_eq!(sizes.max(), Some(2 << 20), "{size}");
        session.stop();
        program.target.finish_well();
    }
}
