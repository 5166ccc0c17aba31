//! Sampling error of values.
//!
//! Objects are sampled independently of each other, an object of `n` bytes with the probability
//! `1 / W`, where `W = 1 / (1 - exp(-n / interval))`. A sum of `x·W` over samples then has the
//! variance `Σ x²·W·(W - 1)`, estimated from the samples alone (Horvitz and Thompson), where `x` is
//! 1 for objects and `n` for bytes.

use std::ops::AddAssign;

use crate::detail::Detail;
use crate::dump::split::{Record, split};
use crate::profile::{Format, Profile};
use crate::scale::weight;

/// Half-width of a 95 % confidence interval, in standard errors.
pub const QUANTILE: f64 = 1.959_964;

/// Columns of objects, each with the column of their bytes.
const PAIRS: [(&str, &str); 3] = [
    ("alloc_objects", "alloc_space"),
    ("inuse_objects", "inuse_space"),
    ("objects", "space"),
];

/// Computes the variances of a profile's values. Leaves them empty if they cannot be known:
/// profiles that are not of a heap, or without an interval.
///
/// This project's dumps contain the variances. For other formats they are computed as if all
/// objects of a stack had the same size.
///
/// In CPU profiles, samples are treated as independent, and those of one stack as equal. The total
/// is known from the clocks that trigger the samples; see [`wholes`]. Samples taken at regular
/// intervals vary less than these variances.
pub fn fill(profile: &mut Profile) {
    profile.variances.clear();
    if let Some(columns) = time_columns(profile) {
        profile.variances = time_variances(profile, &columns);
        return;
    }
    let exact = profile.format == Format::Dump && profile.period == 1;
    let bytes = (profile.period_type.as_ref()).is_none_or(|t| t.unit == "bytes");
    let pairs: Vec<(usize, usize)> = PAIRS
        .iter()
        .filter_map(|(o, b)| profile.type_index(o).zip(profile.type_index(b)))
        .collect();
    let known = pairs.len() * 2 == profile.sample_types.len() && !pairs.is_empty();
    if !known || !bytes || (profile.period <= 1 && !exact) {
        return;
    }
    let mut variances = vec![0.0; profile.values.len()];
    if !exact {
        for (stack, row) in variances.chunks_mut(pairs.len() * 2).enumerate() {
            for &(objects, bytes) in &pairs {
                let (o, b) = pair_variances(profile, stack, objects, bytes);
                (row[objects], row[bytes]) = (o, b);
            }
        }
    }
    profile.variances = variances;
}

/// Columns of samples and of time.
struct TimeColumns {
    samples: usize,
    time: usize,
}

/// Returns the columns of samples and of time, if the profile has only these.
fn time_columns(profile: &Profile) -> Option<TimeColumns> {
    let samples = profile.type_index("samples")?;
    let time = profile.time_column()?;
    (profile.sample_types.len() == 2).then_some(TimeColumns { samples, time })
}

/// Returns the known total of each column, of which its values are shares. For columns of samples
/// and of time, the total is all that was sampled, on both sides of a difference; for others, 0.
pub fn wholes(profile: &Profile) -> Vec<f64> {
    let mut wholes = vec![0.0; profile.sample_types.len()];
    let samples = profile.type_index("samples");
    let Some((samples, time)) = samples.zip(profile.time_column()) else {
        return wholes;
    };
    for column in [samples, time] {
        wholes[column] = (0..profile.stacks.len())
            .map(|stack| profile.error(stack, column))
            .filter(|error| error.variance > 0.0)
            .map(|error| error.turnover)
            .sum();
    }
    wholes
}

/// Returns the variances of `n` samples that stand for the time `t`: `n` for their number, so
/// `t² / n` for the time.
fn time_variances(profile: &Profile, columns: &TimeColumns) -> Vec<f64> {
    let &TimeColumns { samples, time } = columns;
    let mut variances = vec![0.0; profile.values.len()];
    for (values, row) in profile.values.chunks(2).zip(variances.chunks_mut(2)) {
        let n = values[samples] as f64;
        let t = values[time] as f64;
        if n > 0.0 {
            (row[samples], row[time]) = (n, finite(t * t / n));
        }
    }
    variances
}

/// Returns the variances of objects and bytes of a stack.
fn pair_variances(profile: &Profile, stack: usize, objects: usize, bytes: usize) -> (f64, f64) {
    let interval = profile.period as u64;
    let Some(d) = profile.details.get(stack) else {
        let values = profile.values_of(stack);
        let o = values[objects] as f64;
        let b = values[bytes] as f64;
        return one_size_variances(o.abs(), b.abs(), interval as f64);
    };
    let allocated = profile.sample_types[bytes].kind == "alloc_space";
    if allocated {
        (finite(d.alloc_object_variance), finite(d.alloc_variance))
    } else if d.live_samples() > 0 {
        (finite(d.live_object_variance), finite(d.live_variance))
    } else {
        (0.0, 0.0)
    }
}

