//! Decides how densely a session samples, so that its cost stays below a share of the CPU time.
//!
//! The budget is a token bucket, filled at a fixed share of the CPU time. It starts with what 0.2 s
//! of CPU time would fill, the credit. So sampling costs a short program at most the credit. By the
//! time a long-running program has spent the credit, its interval has settled.
//!
//! # Guarantees
//! - The interval is never below the session's own and never above [`CEILING`].
//! - The bucket holds what one second of CPU time fills; budget beyond that is lost. Sampling never
//!   aims at more than twice the share, however full the bucket is.

/// Maximum interval, in bytes.
pub const CEILING: u64 = 1 << 30;
/// Contents of the bucket at the start of a session, as the CPU time that fills it so far, in ns.
const CREDIT_NS: f64 = 200e6;
/// Size of the bucket, as the CPU time that fills it from empty, in ns.
const MAX_CREDIT_NS: f64 = 1e9;
/// Minimum time between two decisions, in ns of CPU time.
const MIN_WINDOW_NS: u64 = 1_000_000;
/// Maximum time between two decisions, in ns of CPU time.
const MAX_WINDOW_NS: u64 = 50_000_000;
/// Ratio of the CPU time so far to the time between two decisions, within these limits.
const WINDOW_DIVISOR: u64 = 16;
/// Range of the ratio of measured cost to target in which the interval stays, because measurements
/// are noisy.
const DEAD_BAND: core::ops::RangeInclusive<f64> = 0.8..=1.15;
/// Maximum factor by which one decision widens the interval.
const MAX_WIDENING: f64 = 16.0;
/// Minimum factor by which one decision narrows the interval.
const MIN_NARROWING: f64 = 0.6;
/// Minimum target for the cost, relative to the share.
const MIN_TARGET: f64 = 0.25;
/// Maximum target for the cost, relative to the share.
const MAX_TARGET: f64 = 2.0;

/// Sums since the session's start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// CPU time of the process, in ns.
    pub cpu_ns: u64,
    /// CPU time that sampling has taken, in ns.
    pub spent_ns: f64,
    /// Number of samples.
    pub samples: u64,
    /// Mean cost of a sample, with its free, in ns. Excludes the additional cost of the first
    /// samples.
    pub sample_ns: f64,
}

/// Decision that a reading leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// There is not enough data yet.
    Wait,
    /// The cost was added up; the interval stays.
    Keep,
    /// Use this interval from now on.
    Change(u64),
}

/// Governor of one session in one process.
#[derive(Clone, Copy, Debug)]
pub struct Governor {
    /// Maximum share of the CPU time; 0 if the interval is fixed.
    share: f64,
    /// Interval at the start, which is the smallest one.
    min_interval: u64,
    interval: u64,
    /// Reading at the last decision.
    last: Reading,
    /// Budget lost because the bucket was full, in ns.
    lost_ns: f64,
    /// Start of the period in which the current interval is in force.
    period: Period,
    /// Share of the CPU time that sampling took from the start of the period to the last decision,
    /// in millionths. If that decision began a new period, this is the share of the one before it.
    overhead: u32,
}

/// Start of the period in which an interval is in force.
#[derive(Clone, Copy, Debug)]
struct Period {
    /// CPU time before the period, in ns.
    cpu_ns: u64,
    /// Cost before the period, in ns.
    spent_ns: f64,
}

impl Governor {
    /// Creates the governor of a session that starts with `interval`.
    pub const fn new(share: f64, interval: u64) -> Self {
        Self {
            share,
            min_interval: interval,
            interval,
            last: Reading {
                cpu_ns: 0,
                spent_ns: 0.0,
                samples: 0,
                sample_ns: 0.0,
            },
            lost_ns: 0.0,
            period: Period {
                cpu_ns: 0,
                spent_ns: 0.0,
            },
            overhead: 0,
        }
    }

    /// Returns the reading at the last decision.
    pub fn last(&self) -> Reading {
        self.last
    }

    /// Returns the share of the CPU time that sampling has taken under the interval that was in
    /// force up to the last decision, in millionths.
    pub fn overhead(&self) -> u32 {
        self.overhead
    }

    /// Stores a reading as the last one, and computes the overhead.
    fn advance(&mut self, now: Reading) {
        self.last = now;
        let cpu_ns = now.cpu_ns.saturating_sub(self.period.cpu_ns).max(1) as f64;
        // In a short period, the estimated cost may exceed the CPU time.
        let share = clamp((now.spent_ns - self.period.spent_ns) / cpu_ns, 0.0, 1.0);
        self.overhead = (share * 1e6) as u32;
    }

