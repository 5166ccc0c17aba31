//! `leaks --gentle`: searches of a process that is not stopped.

use std::collections::BTreeMap;

use mem_tests::leaks::{kinds, planted, planted_losses, report, tell};
use mem_tests::tracing::Debugged;
use mem_tests::{Outcome, Scratch, Session, Target, run};
use serde_json::Value;

/// What no search tells from a leak without registers.
const REGISTER: (&str, &str) = ("kept_vector_register", "direct");

fn check(scratch: &Scratch, target: &Target, options: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    let pid = target.pid().to_string();
    run(command
        .args(["leaks", "--max", "1000", "-p", &pid])
        .args(options))
}

fn gently(scratch: &Scratch, target: &Target) -> Value {
    report(&check(scratch, target, &["--json", "--gentle"]))
}

/// Starts `planted.cpp` in a session that samples everything, and plants all objects.
fn all_planted(scratch: &Scratch) -> (Target, Session) {
    planted(scratch, &scratch.compile("planted.cpp", &["-pthread"]))
}

/// Returns what is lost, without what only a register keeps.
fn lost(report: &Value) -> BTreeMap<(String, String), (f64, f64)> {
    let mut lost = kinds(report);
    let (function, how) = REGISTER;
    let register = lost.remove(&(function.to_owned(), how.to_owned()));
    let expected = cfg!(target_arch = "x86_64").then_some((1.0, 64.0));
    assert_eq!(register, expected, "{report:#}");
    lost
}

#[test]
fn every_planted_leak_is_found_and_what_a_register_keeps() {
    let scratch = Scratch::new();
    let (mut target, session) = all_planted(&scratch);
    let found = gently(&scratch, &target);
    assert_eq!(lost(&found), planted_losses());
    assert_eq!(found["running_searches"], 5, "{found}");
    assert_eq!(found["pause_ms"], 0.0, "{found}");
    assert_eq!(found["threads"], 3, "{found}");
    let text = check(&scratch, &target, &["--gentle=2", "--exit-code"]);
    assert_eq!(text.code, Some(1), "{text:?}");
    for part in [
        "registers are not known",
        "not stopped (3 threads); searched 2 times in",
    ] {
        assert!(text.stderr.contains(part), "{part}: {text:?}");
    }
    let kept = check(
        &scratch,
        &target,
        &["--json", "--gentle", "--path", "kept_list"],
    );
    let root = report(&kept)["objects"][0]["root"].clone();
    let root = root.as_str().unwrap_or_default().to_owned();
    assert!(root.ends_with("::list of planted"), "{kept:?}");
    assert!(kept.stderr.contains("it was not stopped"), "{kept:?}");
    session.stop();
    tell(&mut target, "go 10", "gone");
}

/// A thousand objects are constantly replaced, so that most addresses have another object each time
/// they are read. Ten objects stay lost.
#[test]
fn objects_that_come_and_go_are_not_lost() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    tell(&mut target, "churn", "churning");
    let none = check(&scratch, &target, &["--json", "--gentle=3"]);
    assert!(!none.stderr.contains("registers"), "{none:?}");
    assert_eq!(kinds(&report(&none)), BTreeMap::new());
    tell(&mut target, "go 100", "gone");
    let expected = (
        ("site_many".to_owned(), "direct".to_owned()),
        (10.0, 1000.0),
    );
    for _ in 0..3 {
        let found = kinds(&gently(&scratch, &target));
        assert_eq!(found, BTreeMap::from([expected.clone()]));
    }
    session.stop();
}

/// Only one tracer can stop a process, but reading memory needs none.
#[test]
fn a_process_that_a_debugger_has_can_be_searched() {
    let scratch = Scratch::new();
    let (mut target, session) = all_planted(&scratch);
    for hold in [Debugged::running, Debugged::stopped] {
        let debugged = hold(target.pid());
        let refused = check(&scratch, &target, &[]);
        refused.refused(1, &["is traced by process", "while it runs: --gentle"]);
        assert_eq!(lost(&gently(&scratch, &target)), planted_losses());
        drop(debugged);
        tell(&mut target, "go 0", "gone");
    }
    session.stop();
}

#[test]
fn a_process_that_cannot_be_stopped_can_be_searched() {
    let scratch = Scratch::new();
    let (mut target, session) = all_planted(&scratch);
    tell(&mut target, "vfork", "waiting");
    let refused = check(&scratch, &target, &[]);
    refused.refused(1, &["did not stop within", "while it runs: --gentle"]);
    assert_eq!(lost(&gently(&scratch, &target)), planted_losses());
    tell(&mut target, "done", "back");
    session.stop();
}

/// A process that may not be copied can be searched without being stopped, too. It has one thread,
/// because it could be copied from a thread without the filter.
#[test]
fn refusals_of_a_copy_name_the_options_that_do_without() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    tell(&mut target, "go 100", "gone");
    tell(&mut target, "filter", "filtered");
    let refused = check(&scratch, &target, &[]);
    refused.refused(1, &["seccomp filter", "--stop", "--gentle"]);
    let lost = ("site_many".to_owned(), "direct".to_owned());
    let found = kinds(&gently(&scratch, &target));
    assert_eq!(found, BTreeMap::from([(lost, (10.0, 1000.0))]));
    session.stop();
}

#[test]
fn senseless_numbers_of_searches_are_usage_errors() {
    let scratch = Scratch::new();
    let usage = |options: &[&str], part: &str| {
        let mut command = scratch.profiler();
        let outcome = run(command.args(["leaks", "-p", "1"]).args(options));
        outcome.refused(2, &[part]);
    };
    usage(&["--gentle=1"], "2..");
    usage(&["--gentle=many"], "--gentle");
    usage(&["--gentle", "--stop"], "--stop");
}
