//! The signals that a process uses, which timers must leave alone, and threads that block the one
//! that timers use.

use std::time::{Duration, Instant};

/// From this one on they are real-time signals.
const FIRST: u32 = 34;
/// A thread that blocks more of them than this blocks them all, and waits for none.
const SOME: u32 = 16;

/// Signals that a process handles or ignores, or that a thread of it blocks to wait for them;
/// signal N is bit N - 1.
pub fn in_use(pid: i32) -> u64 {
    let threads = proc::threads(pid).into_iter();
    threads.fold(0, |used, tid| used | of_status(&status(pid, tid)))
}

fn status(pid: i32, tid: i32) -> String {
    let status = proc::file(pid, &format!("task/{tid}/status")).unwrap_or_default();
    String::from_utf8_lossy(&status).into_owned()
}

/// Threads in which the timers' signal has come and is blocked. They are looked for while samples
/// are missing: a process with thousands of threads is not read needlessly.
pub struct Blocked {
    looked: Instant,
    /// CPU time, and that of samples, at the last look.
    clock: u64,
    sampled: u64,
    /// The most threads at a time.
    most: u64,
}

/// Time between looks.
const EACH: Duration = Duration::from_millis(200);
/// CPU time, in nanoseconds, of which there should be samples.
const ENOUGH: u64 = 50_000_000;
/// Threads that are examined.
const MOST: usize = 1024;

impl Blocked {
    pub fn new() -> Self {
        Self {
            looked: Instant::now(),
            clock: 0,
            sampled: 0,
            most: 0,
        }
    }

    /// The most threads at a time so far, of a process that has used so much CPU time, of which
    /// its samples have so much.
    pub fn most(&mut self, (pid, signal): (i32, u32), (clock, sampled): (u64, u64)) -> u64 {
        let used = clock.saturating_sub(self.clock);
        if self.looked.elapsed() >= EACH && used >= ENOUGH {
            let is_missing = sampled.saturating_sub(self.sampled) < used / 2;
            (self.looked, self.clock, self.sampled) = (Instant::now(), clock, sampled);
            if is_missing {
                self.most = self.most.max(blocking(pid, signal));
            }
        }
        self.most
    }
}

fn blocking(pid: i32, signal: u32) -> u64 {
    let threads = proc::threads(pid).into_iter().take(MOST);
    threads
        .filter(|tid| has_blocked(&status(pid, *tid), signal))
        .count() as u64
}

/// Whether a thread blocks a signal that was sent to it.
fn has_blocked(status: &str, signal: u32) -> bool {
    let bit = signal.checked_sub(1).and_then(|at| 1u64.checked_shl(at));
    let held = mask(status, "SigPnd:") & mask(status, "SigBlk:");
    bit.is_some_and(|bit| held & bit != 0)
}

fn mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}

fn of_status(status: &str) -> u64 {
    let mask = |name: &str| mask(status, name);
    let blocked = mask("SigBlk:");
    let real_time = blocked >> (FIRST - 1);
    let waited_for = match real_time.count_ones() > SOME {
        true => 0,
        false => blocked,
    };
    waited_for | mask("SigCgt:") | mask("SigIgn:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_handled_or_waited_for_is_in_use() {
        let status = "Name:\tx\nSigBlk:\t0000000200000000\nSigIgn:\t0000000000001000\n\
                      SigCgt:\t0000000180000000\n";
        assert_eq!(of_status(status), 0x3_8000_1000);
        // A thread that wants to be left alone.
        assert_eq!(of_status("SigBlk:\tfffffffe7ffbfeff\n"), 0);
        assert_eq!(of_status("SigCgt:\tnonsense\n"), 0);
    }

    #[test]
    fn what_has_come_and_is_blocked_is_held_back() {
        let status = "SigPnd:\t8000000000000002\nShdPnd:\t0000000000000001\n\
                      SigBlk:\tfffffffffffffffd\n";
        let held: Vec<u32> = (0..=65).filter(|n| has_blocked(status, *n)).collect();
        assert_eq!(held, [64]);
    }
}
