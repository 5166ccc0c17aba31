//! Programs whose `main` has no unwind table, as in rustc's programs with `panic=abort`: their
//! stacks are complete, because the unwinder reads the code of `main` after a call.

use std::fs;

use mem_tests::cpu::{COMPLETE, Read};
use mem_tests::{Scratch, run};

fn program(scratch: &Scratch) -> std::path::PathBuf {
    scratch.compile("bare_main.rs", &["-C", "panic=abort"])
}

#[test]
fn heap_profiles_have_whole_stacks() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    let mut command = scratch.profiler();
    command.args(["run", "-c", "1", "-o"]);
    command.arg(scratch.file("h_")).arg("--").arg(program);
    let outcome = run(command.arg("0.3"));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let files = fs::read_dir(scratch.files()).expect("ours").flatten();
    let mut dumps = files
        .map(|file| file.path())
        .filter(|path| path.extension() == Some("heap".as_ref()));
    let dump = dumps.next().expect("a dump");
    let profile = profile::open(&dump).expect("a dump that can be read");
    let counters = profile.facts.counters.iter();
    let truncated = counters.filter(|(name, n)| name.starts_with("truncated") && **n > 0);
    assert_eq!(truncated.count(), 0, "{:?}", profile.facts.counters);
    assert!(profile.stacks.len() > 1, "{outcome:?}");
}

#[test]
fn cpu_profiles_have_whole_stacks() {
    let scratch = Scratch::new();
    let program = program(&scratch);
    for engine in ["perf", "timers", "ptrace"] {
        let mut command = scratch.profiler();
        command.args(["cpu", "run", "--engine", engine, "-F", "250", "-o"]);
        command.arg(scratch.file(&format!("{engine}_"))).arg("--");
        let outcome = run(command.arg(&program).arg("0.5"));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        Read::only(&outcome).assert_complete(COMPLETE);
    }
}
