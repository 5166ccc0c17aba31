//! `leaks` on programs whose lost and kept objects are known.

use std::collections::BTreeMap;
use std::path::Path;

use mem_tests::leaks::{kinds as lost, planted_losses as expected, report, tell};
use mem_tests::wait::until;
use mem_tests::{Outcome, Scratch, Session, Target, code, run};
use serde_json::Value;

fn start(scratch: &Scratch, program: &Path) -> Target {
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    target
}

fn check(scratch: &Scratch, pid: u32, options: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    run(command
        .args(["leaks", "-p", &pid.to_string()])
        .args(options))
}

/// Starts `planted.cpp` in a session that samples everything; nothing is planted yet.
fn in_session(scratch: &Scratch) -> (Target, Session) {
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let target = start(scratch, &program);
    let session = Session::of(scratch, target.pid(), "1");
    (target, session)
}

#[test]
fn every_planted_leak_is_found_and_nothing_else() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    for options in [
        &["--json", "--max", "100"][..],
        &["--json", "--stop", "--max", "100"],
    ] {
        let mut target = start(&scratch, &program);
        let session = Session::of(&scratch, target.pid(), "1");
        tell(&mut target, "plant", "planted");
        let report = report(&check(&scratch, target.pid(), options));
        assert_eq!(lost(&report), expected(), "{options:?}");
        let total: f64 = expected().values().map(|(_, bytes)| bytes).sum();
        assert_eq!(report["lost_bytes"].as_f64(), Some(total));
        assert_eq!(report["lost_bytes_margin"].as_f64(), Some(0.0));
        // The session ended: what it knows is still known.
        session.stop();
        let after = mem_tests::leaks::report(&check(&scratch, target.pid(), options));
        assert_eq!(lost(&after), expected(), "{options:?} after the session");
        tell(&mut target, "go 10", "gone");
    }
}

/// A calling function has no values left in registers that the callee need not preserve. So values
/// that copies of memory have left in these registers keep no object alive while a thread waits.
#[test]
fn what_copies_leave_in_vector_registers_is_no_pointer_in_a_call() {
    let scratch = Scratch::new();
    let (mut target, _session) = in_session(&scratch);
    tell(&mut target, "registers", "left");
    for options in [&["--json"][..], &["--json", "--stop"]] {
        let report = report(&check(&scratch, target.pid(), options));
        let expected = [(("lost_in_registers", "direct"), (2.0, 1400.0))];
        let expected =
            expected.map(|((name, how), sums)| ((name.to_owned(), how.to_owned()), sums));
        assert_eq!(lost(&report), BTreeMap::from(expected), "{options:?}");
    }
}

/// For large heaps, the copy searches its own memory. It finds the same leaks.
#[test]
fn a_large_heap_has_the_same_leaks() {
    let scratch = Scratch::new();
    let (mut target, _session) = in_session(&scratch);
    tell(&mut target, "fill", "filled");
    tell(&mut target, "plant", "planted");
    let by_copy = cfg!(target_arch = "x86_64");
    for (options, by_copy) in [
        (&[][..], by_copy),
        (&["--stop"], false),
        // This the copy cannot do.
        (&["--max-pointer-offset", "100000000"], false),
    ] {
        let usual = ["--json", "--max", "100"];
        let options = [&usual, options].concat();
        let outcome = check(&scratch, target.pid(), &options);
        let report = report(&outcome);
        assert_eq!(lost(&report), expected(), "{options:?}");
        assert_eq!(report["searched_by_copy"], by_copy, "{outcome:?}");
        let searched = report["searched_bytes"].as_f64().expect("bytes");
        assert!(searched > (20 << 20) as f64, "{searched} {options:?}");
    }
}

