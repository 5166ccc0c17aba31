//! Losses of `leak_cases.cpp` according to our check and three others: gperftools' heap checker,
//! LeakSanitizer, and Valgrind's memcheck. The cases are those of their own tests.

use std::path::PathBuf;
use std::process::Command;

use mem_tests::{Outcome, Scratch, run};

/// A case: its name; the lost objects and bytes by our check; those by gperftools, LeakSanitizer
/// and Valgrind, or "=" if they are the same; and the reason if they are not.
type Case = (&'static str, &'static str, [&'static str; 3], &'static str);

const SAME: [&str; 3] = ["="; 3];
const NONE: &str = "0 0";

#[rustfmt::skip]
const LOST: [Case; 18] = [
    ("plain", "10 1000", SAME, ""),
    ("zero", "1 0", ["=", "1 1", "="], "LeakSanitizer makes an object of a byte of it"),
    ("large", "1 10485760", ["=", "=", NONE], "Valgrind: possibly, as a value leads into it"),
    ("operators", "3 122", SAME, ""),
    ("aligned", "3 5228", ["3 8576", "=", "="], "gperftools rounds aligned sizes up"),
    ("pages", "3 24576", SAME, ""),
    ("freed_pages", "1 100", SAME, ""),
    ("to_itself", "1 48", SAME, ""),
    ("cycle", "3 144", SAME, ""),
    ("tree", "7 336", SAME, ""),
    ("unlinked", "1 48", SAME, ""),
    ("overwritten", "1 100", SAME, ""),
    ("disguise", "1 100", SAME, ""),
    ("behind_end", "1 100", SAME, ""),
    ("unaligned", "1 100", SAME, ""),
    ("by_threads", "50 5000", ["49 4900", "=", "="], "gperftools searches a dead thread's stack"),
    ("dead_stack", "1 100", [NONE, "=", "="], "gperftools searches a dead thread's stack"),
    ("dead_variable", "1 100", [NONE, "=", "="], "gperftools searches a dead thread's variables"),
];

#[rustfmt::skip]
const KEPT: [Case; 30] = [
    ("global", NONE, SAME, ""),
    ("by_list", NONE, SAME, ""),
    ("variable", NONE, SAME, ""),
    ("variable_of_thread", NONE, SAME, ""),
    ("variable_of_library", NONE, SAME, ""),
    ("specific", NONE, SAME, ""),
    ("specific_destroyed", NONE, SAME, ""),
    ("stack_of_thread", NONE, SAME, ""),
    ("stack_of_main", NONE, SAME, ""),
    ("in_register", NONE, SAME, ""),
    ("context_in_heap", NONE, SAME, ""),
    ("context_in_mapping", NONE, SAME, ""),
    ("interior", NONE, SAME, ""),
    ("far_interior", NONE, ["1 5000", "=", "="], "gperftools: pointers to 1024 bytes into an object"),
    ("held_pages", NONE, SAME, ""),
    ("reused_pages", NONE, SAME, ""),
    ("base_class", NONE, SAME, ""),
    ("array", NONE, SAME, ""),
    ("long_string", NONE, SAME, ""),
    ("only_mapping", NONE, ["1 100", "1 100", "="], "mappings are no roots of theirs"),
    ("only_epoll", NONE, ["1 100"; 3], "they do not ask the kernel"),
    ("only_timer", NONE, ["1 100"; 3], "they do not ask the kernel"),
    ("guarded", NONE, ["died", "died", "="], "they read an unreadable page of an object"),
    ("shrunk", NONE, SAME, ""),
    ("moved", NONE, SAME, ""),
    ("of_threads", NONE, SAME, ""),
    ("in_fork", NONE, SAME, ""),
    ("freed_at_exit", NONE, SAME, ""),
    ("disabled", NONE, ["1 100", "=", "1 100"], "__lsan_disable is not for them"),
    ("ignored", NONE, ["2 96", "=", "2 96"], "__lsan_ignore_object is not for them"),
];

fn cases() -> impl Iterator<Item = Case> {
    let here = |case: &Case| case.0 != "in_register" || cfg!(target_arch = "x86_64");
    LOST.into_iter().chain(KEPT).filter(here)
}

/// The programs of a test.
struct Programs {
    scratch: Scratch,
    program: PathBuf,
    library: PathBuf,
}

impl Programs {
    fn new(flags: &[&str]) -> Self {
        let scratch = Scratch::new();
        let program = scratch.compile("leak_cases.cpp", flags);
        let library = scratch.compile("leak_library.c", &["-shared", "-fPIC"]);
        Self {
            scratch,
            program,
            library,
        }
    }

    /// Runs a case by a command that ends with the program's name.
    fn run(&self, command: &mut Command, case: &str) -> Outcome {
        run(command.arg(case).arg(&self.library))
    }

    /// Returns what each case loses, by `check`.
    fn assert(&self, check: impl Fn(&str) -> String, expected: impl Fn(Case) -> &'static str) {
        let wrong = |case: Case| {
            let (found, expected) = (check(case.0), expected(case));
            (found != expected).then(|| format!("{}: {found}, not {expected}", case.0))
        };
        let wrong: Vec<String> = cases().filter_map(wrong).collect();
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

/// Returns the report of a peer on a case.
fn of_peer(number: usize) -> impl Fn(Case) -> &'static str {
    move |(_, ours, peers, _)| match peers[number] {
        "=" => ours,
        other => other,
    }
}

/// Returns the number before a word.
fn before(line: &str, word: &str) -> Option<u64> {
    let (start, _) = line.split_once(word)?;
    start
        .split_whitespace()
        .last()?
        .replace(',', "")
        .parse()
        .ok()
}

/// Returns the leaks in a report of gperftools, or in ours in the same form.
fn by_heap_checker(outcome: &Outcome) -> String {
    let mut lines = outcome.stderr.lines();
    if outcome
        .stderr
        .contains("No leaks found for check \"_main_\"")
    {
        return NONE.to_owned();
    }
    let line = lines.find(|line| line.contains("check _main_ detected leaks"));
    let numbers = line.and_then(|l| Some((before(l, " objects")?, before(l, " bytes")?)));
    match (numbers, outcome.code) {
        (Some((objects, bytes)), Some(1)) => format!("{objects} {bytes}"),
        (None, None) => "died".to_owned(),
        _ => format!("{outcome:?}"),
    }
}

#[test]
fn our_check_finds_what_is_lost() {
    let programs = Programs::new(&[]);
    let check = |case: &str| {
        let mut command = programs.scratch.preloaded(&programs.program);
        command.env("HEAPCHECK", "normal");
        by_heap_checker(&programs.run(&mut command, case))
    };
    programs.assert(check, |case| case.1);
}

#[test]
fn our_check_from_outside_ends_with_1_if_something_is_lost() {
    let programs = Programs::new(&[]);
    let check = |case: &str| {
        let mut command = programs.scratch.profiler();
        command.args(["run", "--leak-check", "-o"]);
        command
            .arg(programs.scratch.file("case_"))
            .arg("--")
            .arg(&programs.program);
        format!("{:?}", programs.run(&mut command, case).code)
    };
    programs.assert(check, |case| match case.1 {
        NONE => "Some(0)",
        _ => "Some(1)",
    });
}

#[test]
fn gperftools_differ_for_known_reasons() {
    let programs = Programs::new(&[]);
    let check = |case: &str| {
        // It would start a program for names: this one ends at once, and may do so before it is
        // asked.
        const RUN: &str = "trap '' PIPE; exec env LD_PRELOAD=libtcmalloc.so.4 \"$@\"";
        let mut command = Command::new("sh");
        command.args(["-c", RUN, "sh"]).arg(&programs.program);
        command
            .env("HEAPCHECK", "normal")
            .env("HEAP_CHECK_DUMP_DIRECTORY", programs.scratch.files())
            .env("PPROF_PATH", "/bin/false");
        by_heap_checker(&programs.run(&mut command, case))
    };
    programs.assert(check, of_peer(0));
}

#[test]
fn leak_sanitizer_differs_for_known_reasons() {
    let programs = Programs::new(&["-fsanitize=leak"]);
    let check = |case: &str| {
        let outcome = programs.run(&mut Command::new(&programs.program), case);
        let summary = outcome
            .stderr
            .lines()
            .find(|line| line.starts_with("SUMMARY: LeakSan"));
        let numbers = summary.and_then(|l| Some((before(l, " alloc")?, before(l, " byte")?)));
        match (numbers, outcome.code) {
            (Some((objects, bytes)), Some(23)) => format!("{objects} {bytes}"),
            (None, Some(0)) => NONE.to_owned(),
            (None, _) if outcome.stderr.contains("encountered a fatal error") => "died".to_owned(),
            _ => format!("{outcome:?}"),
        }
    };
    programs.assert(check, of_peer(1));
}

#[test]
fn valgrind_differs_for_known_reasons() {
    let programs = Programs::new(&[]);
    let check = |case: &str| {
        let mut command = Command::new("valgrind");
        command.args([
            "--leak-check=full",
            "--errors-for-leak-kinds=definite,indirect",
        ]);
        command
            .args(["--child-silent-after-fork=yes", "--error-exitcode=99"])
            .arg(&programs.program);
        let outcome = programs.run(&mut command, case);
        let lines = || outcome.stderr.lines();
        let sum = |word| -> u64 {
            let lost = lines().filter(|line| {
                line.contains("definitely lost: ") || line.contains("indirectly lost: ")
            });
            lost.filter_map(|line| before(line, word)).sum()
        };
        let code = if sum(" blocks") > 0 { 99 } else { 0 };
        match outcome.code == Some(code) && outcome.stderr.contains("HEAP SUMMARY") {
            true => format!("{} {}", sum(" blocks"), sum(" bytes")),
            false => format!("{outcome:?}"),
        }
    };
    programs.assert(check, of_peer(2));
}

#[test]
fn each_difference_has_a_reason() {
    for (case, ours, peers, reason) in cases() {
        let differs = peers.iter().any(|peer| *peer != "=" && *peer != ours);
        assert_eq!(differs, !reason.is_empty(), "{case}");
    }
}
