//! Leak checks and profiles that programs request themselves: `HEAPCHECK`, gperftools'
//! `HeapLeakChecker` and `HeapProfilerStart`, LeakSanitizer's `__lsan_…`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::{Outcome, Scratch, artifacts, run};

/// Compiles a program and links it with tcmalloc, as programs that use its checker are. The agent
/// is the allocator.
fn compile(scratch: &Scratch, source: &str) -> PathBuf {
    let flags = ["-O1", "-pthread", "-l:libtcmalloc.so.4"];
    scratch.compile(source, &flags)
}

fn checker(scratch: &Scratch, mode: &str, case: &str) -> Outcome {
    let program = compile(scratch, "heap_checker.cpp");
    run(scratch.preloaded(program).env("HEAPCHECK", mode).arg(case))
}

/// Returns the lines of a report that say what leaked, without how much and where.
fn leaks(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stderr.lines();
    lines.filter(|line| line.contains("eak")).collect()
}

fn assert_nothing_is_left(scratch: &Scratch) {
    assert_eq!(scratch.segments(), Vec::<PathBuf>::new());
}

#[test]
fn a_local_checker_finds_what_was_lost_since_it_was_made() {
    let scratch = Scratch::new();
    let outcome = checker(&scratch, "local", "local");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        outcome.stdout,
        "active: 1 global: 0\nkept: clean 0 0\nlost: leaks 300 3\nagain: leaks 300 3\n\
         nothing: clean 0 0\n"
    );
    let found = leaks(&outcome);
    let clean = "(but no 100% guarantee that there aren't any): found";
    assert!(found[0].starts_with("No leaks found for check \"first one\" "));
    assert!(found[0].contains(clean), "{found:?}");
    let second = "Leak check second one detected leaks of 300 bytes in 3 objects";
    assert_eq!(found[1], second);
    assert_nothing_is_left(&scratch);
}

#[test]
fn what_the_program_ignores_is_no_leak_nor_is_what_it_keeps() {
    let scratch = Scratch::new();
    let outcome = checker(&scratch, "local", "ignored");
    assert_eq!(
        outcome.stdout, "active: 1 global: 0\nignored: clean 0 0\nno more: leaks 208 2\n",
        "{outcome:?}"
    );
}

/// Calls do not preserve these registers, so the program does not rely on them. The loader saves
/// them on the stack when it binds the call, wherever the stack pointer is.
#[test]
#[cfg(target_arch = "x86_64")]
fn stale_registers_hide_no_leak() {
    let scratch = Scratch::new();
    for shift in 0..4 {
        let outcome = checker(&scratch, "local", &format!("registers{shift}"));
        let found = ["of 1: leaks 1\n", "of 2: leaks 2\n"];
        assert!(
            found.iter().any(|end| outcome.stdout.ends_with(end)),
            "{shift}: {outcome:?}"
        );
    }
}

#[test]
fn a_call_that_checks_nothing_touches_no_memory_below_a_small_stack() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_checker.cpp");
    let outcome = run(scratch.preloaded(program).arg("idle"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.ends_with("kept: 1\n"), "{outcome:?}");
}

#[test]
fn an_object_at_the_place_of_an_ignored_one_is_another() {
    let scratch = Scratch::new();
    let outcome = checker(&scratch, "local", "reused");
    assert_eq!(
        outcome.stdout, "active: 1 global: 0\nsame place: 1\nfreed: leaks 3000 1\n",
        "{outcome:?}"
    );
}

