//! Reports of leak checks that cannot be written.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::leaks::tell;
use mem_tests::{Scratch, Session, Steps, Target, run};

fn full() -> Stdio {
    File::options()
        .write(true)
        .open("/dev/full")
        .expect("/dev/full")
        .into()
}

fn code(command: &mut Command) -> Option<i32> {
    command.status().expect("the program starts").code()
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(&scratch, target.pid(), "1");
    tell(&mut target, "plant", "planted");
    let pid = target.pid().to_string();
    for options in [&["--json"][..], &[]] {
        let mut command = scratch.profiler();
        command.args(["leaks", "-p", &pid]).args(options);
        let child = command.stdout(full()).stderr(Stdio::piped()).spawn();
        let outcome = child.and_then(|child| child.wait_with_output());
        let outcome = outcome.expect("the profiler");
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert_eq!(outcome.status.code(), Some(1), "{said}");
        assert!(said.contains("the results could not be written"), "{said}");
    }
    // A reader that stops early has all that it wanted.
    let mut command = scratch.profiler();
    let command = command.args(["leaks", "-p", &pid]).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the profiler");
    drop(child.stdout.take());
    assert_eq!(child.wait().expect("its end").code(), Some(0));
    session.stop();
}

/// Two calls of one function are two leaks with the same names. Each shows its call by the line or,
/// without debug information, by the offset.
#[test]
fn stacks_of_the_same_names_are_told_apart_by_their_calls() {
    let scratch = Scratch::new();
    let program = scratch.compile("alike.c", &[]);
    let directory = scratch.file("bare");
    fs::create_dir(&directory).expect("a directory");
    let bare = directory.join("alike");
    let mut strip = Command::new("strip");
    let stripped = strip.args(["--strip-debug", "-o"]).args([&bare, &program]);
    assert!(stripped.status().expect("binutils").success());

    let lines = report(&scratch, &program);
    let marked = |mark: &str| {
        let source = fs::read_to_string("programs/alike.c").expect("the source");
        let at = source.lines().position(|line| line.ends_with(mark));
        format!("alike.c:{}\n", at.expect("the mark") + 1)
    };
    assert!(!lines.contains("by the call at"), "{lines}");
    assert!(
        lines.contains(&marked("first")) && lines.contains(&marked("second")),
        "{lines}"
    );
    let offsets = report(&scratch, &bare);
    let call = |line: &str| {
        line.strip_prefix("  by the call at alike+")
            .map(str::to_owned)
    };
    let calls: Vec<String> = offsets.lines().filter_map(call).collect();
    assert_eq!(calls.len(), 2, "{offsets}");
    let source = fs::read_to_string("programs/alike.c").expect("the source");
    let mut marks: Vec<&str> = calls
        .iter()
        .map(|call| {
            let line = line_of(&program, call);
            let line = source.lines().nth(line - 1).expect("a line of it");
            line.rsplit(' ').next().expect("a mark")
        })
        .collect();
    marks.sort_unstable();
    assert_eq!(marks, ["first", "second"], "{offsets}");
}

/// One place of the program is one leak, however many threads run it, and wherever its library is
/// loaded.
#[test]
fn a_place_that_loses_objects_is_reported_once() {
    let scratch = Scratch::new();
    let program = scratch.compile("repeated.c", &["-pthread", "-ldl"]);
    let library = scratch.compile_as("plugin.c", "libplugin.so", &["-fPIC", "-shared"]);
    let mut command = scratch.preloaded(&program);
    let mut steps = Steps::run(program, command.arg(&library));
    let session = Session::of(&scratch, steps.pid(), "1");
    steps.step("lose");
    let pid = steps.pid().to_string();
    let outcome = run(scratch.profiler().args(["leaks", "-p", &pid]));
    let leaks: Vec<&str> = outcome.stdout.split("\n\n").skip(1).collect();
    assert_eq!(leaks.len(), 2, "{outcome:?}");
    for (sum, place) in [
        ("20.5 KiB in 3 objects, from\n", "site_plugin\n"),
        ("17.6 KiB in 6 objects, from\n", "lost_in_thread\n"),
    ] {
        let leak = leaks.iter().find(|leak| leak.contains(place));
        assert!(leak.is_some_and(|leak| leak.contains(sum)), "{outcome:?}");
    }
    assert!(
        outcome.stdout.contains("38.1 KiB lost in 9 objects"),
        "{outcome:?}"
    );
    session.stop();
    steps.target.finish_well();
}

/// Runs a program that loses objects, and returns the report of a leak check.
fn report(scratch: &Scratch, program: &Path) -> String {
    let mut steps = Steps::run(program.to_path_buf(), &mut scratch.preloaded(program));
    let session = Session::of(scratch, steps.pid(), "1");
    steps.step("lose");
    let outcome = run(scratch
        .profiler()
        .args(["leaks", "-p", &steps.pid().to_string()]));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    session.stop();
    steps.target.finish_well();
    outcome.stdout
}

/// Returns the line of the code at an offset of a program, by binutils.
fn line_of(program: &Path, offset: &str) -> usize {
    let mut command = Command::new("addr2line");
    let output = command.arg("-e").arg(program).arg(offset).output();
    let output = output.expect("addr2line");
    let text = String::from_utf8_lossy(&output.stdout);
    let number = text.trim().rsplit(':').next().unwrap_or("");
    let number = number.split(' ').next().unwrap_or("");
    number
        .parse()
        .unwrap_or_else(|_| panic!("{offset}: {text}"))
}

#[test]
fn a_verdict_does_not_depend_on_who_hears_it() {
    let scratch = Scratch::new();
    let program = scratch.compile("few.c", &[]);
    for (objects, expected) in [("3", 1), ("0", 0)] {
        let mut command = scratch.profiler();
        let prefix = scratch.file("exit_");
        command.args(["run", "--leak-check", "-o"]).arg(prefix);
        command.arg("--").arg(&program).arg(objects);
        assert_eq!(code(command.stderr(full())), Some(expected), "{objects}");
        let mut command = scratch.preloaded(&program);
        let command = command.env("HEAPCHECK", "normal").arg(objects);
        assert_eq!(code(command.stderr(full())), Some(expected), "{objects}");
    }
}

/// Pointers in the allocator's caches keep no object alive.
#[test]
fn a_few_lost_objects_are_found_at_exit() {
    let scratch = Scratch::new();
    let program = scratch.compile("few.c", &[]);
    for objects in ["1", "3", "10"] {
        let mut command = scratch.preloaded(&program);
        let outcome = run(command.env("HEAPCHECK", "normal").arg(objects));
        let wanted = format!("detected leaks of {objects}000 bytes in {objects} objects");
        assert!(outcome.stderr.contains(&wanted), "{outcome:?}");
        assert_eq!(outcome.code, Some(1), "{outcome:?}");
    }
}
