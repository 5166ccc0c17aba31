//! Leaks that suppressions name are not reported, nor are objects that only such leaks keep alive.

use std::fs;

use mem_tests::{Outcome, Scratch, Session, Target, leaks, run};
use serde_json::Value;

use leaks::lost;

fn planted(scratch: &Scratch) -> (Target, Session) {
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(&program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(scratch, target.pid(), "1");
    target.say("plant");
    assert_eq!(target.hear(), "planted");
    (target, session)
}

/// Returns a check with suppressions, each in a file of its own.
fn check(scratch: &Scratch, pid: u32, files: &[&str], options: &[&str]) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["leaks", "--max", "1000", "-p", &pid.to_string()]);
    for (number, text) in files.iter().enumerate() {
        let file = scratch.file(&format!("known{number}"));
        fs::write(&file, text).expect("a file");
        command.arg("--suppressions").arg(file);
    }
    run(command.args(options))
}

/// Functions `lost_…` that are reported.
fn functions(report: &Value) -> Vec<String> {
    let found = lost(report).into_keys();
    found.filter(|name| name.starts_with("lost_")).collect()
}

#[test]
fn a_suppressed_object_and_what_only_it_keeps_are_not_reported() {
    let scratch = Scratch::new();
    let (target, session) = planted(&scratch);
    let rest = |files: &[&str], options: &[&str]| {
        let options = [&["--json"], options].concat();
        let report = leaks::report(&check(&scratch, target.pid(), files, &options));
        functions(&report).join(" ").replace("lost_", "")
    };
    let all = "head other plain shared tail";
    assert_eq!(rest(&[], &[]), all);
    assert_eq!(rest(&["# nothing\n\n"], &[]), all);
    assert_eq!(rest(&["leak:no_such_function"], &[]), all);
    // An object to which a suppressed one leads is suppressed, too, even if it is lost: freeing the
    // first frees it.
    assert_eq!(rest(&["leak:lost_head"], &[]), "other plain");
    assert_eq!(rest(&["leak:lost_head"], &["--stop"]), "other plain");
    assert_eq!(rest(&["leak:lost_tail"], &[]), "head other plain shared");
    assert_eq!(rest(&["leak:^lost_h*d$\nleak:plain"], &[]), "other");
    assert_eq!(rest(&["leak:lost_head", "leak:lost_other"], &[]), "plain");
    // Patterns match the module, and the source file.
    assert_eq!(rest(&["leak:/hidden$"], &[]), "");
    assert_eq!(rest(&["leak:hidden.cpp"], &[]), "");
    assert_eq!(rest(&["leak:^/*hidden.cpp$"], &[]), "");
    // Patterns match complete names with parameters, as in LeakSanitizer, and without.
    assert_eq!(rest(&["leak:^app::lose(int)$"], &[]), "");
    assert_eq!(rest(&["leak:^app::lose$"], &[]), "");
    assert_eq!(rest(&["leak:^app::lose(long)$"], &[]), all);
    session.stop();
}

#[test]
fn suppressions_that_were_used_are_listed() {
    let scratch = Scratch::new();
    let (target, session) = planted(&scratch);
    let text = "leak:lost_head\nleak:unused\nleak:lost_pl*n\nleak:lost_\n";
    let outcome = check(&scratch, target.pid(), &[text], &[]);
    let footer = "\nSuppressions used:\n  count      bytes template\n\
                  \x20     1         32 lost_head\n\
                  \x20    10       1000 lost_pl*n\n\
                  \x20     3        288 lost_\n";
    assert!(outcome.stdout.ends_with(footer), "{outcome:?}");
    let both = format!("{text}leak:hidden");
    let outcome = check(&scratch, target.pid(), &[&both], &["--exit-code"]);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(
        outcome.stdout.contains(": no leaks, of what"),
        "{outcome:?}"
    );
    let outcome = check(&scratch, target.pid(), &[text], &["--json"]);
    let report = leaks::report(&outcome);
    let first = &report["suppressed"][0];
    assert_eq!(first["template"], "lost_head", "{first}");
    assert_eq!(first["objects"].as_f64(), Some(1.0), "{first}");
    session.stop();
}

/// Runs `hidden.cpp` with a check at its exit. `known` is the text of the suppressions file.
fn at_exit(scratch: &Scratch, known: &str, by_variable: bool) -> Outcome {
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let file = scratch.file("known");
    fs::write(&file, known).expect("a file");
    let mut command = scratch.profiler();
    command.args(["run", "--leak-check"]);
    match by_variable {
        true => {
            let options = format!("verbosity=0:suppressions='{}'", file.display());
            command.env("LSAN_OPTIONS", options);
        }
        false => {
            command.arg("--suppressions").arg(file);
        }
    }
    command.arg("-o").arg(scratch.file("exit_"));
    run(command.arg("--").arg(program).arg("plant"))
}

#[test]
fn a_check_at_exit_takes_suppressions_also_from_the_variable() {
    let scratch = Scratch::new();
    for by_variable in [false, true] {
        let some = at_exit(&scratch, "leak:by_\nleak:lost_plain", by_variable);
        assert_eq!(some.code, Some(1), "{some:?}");
        assert!(some.stderr.contains("    lost_head\n"), "{some:?}");
        assert!(!some.stderr.contains("    lost_plain\n"), "{some:?}");
        let all = at_exit(&scratch, "leak:hidden\n", by_variable);
        assert_eq!(all.code, Some(0), "{all:?}");
        assert!(all.stderr.contains("Suppressions used:"), "{all:?}");
        let bad = at_exit(&scratch, "leak:a\nfree:b\n", by_variable);
        bad.refused(2, &["known:2:", "free:b", "leak:TEMPLATE"]);
    }
}

#[test]
fn files_of_suppressions_that_are_none_are_refused() {
    let scratch = Scratch::new();
    let pid = std::process::id();
    let refused = |text: &str, parts: &[&str]| {
        check(&scratch, pid, &["leak:fine\n", text], &[]).refused(2, parts);
    };
    refused("\n\n\0\x01\n", &["known1:3:", "not text"]);
    refused("race:x", &["known1:1:", "race:x"]);
    refused(&"leak:a\n".repeat(200_000), &["known1", "more than"]);
    refused(&"leak:a\n".repeat(20_000), &["known1:10000:", "more than"]);
    let missing = scratch.file("missing");
    let mut command = scratch.profiler();
    let outcome = run(command.args(["leaks", "--suppressions"]).arg(missing));
    outcome.refused(2, &["missing", "cannot be read"]);
}

/// The time is proportional to the length of the compared names.
#[test]
fn hostile_templates_do_not_hang() {
    let scratch = Scratch::new();
    let (target, session) = planted(&scratch);
    let line = format!("leak:{}b\n", "*a*e*l".repeat(12));
    let begin = std::time::Instant::now();
    let text = line.repeat(10_000);
    let report = leaks::report(&check(&scratch, target.pid(), &[&text], &["--json"]));
    assert_eq!(functions(&report).len(), 5, "{report}");
    assert!(begin.elapsed().as_secs() < 60, "{:?}", begin.elapsed());
    session.stop();
}
