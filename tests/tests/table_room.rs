//! Room in the table: it suffices for programs with very many stacks; if it does not, every view
//! says so.

use std::fs;

use mem_tests::truth::assert_exact;
use mem_tests::{Scratch, Session, Steps, run, sums, wait};

/// Compilers, and Python programs that import much, have a few hundred thousand stacks.
#[test]
fn a_table_has_room_for_hundreds_of_thousands_of_stacks_by_default() {
    let scratch = Scratch::new();
    let program = scratch.compile("strain.c", &[]);
    let mut program = Steps::run(program.clone(), &mut scratch.preloaded(&program));
    program.step("expected");
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("paths 250000");
    let expected = program.expected();
    let outcome = session.stop();
    assert!(!outcome.stderr.contains("no room"), "{outcome:?}");
    let profile = outcome.profile();
    assert_eq!(profile.facts.counters["table_full"], 0);
    assert_eq!(profile.facts.counters.get("table_merged"), None);
    assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
    program.target.finish_well();
}

/// A free needs a record of its own if another thread has allocated the object. The table grows for
/// it, too, before the controller's next poll.
#[test]
fn frees_of_other_threads_find_room() {
    for step in [
        "own 700", "own 850", "bare 700", "bare 850", "few 700", "few 850",
    ] {
        let scratch = Scratch::new();
        let program = scratch.compile("handed.c", &["-fno-optimize-sibling-calls"]);
        let mut program = Steps::run(program.clone(), &mut scratch.preloaded(&program));
        let session = Session::of(&scratch, program.pid(), "1");
        // Its polls enlarge the table as well, unless it gets no processor.
        session.signal(libc::SIGSTOP);
        let stat = format!("/proc/{}/stat", session.pid());
        wait::until("the controller to stop", || {
            let stat = fs::read_to_string(&stat).expect("its state");
            stat.contains(") T ").then_some(())
        });
        program.step(step);
        let expected = program.expected();
        session.signal(libc::SIGCONT);
        let profile = session.stop().profile();
        assert_eq!(profile.facts.counters["table_full"], 0, "{step}");
        assert_exact(&expected, &sums(&profile, &[&program.program], "site_"));
        program.target.finish_well();
    }
}

#[test]
fn what_found_no_room_is_reported_with_its_share_and_the_remedy() {
    let scratch = Scratch::new();
    let program = scratch.compile("strain.c", &[]);
    let mut command = scratch.preloaded(&program);
    command.env("MEM_PROFILER_TABLE", "1M");
    let mut program = Steps::run(program, &mut command);
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("paths 100000");
    let pid = program.pid().to_string();
    for view in ["--once", "--json"] {
        let outcome = run(scratch.profiler().args(["top", "-p", &pid, view]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(outcome.stdout.contains("found no room"), "{outcome:?}");
    }
    let outcome = session.stop();
    let says = [
        "% of the values are of stacks that found no room",
        "-c",
        "MEM_PROFILER_TABLE",
    ];
    assert!(
        says.iter().all(|part| outcome.stderr.contains(part)),
        "{outcome:?}"
    );
    let dump = outcome.dump();
    for view in ["-t", "-s", "--json", "--html"] {
        let mut parser = scratch.parser();
        parser
            .arg(view)
            .arg("-f")
            .arg(&dump)
            .arg("-o")
            .arg(scratch.file("view"));
        let outcome = run(&mut parser);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert!(
            says.iter().all(|part| outcome.stderr.contains(part)),
            "{view}: {outcome:?}"
        );
        if matches!(view, "--json" | "--html") {
            let body = fs::read_to_string(scratch.file("view")).expect("the view");
            assert!(body.contains("found no room"), "{view}");
        }
    }
    program.target.finish_well();
}

/// Returns the bytes that a process has locked in memory.
fn locked(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("its status");
    let mut lines = status.lines();
    let kilobytes = lines.find_map(|line| line.strip_prefix("VmLck:"));
    let kilobytes = kilobytes.and_then(|rest| rest.trim().strip_suffix(" kB"));
    kilobytes
        .and_then(|number| number.parse::<u64>().ok())
        .expect("a number")
        << 10
}

/// A program that locks all of its memory, including future mappings, does not wait until all of a
/// large table has memory.
#[test]
fn a_session_locks_no_memory() {
    const MIB: u64 = 1 << 20;
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |_| {});
    if program.step("lock").iter().any(|line| line == "refused") {
        eprintln!("not tested: this user may not lock memory (ulimit -l)");
        return program.target.finish_well();
    }
    program.step("keep 1000");
    let before = locked(program.pid());
    assert!(before > 0, "something is locked");
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 1000");
    let profile_is_there = session.stop();
    let more = locked(program.pid()) - before;
    // Little memory is small mappings of jemalloc's; neither objects nor tables are in it.
    assert!(more < 2 * MIB, "{more} bytes");
    assert_eq!(profile_is_there.profile().facts.counters["untracked"], 0);
    program.target.finish_well();
}
