//! Scarce resources: address space, room for segments, room in the table.

use std::process::Stdio;

use mem_tests::limits::{Scarce, limit};
use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, run, sums};

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

/// Threads with stacks of 64 KiB that are there at once.
const CROWD: u64 = 200;

#[test]
fn threads_in_a_session_leave_the_program_its_address_space() {
    for scarce in [Scarce::AddressSpace, Scarce::Data] {
        let scratch = Scratch::new();
        let program = scratch.compile("crowd.c", &[]);
        let mut command = scratch.preloaded(&program);
        command.arg(CROWD.to_string()).stdin(Stdio::null());
        command.envs([("MEM_PROFILER_START", "1"), ("MEM_PROFILER_INTERVAL", "1")]);
        limit(&mut command, scarce, 200 << 20);
        let outcome = run(&mut command);
        assert_eq!(outcome.code, Some(0), "{scarce:?}: {outcome:?}");
        let mut command = scratch.profiler();
        command.args(["recover", "-o"]).arg(scratch.file("post_"));
        let recovered = run(&mut command);
        let counters = recovered.profile().facts.counters;
        let sampled = counters["threads"] - 1;
        assert!(sampled > 0, "{scarce:?}: {counters:?}");
        let unsampled = counters["unsampled_threads"];
        assert_eq!(sampled + unsampled, CROWD, "{scarce:?}: {counters:?}");
        let told = format!("{unsampled} threads were not sampled");
        assert!(recovered.stderr.contains(&told), "{recovered:?}");
    }
}

#[test]
fn threads_for_which_there_is_no_memory_are_refused_quietly() {
    let scratch = Scratch::new();
    let program = scratch.compile("crowd.c", &[]);
    for scarce in [Scarce::AddressSpace, Scarce::Data] {
        // The limits range from too little for all threads to enough.
        for megabytes in 15..60 {
            let mut command = scratch.preloaded(&program);
            command.arg(CROWD.to_string()).stdin(Stdio::null());
            limit(&mut command, scarce, megabytes << 20);
            let outcome = run(&mut command);
            let detail = format!("{scarce:?} of {megabytes} MB: {outcome:?}");
            assert!(matches!(outcome.code, Some(0 | 1)), "{detail}");
            assert_eq!(outcome.stderr, "", "{detail}");
        }
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
fn children_that_may_write_no_file_live() {
    let scratch = Scratch::new();
    let program = scratch.compile("confined.c", &[]);
    for moment in ["before", "after"] {
        for session in [&[][..], &[("MEM_PROFILER_START", "1")][..]] {
            let mut command = scratch.preloaded(&program);
            command.arg(moment).envs(session.iter().copied());
            let outcome = run(&mut command);
            assert_eq!(outcome.code, Some(0), "{moment} {session:?}: {outcome:?}");
        }
    }
}

#[test]
fn a_program_runs_where_the_shared_directory_is_missing() {
    let scratch = Scratch::new();
    let nowhere = scratch.file("nowhere");
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_DIR", &nowhere);
    });
    program.step("keep 1000");
    let outcome = run(scratch.profiler().args(["-p", &program.pid().to_string()]));
    outcome.refused(
        1,
        &["carries the agent", "nowhere is missing where it runs"],
    );
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

/// The process may need all of its memory, which glibc's heap takes in smaller parts.
#[test]
fn a_process_with_very_little_memory_is_left_alone_and_that_is_said() {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |command| {
        limit(command, Scarce::AddressSpace, 20 << 20);
    });
    program.step("keep 1000");
    assert_eq!(scratch.segments().len(), 0);
    let pid = program.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-p", &pid]));
    outcome.refused(1, &["is left alone", "20.0 MiB", "restart it"]);
    program.target.finish_well();
}
