//! CPU profiles by the agent's own timers, and programs that they sample.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::cpu::{COMPLETE, Read};
use crate::{Outcome, Scratch, Session, Target, run, target, wait};

/// Minimum fraction of a program's CPU time that has samples on a busy machine. Time that a thread
/// used after its last tick has none.
pub const BUSY: f64 = 0.6;
/// Real-time signals, signal N being bit N - 1.
const REAL_TIME: u64 = !((1 << 33) - 1);

/// Runs a program that the engine samples from its first instruction.
pub fn timed_run(
    scratch: &Scratch,
    program: &Path,
    options: &[&str],
    arguments: &[&str],
) -> Outcome {
    let mut command = scratch.profiler();
    command.args(["cpu", "run", "--engine", "timers", "-o"]);
    command.arg(scratch.file("p_")).args(options);
    run(command.arg("--").arg(program).args(arguments))
}

/// Checks that the sum is the CPU time of the process, and that the stacks are complete.
pub fn check(read: &Read, cpu: f64, least_sampled: f64) {
    assert_eq!(read.sampling.engine, "timers");
    assert!(read.sampling.kernel_hidden.is_some());
    let total = read.total();
    assert!((total - cpu).abs() <= 0.02 * cpu, "{total} of {cpu}");
    let sampled = read.sampled();
    assert!(sampled >= least_sampled * cpu, "{sampled} of {cpu}");
    read.assert_complete(COMPLETE);
}

/// Returns true if a process handles a real-time signal.
fn handles(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & REAL_TIME != 0)
}

/// Waits until a process samples itself.
pub fn wait_for_timers(pid: u32) {
    wait::until("the process to have timers", || handles(pid).then_some(()));
}

/// Waits until a process no longer samples itself.
pub fn wait_for_no_timers(pid: u32) {
    wait::until("the handler to be gone", || (!handles(pid)).then_some(()));
}

/// Starts a session, and waits until the process samples itself.
pub fn attached(scratch: &Scratch, command: &mut Command, pid: u32) -> Session {
    command
        .args(["cpu", "-F", "250", "-p", &pid.to_string(), "-o"])
        .arg(scratch.file("p_"));
    let session = Session::start(command);
    wait_for_timers(pid);
    session
}

/// Starts `timed.cpp` in one of its modes. It runs until it is killed or told to end.
pub fn staying(scratch: &Scratch, program: &Path, shape: &str) -> Target {
    let mut command = scratch.preloaded(program);
    command.args([shape, "wait"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Target::start(&mut command);
    assert_eq!(target.hear(), "ready");
    target.say("go");
    target
}

/// Waits until a process has used this much more CPU time.
pub fn burn(pid: u32, seconds: f64) {
    let end = target::cpu_seconds(pid) + seconds;
    wait::until("CPU time", || {
        (target::cpu_seconds(pid) >= end).then_some(())
    });
}
