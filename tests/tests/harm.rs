//! Programs that other profilers harm, or that this one once harmed (`tests/harm`): with the agent,
//! idle, sampled and while sessions begin and end, each ends and prints the same as without.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use mem_tests::harm::{Mode, Program, sources};
use mem_tests::{Scratch, run};

/// A program and what it does without the agent.
struct Known {
    program: Program,
    alone: End,
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct End {
    /// `exit 0`, `signal 11`, or that it did not end.
    how: String,
    stdout: String,
}

/// All programs, built and run alone once for the tests of all modes.
struct Programs {
    scratch: Scratch,
    known: Vec<Known>,
}

fn programs() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| {
        let scratch = Scratch::new();
        let sources = sources();
        let known: Vec<_> = sources
            .iter()
            .map(|source| know(&scratch, source))
            .collect();
        assert!(!known.is_empty(), "there are no programs");
        Programs { scratch, known }
    })
}

fn know(scratch: &Scratch, source: &Path) -> Known {
    let program = Program::build(scratch, source);
    let alone = end(scratch, &program, None);
    assert_eq!(
        alone.how, "exit 0",
        "{} does not judge itself well without the agent: {}",
        program.name, alone.stdout
    );
    Known { program, alone }
}

/// Runs a program to its end, or to its deadline.
fn end(scratch: &Scratch, program: &Program, mode: Option<Mode>) -> End {
    let name = format!("{}.{mode:?}.out", program.name);
    let path = scratch.file(&name);
    let output = File::create(&path).expect("a file for the output");
    let mut command = program.command(scratch, mode);
    // A group of its own, so that children that hang go with it.
    command
        .process_group(0)
        .stdin(Stdio::piped())
        .stdout(output)
        .stderr(Stdio::null());
    let mut child = spawn(&mut command);
    let mut input = child.stdin.take().expect("a pipe");
    // A program need not read what it is given.
    let _ = input.write_all(program.input.as_bytes());
    drop(input);
    let how = thread::scope(|scope| {
        if mode == Some(Mode::Toggled) {
            let pid = child.id();
            scope.spawn(move || toggle(scratch, pid));
        }
        wait(&mut child, program.deadline)
    });
    let stdout = String::from_utf8_lossy(&std::fs::read(&path).expect("the output")).into_owned();
    End { how, stdout }
}

fn spawn(command: &mut Command) -> Child {
    command
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

fn wait(child: &mut Child, deadline: Duration) -> String {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("a child") {
            return match (status.code(), status.signal()) {
                (Some(code), _) => format!("exit {code}"),
                (_, Some(signal)) => format!("signal {signal}"),
                _ => format!("{status:?}"),
            };
        }
        if begun.elapsed() > deadline {
            // SAFETY: the group of a child that has not been waited for.
            unsafe { libc::kill(-(child.id() as i32), libc::SIGKILL) };
            child.wait().expect("a child");
            return format!("did not end within {deadline:?}");
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Runs short sessions in a process, one after the other, until it is gone.
fn toggle(scratch: &Scratch, pid: u32) {
    let text = pid.to_string();
    for interval in ["1", "1024"].into_iter().cycle() {
        // SAFETY: signal 0 is not sent.
        if unsafe { libc::kill(pid as i32, 0) } != 0 {
            return;
        }
        let prefix = scratch.file(&format!("toggled_{pid}_"));
        let mut command = scratch.profiler();
        command
            .args(["-s", "0.02", "-c", interval, "-p", &text, "-o"])
            .arg(prefix);
        // The session fails if the program ends first; only the program's own end matters.
        let _ = run(&mut command);
    }
}

/// Runs the programs of a mode, and compares.
fn judge(mode: Mode) {
    let Programs { scratch, known } = programs();
    let mut harmed = Vec::new();
    let of_mode = known.iter().filter(|k| k.program.modes.contains(&mode));
    for Known { program, alone } in of_mode {
        let with = end(scratch, program, Some(mode));
        if with != *alone {
            harmed.push(format!(
                "{}: {}, not {}\n--- without:\n{}--- with:\n{}",
                program.name, with.how, alone.how, alone.stdout, with.stdout
            ));
        }
    }
    assert!(harmed.is_empty(), "{mode:?}:\n{}", harmed.join("\n"));
}

#[test]
fn idle() {
    judge(Mode::Idle);
}

#[test]
fn sampled() {
    judge(Mode::Every1024);
}

#[test]
fn sampled_at_every_allocation() {
    judge(Mode::EveryAllocation);
}

#[test]
fn while_sessions_begin_and_end() {
    judge(Mode::Toggled);
}