/// The agent's tables are full of numbers, and some of many large blocks are at addresses that
/// equal such a number.
#[test]
fn the_agents_memos_hold_no_object() {
    let scratch = Scratch::new();
    let program = scratch.compile("vast.c", &[]);
    let mut command = scratch.preloaded(program);
    command.env("MEM_PROFILER_START", "1");
    command.env("MEM_PROFILER_INTERVAL", "1");
    let mut target = Target::start(command.arg("1000"));
    assert_eq!(target.hear(), "lost");
    for means in [
        &["--json"][..],
        &["--json", "--stop"],
        &["--json", "--gentle"],
    ] {
        let report = report(&check(&scratch, target.pid(), means));
        let lost = report["lost_bytes"].as_f64();
        assert_eq!(lost, Some(f64::from(1000 << 20) * 10.0), "{means:?}");
    }
}

#[test]
fn the_dump_of_a_check_holds_what_is_lost() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "plant", "planted");
    let prefix = scratch.file("lost_");
    let prefix = prefix.to_str().expect("a path");
    let outcome = check(&scratch, target.pid(), &["-o", prefix]);
    let profile = profile::open(&outcome.dump()).expect("a dump");
    let live: f64 = profile
        .details
        .iter()
        .map(|detail| detail.live_bytes())
        .sum();
    let total: f64 = expected().values().map(|(_, bytes)| bytes).sum();
    assert_eq!(live, total);
    assert_eq!(profile.facts.trigger.as_deref(), Some("leak check"));
    let names = [code::Code::of(&scratch.file("planted"))];
    for stack in profile.stacks.iter() {
        let frames = code::names(&profile, stack, &names);
        assert!(
            frames.iter().any(|name| name.starts_with("lost_")),
            "{frames:?}"
        );
    }
    session.stop();
}

/// The interval must hold the true sum in 95 of 100 sessions. Of 40 sessions, fewer than 30 would
/// hold it by chance once in 10^8 runs.
#[test]
fn a_sampled_estimate_is_within_its_margin() {
    const OBJECTS: f64 = 200_000.0;
    const BYTES: f64 = OBJECTS / 10.0 * 100.0;
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut within = 0;
    for _ in 0..40 {
        let mut target = start(&scratch, &program);
        let session = Session::of(&scratch, target.pid(), "1024");
        tell(&mut target, &format!("go {OBJECTS}"), "gone");
        let report = report(&check(&scratch, target.pid(), &["--json"]));
        let lost = report["lost_bytes"].as_f64().expect("bytes");
        let margin = report["lost_bytes_margin"].as_f64().expect("a margin");
        assert!(margin > 0.0 && margin < BYTES / 10.0, "{margin}");
        within += usize::from((lost - BYTES).abs() <= margin);
        session.stop();
    }
    assert!(within >= 30, "{within} of 40");
}

#[test]
fn leaks_say_what_they_need() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut target = start(&scratch, &program);
    let outcome = check(&scratch, target.pid(), &[]);
    outcome.refused(1, &["nothing was sampled yet", "-c 1"]);
    let session = Session::of(&scratch, target.pid(), "1");
    tell(&mut target, "go 9", "gone");
    let outcome = check(&scratch, target.pid(), &["--exit-code"]);
    assert_eq!(outcome.code, Some(1), "one of them is lost: {outcome:?}");
    assert!(
        outcome
            .stdout
            .contains("Direct leak: 100 B in 1 object, from"),
        "{outcome:?}"
    );
    session.stop();
    let own = scratch.compile_as("planted.cpp", "own", &["-pthread"]);
    let mut command = scratch.preloaded(&own);
    command.env("MEM_PROFILER_ALLOCATOR", "system");
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    tell(&mut target, "go 10", "gone");
    let outcome = check(&scratch, target.pid(), &[]);
    if cfg!(target_arch = "x86_64") {
        let summary = "100 B lost in 1 object,";
        assert!(outcome.stdout.contains(summary), "{outcome:?}");
        assert!(
            outcome.stderr.contains("keeps its own allocator, so"),
            "{outcome:?}"
        );
    } else {
        outcome.refused(1, &["keeps its own allocator", "MEM_PROFILER_ALLOCATOR"]);
    }
    session.stop();
}

