//! Sampling error of mean ages.
//!
//! The mean age is the ratio of two sums over the same samples: of weight × age, and of weights. To
//! first order, its error is the error of the difference (first sum - mean × second sum), divided
//! by the second sum. A sample of weight `W` contributes `W·(W - 1)·(age - mean)²` to the variance
//! of that difference.

use crate::detail::Detail;
use crate::variance::student;

/// Minimum effective number of samples for an error bar.
const MIN_SAMPLES: f64 = 10.0;

/// Number of samples that count as one degree of freedom of Student's distribution. For normally
/// distributed ages, 1 would be right. Ages of objects that are freed at random are skewed: samples
/// whose mean is too low tend to have too small a spread.
const SAMPLES_PER_DEGREE: f64 = 3.0;

/// Maximum expected number of objects without a sample at which the mean counts as exact.
const MAX_UNSAMPLED: f64 = 0.05;

/// Resolution of ages, in ms: one tick of the agent's clock.
const RESOLUTION_MS: f64 = (1 << 22) as f64 / 1e6;

/// Returns the half-width in milliseconds of the 95 % confidence interval around the mean age of
/// live objects. Returns `None` if the dump has no spread of ages, or if there are too few samples
/// to estimate it.
pub fn error(detail: &Detail) -> Option<f64> {
    let objects = detail.live_objects();
    if detail.live_samples() == 0 {
        return None;
    }
    if objects - (detail.live_samples() as f64) < MAX_UNSAMPLED {
        return Some(0.0);
    }
    let variance = detail.live_object_variance;
    // Samples of unequal weight say less than as many of equal weight.
    let samples = objects * objects / (variance + objects);
    let spread = detail.age_spread?;
    if samples < MIN_SAMPLES || !samples.is_finite() {
        return None;
    }
    // Ages within one tick do not show a spread, but are not equal.
    let squares = spread
        .squares
        .max(variance * RESOLUTION_MS * RESOLUTION_MS / 12.0);
    let variance = squares * samples / (samples - 1.0);
    let error = student(samples / SAMPLES_PER_DEGREE) * variance.sqrt() / objects;
    Some(error).filter(|error| error.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::detail::AgeSpread;

    #[test]
    fn only_exact_ages_have_no_error() {
        // 100 samples that stand for 200 objects, all of one age as far as the clock shows.
        let sampled = Detail {
            alloc_samples: 100,
            alloc_objects: 200.0,
            live_object_variance: 200.0,
            age_spread: Some(AgeSpread::default()),
            ..Detail::default()
        };
        let error_ms = error(&sampled).unwrap();
        assert!(error_ms > 0.0 && error_ms < RESOLUTION_MS, "{error_ms}");
        let exact = Detail {
            alloc_objects: 100.0,
            ..sampled
        };
        assert_eq!(error(&exact), Some(0.0));
    }
}