#[test]
fn a_program_with_leaks_ends_with_1_and_its_output_written() {
    let scratch = Scratch::new();
    for mode in ["minimal", "normal", "strict", "1"] {
        let outcome = checker(&scratch, mode, "exit");
        assert_eq!(outcome.code, Some(1), "{mode}: {outcome:?}");
        assert!(outcome.stdout.ends_with("not flushed by the program"));
        let first = "Leak check _main_ detected leaks of 400 bytes in 1 objects";
        assert_eq!(leaks(&outcome)[0], first, "{mode}: {outcome:?}");
        let frames = outcome.stderr.lines();
        let frames = frames.filter(|line| line.starts_with("    ") && !line.starts_with("     "));
        assert_eq!(
            frames.collect::<Vec<_>>(),
            ["    leaks", "    main"],
            "{outcome:?}"
        );
        assert!(
            outcome.stderr.contains("heap_checker.cpp:65\n"),
            "{outcome:?}"
        );
    }
    let outcome = checker(&scratch, "normal", "code");
    assert_eq!(outcome.code, Some(7), "{outcome:?}");
    assert!(leaks(&outcome)[0].starts_with("No leaks found for check \"_main_\""));
    let outcome = checker(&scratch, "draconian", "local");
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(outcome.stdout.contains("kept: leaks "), "{outcome:?}");
    let outcome = checker(&scratch, "nroaml", "code");
    assert!(
        outcome.stderr.contains("HEAPCHECK=nroaml: no such mode"),
        "{outcome:?}"
    );
    assert_nothing_is_left(&scratch);
}

#[test]
fn the_check_at_exit_can_be_made_before_or_not_at_all() {
    let scratch = Scratch::new();
    let outcome = checker(&scratch, "normal", "cancelled");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        outcome.stdout,
        "active: 1 global: 1\nbefore: -1\nglobal: leaks\nafter: 400 1\n"
    );
    assert_eq!(
        leaks(&outcome)
            .iter()
            .filter(|l| l.contains("_main_"))
            .count(),
        1
    );
    let outcome = checker(&scratch, "normal", "cleaned");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        outcome.stdout,
        "active: 1 global: 1\nglobal: clean\nfreed: 1\n"
    );
    let outcome = checker(&scratch, "normal", "unchecked");
    assert_eq!(
        outcome.stdout, "active: 1 global: 1\nbefore: -1 -1\n",
        "{outcome:?}"
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
}

#[test]
fn run_lets_a_program_check_itself() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_checker.cpp");
    let start = |mode: &str, case: &str| {
        let mut command = scratch.profiler();
        command.args(["run", mode, "-o"]).arg(scratch.file("run_"));
        run(command.arg("--").arg(&program).arg(case))
    };
    let outcome = start("--leak-check=local", "local");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("lost: leaks 300 3"), "{outcome:?}");
    assert!(!outcome.stderr.contains("check _main_"), "{outcome:?}");
    let outcome = start("--leak-check", "cancelled");
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("global: leaks"), "{outcome:?}");
    assert!(!outcome.stderr.contains("no leak check"), "{outcome:?}");
    let outcome = start("--leak-check", "exit");
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn the_program_sees_nothing_of_a_check() {
    let scratch = Scratch::new();
    let outcome = checker(&scratch, "local", "quiet");
    assert_eq!(
        outcome.stdout,
        "active: 1 global: 0\nclean: 1 errno kept: 1\nchildren: 0 -1 descriptors: 0 mask: 0\n",
        "{outcome:?}"
    );
    let outcome = checker(&scratch, "local", "threads");
    assert_eq!(
        outcome.stdout, "active: 1 global: 0\nclean: 8\n",
        "{outcome:?}"
    );
    assert!(!outcome.stderr.contains("no leak check"), "{outcome:?}");
}

#[test]
fn a_child_is_checked_for_what_it_allocated() {
    let scratch = Scratch::new();
    let outcome = checker(&scratch, "normal", "forks");
    assert_eq!(
        outcome.stdout, "active: 1 global: 1\nchild: 1\n",
        "{outcome:?}"
    );
    assert_eq!(
        leaks(&outcome)[0],
        "Leak check _main_ detected leaks of 77 bytes in 1 objects"
    );
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_nothing_is_left(&scratch);
}

