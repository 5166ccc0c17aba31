//! Programs without a build id, programs with several segments of code, and programs of Go and
//! node: the commands that are printed work as they are, and stacks are complete.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::cpu::{self, Read};
use mem_tests::{Outcome, Scratch, Session, Steps, artifacts, run};

/// Runs the command that the profiler prints after `next:`, and returns what it says.
fn run_next(scratch: &Scratch, outcome: &Outcome) -> Outcome {
    let line = outcome
        .stderr
        .lines()
        .find_map(|line| line.split_once("next: mem_parser "));
    let line = line.unwrap_or_else(|| panic!("{outcome:?}")).1;
    let arguments = line.split(" (").next().expect("a part").split(' ');
    let mut command = scratch.parser();
    command.args(arguments);
    run(&mut command)
}

fn built_by_go(scratch: &Scratch, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let out = scratch.file(name);
    let mut command = Command::new("go");
    command.arg("build").args(flags).arg("-o").arg(&out);
    command.arg(artifacts::source(source));
    command.env("GOCACHE", scratch.file("cache"));
    assert!(command.status().expect("go").success());
    out
}

/// Profiles the CPU time of a program from outside, with the file named after `name`.
fn sampled(scratch: &Scratch, name: &str, arguments: &[&str], program: &Path) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "perf", "-F", "499", "-o"]);
    command
        .arg(scratch.file(name))
        .arg("--")
        .arg(program)
        .args(arguments);
    run(&mut command)
}

#[test]
fn stacks_of_go_are_complete_and_named_even_if_it_is_stripped() {
    let scratch = Scratch::new();
    for (name, flags) in [("whole", &[][..]), ("bare", &["-ldflags=-s -w"])] {
        let program = built_by_go(&scratch, "spinning.go", name, flags);
        let outcome = sampled(&scratch, name, &[], &program);
        Read::only(&outcome).assert_complete(0.9);
        let table = run_next(&scratch, &outcome);
        assert_eq!(table.code, Some(0), "{table:?}");
        assert!(table.stdout.contains("main.leaf"), "{table:?}");
        assert!(!table.stderr.contains("cannot be checked"), "{table:?}");
        // Without -p, as for any other program.
        let mut folded = scratch.parser();
        folded.arg("--folded").args(cpu::files(&outcome));
        let folded = run(&mut folded);
        for stack in [
            "runtime.goexit;runtime.main;main.main;main.branch;main.leaf ",
            "runtime.goexit;main.main.func1;main.branch;main.leaf ",
        ] {
            assert!(folded.stdout.contains(stack), "{name}: {folded:?}");
        }
        // Another file at the same path is not the profiled one.
        std::fs::copy(&program, scratch.file("copy")).expect("a copy");
        std::fs::rename(scratch.file("copy"), &program).expect("a new file");
        let mut refused = scratch.parser();
        refused.args(cpu::files(&outcome));
        run(&mut refused).refused(2, &["no build id"]);
    }
}

/// Returns the stacks of a profile by function names, outermost first.
fn folded(scratch: &Scratch, arguments: &[&str], files: &[PathBuf]) -> Outcome {
    let mut command = scratch.parser();
    command.arg("--folded").args(arguments).args(files);
    run(&mut command)
}

/// Asserts that both goroutines of `calls_c.go` are seen to call a function of C.
fn assert_goroutines(outcome: &Outcome, go: &str, c: &str) {
    let ends = format!("main.work;main.{go};main._Cfunc_{c};runtime.cgocall;runtime.asmcgocall;");
    for start in ["runtime.main;main.main", "main.main.func1"] {
        let stack = format!("runtime.goexit;{start};{ends}");
        let is_there = |line: &str| line.contains(&stack) && line.contains(c);
        assert!(outcome.stdout.lines().any(is_there), "{stack}: {outcome:?}");
    }
}

