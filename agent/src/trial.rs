//! Trials by which the cost of a sample is measured: the time until a thread has allocated a fixed
//! number of bytes, with a sample that was due at the beginning, and without it.

use crate::session::Epoch;
use crate::{cycles, stats};
use core::sync::atomic::{AtomicU64, Ordering};
use sampling::Gaps;

/// One of this many samples begins a trial.
const SAMPLES_PER_TRIAL: u32 = 32;
/// Maximum time of a trial, in ns. Longer ones are discarded: the thread was suspended.
const MAX_NS: u64 = 40_000;
/// Ratio of the interval to the maximum size of an object in a trial. Larger objects are sampled
/// with near certainty, so their samples must not be left out.
const MAX_OBJECT_PART: f64 = 8.0;

/// Bytes that a thread allocates in a trial; 0 while not known.
pub static BYTES: AtomicU64 = AtomicU64::new(0);

/// Trial of one thread: the time from a due sample until the thread has allocated a fixed number of
/// bytes. Other samples in that time are taken as usual.
#[derive(Clone, Copy, Debug)]
pub struct Trial {
    phase: Phase,
    /// Samples until the next trial.
    until: u32,
    /// Cycle counter at the start.
    started: u64,
    /// Time that the sample spent in the agent, in cycles; 0 if it was left out.
    inside: u64,
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

/// Fate of a sample that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Taken.
    Plain,
    /// Taken in a trial, and counted twice.
    Taken,
    /// Left out in a trial.
    Skipped,
}

impl Trial {
    /// No trial is running.
    pub const NONE: Self = Self {
        phase: Phase::Idle,
        until: SAMPLES_PER_TRIAL,
        started: 0,
        inside: 0,
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
        self.until = self.until.wrapping_sub(1);
        self.until == 0
    }

    /// Records that the trial's sample has been taken.
    #[cold]
    #[inline(never)]
    pub fn record_taken(&mut self) {
        if let (true, Some(now)) = (self.is_running(), cycles::read()) {
            self.inside = now.wrapping_sub(self.started).max(1);
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

    /// Begins a trial with a sample of `bytes` bytes that is due, if possible. The gap to the next
    /// one, `left`, has been drawn for `interval`.
    #[cold]
    #[inline(never)]
    pub fn begin(&mut self, gaps: &mut Gaps, interval: f64, left: &mut i64, bytes: usize) -> Kind {
        self.until = SAMPLES_PER_TRIAL;
        let length = BYTES.load(Ordering::Relaxed) as i64;
        // With an interval of 1, every allocation is sampled.
        let is_small = bytes as f64 * MAX_OBJECT_PART < interval;
        if length <= 0 || !is_small || interval <= 1.0 || self.is_running() {
            return Kind::Plain;
        }
        let Some(started) = cycles::read() else {
            return Kind::Plain;
        };
        self.started = started;
        self.inside = 0;
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

    /// Divides the gap to the next sample, which was just drawn, if a trial is running.
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
        stats::cycles_to_ns(trial.inside),
    ) else {
        return;
    };
    if ns > MAX_NS {
        return;
    }
    let log = &epoch.bank.header.cost;
    let sums = if trial.inside != 0 {
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
mod tests {
    use super::*;
    use sampling::weight;

    /// Sampled thread that allocates objects, and its trials.
    struct Plant {
        gaps: Gaps,
        trial: Trial,
        left: i64,
        /// Bytes allocated since the running trial began.
        since: i64,
        trials: u32,
        interval: f64,
    }

    impl Plant {
        const INTERVAL: f64 = 1024.0;
        const TRIAL_BYTES: i64 = 3000;

        fn new(seed: u64) -> Self {
            let mut gaps = Gaps::new(seed);
            let left = gaps.next(Self::INTERVAL);
            Self {
                gaps,
                trial: Trial {
                    until: 4,
                    ..Trial::NONE
                },
                left,
                since: 0,
                trials: 0,
                interval: Self::INTERVAL,
            }
        }

        /// Adopts another interval, after a sample.
        fn adopt(&mut self, interval: f64) {
            self.interval = interval;
            self.trial.discard();
            self.left = self.gaps.next(interval);
        }

        /// Allocates an object. Returns the weight of its sample; 0 without one.
        fn allocate(&mut self, bytes: i64) -> f64 {
            self.left -= bytes;
            self.since += bytes;
            if self.left >= 0 {
                return 0.0;
            }
            let expiry = self.trial.expire(&mut self.left);
            if expiry != Expiry::Sample && self.since != bytes {
                let over = self.since - Self::TRIAL_BYTES;
                assert!(
                    (0..bytes.max(1)).contains(&(over - 1)) || over == 0,
                    "{over} {bytes}"
                );
                self.trials += 1;
            }
            if expiry == Expiry::End {
                return 0.0;
            }
            self.left = self.gaps.next(self.interval);
            self.trial.split_gap(&mut self.left);
            let weight = f64::from(weight(bytes as u64, self.interval));
            if !self.trial.is_due() {
                return weight;
            }
            self.trial.until = 4;
            if self.trial.is_running() {
                return weight;
            }
            self.since = 0;
            self.trial.split(&mut self.left, Self::TRIAL_BYTES);
            if self.gaps.is_one_in_pow2(1) {
                2.0 * weight
            } else {
                0.0
            }
        }
    }

    #[test]
    fn sums_are_unbiased_and_trials_have_their_length() {
        let mut plant = Plant::new(7);
        let sizes = [16, 40, 100, 900, 24];
        let mut found = [0.0; 5];
        let rounds = 400_000;
        for _ in 0..rounds {
            for (size, found) in sizes.iter().zip(&mut found) {
                *found += plant.allocate(*size);
            }
        }
        assert!(plant.trials > 10_000, "{}", plant.trials);
        for (size, found) in sizes.iter().zip(found) {
            let p = 1.0 - (-(f64::from(*size as i32)) / Plant::INTERVAL).exp();
            // A quarter of the samples counts twice or not at all.
            let error = (f64::from(rounds) * 1.5 / p).sqrt();
            let off = found - f64::from(rounds);
            assert!(off.abs() < 6.0 * error, "{size}: {off} ({error})");
        }
    }

    /// Runs a thread whose interval changes by what has happened so far, as the governor's does.
    /// Returns by how many of the claimed standard errors the estimated bytes are off.
    fn deviation(seed: u64) -> f64 {
        let mut plant = Plant::new(seed);
        let intervals = [1024.0, 4096.0, 2048.0, 6000.0];
        let mut samples = 0;
        let mut estimate = 0.0;
        let mut variance = 0.0;
        let mut bytes = 0.0;
        for index in 0..12_000 {
            let size = [16, 100, 900, 48][index % 4];
            bytes += f64::from(size);
            let weight = plant.allocate(i64::from(size));
            if weight == 0.0 {
                continue;
            }
            let size = f64::from(size);
            estimate += weight * size;
            variance += weight * (weight - 1.0) * size * size;
            samples += 1;
            let interval = intervals[samples / 60 % 4];
            if interval != plant.interval {
                plant.adopt(interval);
            }
        }
        (estimate - bytes) / variance.sqrt()
    }

    #[test]
    fn error_bars_of_governed_sessions_cover_the_truth() {
        const RUNS: u64 = 4000;
        let within = (0..RUNS).filter(|seed| deviation(seed + 1).abs() < 1.96);
        let coverage = within.count() as f64 / RUNS as f64;
        assert!((0.94..0.96).contains(&coverage), "{coverage}");
    }
}
