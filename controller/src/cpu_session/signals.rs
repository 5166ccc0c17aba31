//! Signals of a process: those that it uses, which the agent's timers must avoid, and threads that
//! block the timers' signal.

use std::time::{Duration, Instant};

/// First real-time signal that glibc leaves to programs.
const FIRST_REAL_TIME: u32 = 34;
/// Maximum number of real-time signals that a thread blocks in order to wait for them. A thread
/// that blocks more is assumed to block all signals, without waiting for any.
const MAX_AWAITED_SIGNALS: u32 = 16;

/// Returns the signals that a process handles or ignores, or that one of its threads blocks in
/// order to wait for them. Signal N is bit N - 1.
pub fn in_use(pid: i32) -> u64 {
    let threads = proc::threads(pid).into_iter();
    threads.fold(0, |signals, tid| {
        signals | used_by_thread(&status(pid, tid))
    })
}

fn status(pid: i32, tid: i32) -> String {
    let status = proc::file(pid, &format!("task/{tid}/status")).unwrap_or_default();
    String::from_utf8_lossy(&status).into_owned()
}

/// Counts threads in which the timers' signal is pending and blocked. Reads the status of the
/// threads only while samples are missing, since a process may have thousands of them.
pub struct BlockingThreads {
    last_check: Instant,
    /// CPU time of the process at the last check, in nanoseconds.
    cpu_ns: u64,
    /// CPU time that samples covered at the last check, in nanoseconds.
    sampled_ns: u64,
    /// Highest number of threads found by one check.
    max_threads: u64,
}

/// Minimum interval between checks.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Minimum CPU time between checks, in nanoseconds: enough to expect samples.
const MIN_CPU_NS: u64 = 50_000_000;
/// Maximum number of threads that a check examines.
const MAX_CHECKED_THREADS: usize = 1024;

impl BlockingThreads {
    pub fn new() -> Self {
        Self {
            last_check: Instant::now(),
            cpu_ns: 0,
            sampled_ns: 0,
            max_threads: 0,
        }
    }

    /// Checks the threads of process `pid` if a check is due. `cpu_ns` is the CPU time of the
    /// process so far, and `sampled_ns` the part that samples cover.
    pub fn update(&mut self, pid: i32, signal: u32, cpu_ns: u64, sampled_ns: u64) {
        let used_ns = cpu_ns.saturating_sub(self.cpu_ns);
        if self.last_check.elapsed() < CHECK_INTERVAL || used_ns < MIN_CPU_NS {
            return;
        }
        let are_samples_missing = sampled_ns.saturating_sub(self.sampled_ns) < used_ns / 2;
        self.last_check = Instant::now();
        self.cpu_ns = cpu_ns;
        self.sampled_ns = sampled_ns;
        if are_samples_missing {
            self.max_threads = self.max_threads.max(count_blocking(pid, signal));
        }
    }

    /// Returns the highest number of threads that one check has found to block the signal.
    pub fn max_threads(&self) -> u64 {
        self.max_threads
    }
}

/// Returns the number of threads that block the pending signal.
fn count_blocking(pid: i32, signal: u32) -> u64 {
    let threads = proc::threads(pid).into_iter().take(MAX_CHECKED_THREADS);
    threads
        .filter(|tid| blocks_pending(&status(pid, *tid), signal))
        .count() as u64
}

/// Returns true if the signal is pending for the thread and blocked by it.
fn blocks_pending(status: &str, signal: u32) -> bool {
    let bit = signal
        .checked_sub(1)
        .and_then(|index| 1u64.checked_shl(index));
    let pending_and_blocked = signal_mask(status, "SigPnd:") & signal_mask(status, "SigBlk:");
    bit.is_some_and(|bit| pending_and_blocked & bit != 0)
}

/// Parses the signal mask on the line `name` of a thread's `/proc` status.
fn signal_mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn used_by_thread(status: &str) -> u64 {
    let blocked = signal_mask(status, "SigBlk:");
    let real_time = blocked >> (FIRST_REAL_TIME - 1);
    let awaited = if real_time.count_ones() > MAX_AWAITED_SIGNALS {
        0
    } else {
        blocked
    };
    awaited | signal_mask(status, "SigCgt:") | signal_mask(status, "SigIgn:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handled_ignored_and_awaited_signals_are_in_use() {
        let status = "Name:\tx\nSigBlk:\t0000000200000000\nSigIgn:\t0000000000001000\n\
                      SigCgt:\t0000000180000000\n";
        assert_eq!(used_by_thread(status), 0x3_8000_1000);
        // A thread that blocks all signals.
        assert_eq!(used_by_thread("SigBlk:\tfffffffe7ffbfeff\n"), 0);
        assert_eq!(used_by_thread("SigCgt:\tnonsense\n"), 0);
    }

    #[test]
    fn a_signal_must_be_pending_and_blocked() {
        let status = "SigPnd:\t8000000000000002\nShdPnd:\t0000000000000001\n\
                      SigBlk:\tfffffffffffffffd\n";
        let held: Vec<u32> = (0..=65).filter(|n| blocks_pending(status, *n)).collect();
        assert_eq!(held, [64]);
    }
}
