//! Options of checks for leaks, on a program whose objects only some searches find.

use std::collections::BTreeMap;
use std::process::Command;

use mem_tests::leaks::{lost, planted, report};
use mem_tests::{Outcome, Scratch, Session, Target, run};
use serde_json::Value;

/// Objects that are lost to every search, by the function that allocated them.
const LOST: [(&str, f64); 5] = [
    ("lost_plain", 10.0),
    ("lost_head", 1.0),
    ("lost_tail", 1.0),
    ("lost_shared", 1.0),
    ("lost_other", 1.0),
];
/// Those that are lost to the plain search besides.
const HIDDEN: [&str; 2] = ["by_unaligned", "by_tag"];

/// Starts `hidden.cpp` in a session, and plants all objects.
fn hidden(scratch: &Scratch) -> (Target, Session) {
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    planted(scratch, &program)
}

fn leaks(scratch: &Scratch, target: &Target) -> Command {
    let mut command = scratch.profiler();
    command.args(["leaks", "--max", "1000", "-p", &target.pid().to_string()]);
    command
}

fn check(scratch: &Scratch, target: &Target, options: &[&str]) -> Value {
    report(&run(leaks(scratch, target).arg("--json").args(options)))
}

/// Returns the usual losses, without those of the functions `without`, and with those in `besides`.
fn expected(without: &[&str], besides: &[&str]) -> BTreeMap<String, f64> {
    let usual = LOST.iter().copied();
    let usual = usual.filter(|(name, _)| !without.contains(name));
    let besides = besides.iter().map(|name| (*name, 1.0));
    let all = usual.chain(besides);
    all.map(|(name, count)| (name.to_owned(), count)).collect()
}

#[test]
fn options_say_what_counts_as_a_pointer_and_as_a_root() {
    let scratch = Scratch::new();
    let (target, session) = hidden(&scratch);
    let searches: [(&[&str], &[&str]); 9] = [
        (&[], &HIDDEN),
        (&["--stop"], &HIDDEN),
        (&["--unaligned"], &["by_tag"]),
        (&["--tag-bits", "16"], &["by_unaligned"]),
        (&["--tag-bits", "16", "--unaligned"], &[]),
        (
            &["--max-pointer-offset", "1024"],
            &["by_unaligned", "by_tag", "by_far"],
        ),
        (
            &["--max-pointer-offset", "999"],
            &["by_unaligned", "by_tag", "by_far", "by_near"],
        ),
        (&["--no-threads"], &["by_unaligned", "by_tag", "by_stack"]),
        (
            &["--no-globals"],
            &[
                "by_unaligned",
                "by_tag",
                "by_far",
                "by_near",
                "by_global",
                "by_mapping",
            ],
        ),
    ];
    for (options, besides) in searches {
        let report = check(&scratch, &target, options);
        assert_eq!(lost(&report), expected(&[], besides), "{options:?}");
    }
    session.stop();
}

#[test]
fn a_path_follows_the_pointers_that_are_wanted() {
    let scratch = Scratch::new();
    let (target, session) = hidden(&scratch);
    let root = |what: &str, options: &[&str]| {
        let options = [&["--path", what], options].concat();
        let report = check(&scratch, &target, &options);
        report["objects"][0]["root"].as_str().map(str::to_owned)
    };
    assert_eq!(root("by_unaligned", &[]), None);
    let unaligned = root("by_unaligned", &["--unaligned"]).expect("a root");
    assert!(unaligned.contains("unaligned + 0x3"), "{unaligned}");
    assert_eq!(root("by_tag", &[]), None);
    let tagged = root("by_tag", &["--tag-bits", "16"]).expect("a root");
    assert!(tagged.contains("tagged"), "{tagged}");
    assert!(root("by_global", &[]).is_some());
    assert_eq!(root("by_global", &["--no-globals"]), None);
    session.stop();
}