#[test]
fn functions_of_c_have_the_goroutines_that_called_them() {
    let scratch = Scratch::new();
    let kinds = [
        ("exe", &[][..]),
        ("pie", &["-buildmode=pie", "-ldflags=-s -w"]),
    ];
    for (name, flags) in kinds {
        let program = built_by_go(&scratch, "calls_c.go", name, flags);
        let heap = scratch.file(&format!("{name}_"));
        let mut command = scratch.profiler();
        command.args(["run", "-c", "1", "-o"]).arg(&heap);
        run(command.arg("--").arg(&program).arg("make"));
        let written = std::fs::read_dir(scratch.files()).expect("files").flatten();
        let mut dumps: Vec<PathBuf> = written.map(|file| file.path()).collect();
        let prefix = heap.to_str().expect("a path");
        dumps.retain(|path| path.to_str().is_some_and(|path| path.starts_with(prefix)));
        let found = folded(&scratch, &["--alloc_space"], &dumps);
        assert_goroutines(&found, "makeInC", "c_make");
        for engine in ["perf", "ptrace"] {
            let profile = format!("{name}.{engine}");
            let mut command = scratch.profiler();
            command.args(["cpu", "run", "-F", "199", "--engine", engine, "-o"]);
            command.arg(scratch.file(&profile)).arg("--").arg(&program);
            let outcome = run(command.arg("compute"));
            assert_goroutines(
                &folded(&scratch, &[], &cpu::files(&outcome)),
                "computeInC",
                "c_compute",
            );
            Read::only(&outcome).assert_complete(0.9);
        }
    }
}

#[test]
fn functions_of_go_that_c_calls_have_the_frames_of_c_and_go_around_them() {
    let scratch = Scratch::new();
    let kinds = [("exe", &[][..]), ("pie", &["-buildmode=pie"])];
    for (name, flags) in kinds {
        let program = built_by_go(&scratch, "calls_back.go", name, flags);
        let mut command = scratch.profiler();
        command
            .args(["run", "-c", "1", "-o"])
            .arg(scratch.file("p_"));
        let outcome = run(command.arg("--").arg(&program).arg("make"));
        let dumps = dumps_of(&scratch, "p_");
        assert_called_back(&folded(&scratch, &["--alloc_space"], &dumps), "c_make");
        dumps
            .iter()
            .for_each(|dump| std::fs::remove_file(dump).expect("removed"));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        for engine in ["perf", "ptrace"] {
            let profile = format!("{name}.{engine}");
            let mut command = scratch.profiler();
            command.args(["cpu", "run", "-F", "199", "--engine", engine, "-o"]);
            command.arg(scratch.file(&profile)).arg("--").arg(&program);
            let outcome = run(command.arg("compute"));
            assert_called_back(&folded(&scratch, &[], &cpu::files(&outcome)), "c_compute");
            Read::only(&outcome).assert_complete(0.9);
        }
    }
}

/// Returns the dumps whose names begin with `prefix`.
fn dumps_of(scratch: &Scratch, prefix: &str) -> Vec<PathBuf> {
    let written = std::fs::read_dir(scratch.files()).expect("files").flatten();
    let mut dumps: Vec<PathBuf> = written.map(|file| file.path()).collect();
    dumps.retain(|path| {
        let name = path.file_name().and_then(OsStr::to_str);
        name.is_some_and(|name| name.starts_with(prefix))
    });
    dumps
}