#[test]
fn without_heapcheck_nothing_is_checked() {
    let scratch = Scratch::new();
    for mode in ["", "0"] {
        let outcome = checker(&scratch, mode, "local");
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        assert_eq!(outcome.stderr, "");
        assert!(
            outcome
                .stdout
                .starts_with("active: 0 global: 0\nkept: clean -1 -1\n")
        );
    }
}

#[test]
fn a_program_without_standard_descriptors_is_checked() {
    let scratch = Scratch::new();
    // Not linked with tcmalloc, which opens files of its own in their places.
    let program = scratch.compile("lsan_interface.c", &["-O1"]);
    for (case, code) in [("fatal", 23), ("fine", 0)] {
        let mut command = scratch.preloaded("sh");
        let sampled = "MEM_PROFILER_START=1 MEM_PROFILER_INTERVAL=1";
        let line = format!("{sampled} exec \"$0\" $1 <&- >&- 2>&-");
        command.args(["-c", &line]);
        let outcome = run(command.arg(&program).arg(case));
        assert_eq!(outcome.code, Some(code), "{case}: {outcome:?}");
    }
}

/// tcmalloc's checker gives the same result as without the agent.
#[test]
fn a_program_that_keeps_its_allocator_keeps_its_checker() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_checker.cpp");
    let mut command = scratch.preloaded(&program);
    command.env("MEM_PROFILER_ALLOCATOR", "system");
    let [over_tcmalloc, alone] = [command, Command::new(&program)].map(|mut command| {
        command.env("HEAP_CHECK_DUMP_DIRECTORY", scratch.files());
        run(command.env("HEAPCHECK", "local").arg("local"))
    });
    assert_eq!(alone.code, Some(0), "{alone:?}");
    assert_eq!(over_tcmalloc.code, Some(0), "{over_tcmalloc:?}");
    assert_eq!(over_tcmalloc.stdout, alone.stdout, "{over_tcmalloc:?}");
    assert!(alone.stdout.contains("lost: leaks 300 3"), "{alone:?}");
}

/// Copies the agent alone, so that its controller is nowhere near.
fn lonely_agent(scratch: &Scratch) -> PathBuf {
    let directory = scratch.file("lonely");
    fs::create_dir(&directory).expect("a directory");
    let agent = directory.join("libmem_agent.so");
    fs::copy(artifacts::agent(), &agent).expect("a copy");
    agent
}

#[test]
fn a_missing_controller_is_reported_and_the_program_continues() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_checker.cpp");
    let agent = lonely_agent(&scratch);
    let start = |path: &Path| {
        let mut command: Command = scratch.preloaded(&program);
        command.env("LD_PRELOAD", &agent).env("HEAPCHECK", "normal");
        run(command.env("PATH", path).arg("exit"))
    };
    let outcome = start(Path::new("/nowhere"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(
        outcome.stderr,
        "mem-profiler: no leak check: mem_profiler could not be started (error 2): put it next \
         to libmem_agent.so or into PATH\n"
    );
    let profiler = artifacts::profiler();
    let outcome = start(profiler.parent().expect("a directory"));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
}

#[test]
fn a_dump_of_what_is_lost_is_written_where_gperftools_variable_says() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_checker.cpp");
    let mut command = scratch.preloaded(program);
    command.env("HEAPCHECK", "normal").arg("exit");
    let outcome = run(command.env("HEAP_CHECK_DUMP_DIRECTORY", scratch.files()));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let files = fs::read_dir(scratch.files())
        .expect("a directory")
        .flatten();
    let dumps: Vec<_> = files
        .map(|file| file.path())
        .filter(|path| path.extension().is_some_and(|e| e == "heap"))
        .collect();
    assert_eq!(dumps.len(), 1, "{dumps:?}");
    let profile = profile::open(&dumps[0]).expect("a dump");
    let live: f64 = profile.details.iter().map(|d| d.live_bytes()).sum();
    assert_eq!(live, 400.0);
}

