//! CPU profiles of programs that BOLT has rewritten, as it does rustc, clang and CPython: their
//! program headers are far behind the first page, and some functions keep their old unwind tables.

use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::cpu::{COMPLETE, Read};
use mem_tests::{Scratch, run};

fn rewritten(scratch: &Scratch, program: &Path, name: &str, options: &[&str]) -> PathBuf {
    let out = scratch.file(name);
    let mut command = Command::new("llvm-bolt-16");
    command.arg(program).arg("-o").arg(&out).args(options);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    out
}

#[test]
fn stacks_of_rewritten_programs_are_whole() {
    let scratch = Scratch::new();
    let flags = ["-O1", "-fno-optimize-sibling-calls", "-Wl,-q"];
    let program = scratch.compile("abyss.c", &flags);
    let all = rewritten(&scratch, &program, "moved", &[]);
    let some = rewritten(&scratch, &program, "kept", &["--skip-funcs=site_down"]);
    let header = std::fs::read(&all).expect("the program");
    let headers = u64::from_le_bytes(header[32..40].try_into().expect("eight bytes"));
    assert!(headers > 4096, "they are where they always were");
    for program in [all, some] {
        for engine in ["perf", "timers", "ptrace"] {
            let mut command = scratch.profiler();
            command.args(["cpu", "run", "--engine", engine, "-F", "250", "-o"]);
            command.arg(scratch.file(&format!("{engine}_"))).arg("--");
            let outcome = run(command.arg(&program).args(["0.5", "40"]));
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            let read = Read::only(&outcome);
            read.assert_complete(COMPLETE);
            let frames = read.stacks().map(|(stack, ..)| stack.len()).max();
            assert!(frames > Some(40), "{engine}: {frames:?}");
        }
    }
}