/// Reading an absent page would create it, in the copy or in the process itself.
#[test]
fn empty_memory_is_neither_read_nor_made() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "holes", "mapped");
    let descriptors = format!("/proc/{}/fd", target.pid());
    let mut files = std::fs::read_dir(descriptors).expect("alive").flatten();
    let is_it = |path: &Path| {
        let target = std::fs::read_link(path).unwrap_or_default();
        target.to_string_lossy().contains("holes")
    };
    let file = files.find(|entry| is_it(&entry.path())).expect("a file");
    let blocks = || {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(file.path()).expect("open").blocks()
    };
    let before = blocks();
    for options in [&["--json"][..], &["--json", "--stop"]] {
        let begin = std::time::Instant::now();
        let report = report(&check(&scratch, target.pid(), options));
        assert_eq!(lost(&report), BTreeMap::new(), "{options:?}");
        assert_eq!(blocks(), before, "{options:?}");
        let searched = report["searched_bytes"].as_f64().expect("bytes");
        assert!(searched < f64::from(256 << 20), "{searched}");
        assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    }
    session.stop();
}

/// The process continues while other memory is read.
#[test]
fn memory_that_no_copy_has_is_read_as_it_was() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "churn", "churning");
    for _ in 0..10 {
        let report = report(&check(&scratch, target.pid(), &["--json"]));
        assert_eq!(lost(&report), BTreeMap::new());
    }
    session.stop();
}

/// Shared memory is also read as it was, although a copy does not preserve it, unless it is large.
/// A note reports larger shared memory.
#[test]
fn shared_memory_is_read_as_it_was() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "share", "churning");
    for _ in 0..10 {
        let report = report(&check(&scratch, target.pid(), &["--json"]));
        assert_eq!(lost(&report), BTreeMap::new());
    }
    let none = Value::Array(Vec::new());
    tell(&mut target, "share much", "mapped");
    let notes = |target: &Target, options: &[&str]| {
        let report = report(&check(&scratch, target.pid(), options));
        report["notes"].clone()
    };
    assert_eq!(notes(&target, &["--json"]), none, "nothing is lost");
    tell(&mut target, "go 10", "gone");
    let said = notes(&target, &["--json"]);
    let said = said[0].as_str().expect("a note");
    assert!(
        said.starts_with("4.0 KiB of shared memory was read while"),
        "{said}"
    );
    assert_eq!(notes(&target, &["--json", "--stop"]), none);
    session.stop();
}

/// A filter might kill the process for making a copy, so the process itself is searched.
#[test]
fn a_process_that_may_not_be_copied_is_searched_while_stopped() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "go 100", "gone");
    tell(&mut target, "filter", "filtered");
    let refused = check(&scratch, target.pid(), &[]);
    refused.refused(1, &["seccomp filter", "--stop"]);
    let report = report(&check(&scratch, target.pid(), &["--json", "--stop"]));
    assert_eq!(report["lost_objects"].as_f64(), Some(10.0), "{report}");
    session.stop();
    tell(&mut target, "go 10", "gone");
}

/// The process runs as before: no child, not stopped, not traced, all threads at work.
#[test]
fn the_process_does_not_notice() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "plant", "planted");
    let pid = target.pid();
    let status = || std::fs::read_to_string(format!("/proc/{pid}/status")).expect("alive");
    let descriptors = || {
        std::fs::read_dir(format!("/proc/{pid}/fd"))
            .expect("alive")
            .count()
    };
    let before = descriptors();
    for _ in 0..20 {
        report(&check(&scratch, pid, &["--json"]));
        assert!(status().contains("TracerPid:\t0\n"), "{}", status());
        assert_eq!(descriptors(), before);
        let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        assert_eq!(children.unwrap_or_default(), "");
        tell(&mut target, "go 100", "gone");
    }
    until("it waits for input", || {
        status().contains("State:\tS").then_some(())
    });
    session.stop();
}