/// Asserts that the stacks of `calls_back.go` that end in `leaf` are whole, from each of the three
/// places where they begin.
fn assert_called_back(outcome: &Outcome, leaf: &str) {
    let all_of = |line: &str, parts: &[&str]| {
        let mut rest = line;
        parts.iter().all(|part| {
            let found = rest.find(part).map(|at| &rest[at + part.len()..]);
            found.is_some_and(|found| {
                rest = found;
                true
            })
        })
    };
    let inner = [
        "c_each;",
        "goVisit;",
        "crosscall2;",
        "runtime.cgocallback;",
        "main.goVisit;",
    ];
    for start in [
        &["runtime.goexit;", "main.main;", "main.work;", "main.again;"][..],
        &[
            "runtime.goexit;",
            "main.main.func1;",
            "main.work;",
            "main.again;",
        ],
        &["c_start;"],
    ] {
        let again = ["main.again;", "runtime.asmcgocall;"];
        let parts = [
            start,
            &inner,
            &again,
            &inner,
            &["runtime.asmcgocall;", leaf],
        ]
        .concat();
        let mut lines = outcome.stdout.lines();
        assert!(
            lines.any(|line| !line.contains("[truncated]") && all_of(line, &parts)),
            "{parts:?}: {outcome:?}"
        );
    }
}

#[test]
fn a_heap_profile_of_a_program_without_build_id_needs_no_option() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("peaks.c", "unidentified", &["-Wl,--build-id=none"]);
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", "1", "-o"])
        .arg(scratch.file("p_"));
    let outcome = run(command.arg("--").arg(&program));
    let table = run_next(&scratch, &outcome);
    assert_eq!(table.code, Some(0), "{outcome:?} {table:?}");
    assert!(!table.stdout.is_empty(), "{table:?}");
}

/// The kernel knows only the loader; the program is the file that the loader was called with.
#[test]
fn a_program_that_the_loader_was_told_to_load_is_named() {
    let scratch = Scratch::new();
    let program = scratch.compile("peaks.c", &[]);
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", "1", "-o"])
        .arg(scratch.file("p_"));
    command.args(["--", loader()]).arg(&program);
    let outcome = run(&mut command);
    assert!(
        !outcome.stderr.contains("nothing will be sampled"),
        "{outcome:?}"
    );
    let table = run_next(&scratch, &outcome);
    assert_eq!(table.code, Some(0), "{outcome:?} {table:?}");
    assert!(table.stdout.contains("main"), "{table:?}");
}

/// Returns the path of the dynamic loader.
fn loader() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "/lib/ld-linux-aarch64.so.1"
    } else {
        "/lib64/ld-linux-x86-64.so.2"
    }
}

#[test]
fn a_program_in_memory_is_named_while_it_runs_and_by_its_file_afterwards() {
    let scratch = Scratch::new();
    let launcher = scratch.compile("from_memory.c", &[]);
    for (name, flag) in [("proven", "-g"), ("unproven", "-Wl,--build-id=none")] {
        let program = scratch.compile_as("steps.c", name, &[flag]);
        let mut command = scratch.preloaded(&launcher);
        let mut steps = Steps::run(program.clone(), command.arg(&program));
        let session = Session::of(&scratch, steps.pid(), "1");
        steps.step("keep 12");
        let outcome = session.stop();
        let files = [outcome.dump()];
        let folded = |options: &[&str]| folded(&scratch, options, &files);
        let alive = folded(&[]);
        assert!(alive.stdout.contains(";site_main"), "{name}: {alive:?}");
        drop(steps);
        folded(&[]).refused(2, &["a file in its memory", "-p BINARY"]);
        let named = folded(&["-p", program.to_str().expect("a path of ours")]);
        assert!(named.stdout.contains(";site_main"), "{name}: {named:?}");
        std::fs::remove_file(&files[0]).expect("a dump");
    }
}

