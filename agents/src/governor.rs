//! Keeps the cost of sampling below a fraction of the process's CPU time by adapting the interval.
//!
//! The agent times one in 64 samples and frees, and its table holds an estimate for all of them.
//! The kernel counts the CPU time of the process. Every half second that has enough data, the
//! interval is adjusted in proportion to how far the ratio of the two is from the target.
//!
//! # Guarantees
//! - The interval stays between [`FLOOR`] and [`CEILING`]. One decision widens it at most by a
//!   factor of `WIDEN` and narrows it at most by `NARROW`, so a quiet half second cannot multiply
//!   the load on the target.
//! - Between 0.7 and 1.1 times the target nothing changes, because measurements scatter.
//! - A process that is idle or cannot be measured keeps its interval.
//!
//! # Limits
//!
//! Only samples and frees of sampled objects are measured. Not measured are the few instructions
//! that every unsampled call costs, and page faults and cache misses that the memory of sampled
//! objects causes later.

use shm_protocol::segment::IntervalPeriod;

/// Minimum interval, in bytes.
pub const FLOOR: u64 = 64;
/// Maximum interval, in bytes.
pub const CEILING: u64 = 1 << 30;
/// Maximum factor by which one decision widens the interval.
const WIDEN: f64 = 8.0;
/// Minimum factor by which one decision narrows the interval.
const NARROW: f64 = 0.5;
/// Dead band, relative to the target: the interval stays if the ratio is in this range.
const DEADBAND: std::ops::RangeInclusive<f64> = 0.7..=1.1;
/// Set point of a change, as a fraction of the target.
const AIM: f64 = 0.9;
/// Fraction of the deviation (as an exponent) that one decision corrects. Less than 1, since
/// measurements scatter and the frees of objects already sampled are still to come.
const GAIN: f64 = 0.75;

/// Minimum time between two decisions, in ns.
const WINDOW_NS: u64 = 500_000_000;
/// Minimum time before a decision if the ratio exceeds [`URGENT_RATIO`], in ns.
const URGENT_NS: u64 = 100_000_000;
/// Multiple of the target above which a decision is urgent.
const URGENT_RATIO: f64 = 2.0;
/// Minimum CPU time in a window, in ns.
const MIN_CPU_NS: u64 = 20_000_000;
/// Minimum number of timed samples for a reliable measurement.
const MIN_TIMED: u64 = 64;
/// Time after which a decision is made even with fewer timed samples, in ns.
const MAX_WINDOW_NS: u64 = 3_000_000_000;
/// Assumed cost of a sample before any was timed, in ns. An overestimate.
const INITIAL_COST_NS: f64 = 1000.0;
/// Maximum number of entries in the history.
const MAX_HISTORY: usize = shm_protocol::layout::INTERVALS_KEPT;

/// Counters since the session's start, at one point in time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Reading {
    /// Time, ns of the segment's clock.
    pub at_ns: u64,
    /// CPU time of the process, in ns.
    pub cpu_ns: u64,
    /// Number of samples.
    pub samples: u64,
    /// Number of samples and frees that were timed.
    pub timed: u64,
    /// Estimated time that all samples and frees took, in ns.
    pub timed_ns: u64,
}

impl Reading {
    fn since(&self, start: &Self) -> Self {
        Self {
            at_ns: self.at_ns.saturating_sub(start.at_ns),
            cpu_ns: self.cpu_ns.saturating_sub(start.cpu_ns),
            samples: self.samples.saturating_sub(start.samples),
            timed: self.timed.saturating_sub(start.timed),
            timed_ns: self.timed_ns.saturating_sub(start.timed_ns),
        }
    }
}

/// Decision after a reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// No decision yet: there is too little data.
    Wait,
    /// The interval stays; the history was updated.
    Keep,
    /// Use this interval from now on.
    Change(u64),
}