#[test]
fn the_path_to_an_object_begins_at_what_keeps_it() {
    let scratch = Scratch::new();
    let (mut target, session) = in_session(&scratch);
    tell(&mut target, "plant", "planted");
    let kept = |what: &str| {
        let outcome = check(&scratch, target.pid(), &["--json", "--path", what]);
        report(&outcome)["objects"][0].clone()
    };
    let root = |object: &Value| object["root"].as_str().unwrap_or("none").to_owned();
    let alone = |object: &Value| {
        let number = |key: &str| object[key].as_f64().expect("a number");
        (number("root_alone_objects"), number("root_alone_bytes"))
    };
    let global = kept("kept_global");
    assert!(root(&global).ends_with("::global of planted"), "{global}");
    assert_eq!(alone(&global), (1.0, 64.0));
    let list = kept("kept_list");
    assert!(root(&list).ends_with("::list of planted"), "{list}");
    assert_eq!(alone(&list), (1000.0, 48_000.0));
    // Through the tree's own objects, or a copy of a pointer on a stack that is in use.
    let tree = kept("kept_in_tree");
    assert!(root(&tree).ends_with("::tree of planted"), "{tree}");
    assert!(
        tree["chain"].as_array().expect("a chain").len() > 1,
        "{tree}"
    );
    assert!(root(&kept("kept_epoll")).starts_with("data of epoll descriptor"));
    assert_eq!(root(&kept("kept_timer")), "sigev_value of a timer");
    if cfg!(target_arch = "x86_64") {
        assert!(root(&kept("kept_vector_register")).contains(" of thread "));
    }
    let lost = kept("lost_ring");
    assert_eq!(lost["root"], Value::Null, "{lost}");
    let address = list["address"].as_str().expect("an address");
    assert_eq!(kept(address)["address"], list["address"]);
    let outcome = check(&scratch, target.pid(), &["--path", "no_such_function"]);
    outcome.refused(1, &["no stack of the session has \"no_such_function\""]);
    session.stop();
}

/// The result does not deny what the samples do not show, and calls sums estimates.
#[test]
fn a_sampled_session_states_no_more_than_its_samples_show() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-g", "-pthread"]);
    for (interval, is_exact) in [("1024", false), ("1", true)] {
        let mut target = start(&scratch, &program);
        let session = Session::of(&scratch, target.pid(), interval);
        let none = check(&scratch, target.pid(), &["--exit-code"]);
        assert_eq!(none.code, Some(0), "{none:?}");
        let says = |outcome: &Outcome, part: &str| outcome.stdout.contains(part);
        assert_eq!(says(&none, ": no leaks, of what"), is_exact, "{none:?}");
        for part in [
            ": no sign of a leak in ",
            "less than 3.0 KiB may have no sample",
        ] {
            assert_eq!(says(&none, part), !is_exact, "{part}: {none:?}");
        }
        tell(&mut target, "plant", "planted");
        // That none of 48,000 bytes is sampled happens once in 10^20.
        let path = check(&scratch, target.pid(), &["--path", "kept_list"]);
        let exactly = "Without it, 46.9 KiB in 1000 objects would be lost.";
        assert_eq!(says(&path, exactly), is_exact, "{path:?}");
        for part in ["Without it, about ", " objects would be lost, as "] {
            assert_eq!(says(&path, part), !is_exact, "{part}: {path:?}");
        }
        session.stop();
        target.kill();
    }
}

/// Runs `exits.cpp` with a check at its exit.
fn run_checked(scratch: &Scratch, options: &[&str], arguments: &[&str]) -> Outcome {
    let program = scratch.compile("exits.cpp", &[]);
    let mut command = scratch.profiler();
    command
        .arg("run")
        .args(options)
        .arg("-o")
        .arg(scratch.file("exit_"));
    run(command.arg("--").arg(program).args(arguments))
}