    /// Decides on the interval by a reading.
    pub fn decide(&mut self, now: Reading) -> Decision {
        let cpu_ns = now.cpu_ns.saturating_sub(self.last.cpu_ns);
        let cost = now.samples.saturating_sub(self.last.samples) as f64 * now.sample_ns;
        let window = (now.cpu_ns / WINDOW_DIVISOR).clamp(MIN_WINDOW_NS, MAX_WINDOW_NS);
        let is_urgent = cost > self.share * CREDIT_NS / 4.0 && self.share > 0.0;
        if cpu_ns < MIN_WINDOW_NS || (cpu_ns < window && !is_urgent) {
            return Decision::Wait;
        }
        self.advance(now);
        if self.share == 0.0 {
            return Decision::Keep;
        }
        let ratio = cost / cpu_ns as f64 / self.target_share();
        if DEAD_BAND.contains(&ratio) {
            return Decision::Keep;
        }
        let new_interval = self.interval as f64 * clamp(ratio, MIN_NARROWING, MAX_WIDENING);
        let new_interval =
            (new_interval as u64).clamp(self.min_interval, CEILING.max(self.min_interval));
        if new_interval == self.interval {
            return Decision::Keep;
        }
        self.interval = new_interval;
        self.period = Period {
            cpu_ns: now.cpu_ns,
            spent_ns: now.spent_ns,
        };
        Decision::Change(new_interval)
    }

    /// Stores the last reading of a session.
    pub fn finish(&mut self, now: Reading) {
        self.advance(now);
    }

    /// Returns the share of the CPU time that sampling should take next.
    fn target_share(&mut self) -> f64 {
        let cpu_ns = self.last.cpu_ns as f64;
        let budget = self.share * (cpu_ns + CREDIT_NS) - self.lost_ns;
        let excess = budget - self.last.spent_ns - self.share * MAX_CREDIT_NS;
        if excess > 0.0 {
            self.lost_ns += excess;
        }
        let left = budget - excess.max(0.0) - self.last.spent_ns;
        // Spends the rest over as much CPU time as the session has used so far, within limits.
        let spread_ns = clamp(cpu_ns, CREDIT_NS, MAX_CREDIT_NS);
        clamp(
            self.share + left / spread_ns,
            self.share * MIN_TARGET,
            self.share * MAX_TARGET,
        )
    }
}

