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
        let left = gaps.draw_gap(Self::INTERVAL);
        Self {
            gaps,
            trial: Trial {
                samples_left: 4,
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
        self.left = self.gaps.draw_gap(interval);
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
        self.left = self.gaps.draw_gap(self.interval);
        self.trial.split_gap(&mut self.left);
        let weight = f64::from(weight(bytes as u64, self.interval));
        if !self.trial.is_due() {
            return weight;
        }
        self.trial.samples_left = 4;
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
