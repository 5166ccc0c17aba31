//! Ctrl-Z while the controller has stopped a process: the process continues first.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use mem_tests::leaks::tell;
use mem_tests::{Scratch, Session, Target, run, target, wait};

/// Returns the state of a thread, as in its `stat`.
fn state(pid: u32, tid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_suspended(pid: u32) -> bool {
    state(pid, pid) == Some('T')
}

/// Returns true if a thread of a process is stopped by its tracer.
fn stands_still(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
    let tids = threads.flatten().flatten();
    let mut tids = tids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    tids.any(|tid| state(pid, tid) == Some('t'))
}

/// Returns a command that a shell could suspend: the kernel does nothing to a group that nobody
/// waits for.
fn start(command: &mut Command) -> Session {
    Session::start(command.process_group(0))
}

/// Suspends a session, looks at the process that it samples, and lets the session continue.
fn suspend(session: &Session, sampled: u32) {
    session.signal(libc::SIGTSTP);
    wait::until("the session to be suspended", || {
        is_suspended(session.pid()).then_some(())
    });
    let is_left = stands_still(sampled);
    session.signal(libc::SIGCONT);
    assert!(!is_left, "a thread was left stopped");
}

/// At 1000 samples per second, a thread is stopped for a few percent of the time.
#[test]
fn a_session_that_stops_threads_lets_them_go_first() {
    let scratch = Scratch::new();
    let program = scratch.compile("split.cpp", &[]);
    let mut command = Command::new(&program);
    command.args(["1000", "threads", "200", "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut sampled = Target::start(&mut command);
    assert_eq!(sampled.hear(), "ready");
    sampled.say("go");
    let pid = sampled.pid();
    let mut command = scratch.profiler();
    command.args(["cpu", "--engine", "ptrace", "-F", "1000", "-p"]);
    command.arg(pid.to_string()).arg("-o");
    let session = start(command.arg(scratch.file("p_")));
    wait::until("a thread to be stopped", || stands_still(pid).then_some(()));
    for _ in 0..200 {
        suspend(&session, pid);
        let used = target::cpu_seconds(pid);
        wait::until("the program to go on", || {
            (target::cpu_seconds(pid) > used).then_some(())
        });
    }
    let outcome = session.stop();
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    sampled.kill();
}

/// Repeats the check until one was suspended while the process was stopped.
#[test]
fn a_check_for_leaks_lets_the_process_go_first() {
    let scratch = Scratch::new();
    let program = scratch.compile("planted.cpp", &["-pthread"]);
    let mut command = scratch.preloaded(&program);
    command.env("MEM_PROFILER_START", "1");
    command.env("MEM_PROFILER_INTERVAL", "1");
    let mut checked = Target::start(&mut command);
    assert_eq!(checked.hear(), "ready");
    tell(&mut checked, "go 20000", "gone");
    let pid = checked.pid();
    for options in [&["--stop"][..], &[]] {
        let was_met = (0..200).any(|_| {
            let mut command = scratch.profiler();
            command.args(["leaks", "--json", "-p", &pid.to_string()]);
            let mut session = start(command.args(options));
            let is_met = wait::until("the process to stand still", || {
                let stands_still = stands_still(pid);
                (stands_still || session.is_over()).then_some(stands_still)
            });
            if is_met {
                suspend(&session, pid);
            }
            let outcome = session.wait();
            assert_eq!(outcome.code, Some(0), "{outcome:?}");
            is_met
        });
        assert!(was_met, "{options:?}: the stop was never met");
    }
    // It answers still.
    tell(&mut checked, "go 1", "gone");
    let outcome = run(scratch.profiler().arg("list"));
    assert!(outcome.stdout.contains(&pid.to_string()), "{outcome:?}");
    checked.kill();
}
