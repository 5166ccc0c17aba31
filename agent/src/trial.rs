//! Trials that measure the cost of a sample. A trial measures the time in which a thread allocates
//! a fixed number of bytes, from the moment at which a sample is due; that sample is taken or
//! skipped at random.

use crate::session::Epoch;
use crate::{cycles, stats};
use core::sync::atomic::{AtomicU64, Ordering};
use sampling::Gaps;

/// Number of samples for each trial.
const SAMPLES_PER_TRIAL: u32 = 32;
/// Maximum time of a trial, in ns. Longer ones are discarded: the thread was suspended.
const MAX_TRIAL_NS: u64 = 40_000;
/// Minimum ratio of the interval to the size of an object in a trial. Larger objects are sampled
/// with near certainty, so their samples must not be skipped.
const MIN_INTERVAL_RATIO: f64 = 8.0;

/// Bytes that a thread allocates in a trial; 0 while not known.
pub static LENGTH_BYTES: AtomicU64 = AtomicU64::new(0);

/// Trial of one thread: the time from a due sample until the thread has allocated a fixed number of
/// bytes. Other samples in that time are taken as usual.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    phase: Phase,
    /// Samples until the next trial.
    samples_left: u32,
    /// Cycle counter at the start.
    started: u64,
    /// Time that the sample spent in the agent, in cycles; 0 if it was skipped.
    inside_cycles: u64,
}

/// Next event of a thread's countdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No trial is running.
    Idle,
    /// A sample is due; the trial ends this many bytes later.
    Sample(i64),
    /// The trial ends; a sample is due this many bytes later.
    End(i64),
}

/// Decision on a sample that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Taken.
    Plain,
    /// Taken in a trial, and counted twice.
    Taken,
    /// Skipped in a trial.
    Skipped,
}

impl Trial {
    /// No trial is running.
    pub const NONE: Self = Self {
        phase: Phase::Idle,
        samples_left: SAMPLES_PER_TRIAL,
        started: 0,
        inside_cycles: 0,
    };

    /// Returns true if a trial is running.
    #[inline(always)]
    pub fn is_running(&self) -> bool {
        self.phase != Phase::Idle
    }

    /// Discards a running trial, because the countdown is drawn again.
    #[inline(always)]
    pub fn discard(&mut self) {
        self.phase = Phase::Idle;
    }

    /// Returns true if the sample that is due may begin a trial.
    #[inline(always)]
    pub fn is_due(&mut self) -> bool {
        self.samples_left = self.samples_left.wrapping_sub(1);
        self.samples_left == 0
    }

    /// Records that the trial's sample has been taken.
    #[cold]
    #[inline(never)]
    pub fn record_taken(&mut self) {
        if let (true, Some(now)) = (self.is_running(), cycles::read()) {
            self.inside_cycles = now.wrapping_sub(self.started).max(1);
        }
    }

    /// Continues a running trial when the countdown `left` has expired. Returns true if a sample is
    /// due.
    #[cold]
    #[inline(never)]
    pub fn proceed(&mut self, left: &mut i64, epoch: &Epoch) -> bool {
        let expiry = self.expire(left);
        if expiry != Expiry::Sample {
            end(self, epoch);
        }
        expiry != Expiry::End
    }

    /// Begins a trial, if possible, with a sample of `bytes` bytes that is due. `left` is the gap
    /// to the next sample, which has been drawn for `interval`.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self, gaps: &mut Gaps, interval: f64, left: &mut i64, bytes: usize) -> Kind {
        self.samples_left = SAMPLES_PER_TRIAL;
        let length = LENGTH_BYTES.load(Ordering::Relaxed) as i64;
        // With an interval of 1, every allocation is sampled.
        let is_small = bytes as f64 * MIN_INTERVAL_RATIO < interval;
        if length <= 0 || !is_small || interval <= 1.0 || self.is_running() {
            return Kind::Plain;
        }
        let Some(started) = cycles::read() else {
            return Kind::Plain;
        };
        self.started = started;
        self.inside_cycles = 0;
        self.split(left, length);
        if gaps.is_one_in_pow2(1) {
            Kind::Taken
        } else {
            Kind::Skipped
        }
    }

    /// Continues a trial when the countdown `left` has expired.
    fn expire(&mut self, left: &mut i64) -> Expiry {
        match self.phase {
            Phase::Idle => Expiry::Sample,
            Phase::Sample(after) if after + *left > 0 => {
                self.phase = Phase::Sample(after + *left);
                Expiry::Sample
            }
            Phase::Sample(_) => {
                self.phase = Phase::Idle;
                Expiry::EndAndSample
            }
            Phase::End(rest) => {
                self.phase = Phase::Idle;
                *left = left.saturating_add(rest);
                if *left < 0 {
                    Expiry::EndAndSample
                } else {
                    Expiry::End
                }
            }
        }
    }

    /// Divides the gap to the next sample, `left`, at the end of the trial, which is `bytes` away.
    fn split(&mut self, left: &mut i64, bytes: i64) {
        self.phase = if *left < bytes {
            Phase::Sample(bytes - *left)
        } else {
            let rest = *left - bytes;
            *left = bytes;
            Phase::End(rest)
        };
    }

    /// If a trial is running, divides the gap to the next sample, `left`, which was just drawn.
    #[cold]
    #[inline(never)]
    pub fn split_gap(&mut self, left: &mut i64) {
        if let Phase::Sample(bytes) = self.phase {
            self.split(left, bytes);
        }
    }
}

/// Meaning of an expired countdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expiry {
    /// A sample is due.
    Sample,
    /// A trial ends.
    End,
    /// A trial ends, and a sample is due.
    EndAndSample,
}

/// Adds a trial that has ended to the session's sums.
fn end(trial: &Trial, epoch: &Epoch) {
    let Some(now) = cycles::read() else { return };
    let (Some(ns), Some(inside_ns)) = (
        stats::cycles_to_ns(now.wrapping_sub(trial.started)),
        stats::cycles_to_ns(trial.inside_cycles),
    ) else {
        return;
    };
    if ns > MAX_TRIAL_NS {
        return;
    }
    let log = &epoch.bank.header.cost;
    let sums = if trial.inside_cycles != 0 {
        &log.taken
    } else {
        &log.skipped
    };
    sums.count.fetch_add(1, Ordering::Relaxed);
    sums.ns.fetch_add(ns, Ordering::Relaxed);
    sums.squares.fetch_add(ns * ns, Ordering::Relaxed);
    log.inside_ns.fetch_add(inside_ns, Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
