//! Threads, sizes and lifetimes of objects in dumps.

use mem_tests::wait::until;
use mem_tests::{Scratch, Session, Target, run};
use profile::{LabelValue, Profile, THREAD_LABEL};

/// A thread's name that would colour a terminal.
const WORKER: &str = "worker \x1b[31m";

/// Returns the stacks of objects of a size in threads of a name; any thread if that is empty.
fn stacks(profile: &Profile, thread: &str, bytes: i64) -> Vec<usize> {
    let is_of = |stack: usize| {
        let label = profile
            .labels
            .iter()
            .find(|label| label.stack as usize == stack && label.key == THREAD_LABEL);
        label.is_some_and(|label| label.value == LabelValue::Text(thread.to_owned()))
    };
    (0..profile.stacks.len())
        .filter(|&stack| profile.block_sizes[stack] == bytes)
        .filter(|&stack| thread.is_empty() || is_of(stack))
        .collect()
}

/// Returns the allocated, live and short-lived objects.
fn objects(profile: &Profile, thread: &str, bytes: i64) -> [f64; 3] {
    let details = stacks(profile, thread, bytes).into_iter();
    let details = details.map(|stack| profile.details[stack]);
    details.fold([0.0; 3], |[all, live, short], detail| {
        [
            all + detail.alloc_objects,
            live + detail.live_objects(),
            short + detail.short_lived_objects,
        ]
    })
}

fn check(profile: &Profile, main: &str) {
    assert_eq!(objects(profile, main, 77), [7.0, 7.0, 0.0]);
    assert_eq!(objects(profile, "loader", 77), [300.0, 300.0, 0.0]);
    assert_eq!(objects(profile, WORKER, 77), [50.0, 50.0, 0.0]);
    assert_eq!(objects(profile, "", 77), [357.0, 357.0, 0.0]);
    // These are allocated by one function, but have a separate size.
    assert_eq!(objects(profile, WORKER, 5001), [10.0, 10.0, 0.0]);
    let [all, live, short] = objects(profile, "loader", 131);
    // The machine may have been busy with something else between some malloc and its free.
    assert!((all, live) == (2000.0, 0.0) && short >= 1900.0, "{short}");
    assert_eq!(objects(profile, WORKER, 333), [20.0, 0.0, 0.0]);
}

/// Returns a program whose threads have allocated in a session that continues.
fn crew() -> (Scratch, Target, Session) {
    let scratch = Scratch::new();
    let program = scratch.compile("crew.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    target.say("go");
    target.hear_until("done");
    (scratch, target, session)
}

#[test]
fn objects_are_counted_by_thread_size_and_lifetime() {
    let (scratch, mut target, session) = crew();
    let outcome = session.stop();
    check(&outcome.profile(), "crew");
    // Requests the tables as a user would.
    let dump = outcome.dump();
    let table = |arguments: &[&str]| {
        let output = scratch.parser().arg(&dump).args(arguments).output();
        String::from_utf8(output.expect("the parser runs").stdout).expect("text")
    };
    let loaders = table(&[
        "--sample_index",
        "inuse_objects",
        "--tagfocus",
        "thread=loader",
    ]);
    assert!(loaders.contains("300"), "{loaders}");
    target.say("leave");
    target.hear_until("done");
    target.finish_well();
}

#[test]
fn the_names_of_threads_outlive_them() {
    let (scratch, mut target, session) = crew();
    let segment = scratch.segment(target.pid()).expect("a segment");
    let is_named = |name: &str| {
        let bytes = std::fs::read(&segment).expect("our own file");
        bytes
            .windows(name.len())
            .any(|part| part == name.as_bytes())
    };
    until("the threads' names", || {
        (is_named(WORKER) && is_named("loader")).then_some(())
    });
    target.say("leave");
    target.hear_until("done");
    target.kill();
    check(&session.wait().profile(), "crew");
}

/// A program that makes the allocator create threads, by a call that holds the allocator's locks,
/// continues.
#[test]
fn the_allocators_own_threads_begin_in_a_session() {
    let scratch = Scratch::new();
    let program = scratch.compile("background.c", &[]);
    for argument in [None, Some("allocate")] {
        let mut command = scratch.preloaded(&program);
        let mut target = Target::start(command.args(argument));
        assert_eq!(target.hear(), "ready");
        let session = Session::of(&scratch, target.pid(), "1");
        target.say("begin");
        assert_eq!(target.hear(), "ok");
        let outcome = session.stop();
        // The allocator's own data are outside the range, so no limit is blamed.
        let counters = outcome.profile().facts.counters;
        let elsewhere = counters.get("untracked_elsewhere").copied();
        assert_eq!(counters["untracked"], elsewhere.unwrap_or(0));
        assert!(!outcome.stderr.contains("no place"), "{}", outcome.stderr);
        target.finish_well();
    }
}

/// After the allocator has released its data of a thread, destructors of the thread's own data
/// allocate outside the range of sampled objects.
#[test]
fn objects_of_ending_threads_are_said_to_be_missing() {
    let scratch = Scratch::new();
    let program = scratch.compile("ending.c", &["-O1", "-pthread"]);
    let mut command = scratch.preloaded(&program);
    command
        .env("MEM_PROFILER_START", "1")
        .env("MEM_PROFILER_INTERVAL", "1");
    assert_eq!(run(&mut command).code, Some(0));
    let outcome = run(scratch.profiler().args(["recover", "-o", "ending_"]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let said = "samples were taken in threads that were ending";
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("no place"), "{}", outcome.stderr);
    let dump = scratch.files().join(outcome.dump());
    let table = run(scratch.parser().arg(dump).arg("-t"));
    assert!(table.stderr.contains(said), "{}", table.stderr);
    assert!(!table.stderr.contains("no place"), "{}", table.stderr);
}

/// The first samples of several threads are due at the same moment, and one of the threads creates
/// the structure in which objects are followed.
#[test]
fn threads_that_begin_at_once_are_followed() {
    let scratch = Scratch::new();
    let program = scratch.compile("rush.c", &["-pthread"]);
    for interval in ["1024", "1"] {
        let mut target = Target::start(&mut scratch.preloaded(&program));
        assert_eq!(target.hear(), "ready");
        let session = Session::of(&scratch, target.pid(), interval);
        target.say("go");
        target.hear_until("done");
        let outcome = session.stop();
        target.finish_well();
        let profile = outcome.profile();
        assert_eq!(profile.facts.counters.get("untracked"), Some(&0));
        let [all, live, _] = objects(&profile, "", 500);
        assert_eq!(all, live, "{interval}");
        if interval == "1" {
            assert_eq!(all, 16_000.0);
        }
    }
}