/// Computes the variances of a stack's objects, which the first version of dumps does not have: as
/// if the objects had one or two sizes.
pub(crate) fn fill_object_variances(d: &mut Detail, interval: u64) {
    let live = (d.live_samples(), d.live_objects(), d.live_bytes());
    d.alloc_object_variance =
        two_sizes_variance(d.alloc_samples, d.alloc_objects, d.alloc_bytes, interval);
    d.live_object_variance = two_sizes_variance(live.0, live.1, live.2, interval);
}

fn two_sizes_variance(samples: u64, objects: f64, bytes: f64, interval: u64) -> f64 {
    if samples == 0 || interval <= 1 {
        return 0.0;
    }
    let of_record = |r: &Record| {
        let w = weight(r.size as f64 / r.count.max(1) as f64 / interval as f64);
        if r.count == 0 {
            0.0
        } else {
            r.count as f64 * w * (w - 1.0)
        }
    };
    let records = split(samples, objects, bytes, interval);
    let by_sizes: f64 = records.iter().map(of_record).sum();
    // For any mix of sizes, equal weights give the least variance.
    let min = objects * (objects / samples as f64 - 1.0);
    finite(by_sizes.max(min))
}

fn one_size_variances(objects: f64, bytes: f64, interval: f64) -> (f64, f64) {
    if objects == 0.0 || bytes == 0.0 {
        return (0.0, 0.0);
    }
    let average = bytes / objects;
    let variance = objects * (weight(average / interval) - 1.0);
    (finite(variance), finite(variance * average * average))
}

/// Returns 0 for an invalid variance from hostile input: no error bar is better than a meaningless
/// one.
fn finite(variance: f64) -> f64 {
    if variance.is_finite() {
        variance.max(0.0)
    } else {
        0.0
    }
}

/// Returns the half-width of the 95 % confidence interval around `value`.
///
/// The normal quantile is corrected for few samples: a count that is too low by chance also has too
/// small a variance. For `n` samples of equal weight, `√n` is too small, and `√(n + QUANTILE² / 2)`
/// is right (within 1 % from five samples on). An interval cannot account for objects of which
/// there are no samples, such as a few small ones at a large interval.
pub fn half_width(value: f64, variance: f64) -> f64 {
    half_width_of_part(value, variance, 0.0)
}

/// Returns the half-width for a value that is a part of the known total `whole`: the parts vary,
/// their sum does not. The correction for few samples applies also if the rest has few samples.
/// With a `whole` of 0 (unknown), returns the same as [`half_width`].
fn half_width_of_part(value: f64, variance: f64, whole: f64) -> f64 {
    if variance <= 0.0 {
        return 0.0;
    }
    let deviation = variance.sqrt();
    let one_sample = (variance / value.abs()).min(deviation);
    let few_samples_correction = one_sample * one_sample * QUANTILE * QUANTILE / 2.0;
    let rest = if whole > 0.0 {
        (1.0 - value.abs() / whole).max(0.0)
    } else {
        1.0
    };
    QUANTILE * (variance * rest + few_samples_correction).sqrt()
}

/// Sampling error of a value, or of a sum or difference of values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingError {
    /// Sampling variance; 0 if unknown or exact.
    pub variance: f64,
    /// Sum of the absolute values that contribute to `variance`, from which the number of samples
    /// is estimated. For a difference, larger than its absolute value.
    pub turnover: f64,
    /// Known total that the value is a part of; 0 if there is none.
    pub whole: f64,
}

impl SamplingError {
    /// Returns the half-width of the 95 % confidence interval; see [`half_width`]. Samples that are
    /// shares of a known sum vary less, the larger the share.
    pub fn half_width(self) -> f64 {
        half_width_of_part(self.turnover, self.variance, self.whole)
    }
}

impl AddAssign for SamplingError {
    fn add_assign(&mut self, other: Self) {
        self.variance += other.variance;
        self.turnover += other.turnover;
        self.whole = self.whole.max(other.whole);
    }
}

/// Returns Student's quantile for a 95 % confidence interval.
pub fn student(degrees_of_freedom: f64) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    let degrees = degrees_of_freedom.max(1.0) as usize;
    TABLE
        .get(degrees - 1)
        .copied()
        .unwrap_or(QUANTILE + 2.4 / degrees_of_freedom)
}