/// Scripts start many small programs, such as those around an interpreter: a line for each would hide
/// the one that leaks.
#[test]
fn small_children_without_leaks_are_counted_and_not_listed() {
    let scratch = Scratch::new();
    let program = scratch.compile("exits.cpp", &[]);
    let mut command = scratch.profiler();
    command.args(["run", "--leak-check", "-o"]);
    command.arg(scratch.file("exit_"));
    command.args(["--", "sh", "-c", "$0 0 0; $0 50 0; $0 0 0; :"]);
    let outcome = run(command.arg(program));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    for part in [
        "Direct leak: 4.9 KiB in 50 objects, from\n    lost_at_exit\n",
        "3 processes are left out: each allocated less than 1.0 MiB",
        "2 of the processes without a dump were checked at their exit: no leaks",
    ] {
        assert!(outcome.stderr.contains(part), "{part}: {outcome:?}");
    }
    assert!(
        !outcome.stderr.contains(": no leaks, of what"),
        "{outcome:?}"
    );
}

#[test]
fn a_check_at_exit_decides_the_exit_code() {
    let scratch = Scratch::new();
    let check = |arguments: &[&str]| run_checked(&scratch, &["--leak-check"], arguments);
    let clean = check(&["0", "0"]);
    assert_eq!(clean.code, Some(0), "{clean:?}");
    assert!(clean.stderr.contains("no leaks"), "{clean:?}");
    assert_eq!(check(&["0", "3"]).code, Some(3), "the program's own");
    for code in ["0", "3"] {
        let leaky = check(&["50", code]);
        assert_eq!(leaky.code, Some(1), "{leaky:?}");
        let wanted = "Direct leak: 4.9 KiB in 50 objects, from\n    lost_at_exit\n";
        assert!(leaky.stderr.contains(wanted), "{leaky:?}");
        assert!(!leaky.stderr.contains("push_back"), "{leaky:?}");
    }
    let draconian = run_checked(&scratch, &["--leak-check=draconian"], &["0", "0"]);
    assert_eq!(draconian.code, Some(1), "{draconian:?}");
    assert!(
        draconian.stderr.contains("in 100 objects, from"),
        "{draconian:?}"
    );
    let unchecked = check(&["50", "_"]);
    assert!(unchecked.stderr.contains("no leak check"), "{unchecked:?}");
    assert_eq!(unchecked.code, Some(1), "{unchecked:?}");
}

#[test]
fn children_are_checked_too() {
    let scratch = Scratch::new();
    let outcome = run_checked(&scratch, &["--leak-check"], &["0", "0", "3"]);
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let found = outcome
        .stderr
        .matches("1000 B in 10 objects, from\n    lost_in_child\n");
    assert_eq!(found.count(), 3, "{outcome:?}");
}

/// An ended session is not checked, and no process waits for a check.
#[test]
fn a_session_that_was_stopped_is_not_waited_for() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut command = scratch.preloaded(&program);
    command.env("MEM_PROFILER_START", "1");
    command.env("MEM_PROFILER_LEAK_CHECK", std::process::id().to_string());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let pid = target.pid().to_string();
    let prefix = scratch.file("end_");
    run(scratch
        .profiler()
        .args(["stop", "-p", &pid, "-o"])
        .arg(prefix))
    .dump();
    let start = std::time::Instant::now();
    target.finish_well();
    // Else it would have waited for half a minute.
    assert!(start.elapsed().as_secs() < 25, "{:?}", start.elapsed());
    let both = ["-s", "5", "--leak-check"];
    run_checked(&scratch, &both, &["0"]).refused(2, &["cannot be used with"]);
}

/// A process that waits for a controller exits nevertheless if the controller is gone.
#[test]
fn a_process_does_not_wait_for_a_controller_that_is_gone() {
    let scratch = Scratch::new();
    let program = scratch.compile("exits.cpp", &[]);
    let mut gone = std::process::Command::new("true").spawn().expect("true");
    gone.wait().expect("its end");
    let mut command = scratch.preloaded(&program);
    command.env("MEM_PROFILER_START", "1");
    command.env("MEM_PROFILER_LEAK_CHECK", gone.id().to_string());
    assert_eq!(run(&mut command).code, Some(0));
}
