//! Heap statistics in `list` and `why`: from the allocator or from samples, and labelled
//! accordingly.

use std::time::{Duration, Instant};

use mem_tests::{Scratch, Session, Steps, Target, run, wait};

/// Returns the value of a key in the only object of `list --json`.
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
    // Every object is sampled: no estimate.
    assert!(
        table.contains(" 19.1 MiB") && !table.contains('~'),
        "{table}"
    );
    let why = run(scratch.profiler().arg("why")).stdout;
    for part in ["keeps its own allocator", "By its samples 19.1 MiB"] {
        assert!(why.contains(part), "{part:?} is not in {why}");
    }
    assert!(!why.contains("live heap") && !why.contains("\\x"), "{why}");
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

/// A session that samples every allocation is exact, also after the process's death.
#[test]
fn only_estimates_of_dead_processes_are_marked() {
    for (interval, marks) in [("1", 0), ("1024", 1)] {
        let scratch = Scratch::new();
        let mut program = Steps::start_with(&scratch, &[], |command| {
            command
                .env("MEM_PROFILER_START", "1")
                .env("MEM_PROFILER_INTERVAL", interval);
        });
        program.step("keep 20000");
        program.target.kill();
        let table = run(scratch.profiler().args(["list", "--all"])).stdout;
        assert!(table.contains("dead"), "{table}");
        assert_eq!(table.matches('~').count(), marks, "{table}");
    }
}

/// Objects that are older than the session are in no sample, so it would be wrong to say that no
/// memory is used.
#[test]
fn a_heap_older_than_the_session_is_not_listed_as_empty() {
    for allocator in ["", "system"] {
        let scratch = Scratch::new();
        let mut program = Steps::start_with(&scratch, &[], |command| {
            command.env("MEM_PROFILER_ALLOCATOR", allocator);
        });
        program.step("keep 20000");
        let kept = Instant::now();
        wait::until(
            "the process to be older than a session that sees all",
            || (kept.elapsed() > Duration::from_secs(4)).then_some(()),
        );
        let session = Session::of(&scratch, program.pid(), "1");
        assert_eq!(listed(&scratch, "state").as_deref(), Some("sampling"));
        assert_eq!(listed(&scratch, "live_bytes").as_deref(), Some("null"));
        let table = run(scratch.profiler().arg("list")).stdout;
        assert!(!table.contains('~'), "{table}");
        session.stop();
        program.target.finish_well();
    }
}

/// A program that executes the lines that it is given.
const OBEDIENT: &str = "import sys, threading, time
def allocate():
    while True: bytearray(5000); time.sleep(0.001)
print('ready', flush=True)
for line in sys.stdin: exec(line); print('ok', flush=True)";

/// Returns the answer of `why` about the only process.
fn why(scratch: &Scratch) -> serde_json::Value {
    let outcome = run(scratch.profiler().args(["why", "--json"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let answers: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    answers[0].clone()
}

#[test]
fn why_shows_the_heap_of_this_moment_or_nothing_of_it() {
    let scratch = Scratch::new();
    let mut command = scratch.preloaded("python3");
    command.env("PYTHONMALLOC", "malloc").args(["-c", OBEDIENT]);
    let mut python = Target::start(&mut command);
    assert_eq!(python.hear(), "ready");
    let pid = python.pid();
    let mut step = |line: &str| {
        python.say(line);
        assert_eq!(python.hear(), "ok");
    };
    let megabytes = |value: &serde_json::Value| value.as_f64().expect("bytes") / 1e6;
    let held = |answer: &serde_json::Value| megabytes(&answer["allocator"]["live"]);
    step("x = [b'x' * 100000 for _ in range(400)]");

    // The process waits for a line, so only the kernel's figures are known.
    let text = run(scratch.profiler().arg("why")).stdout;
    assert!(text.contains("not known:\n  "), "{text}");
    let idle = why(&scratch);
    assert!(idle["allocator"].is_null(), "{idle}");
    // Whether it allocated once more before it waited decides whether its heap is known by address.
    let heap = |name: &str| idle["parts"][name].as_f64().unwrap_or(0.0) / 1e6;
    assert!(heap("anonymous") + heap("live heap") > 40.0, "{idle}");
    assert!(idle["parts"]["other anonymous"].is_null(), "{idle}");

    step("threading.Thread(target=allocate, daemon=True).start()");
    let before = why(&scratch);
    assert!((40.0..60.0).contains(&held(&before)), "{before}");
    step("del x");
    let after = why(&scratch);
    assert!(held(&after) < 20.0, "{after}");
    let parts = after["parts"].as_object().expect("parts");
    let sum: f64 = parts.values().map(megabytes).sum();
    assert!(
        (sum - megabytes(&after["rss_bytes"])).abs() < 1e-6,
        "{after}"
    );
    let text = run(scratch.profiler().arg("why")).stdout;
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    // The samples for this are in no profile.
    assert_eq!(listed(&scratch, "state").as_deref(), Some("idle"));

    // The profile of the last session is kept, however often the statistics are requested.
    let session = Session::of(&scratch, pid, "1");
    step("x = [b'x' * 100000 for _ in range(400)]");
    let profile = session.stop().profile();
    let counts = |profile: &profile::Profile| {
        let counts = profile.details.iter().map(|detail| detail.alloc_samples);
        (
            profile.facts.start_unix_ns,
            profile.facts.duration_ns,
            counts.sum::<u64>(),
        )
    };
    for _ in 0..3 {
        let answer = why(&scratch);
        assert!(answer["allocator"].is_object(), "{answer}");
        assert!((40.0..60.0).contains(&held(&answer)), "{answer}");
        let mut dump = scratch.profiler();
        let again = run(dump.args(["dump", "-o"]).arg(scratch.file("again_")));
        assert_eq!(counts(&again.profile()), counts(&profile));
    }
    let mut session = scratch.profiler();
    session
        .args(["-s", "1", "-c", "1", "-o"])
        .arg(scratch.file("next_"));
    let next = run(&mut session).profile();
    assert_ne!(counts(&next), counts(&profile));
    python.finish();
}