/// Controller of one process's interval.
#[derive(Clone, Debug)]
pub struct Governor {
    /// Maximum fraction of the CPU time.
    target: f64,
    interval: u64,
    /// Smallest interval so far.
    least: u64,
    /// Reading at the start of the current window; `None` before the first.
    window: Option<Reading>,
    /// Reading at which the current interval came into force.
    period: Reading,
    history: Vec<IntervalPeriod>,
}

impl Governor {
    /// Creates the governor of a session that starts at `start_ns` with `interval`. `target` is a
    /// fraction of the process's CPU time.
    pub fn new(target: f64, interval: u64, start_ns: u64) -> Self {
        let first = IntervalPeriod {
            from_ns: start_ns,
            interval,
            overhead: None,
        };
        Self {
            target,
            interval,
            least: interval,
            window: None,
            period: Reading::default(),
            history: vec![first],
        }
    }

    /// Returns the intervals so far, with the measured cost of each.
    pub fn history(&self) -> &[IntervalPeriod] {
        &self.history
    }

    /// Returns the smallest interval so far, including those dropped from the history.
    pub fn least(&self) -> u64 {
        self.least
    }

    /// Returns true if the target is exceeded although the interval is at its maximum.
    pub fn is_helpless(&self) -> bool {
        let last = self.history.last().and_then(|period| period.overhead);
        let over = last.is_some_and(|share| f64::from(share) / 1e6 > self.target * DEADBAND.end());
        self.interval == CEILING && over
    }

    /// Evaluates a new reading and decides on the interval.
    pub fn step(&mut self, now: Reading) -> Step {
        let Some(start) = self.window else {
            self.window = Some(now);
            self.period = now;
            return Step::Wait;
        };
        let seen = now.since(&start);
        let ratio = share(&seen) / self.target;
        if !has_enough_data(&seen, ratio) {
            return Step::Wait;
        }
        self.window = Some(now);
        self.measure(&now);
        if DEADBAND.contains(&ratio) {
            return Step::Keep;
        }
        let factor = (ratio / AIM).powf(GAIN).clamp(NARROW, WIDEN);
        let wanted = (self.interval as f64 * factor).round() as u64;
        let wanted = wanted.clamp(FLOOR, CEILING);
        if wanted == self.interval {
            return Step::Keep;
        }
        self.change(wanted, &now);
        Step::Change(wanted)
    }

    /// Records the cost of the current interval, measured since it came into force.
    fn measure(&mut self, now: &Reading) {
        let share = share(&now.since(&self.period));
        if let Some(last) = self.history.last_mut() {
            last.overhead = Some((share * 1e6).round() as u32);
        }
    }

    fn change(&mut self, interval: u64, now: &Reading) {
        self.interval = interval;
        self.least = self.least.min(interval);
        self.period = *now;
        if self.history.len() == MAX_HISTORY {
            // Drops every other entry of the older half, so that a long session keeps its outline.
            let mut index = 0;
            self.history.retain(|_| {
                index += 1;
                index > MAX_HISTORY / 2 || index % 2 == 1
            });
        }
        self.history.push(IntervalPeriod {
            from_ns: now.at_ns,
            interval,
            overhead: None,
        });
    }
}

/// Returns the fraction of the CPU time spent in the agent. A thread with too few samples to have a
/// timed one is charged the average cost of the timed samples.
fn share(seen: &Reading) -> f64 {
    let timed_samples = seen.timed as f64 * 64.0;
    let each = if seen.timed == 0 {
        INITIAL_COST_NS
    } else {
        seen.timed_ns as f64 / timed_samples
    };
    let untimed = (seen.samples as f64 - timed_samples).max(0.0);
    (seen.timed_ns as f64 + untimed * each) / seen.cpu_ns.max(1) as f64
}