#[test]
fn a_dump_that_cannot_be_written_changes_no_verdict() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_checker.cpp");
    let mut command = scratch.preloaded(program);
    command.env("HEAPCHECK", "normal").arg("exit");
    let outcome = run(command.env("HEAP_CHECK_DUMP_DIRECTORY", "/nowhere"));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    assert!(
        outcome.stderr.contains("no dump of the check: /nowhere"),
        "{outcome:?}"
    );
}

fn sanitizer(scratch: &Scratch, case: &str) -> Outcome {
    let program = scratch.compile("lsan_interface.c", &["-O1"]);
    let mut command = scratch.preloaded(program);
    command
        .env("MEM_PROFILER_START", "1")
        .env("MEM_PROFILER_INTERVAL", "1");
    run(command.arg(case))
}

#[test]
fn leak_sanitizers_functions_do_what_they_say() {
    let scratch = Scratch::new();
    let outcome = sanitizer(&scratch, "recoverable");
    assert_eq!(
        outcome.stdout, "at first: 0\ndisabled and ignored: 0\nlost: 1\nstill lost: 1\n",
        "{outcome:?}"
    );
    let summary = "SUMMARY: mem-profiler: 100 byte(s) leaked in 1 allocation(s).";
    assert_eq!(outcome.stderr.matches(summary).count(), 2, "{outcome:?}");
    let outcome = sanitizer(&scratch, "region");
    assert_eq!(outcome.stdout, "registered: 1\nno more: 1\n", "{outcome:?}");
    for summary in ["64 byte(s) leaked in 1 ", "154 byte(s) leaked in 2 "] {
        assert!(outcome.stderr.contains(summary), "{outcome:?}");
    }
    let outcome = sanitizer(&scratch, "fatal");
    assert_eq!(outcome.code, Some(23), "{outcome:?}");
    assert_eq!(outcome.stdout, "");
    let outcome = sanitizer(&scratch, "fine");
    assert_eq!(
        (outcome.code, &outcome.stdout[..]),
        (Some(0), "reached\n"),
        "{outcome:?}"
    );
    assert_eq!(outcome.stderr, "");
    let program = scratch.file("lsan_interface");
    let outcome = run(scratch.preloaded(program).arg("recoverable"));
    assert!(
        outcome.stdout.ends_with("still lost: 0\n"),
        "without a session: {outcome:?}"
    );
}

/// Returns the dump's live objects and bytes.
fn live(path: &Path) -> (f64, f64) {
    let profile = profile::open(path).expect("a dump");
    let details = profile.details.iter();
    details.fold((0.0, 0.0), |sum, detail| {
        (sum.0 + detail.live_objects(), sum.1 + detail.live_bytes())
    })
}

#[test]
fn gperftools_heap_profiler_writes_its_dumps() {
    let scratch = Scratch::new();
    let program = compile(&scratch, "heap_profiler.c");
    let prefix = scratch.file("prof");
    let outcome = run(scratch.preloaded(program).arg(&prefix));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert_eq!(outcome.stderr, "");
    let (before, rest) = outcome
        .stdout
        .split_once("heap profile: ")
        .expect("a profile");
    assert_eq!(before, "before: 0 0\nstarted: 1\n");
    assert!(
        rest.starts_with("25: 55000 [25: 55000] @ heap_v2/1\n"),
        "{rest}"
    );
    assert!(rest.ends_with("\nstopped: 0\n"), "{rest}");
    // The second start counts its dumps from 1 again, as gperftools does.
    assert_eq!(live(&scratch.file("prof.0001.heap")), (7.0, 3500.0));
    assert_eq!(live(&scratch.file("prof.0002.heap")), (25.0, 55000.0));
    assert!(!scratch.file("prof.0003.heap").exists());
    assert_nothing_is_left(&scratch);
}