/// Clamps `value` to two bounds. `f64::clamp` can panic, and the code that formats its message
/// would take up 18 KiB in every process.
fn clamp(value: f64, min: f64, max: f64) -> f64 {
    value.max(min).min(max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::vec::Vec;

    /// CPU time between two evaluations, in ns.
    const EVALUATION_NS: f64 = 1e6;

    /// Simulated process that allocates `rate` bytes per ns of CPU time. Its first samples cost
    /// `first_ns` altogether, and each sample costs `sample_ns`. Measurements scatter by the
    /// fraction `noise`.
    struct Plant {
        rate: f64,
        first_ns: f64,
        sample_ns: f64,
        noise: f64,
        random: u64,
        cpu_ns: f64,
        samples: f64,
        /// True cost, without measurement error.
        true_ns: f64,
        measured_ns: f64,
    }

    impl Plant {
        fn new(rate: f64) -> Self {
            Self {
                rate,
                first_ns: 2e6,
                sample_ns: 800.0,
                noise: 0.2,
                random: 88_172_645_463_325_252,
                cpu_ns: 0.0,
                samples: 0.0,
                true_ns: 0.0,
                measured_ns: 0.0,
            }
        }

        fn jitter(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            1.0 + self.noise * ((self.random >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0)
        }

        /// Advances by one evaluation at this interval. Returns the new reading.
        fn advance(&mut self, interval: u64) -> Reading {
            let per_ns = self.rate / interval as f64;
            let work = EVALUATION_NS / (1.0 + per_ns * self.sample_ns);
            let samples = per_ns * work;
            let cost = samples * self.sample_ns + core::mem::take(&mut self.first_ns);
            self.cpu_ns += work + cost;
            self.samples += samples;
            self.true_ns += cost;
            self.measured_ns += cost * self.jitter();
            Reading {
                cpu_ns: self.cpu_ns as u64,
                spent_ns: self.measured_ns,
                samples: self.samples as u64,
                sample_ns: self.sample_ns * self.jitter(),
            }
        }

        /// Runs for a number of milliseconds. Returns the intervals.
        fn run(&mut self, governor: &mut Governor, ms: u64) -> Vec<u64> {
            (0..ms)
                .map(|_| {
                    let reading = self.advance(governor.interval);
                    governor.decide(reading);
                    governor.interval
                })
                .collect()
        }
    }

    #[test]
    fn the_budget_holds_from_the_first_millisecond() {
        for rate in [0.1, 1.0, 10.0] {
            for share in [0.02, 0.05] {
                let mut plant = Plant::new(rate);
                let mut governor = Governor::new(share, 1024);
                for _ in 0..3000 {
                    plant.run(&mut governor, 1);
                    // Spent before the first decision: the cost of the first samples, and of one
                    // window at the first interval.
                    let first_ns = 4e6;
                    let budget = share * (plant.cpu_ns + CREDIT_NS) * 1.1 + first_ns;
                    assert!(plant.true_ns <= budget, "{rate} {share} {}", plant.cpu_ns);
                }
            }
        }
    }

    #[test]
    fn the_budget_is_used_and_the_interval_comes_to_rest() {
        for rate in [0.1, 1.0, 10.0] {
            let mut plant = Plant::new(rate);
            let mut governor = Governor::new(0.05, 1024);
            plant.run(&mut governor, 10_000);
            let (before, cpu_ns) = (plant.true_ns, plant.cpu_ns);
            let trace = plant.run(&mut governor, 10_000);
            let share = (plant.true_ns - before) / (plant.cpu_ns - cpu_ns);
            assert!((0.04..0.06).contains(&share), "{rate}: {share}");
            let min = trace.iter().min().unwrap();
            let max = trace.iter().max().unwrap();
            assert!(max < &(min * 2), "{rate}: {min} {max}");
        }
    }

    #[test]
    fn the_interval_follows_the_load_and_never_falls_below_its_start() {
        let mut plant = Plant::new(0.01);
        let mut governor = Governor::new(0.02, 1024);
        plant.run(&mut governor, 5000);
        assert_eq!(governor.interval, 1024);
        plant.rate = 10.0;
        plant.run(&mut governor, 5000);
        assert!(governor.interval > 100 << 10, "{}", governor.interval);
        plant.rate = 0.01;
        plant.run(&mut governor, 5000);
        assert_eq!(governor.interval, 1024);
    }

    /// The last decision of a period belongs to the interval that it ends.
    #[test]
    fn each_interval_has_its_own_share() {
        let mut governor = Governor::new(0.05, 1024);
        let reading = |ms: u64, spent_ms: f64, samples| Reading {
            cpu_ns: ms * 1_000_000,
            spent_ns: spent_ms * 1e6,
            samples,
            sample_ns: 1000.0,
        };
        let step = governor.decide(reading(100, 40.0, 40_000));
        assert!(matches!(step, Decision::Change(_)), "{step:?}");
        assert_eq!(governor.overhead(), 400_000);
        let step = governor.decide(reading(200, 41.0, 41_000));
        assert_ne!(step, Decision::Wait);
        assert_eq!(governor.overhead(), 10_000);
        // An overhead above 100 % is reported as 100 %.
        governor.finish(reading(300, 400.0, 42_000));
        assert_eq!(governor.overhead(), 1_000_000);
    }

    #[test]
    fn an_old_surplus_is_forgotten() {
        let mut plant = Plant::new(0.001);
        let mut governor = Governor::new(0.05, 1024);
        plant.run(&mut governor, 60_000);
        plant.rate = 10.0;
        let (before, cpu_ns) = (plant.true_ns, plant.cpu_ns);
        plant.run(&mut governor, 2000);
        let spent = plant.true_ns - before;
        let budget = 0.05 * (plant.cpu_ns - cpu_ns + MAX_CREDIT_NS) * 1.2;
        assert!(spent < budget, "{spent} {budget}");
    }

    #[test]
    fn a_fixed_interval_stays() {
        let mut plant = Plant::new(10.0);
        let mut governor = Governor::new(0.0, 1024);
        let trace = plant.run(&mut governor, 1000);
        assert!(trace.iter().all(|interval| *interval == 1024));
        assert!(governor.last().spent_ns > 0.0);
    }

    #[test]
    fn one_step_is_bounded_and_so_is_the_interval() {
        let mut plant = Plant::new(1e7);
        let mut governor = Governor::new(0.001, 1024);
        let mut before = 1024.0;
        for interval in plant.run(&mut governor, 5000) {
            assert!(interval as f64 <= before * MAX_WIDENING + 1.0);
            assert!(interval as f64 >= before * MIN_NARROWING - 1.0);
            assert!(interval <= CEILING);
            before = interval as f64;
        }
        assert_eq!(governor.interval, CEILING);
    }
}
