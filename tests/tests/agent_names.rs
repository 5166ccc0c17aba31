//! Agents under other names than the package's: copies and links are recognised by the symbols that
//! they define.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Outcome, Scratch, Target, artifacts, run};

/// Returns a library with a `malloc` that passes calls on.
fn allocator(scratch: &Scratch) -> String {
    let source = artifacts::source("own_malloc.c");
    let library = scratch.file("libother.so").display().to_string();
    let flags = [
        "-shared",
        "-fPIC",
        "-O2",
        "-DLIBRARY",
        "-DPREFIX=",
        "-DPASSES_ON",
    ];
    let files = ["-o", &library, source.to_str().expect("a path of ours")];
    tool("gcc", flags.iter().chain(&files));
    library
}

/// Returns the output of `list` while a process runs with these libraries preloaded.
fn listed(scratch: &Scratch, preloaded: &str) -> Outcome {
    let program = scratch.file("sleeper");
    if !program.exists() {
        scratch.compile("sleeper.c", &[]);
    }
    let mut command = Command::new(&program);
    command
        .env("LD_PRELOAD", preloaded)
        .env("MEM_PROFILER_DIR", scratch.shared())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    let outcome = run(scratch.profiler().arg("list"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    assert!(outcome.stdout.contains("sleeper"), "{outcome:?}");
    target.finish_well();
    outcome
}

/// Returns the warnings about the program. Ignores those about other processes of this machine.
fn warnings_of_sleeper(outcome: &Outcome) -> Vec<&str> {
    let lines = outcome.stderr.lines();
    lines.filter(|line| line.contains("sleeper")).collect()
}

#[test]
fn a_copy_is_the_agent_under_any_name() {
    let scratch = Scratch::new();
    let other = allocator(&scratch);
    let path = |name: &str| scratch.file(name).display().to_string();
    let [copy, link, usual] = ["libmp.so", "link.so", "libmem_agent.so"].map(path);
    fs::copy(artifacts::agent(), &copy).expect("a copy");
    symlink(Path::new("libmp.so"), &link).expect("a link");
    symlink(Path::new("libmp.so"), &usual).expect("a link");
    for agent in [&copy, &link, &usual] {
        for preloaded in [agent.clone(), format!("{agent}:{other}")] {
            let outcome = listed(&scratch, &preloaded);
            let none: [&str; 0] = [];
            assert_eq!(warnings_of_sleeper(&outcome), none, "{preloaded}");
        }
    }
    for agent in [&copy, &link] {
        let outcome = listed(&scratch, &format!("{other}:{agent}"));
        let warnings = warnings_of_sleeper(&outcome).join("\n");
        assert!(
            warnings.contains("preloaded before the agent"),
            "{warnings}"
        );
    }
}

#[test]
fn the_memory_of_a_copy_is_the_agents() {
    let scratch = Scratch::new();
    let copy = scratch.file("libmp.so");
    fs::copy(artifacts::agent(), &copy).expect("a copy");
    let program = scratch.compile("sleeper.c", &[]);
    let mut bytes = [copy, artifacts::agent()].map(|agent| {
        let mut target = Target::start(scratch.preloaded(&program).env("LD_PRELOAD", agent));
        assert_eq!(target.hear(), "ready");
        let pid = target.pid().to_string();
        let outcome = run(scratch.profiler().args(["why", "-p", &pid, "--json"]));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let answer: serde_json::Value = serde_json::from_str(&outcome.stdout).expect("JSON");
        target.finish_well();
        let resident = &answer[0]["resident"]["agent"];
        resident.as_u64().unwrap_or_else(|| panic!("{answer}"))
    });
    bytes.sort_unstable();
    assert!(bytes[0] > 0 && bytes[1] < 2 * bytes[0], "{bytes:?}");
}
