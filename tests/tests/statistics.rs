//! Statistics of a heap in `list` and `why`: the allocator's own or the samples', marked as
//! the one or the other.

use mem_tests::{Scratch, Session, Steps, run, wait};

/// The value of a key in the only object of `list --json`.
fn listed(scratch: &Scratch, key: &str) -> Option<String> {
    let outcome = run(scratch.profiler().args(["list", "--json"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let start = format!("\"{key}\": ");
    let value = outcome
        .stdout
        .lines()
        .find_map(|line| line.trim().strip_prefix(&start));
    value.map(|value| value.trim_end_matches(',').trim_matches('"').to_owned())
}

fn live_bytes(scratch: &Scratch) -> f64 {
    let value = listed(scratch, "live_bytes").expect("a line");
    value.parse().expect("a number")
}

#[test]
fn of_the_programs_own_allocator_only_the_samples_tell() {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command.env("MEM_PROFILER_ALLOCATOR", "system");
    });
    assert_eq!(listed(&scratch, "live_source").as_deref(), Some("null"));
    let session = Session::of(&scratch, program.pid(), "1");
    program.step("keep 20000");
    assert_eq!(listed(&scratch, "live_source").as_deref(), Some("samples"));
    assert_eq!(live_bytes(&scratch), 2e7);
    let table = run(scratch.profiler().arg("list")).stdout;
    assert!(table.contains("~19.1 MiB"), "{table}");
    let why = run(scratch.profiler().arg("why")).stdout;
    for part in ["keeps its own allocator", "about 19.1 MiB"] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
    assert!(!why.contains("live heap"), "{why}");
    let profile = session.stop().profile();
    assert!(
        profile.facts.allocator.is_empty(),
        "{:?}",
        profile.facts.allocator
    );
    program.target.finish_well();
}

#[test]
fn the_allocators_figure_is_not_taken_for_the_present_one_when_it_is_old() {
    let scratch = Scratch::new();
    let mut program = Steps::start_with(&scratch, &[], |command| {
        command
            .env("MEM_PROFILER_START", "1")
            .env("MEM_PROFILER_INTERVAL", "1");
    });
    // All within the second after the first sample, in which nobody asks the allocator.
    program.step("keep 20000");
    wait::until("the samples to be the better word", || {
        (listed(&scratch, "live_source")? == "samples").then_some(())
    });
    let live = live_bytes(&scratch);
    assert!((2e7..2.1e7).contains(&live), "{live}");
    run(scratch
        .profiler()
        .args(["stop", "-o"])
        .arg(scratch.file("end_")));
    wait::until("the figure's age", || {
        let table = run(scratch.profiler().arg("list")).stdout;
        table.contains(" s ago").then_some(())
    });
    program.target.finish_well();
}
