//! Programs with musl as their C library: the agent loads, does nothing, and says so.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use mem_tests::{Outcome, Scratch, Target, artifacts, run};

/// Compiles with musl.
fn compile(scratch: &Scratch, source: &str, name: &str, flags: &[&str]) -> PathBuf {
    let out = scratch.file(name);
    let mut command = Command::new("musl-gcc");
    command
        .args(["-O2", "-g", "-std=gnu17", "-pthread"])
        .args(flags)
        .arg(artifacts::source(source))
        .arg("-o")
        .arg(&out);
    let compiled = run(command.stdin(Stdio::null()));
    assert_eq!(compiled.code, Some(0), "{compiled:?}");
    out
}

/// Returns the command line of the program: its library, and a command that runs it once more.
fn program(scratch: &Scratch) -> Vec<PathBuf> {
    let program = compile(scratch, "plain.c", "plain", &[]);
    let library = compile(scratch, "plugin.c", "plugin.so", &["-shared", "-fPIC"]);
    // Its input is at its end: it does its work, and ends.
    let again = format!(
        "{} {} </dev/null >/dev/null",
        program.display(),
        library.display()
    );
    vec![program, library, again.into()]
}

fn output(command: &mut Command) -> Outcome {
    run(command.stdin(Stdio::null()))
}

#[test]
fn a_program_with_musl_runs_as_without_the_agent() {
    let scratch = Scratch::new();
    let arguments = program(&scratch);
    let start = [("MEM_PROFILER_START", "1"), ("MEM_PROFILER_INTERVAL", "1")];
    for environment in [&[][..], &start, &[("MEM_PROFILER_ALLOCATOR", "system")]] {
        let mut command = scratch.preloaded(&arguments[0]);
        let command = command
            .args(&arguments[1..])
            .envs(environment.iter().copied());
        let outcome = output(command);
        assert_eq!(outcome.code, Some(0), "{environment:?}: {outcome:?}");
        assert_eq!((&*outcome.stdout, &*outcome.stderr), ("ready\n", ""));
    }
}

#[test]
fn the_reason_is_in_the_list_and_in_every_refusal() {
    let scratch = Scratch::new();
    let arguments = program(&scratch);
    let mut command = scratch.preloaded(&arguments[0]);
    let mut target = Target::start(command.args(&arguments[1..]));
    target.hear_until("ready");
    let pid = target.pid().to_string();
    let listed = output(scratch.profiler().arg("list"));
    let line = listed.stdout.lines().find(|line| line.contains(&pid));
    let line = line.unwrap_or_else(|| panic!("{listed:?}"));
    assert!(line.contains("not sampled: musl"), "{line}");

    let reason = "its C library is musl, and the agent needs glibc";
    let mut session = scratch.profiler();
    output(session.args(["-s", "1", "-p", &pid, "-o", "s_"])).refused(1, &[reason]);
    let mut session = scratch.profiler();
    session
        .args(["run", "-s", "1", "-o", "r_"])
        .args(&arguments);
    let outcome = output(&mut session);
    assert_eq!(outcome.stdout, "ready\n", "{outcome:?}");
    assert!(outcome.stderr.contains(reason), "{outcome:?}");
    target.finish_well();
}
