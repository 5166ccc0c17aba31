//! Programs built with a sanitizer keep its allocator: the agent is inactive, and the sanitizer's
//! reports and the program's end are the same as without the agent.

use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Outcome, Scratch, Steps, artifacts, run};

const ADDRESS: &[&str] = &[
    "leak_malloc",
    "leak_new",
    "overflow",
    "overflow_aligned",
    "use_after_free",
    "free_twice",
    "mismatch",
    "wrong_size",
];

/// A sanitizer, and the error that it finds.
struct Build {
    compiler: &'static str,
    flags: &'static [&'static str],
    found: &'static [&'static str],
}

/// Returns a report without what differs from run to run: addresses, numbers of processes, bytes
/// near an address.
fn normal(report: &str) -> String {
    let is_dump = |line: &&str| line.contains("=>0x") || line.starts_with("  0x");
    let mut text = String::new();
    for line in report.lines().filter(|line| !is_dump(line)) {
        for word in line.split_inclusive(|c: char| " ()[],;".contains(c)) {
            let bare = word.trim_end_matches(|c: char| " ()[],;:".contains(c));
            let differs = bare.starts_with("0x")
                || bare.contains("+0x")
                || bare.starts_with("==")
                || bare.starts_with("pid=")
                || bare.starts_with("tid=");
            text.push_str(if differs { "N " } else { word });
        }
        text.push('\n');
    }
    text
}

/// Returns where the runtime is that clang links as a library.
fn library_path(compiler: &str) -> String {
    if compiler != "clang++" {
        return String::new();
    }
    let file = tool(compiler, ["-print-file-name=libclang_rt.asan-x86_64.so"]);
    let directory = Path::new(file.trim()).parent().expect("a directory");
    directory.to_string_lossy().into_owned()
}

fn run_alike(scratch: &Scratch, build: &Build, program: &Path, fault: &str) -> Outcome {
    let path = library_path(build.compiler);
    let command = |agent: bool, environment: &[(&str, &str)]| {
        let mut command = Command::new(program);
        command
            .arg(fault)
            .env("LD_LIBRARY_PATH", &path)
            .envs(environment.iter().copied())
            .stdin(Stdio::null());
        if agent {
            command
                .env("LD_PRELOAD", artifacts::agent())
                .env("MEM_PROFILER_DIR", scratch.shared());
        }
        run(&mut command)
    };
    let alone = command(false, &[]);
    let start = [("MEM_PROFILER_START", "1"), ("MEM_PROFILER_INTERVAL", "1")];
    for environment in [&[][..], &start] {
        let preloaded = command(true, environment);
        let at = (build.compiler, build.flags, fault);
        assert_eq!(preloaded.code, alone.code, "{at:?}: {preloaded:?}");
        assert_eq!(preloaded.stdout, alone.stdout, "{at:?}");
        if fault == "race" {
            // Which thread comes first differs from run to run.
            assert!(preloaded.stderr.contains("data race"), "{preloaded:?}");
        } else {
            assert_eq!(normal(&preloaded.stderr), normal(&alone.stderr), "{at:?}");
        }
    }
    alone
}

fn check(build: &Build) {
    let scratch = Scratch::new();
    let program = scratch.file("faulty");
    let mut compile = Command::new(build.compiler);
    compile
        .args([
            "-g",
            "-O1",
            "-w",
            "-std=c++17",
            "-fsized-deallocation",
            "-pthread",
        ])
        .args(build.flags)
        .arg(artifacts::source("faulty.cpp"))
        .arg("-o")
        .arg(&program);
    let compiled = run(compile.stdin(Stdio::null()));
    assert_eq!(compiled.code, Some(0), "{compiled:?}");

    let clean = run_alike(&scratch, build, &program, "none");
    assert_eq!(clean.code, Some(0), "{clean:?}");
    assert_eq!(clean.stderr, "");
    for fault in build.found {
        let outcome = run_alike(&scratch, build, &program, fault);
        assert_ne!(outcome.code, Some(0), "{fault}: {outcome:?}");
        assert!(outcome.stderr.contains("Sanitizer"), "{fault}: {outcome:?}");
    }
}

fn gcc(flags: &'static [&'static str], found: &'static [&'static str]) {
    check(&Build {
        compiler: "g++",
        flags,
        found,
    });
}

fn clang(flags: &'static [&'static str], found: &'static [&'static str]) {
    check(&Build {
        compiler: "clang++",
        flags,
        found,
    });
}

#[test]
fn gccs_address_sanitizer_reports_the_same() {
    gcc(&["-fsanitize=address"], ADDRESS);
}

#[test]
fn gccs_address_sanitizer_inside_the_program_reports_the_same() {
    gcc(&["-fsanitize=address", "-static-libasan"], ADDRESS);
}

#[test]
fn gccs_leak_sanitizer_reports_the_same() {
    gcc(&["-fsanitize=leak"], &["leak_malloc", "leak_new"]);
}

#[test]
fn gccs_thread_sanitizer_reports_the_same() {
    gcc(&["-fsanitize=thread"], &["race"]);
}

#[test]
fn clangs_address_sanitizer_reports_the_same() {
    clang(&["-fsanitize=address"], ADDRESS);
}

#[test]
fn clangs_address_sanitizer_as_a_library_reports_the_same() {
    clang(&["-fsanitize=address", "-shared-libasan"], ADDRESS);
}

#[test]
fn clangs_leak_sanitizer_reports_the_same() {
    clang(&["-fsanitize=leak"], &["leak_malloc", "leak_new"]);
}

#[test]
fn clangs_thread_sanitizer_reports_the_same() {
    clang(&["-fsanitize=thread"], &["race"]);
}

#[test]
fn clangs_memory_sanitizer_reports_the_same() {
    clang(&["-fsanitize=memory"], &["uninitialised"]);
}

#[test]
fn a_session_is_refused_with_the_reason() {
    let scratch = Scratch::new();
    let program = scratch.compile("steps.c", &["-fsanitize=address"]);
    let mut command = scratch.preloaded(&program);
    // The memory that the program keeps is no leak.
    command.env("ASAN_OPTIONS", "detect_leaks=0");
    let mut program = Steps::run(program, &mut command);
    program.step("keep 1");
    let pid = program.pid().to_string();
    let outcome = run(scratch.profiler().args(["-s", "1", "-o", "s_", "-p", &pid]));
    assert_eq!(outcome.code, Some(1), "{outcome:?}");
    let reason = "it runs under a sanitizer (AddressSanitizer or another), whose allocator stays in \
                  charge: profile a build without it";
    assert!(outcome.stderr.contains(reason), "{outcome:?}");
    program.step("keep 1");
    program.target.finish_well();
}
