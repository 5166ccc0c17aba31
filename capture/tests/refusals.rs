//! Refused captures leave the target unharmed.
#![cfg(target_arch = "x86_64")]

mod common;

use std::io::Result;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use capture::{Refusal, Stopped};
use common::{Target, compile, open_to_all, wait_until};

const LIMIT: Duration = Duration::from_secs(10);

/// Starts a target that reads, after `prepare` has run in it.
fn start_prepared(prepare: fn() -> Result<()>, user: u32) -> Target {
    let built = compile("target.c", &[]);
    let program = open_to_all(&built);
    std::fs::remove_file(built).expect("removed");
    let mut command = Command::new(&program);
    command.args(["read", "0"]).uid(user);
    // SAFETY: the functions in this file that are passed here only make system calls.
    unsafe { command.pre_exec(prepare) };
    let target = Target::run(&mut command, program);
    target.wait_for_call(libc::SYS_read);
    target
}

fn check(result: libc::c_int) -> Result<()> {
    if result < 0 {
        Err(std::io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Checks that a target can be stopped and read, but not copied, and returns the reason.
fn copy_refusal(target: Target) -> Refusal {
    let (mut stopped, copy) = target.stop_with_copy().expect("stopped");
    let refusal = copy.err().expect("refused");
    let second = stopped.copy().err().expect("refused again");
    assert_eq!(second.to_string(), refusal.to_string());
    assert_eq!(stopped.threads().len(), 1);
    // The target's memory can be read nevertheless.
    common::memory(target.pid(), stopped.threads()[0].sp, 8);
    stopped.resume();
    target.wait_until_released();
    target.finish().assert_clean();
    println!("{refusal}");
    refusal
}

#[test]
fn a_target_at_its_limit_on_processes_is_not_copied() {
    let limit = || {
        let one = libc::rlimit {
            rlim_cur: 1,
            rlim_max: 1,
        };
        // SAFETY: the kernel only reads `one`.
        check(unsafe { libc::setrlimit(libc::RLIMIT_NPROC, &raw const one) })
    };
    let refusal = copy_refusal(start_prepared(limit, 54_321));
    let Refusal::Clone { error, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
}

#[test]
fn a_target_with_a_seccomp_filter_is_not_copied() {
    let filter = || {
        const RETURN: u16 = 6;
        let mut allow = libc::sock_filter {
            code: RETURN,
            jt: 0,
            jf: 0,
            k: libc::SECCOMP_RET_ALLOW,
        };
        let program = libc::sock_fprog {
            len: 1,
            filter: &raw mut allow,
        };
        let mode = libc::SECCOMP_MODE_FILTER;
        // SAFETY: `program` points to one filter instruction, and its length is 1.
        check(unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) })
    };
    let refusal = copy_refusal(start_prepared(filter, 0));
    assert!(matches!(refusal, Refusal::Seccomp { .. }), "{refusal}");
}

#[test]
fn a_target_that_adopts_orphans_is_not_copied() {
    let adopt = || {
        // SAFETY: the call takes no pointers.
        check(unsafe { libc::prctl(libc::PR_SET_CHILD_SUBREAPER, 1) })
    };
    let refusal = copy_refusal(start_prepared(adopt, 0));
    assert!(matches!(refusal, Refusal::Reaper { .. }), "{refusal}");
}

#[test]
fn a_process_in_a_pid_namespace_is_copied() {
    let program = compile("target.c", &[]);
    let mut command = Command::new("unshare");
    command
        .args(["--pid", "--fork", "sh", "-c", "\"$0\" read 2; exit $?"])
        .arg(&program);
    let target = Target::run(&mut command, program);
    let pid = target.other_processes()[0];
    for _ in 0..3 {
        let mut stopped = Stopped::stop(pid, LIMIT).expect("stopped");
        let copy = stopped.copy().expect("a copy");
        stopped.resume();
        assert_eq!(common::fields(copy.pid(), "State")[0], "t (tracing stop)");
    }
    wait_until("the copies to end", || target.other_processes().len() == 1);
    target.finish().assert_clean();
}

#[test]
fn a_target_waiting_for_its_vfork_child_is_refused() {
    let target = Target::start(&["vfork", "0"]);
    wait_until("the wait", || {
        target.states().iter().any(|state| state == "D")
    });
    let refusal = Stopped::stop(target.pid(), Duration::from_millis(200))
        .err()
        .expect("refused");
    let Refusal::Deadline { state, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(state, 'D');
    wait_until("tracing to end", || {
        common::fields(target.pid(), "TracerPid")
            .iter()
            .all(|tracer| tracer == "0")
    });
    let outcome = target.finish();
    assert_eq!((outcome.result, outcome.chld), (0, 1), "{outcome:?}");
}

#[test]
fn a_traced_target_is_refused() {
    let target = Target::start(&["read", "2"]);
    let stopped = target.stop().expect("stopped");
    let refusal = target.stop().err().expect("refused");
    let Refusal::Traced { tracer, .. } = refusal else {
        panic!("{refusal}")
    };
    assert_eq!(tracer, std::process::id().cast_signed());
    drop(stopped);
    target.finish().assert_clean();
}

#[test]
fn pids_that_cannot_be_captured_are_refused() {
    let refusal = |pid| Stopped::stop(pid, LIMIT).err().expect("refused");
    assert!(matches!(refusal(i32::MAX), Refusal::Gone { .. }));
    assert!(matches!(refusal(-1), Refusal::Gone { .. }));
    let this_process = std::process::id().cast_signed();
    assert!(matches!(refusal(this_process), Refusal::Own { .. }));
    let mut child = Command::new("true").spawn().expect("true");
    let pid = child.id().cast_signed();
    wait_until("its exit", || {
        common::fields(pid, "State") == ["Z (zombie)"]
    });
    assert!(matches!(refusal(pid), Refusal::Zombie { .. }));
    assert!(child.wait().expect("still ours to wait for").success());
    let target = Target::start(&["read", "2"]);
    let tasks = std::fs::read_dir(format!("/proc/{}/task", target.pid())).expect("its threads");
    let tids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    let tid = tids.max().expect("a thread");
    assert!(matches!(refusal(tid), Refusal::Thread { .. }));
}

/// Not a test: tries to capture as another user.
#[test]
#[ignore = "started by the test below"]
fn stranger() {
    let Ok(pid) = std::env::var("CAPTURE_PID") else {
        return;
    };
    let refusal = Stopped::stop(pid.parse().unwrap(), LIMIT)
        .err()
        .expect("refused");
    assert!(matches!(refusal, Refusal::Denied { .. }), "{refusal}");
    assert!(refusal.to_string().contains("CAP_SYS_PTRACE"), "{refusal}");
}

#[test]
fn a_process_of_another_user_is_refused() {
    let target = Target::start(&["read", "2"]);
    let program = open_to_all(&std::env::current_exe().unwrap());
    let status = Command::new(&program)
        .args(["--ignored", "--exact", "stranger"])
        .env("CAPTURE_PID", target.pid().to_string())
        .uid(54_322)
        .stdout(Stdio::null())
        .status();
    std::fs::remove_file(&program).expect("removed");
    assert!(status.expect("this test's program").success());
    target.finish().assert_clean();
}
