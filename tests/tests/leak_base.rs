//! Losses since an earlier check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use mem_tests::leaks::{lost, planted, report, tell};
use mem_tests::{Outcome, Scratch, Session, Target, run};

fn check(scratch: &Scratch, target: &Target, options: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["leaks", "--max", "1000", "-p", &target.pid().to_string()]);
    run(command.args(options))
}

/// Returns the dump of a check now.
fn dumped(scratch: &Scratch, target: &Target, prefix: &str) -> PathBuf {
    let prefix = scratch.file(prefix);
    check(scratch, target, &["-o", prefix.to_str().expect("a path")]).dump()
}

fn since(scratch: &Scratch, target: &Target, base: &Path) -> BTreeMap<String, f64> {
    let base = base.to_str().expect("a path");
    lost(&report(&check(
        scratch,
        target,
        &["--json", "--base", base],
    )))
}

/// Returns what `lose` of `hidden.cpp` loses each time.
fn once() -> BTreeMap<String, f64> {
    let others = ["lost_head", "lost_tail", "lost_shared", "lost_other"];
    let others = others.map(|name| (name.to_owned(), 1.0));
    others
        .into_iter()
        .chain([("lost_plain".to_owned(), 10.0)])
        .collect()
}

#[test]
fn only_later_losses_are_reported() {
    let scratch = Scratch::new();
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let (mut target, session) = planted(&scratch, &program);
    let first = dumped(&scratch, &target, "first_");
    assert_eq!(since(&scratch, &target, &first), BTreeMap::new());
    tell(&mut target, "wait", "done");
    let shown = first.to_str().expect("a path");
    let none = check(&scratch, &target, &["--exit-code", "--base", shown]);
    assert_eq!(none.code, Some(0), "{none:?}");
    let says = [": no leaks, since ", shown, " ago, which has "];
    for part in says {
        assert!(none.stdout.contains(part), "{part}: {none:?}");
    }

    tell(&mut target, "more", "done");
    assert_eq!(since(&scratch, &target, &first), once());
    let second = dumped(&scratch, &target, "second_");
    tell(&mut target, "more", "done");
    tell(&mut target, "more", "done");
    let twice = once().into_iter().map(|(name, n)| (name, n * 2.0));
    assert_eq!(since(&scratch, &target, &second), twice.collect());
    let options = ["--json", "--base", second.to_str().expect("a path")];
    let report = report(&check(&scratch, &target, &options));
    let number = |key: &str| report[key].as_f64().expect("a number");
    // Each time ten of 100 bytes, and 32 + 48 + 64 + 176 bytes in four.
    assert_eq!(
        (number("lost_bytes"), number("lost_objects")),
        (2640.0, 28.0)
    );
    assert_eq!(number("lost_samples"), 28.0);
    let base = &report["base"];
    // This includes two hidden objects, of 80 and 96 bytes.
    assert_eq!(base["lost_bytes"].as_f64(), Some(2640.0 + 176.0), "{base}");
    assert_eq!(base["lost_objects"].as_f64(), Some(30.0), "{base}");
    let more = check(&scratch, &target, &["--exit-code", "--base", shown]);
    assert_eq!(more.code, Some(1), "{more:?}");
    session.stop();
}

/// A dump with a base contains all lost objects, so that it can be the next base.
#[test]
fn a_dump_with_a_base_is_whole() {
    let scratch = Scratch::new();
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let (mut target, session) = planted(&scratch, &program);
    let first = dumped(&scratch, &target, "first_");
    tell(&mut target, "more", "done");
    let (first, prefix) = (first.to_str().expect("a path"), scratch.file("second_"));
    let prefix = prefix.to_str().expect("a path");
    let outcome = check(&scratch, &target, &["--base", first, "-o", prefix]);
    let second = outcome.stdout.lines().last().expect("a dump");
    assert!(second.starts_with(prefix), "{outcome:?}");
    assert_eq!(since(&scratch, &target, Path::new(second)), BTreeMap::new());
    session.stop();
}

#[test]
fn another_process_of_the_program_is_compared_by_places_in_files() {
    let scratch = Scratch::new();
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let (target, session) = planted(&scratch, &program);
    let base = dumped(&scratch, &target, "base_");
    session.stop();
    target.finish_well();
    let (mut target, session) = planted(&scratch, &program);
    assert_eq!(since(&scratch, &target, &base), BTreeMap::new());
    tell(&mut target, "more", "done");
    assert_eq!(since(&scratch, &target, &base), once());
    session.stop();
}

#[test]
fn a_base_that_is_not_a_leak_check_is_refused() {
    let scratch = Scratch::new();
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let (target, session) = planted(&scratch, &program);
    let refused = |base: &Path, parts: &[&str]| {
        let name = base.to_str().expect("a path");
        let outcome = check(&scratch, &target, &["--base", name]);
        outcome.refused(1, &[&[name], parts].concat());
    };
    let missing = scratch.file("missing");
    refused(&missing, &["cannot be read", "leaks -o PREFIX"]);
    let text = scratch.file("text");
    fs::write(&text, "no profile").expect("a file");
    refused(&text, &["is not a dump", "leaks -o PREFIX"]);
    let pid = target.pid().to_string();
    let prefix = scratch.file("plain_");
    let mut command = scratch.profiler();
    let plain = run(command.args(["dump", "-p", &pid, "-o"]).arg(prefix)).dump();
    refused(&plain, &["not a dump of a leak check", "leaks -o PREFIX"]);
    let earlier = dumped(&scratch, &target, "earlier_");
    session.stop();
    let next = Session::of(&scratch, target.pid(), "1");
    refused(&earlier, &["another session", "without --base"]);
    next.stop();

    let other = scratch.compile_as("planted.cpp", "other", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&other));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    tell(&mut target, "go 10", "gone");
    let name = earlier.to_str().expect("a path");
    let outcome = check(&scratch, &target, &["--base", name]);
    outcome.refused(1, &[name, "another program", "(hidden)"]);
    session.stop();
}