/// Neither a build id nor a path leads to its file, but the process does, and after it `-p`.
#[test]
fn a_program_that_was_replaced_is_named_while_it_runs_and_by_its_file_afterwards() {
    let scratch = Scratch::new();
    let program = scratch.compile_as("steps.c", "kept", &["-Wl,--build-id=none"]);
    for name in ["deleted", "replaced"] {
        let gone = scratch.file(name);
        std::fs::copy(&program, &gone).expect("a copy");
        let mut command = scratch.preloaded(&gone);
        let mut steps = Steps::run(gone.clone(), &mut command);
        std::fs::remove_file(&gone).expect("a program of ours");
        if name == "replaced" {
            std::fs::copy("/bin/true", &gone).expect("another program");
        }
        let session = Session::of(&scratch, steps.pid(), "1");
        steps.step("keep 12");
        let outcome = session.stop();
        let files = [outcome.dump()];
        let folded = |options: &[&str]| folded(&scratch, options, &files);
        let alive = run_next(&scratch, &outcome);
        assert_eq!(alive.code, Some(0), "{name}: {alive:?}");
        let alive = folded(&[]);
        assert!(alive.stdout.contains(";site_main"), "{name}: {alive:?}");
        drop(steps);
        folded(&[]).refused(2, &["-p BINARY"]);
        let named = folded(&["-p", program.to_str().expect("a path of ours")]);
        assert!(named.stdout.contains(";site_main"), "{name}: {named:?}");
        std::fs::remove_file(&files[0]).expect("a dump");
    }
}

#[test]
fn a_cpu_profile_of_node_is_read_and_says_how_to_name_its_scripts() {
    let scratch = Scratch::new();
    let script = artifacts::source("retaining.js");
    let script = script.to_str().expect("a path of ours");
    let outcome = sampled(&scratch, "node", &[script], Path::new("node"));
    let table = run_next(&scratch, &outcome);
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(
        table.stderr.contains("start it with --perf-basic-prof"),
        "{table:?}"
    );
    let arguments = [
        "--perf-basic-prof",
        "--interpreted-frames-native-stack",
        script,
    ];
    let outcome = sampled(&scratch, "named", &arguments, Path::new("node"));
    let table = run_next(&scratch, &outcome);
    assert!(table.stdout.contains("compute"), "{table:?}");
    assert!(!table.stderr.contains("--perf-basic-prof"), "{table:?}");
}

#[test]
fn leaks_of_node_are_blamed_on_the_script() {
    let scratch = Scratch::new();
    let script = artifacts::source("retaining.js");
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", "65536", "-o"])
        .arg(scratch.file("p_"));
    command.args([
        "--",
        "node",
        "--perf-basic-prof",
        "--interpreted-frames-native-stack",
    ]);
    let outcome = run(command.arg(script));
    let files = std::fs::read_dir(scratch.files()).expect("ours").flatten();
    let is_dump = |path: &std::path::PathBuf| path.extension().is_some_and(|e| e == "heap");
    let dumps = files.map(|file| file.path()).filter(is_dump);
    let mut leaks = scratch.parser();
    leaks.arg("--leaks").args(dumps);
    assert!(leaks.get_args().len() > 1, "{outcome:?}");
    let leaks = run(&mut leaks);
    let blamed = leaks
        .stdout
        .lines()
        .find(|line| line.trim_start().starts_with("at "));
    let blamed = blamed.unwrap_or_else(|| panic!("{leaks:?}"));
    assert!(blamed.contains("retaining.js:3 in loadImage"), "{blamed}");
}

#[test]
fn stacks_are_complete_with_a_c_library_without_unwind_tables() {
    let scratch = Scratch::new();
    let source = artifacts::source("short_threads.c");
    for (name, flag) in [("musl_static", "-static"), ("musl_dynamic", "-g")] {
        let out = scratch.file(name);
        let mut compiler = Command::new("musl-gcc");
        compiler
            .args(["-O1", "-g", flag, "-o"])
            .arg(&out)
            .arg(&source);
        assert!(compiler.status().expect("musl-gcc").success());
        let outcome = sampled(&scratch, name, &[], &out);
        Read::only(&outcome).assert_complete(0.9);
        let mut folded = scratch.parser();
        folded.arg("--folded").args(cpu::files(&outcome));
        let folded = run(&mut folded);
        for stack in ["main;spin ", "work;spin "] {
            assert!(folded.stdout.contains(stack), "{name}: {folded:?}");
        }
        assert!(!folded.stdout.contains("[truncated];main"), "{folded:?}");
    }
}