/// Runs `hidden.cpp` with a check at its exit.
fn at_exit(scratch: &Scratch, options: &[&str], variables: &[(&str, &str)]) -> Outcome {
    let program = scratch.compile("hidden.cpp", &["-g", "-pthread"]);
    let mut command = scratch.profiler();
    command.arg("run").args(options).envs(variables.to_vec());
    command.arg("-o").arg(scratch.file("exit_"));
    run(command.arg("--").arg(program).arg("plant"))
}

/// Returns which of the functions `by_…` have lost something.
fn found(outcome: &Outcome) -> Vec<&str> {
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let lines = outcome.stderr.lines().map(str::trim);
    let mut found: Vec<_> = lines.filter(|line| line.starts_with("by_")).collect();
    found.sort_unstable();
    found
}

#[test]
fn a_check_at_exit_has_the_options_and_variables_of_gperftools() {
    const AS_IS: &str = "--leak-check=as-is";
    const GLOBALS: (&str, &str) = ("HEAP_CHECK_IGNORE_GLOBAL_LIVE", "0");
    const THREADS: (&str, &str) = ("HEAP_CHECK_IGNORE_THREAD_LIVE", "false");
    const ALIGNMENT: (&str, &str) = ("HEAP_CHECK_POINTER_SOURCE_ALIGNMENT", "1");
    const OFFSET: (&str, &str) = ("HEAP_CHECK_MAX_POINTER_OFFSET", "1024");
    const ALL: (&str, &str) = ("HEAP_CHECK_MAX_LEAKS", "-1");
    let scratch = Scratch::new();
    let check = |options: &[&str], variables: &[(&str, &str)]| {
        let variables = [&[ALL], variables].concat();
        let outcome = at_exit(&scratch, options, &variables);
        assert!(outcome.stderr.contains("lost_plain"), "{outcome:?}");
        found(&outcome).join(" ")
    };
    let plain = "by_tag by_unaligned";
    assert_eq!(check(&[AS_IS], &[]), plain);
    assert_eq!(
        check(&["--leak-check", "--tag-bits", "17"], &[ALIGNMENT]),
        ""
    );
    assert_eq!(
        check(&["--leak-check"], &[OFFSET]),
        "by_far by_tag by_unaligned"
    );
    let wide = ["--leak-check", "--max-pointer-offset", "3000"];
    assert_eq!(check(&wide, &[OFFSET]), plain, "the command line wins");
    assert_eq!(
        check(&["--leak-check"], &[GLOBALS, THREADS]),
        plain,
        "the roots are those of the mode"
    );
    assert_eq!(check(&[AS_IS], &[THREADS]), "by_stack by_tag by_unaligned");
    assert_eq!(
        check(&[AS_IS, "--no-threads"], &[]),
        "by_stack by_tag by_unaligned"
    );
    let globals = "by_far by_global by_mapping by_near by_tag by_unaligned";
    assert_eq!(check(&[AS_IS], &[GLOBALS]), globals);
    let one = at_exit(
        &scratch,
        &["--leak-check"],
        &[("HEAP_CHECK_MAX_LEAKS", "1")],
    );
    assert!(one.stderr.contains("These are 1 of"), "{one:?}");
}

#[test]
fn options_that_cannot_be_are_usage_errors() {
    let scratch = Scratch::new();
    let refused = |options: &[&str], variables: &[(&str, &str)], parts: &[&str]| {
        at_exit(&scratch, options, variables).refused(2, parts);
    };
    refused(&["--unaligned"], &[], &["--leak-check"]);
    refused(
        &["--leak-check", "--tag-bits", "18"],
        &[],
        &["--tag-bits", "17"],
    );
    for name in [
        "HEAP_CHECK_POINTER_SOURCE_ALIGNMENT",
        "HEAP_CHECK_MAX_POINTER_OFFSET",
        "HEAP_CHECK_MAX_LEAKS",
    ] {
        refused(&["--leak-check"], &[(name, "x")], &[name, "a number"]);
    }
}