/// Returns true if a window has enough data for a decision. `ratio` is its cost divided by the
/// target.
fn has_enough_data(seen: &Reading, ratio: f64) -> bool {
    if seen.cpu_ns < MIN_CPU_NS || seen.at_ns < URGENT_NS {
        return false;
    }
    let timed = seen.timed >= MIN_TIMED;
    // Few samples cannot cost much, so a low ratio needs no timed ones.
    let certain = timed || ratio < *DEADBAND.start();
    (timed && ratio > URGENT_RATIO)
        || (certain && seen.at_ns >= WINDOW_NS)
        || seen.at_ns >= MAX_WINDOW_NS
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLL_NS: u64 = 200_000_000;

    /// Simulated process, whose threads use `cpus` processors. It allocates objects of the given
    /// sizes (first in each pair, in bytes) at the given rates (second, per second). Each object
    /// lives for `lifetime` polls. A sample costs `cost_ns`, and so does its free. Measurements
    /// scatter by the fraction `noise`.
    struct Plant {
        cpus: f64,
        sizes: Vec<(f64, f64)>,
        lifetime: usize,
        cost_ns: f64,
        noise: f64,
        random: u64,
        /// Number of samples of each poll so far.
        past: Vec<f64>,
        reading: Reading,
    }

    impl Plant {
        fn new(sizes: &[(f64, f64)]) -> Self {
            Self {
                cpus: 1.0,
                sizes: sizes.to_vec(),
                lifetime: 1,
                cost_ns: 300.0,
                noise: 0.2,
                random: 88_172_645_463_325_252,
                past: Vec::new(),
                reading: Reading::default(),
            }
        }

        fn jitter(&mut self) -> f64 {
            self.random ^= self.random << 13;
            self.random ^= self.random >> 7;
            self.random ^= self.random << 17;
            1.0 + self.noise * ((self.random >> 11) as f64 / (1u64 << 53) as f64 * 2.0 - 1.0)
        }

        /// Advances to the next poll and returns the true share of the time since the last one.
        fn advance(&mut self, interval: u64) -> f64 {
            let second = POLL_NS as f64 / 1e9;
            let rate = |(size, rate): &(f64, f64)| rate * -(-size / interval as f64).exp_m1();
            let samples: f64 = self.sizes.iter().map(rate).sum::<f64>() * second;
            self.past.push(samples);
            let freed = self.past.len().checked_sub(1 + self.lifetime);
            let events = samples + freed.map_or(0.0, |at| self.past[at]);
            let spent = events * self.cost_ns;
            let cpu = self.cpus * POLL_NS as f64;
            let seen = spent * self.jitter();
            let r = &mut self.reading;
            r.at_ns += POLL_NS;
            r.cpu_ns += cpu as u64;
            r.samples += samples as u64;
            r.timed += (events / 64.0) as u64;
            r.timed_ns += seen as u64;
            spent / cpu
        }
    }

    /// Runs for a number of seconds. Returns the true share and the interval of each poll.
    fn run(plant: &mut Plant, governor: &mut Governor, seconds: u64) -> Vec<(f64, u64)> {
        let mut trace = Vec::new();
        for _ in 0..seconds * 5 {
            let share = plant.advance(governor.interval);
            let _ = governor.step(plant.reading);
            trace.push((share, governor.interval));
        }
        trace
    }

    fn changes(trace: &[(f64, u64)]) -> usize {
        trace.windows(2).filter(|w| w[0].1 != w[1].1).count()
    }

    #[track_caller]
    fn assert_held(trace: &[(f64, u64)], target: f64) {
        for (share, interval) in trace {
            let ratio = share / target;
            assert!((0.5..1.4).contains(&ratio), "{ratio} at {interval}");
        }
        assert!(changes(trace) <= trace.len() / 20, "{}", changes(trace));
    }

    #[test]
    fn the_target_is_reached_from_both_sides_and_held() {
        // A million objects of 64 bytes a second, and some large ones.
        let sizes = [(64.0, 1e6), (2000.0, 2e4)];
        for first in [FLOOR, 1024, 1 << 24] {
            for target in [0.005, 0.02, 0.05] {
                let mut governor = Governor::new(target, first, 0);
                let mut plant = Plant::new(&sizes);
                run(&mut plant, &mut governor, 20);
                let trace = run(&mut plant, &mut governor, 60);
                assert_held(&trace, target);
            }
        }
    }

    #[test]
    fn late_frees_cause_no_oscillation() {
        for lifetime in [5, 25, 100] {
            let mut plant = Plant::new(&[(100.0, 2e6)]);
            plant.lifetime = lifetime;
            let mut governor = Governor::new(0.02, 1024, 0);
            run(&mut plant, &mut governor, 120);
            assert_held(&run(&mut plant, &mut governor, 120), 0.02);
        }
    }

    #[test]
    fn the_interval_follows_the_load() {
        let mut plant = Plant::new(&[(64.0, 1e5)]);
        let mut governor = Governor::new(0.02, 1024, 0);
        run(&mut plant, &mut governor, 30);
        let quiet = governor.interval;
        plant.sizes = vec![(64.0, 1e7)];
        run(&mut plant, &mut governor, 10);
        assert!(governor.interval > 10 * quiet, "{quiet}");
        assert_held(&run(&mut plant, &mut governor, 60), 0.02);
        plant.sizes = vec![(64.0, 1e5)];
        run(&mut plant, &mut governor, 30);
        assert_held(&run(&mut plant, &mut governor, 60), 0.02);
    }

    #[test]
    fn the_interval_stays_in_bounds_and_a_missed_target_is_reported() {
        let mut plant = Plant::new(&[(1e12, 1e5)]);
        let mut governor = Governor::new(0.001, 1024, 0);
        run(&mut plant, &mut governor, 60);
        assert_eq!(governor.interval, CEILING);
        assert!(governor.is_helpless());
        let mut plant = Plant::new(&[(16.0, 1000.0)]);
        let mut governor = Governor::new(0.5, 1024, 0);
        run(&mut plant, &mut governor, 60);
        assert_eq!((governor.interval, governor.least()), (FLOOR, FLOOR));
        assert!(!governor.is_helpless());
    }

    #[test]
    fn one_step_is_bounded() {
        let mut plant = Plant::new(&[(64.0, 5e8)]);
        let mut governor = Governor::new(0.001, 1024, 0);
        let mut last = governor.interval;
        for (_, interval) in run(&mut plant, &mut governor, 30) {
            assert!(interval as f64 <= last as f64 * WIDEN + 1.0);
            last = interval;
        }
        plant.sizes = vec![];
        for (_, interval) in run(&mut plant, &mut governor, 30) {
            assert!(interval as f64 >= last as f64 * NARROW - 1.0);
            last = interval;
        }
    }

    #[test]
    fn an_idle_process_keeps_its_interval() {
        let mut plant = Plant::new(&[]);
        plant.cpus = 1e-4;
        let mut governor = Governor::new(0.02, 4096, 0);
        let trace = run(&mut plant, &mut governor, 10);
        assert!(trace.iter().all(|(_, interval)| *interval == 4096));
    }

    #[test]
    fn untimed_samples_are_charged_the_average_or_assumed_cost() {
        let seen = Reading {
            at_ns: WINDOW_NS,
            cpu_ns: 1_000_000_000,
            samples: 50_000,
            ..Reading::default()
        };
        assert!((share(&seen) - 0.05).abs() < 1e-9);
        let half_timed = Reading {
            timed: 400,
            timed_ns: 400 * 64 * 200,
            ..seen
        };
        let all = 50_000.0 * 200.0 / 1e9;
        assert!((share(&half_timed) - all).abs() < 1e-6);
    }

    #[test]
    fn the_history_is_bounded_and_keeps_its_ends() {
        let mut governor = Governor::new(0.02, 1 << 20, 7);
        for at in 1..10_000u64 {
            let now = Reading {
                at_ns: at * 1000,
                ..Reading::default()
            };
            let interval = if at == 5000 { 64 } else { 1000 + at };
            governor.change(interval, &now);
        }
        let history = governor.history();
        assert!(history.len() <= MAX_HISTORY && history.len() > MAX_HISTORY / 2);
        assert_eq!((history[0].from_ns, governor.least()), (7, 64));
        assert_eq!(history.last().unwrap().interval, 10_999);
        assert!(history.windows(2).all(|w| w[0].from_ns < w[1].from_ns));
    }
}
