//! Exact values of a stack, as this project's dumps store them.

use crate::dump::numbers::as_written;

/// Values of a stack that this project's dumps have in addition to the four pprof values.
///
/// Objects and bytes are unbiased estimates: each sample counts for
/// `W = 1 / (1 - exp(-size / interval))` objects.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Detail {
    /// Number of samples.
    pub alloc_samples: u64,
    /// Number of these samples whose objects were freed.
    pub free_samples: u64,
    /// Objects allocated.
    pub alloc_objects: f64,
    /// Bytes allocated.
    pub alloc_bytes: f64,
    /// Objects freed.
    pub freed_objects: f64,
    /// Bytes freed.
    pub freed_bytes: f64,
    /// Sum over live objects of weight × age, in object-milliseconds.
    pub live_age_ms_sum: f64,
    /// Sum over freed objects of weight × lifetime, in object-milliseconds.
    pub freed_lifetime_ms_sum: f64,
    /// Variance of `alloc_bytes`.
    pub alloc_variance: f64,
    /// Variance of the live bytes.
    pub live_variance: f64,
    /// Variance of `alloc_objects`.
    pub alloc_object_variance: f64,
    /// Variance of the live objects.
    pub live_object_variance: f64,
    /// Objects freed within a few milliseconds of their allocation (4 to 8, by the agent's clock).
    pub short_lived_objects: f64,
    /// Spread of the ages of live objects; `None` if it is not known.
    pub age_spread: Option<AgeSpread>,
}

/// Spread of the ages of live objects around their mean. Each sample counts for its variance
/// `W·(W - 1)`, since an object that was sampled for certain gives the mean no error.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct AgeSpread {
    /// Sum of variance × (age - mean age)², in object²-ms².
    pub squares: f64,
    /// Sum of variance × (age - mean age), in object²-ms. Zero if all objects have one size.
    pub deviations: f64,
}

impl AgeSpread {
    /// Returns the spread around another mean age, of objects whose variances add up to `variance`
    /// and whose mean age is `shift` ms above it.
    fn shifted(self, shift: f64, variance: f64) -> Self {
        Self {
            squares: self.squares + shift * (2.0 * self.deviations + shift * variance),
            deviations: self.deviations + shift * variance,
        }
    }
}

/// Number of sums of a stack in a dump. The spread of the ages is not a sum.
pub(crate) const FIELDS: usize = 13;

impl Detail {
    /// Returns the number of samples whose objects are still live.
    pub fn live_samples(&self) -> u64 {
        self.alloc_samples.saturating_sub(self.free_samples)
    }

    /// Returns the number of live objects. Exactly 0 if no sample is live, whatever the rounding
    /// errors.
    pub fn live_objects(&self) -> f64 {
        self.live(self.alloc_objects - self.freed_objects)
    }

    /// Returns the mean age of live objects in milliseconds; 0 if there are none.
    pub fn mean_age_ms(&self) -> f64 {
        let age = self.live_age_ms_sum / self.live_objects();
        if age.is_finite() { age.max(0.0) } else { 0.0 }
    }

    /// Returns the number of live bytes. Exactly 0 if no sample is live, whatever the rounding
    /// errors.
    pub fn live_bytes(&self) -> f64 {
        self.live(self.alloc_bytes - self.freed_bytes)
    }

    fn live(&self, difference: f64) -> f64 {
        if self.live_samples() == 0 {
            0.0
        } else {
            difference.max(0.0)
        }
    }

    /// Returns the four pprof values, rounded, in the order of `heap_sample_types`. Rounds to the
    /// thousandths of a dump first, so that a profile has the same values before and after it is
    /// written: 12.4996 is 13 in both.
    pub fn values(&self) -> [i64; 4] {
        let written = Self {
            alloc_objects: as_written(self.alloc_objects),
            alloc_bytes: as_written(self.alloc_bytes),
            freed_objects: as_written(self.freed_objects),
            freed_bytes: as_written(self.freed_bytes),
            ..*self
        };
        [
            written.alloc_objects,
            written.alloc_bytes,
            written.live_objects(),
            written.live_bytes(),
        ]
        .map(|v| v.round() as i64)
    }

    /// Returns the sums as floats, in the order of a dump.
    pub(crate) fn to_fields(self) -> [f64; FIELDS] {
        [
            self.alloc_samples as f64,
            self.free_samples as f64,
            self.alloc_objects,
            self.alloc_bytes,
            self.freed_objects,
            self.freed_bytes,
            self.live_age_ms_sum,
            self.freed_lifetime_ms_sum,
            self.alloc_variance,
            self.live_variance,
            self.alloc_object_variance,
            self.live_object_variance,
            self.short_lived_objects,
        ]
    }

    /// Builds a detail from the sums that [`Detail::to_fields`] returns.
    pub(crate) fn from_fields(f: [f64; FIELDS]) -> Self {
        Self {
            alloc_samples: f[0] as u64,
            free_samples: f[1] as u64,
            alloc_objects: f[2],
            alloc_bytes: f[3],
            freed_objects: f[4],
            freed_bytes: f[5],
            live_age_ms_sum: f[6],
            freed_lifetime_ms_sum: f[7],
            alloc_variance: f[8],
            live_variance: f[9],
            alloc_object_variance: f[10],
            live_object_variance: f[11],
            short_lived_objects: f[12],
            age_spread: None,
        }
    }

    /// Adds `other`, to merge two stacks.
    pub fn add(&mut self, other: &Detail) {
        let a = self.to_fields();
        let b = other.to_fields();
        let mut sum = Detail::from_fields(std::array::from_fn(|i| a[i] + b[i]));
        let age = sum.mean_age_ms();
        sum.age_spread =
            self.spread_around(age)
                .zip(other.spread_around(age))
                .map(|(ours, others)| AgeSpread {
                    squares: ours.squares + others.squares,
                    deviations: ours.deviations + others.deviations,
                });
        *self = sum;
    }

    /// Returns the spread around a mean age in milliseconds: none without live objects.
    fn spread_around(&self, age: f64) -> Option<AgeSpread> {
        if self.live_objects() == 0.0 {
            return Some(AgeSpread::default());
        }
        let shift = self.mean_age_ms() - age;
        let spread = self.age_spread?;
        Some(spread.shifted(shift, self.live_object_variance))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::numbers::write_fraction;
    use proptest::prelude::*;

    fn read_back(value: f64) -> f64 {
        let mut text = Vec::new();
        write_fraction(&mut text, value);
        String::from_utf8(text).unwrap().parse().unwrap()
    }

    proptest! {
        #[test]
        fn a_dump_has_the_same_values(
            whole in prop::array::uniform4(0u64..1 << 40),
            rest in prop::array::uniform4(0u32..100_000),
        ) {
            let number = |at: usize| whole[at] as f64 + f64::from(rest[at]) / 1e5;
            let detail = Detail {
                alloc_samples: 2,
                free_samples: 1,
                alloc_objects: number(0),
                alloc_bytes: number(1),
                freed_objects: number(2) / 2.0,
                freed_bytes: number(3) / 2.0,
                ..Detail::default()
            };
            let fields = detail.to_fields().map(read_back);
            prop_assert_eq!(detail.values(), Detail::from_fields(fields).values());
        }
    }

    /// The spread of a sum must be that of all objects at once, in any order, also where the
    /// weights are not independent of the ages.
    #[test]
    fn spreads_of_ages_add_up_around_the_common_mean() {
        let samples = [(1.5, 10.0), (1.5, 500.0), (40.0, 90_000.0), (7.0, 0.0)];
        let one = |(weight, age): (f64, f64)| Detail {
            alloc_samples: 1,
            alloc_objects: weight,
            live_age_ms_sum: weight * age,
            live_object_variance: weight * (weight - 1.0),
            age_spread: Some(AgeSpread::default()),
            ..Detail::default()
        };
        let mean = samples.iter().map(|(w, age)| w * age).sum::<f64>() / 50.0;
        let squares = samples.map(|(w, age)| w * (w - 1.0) * (age - mean) * (age - mean));
        let squares: f64 = squares.iter().sum();
        let [mut sum, mut left, mut right] = [Detail::default(); 3];
        samples.iter().for_each(|sample| sum.add(&one(*sample)));
        samples[..2].iter().for_each(|s| left.add(&one(*s)));
        samples[2..].iter().for_each(|s| right.add(&one(*s)));
        left.add(&right);
        for sum in [sum, left] {
            let spread = sum.age_spread.expect("all are known").squares;
            assert!((spread / squares - 1.0).abs() < 1e-9, "{spread} {squares}");
        }
        sum.add(&Detail {
            age_spread: None,
            ..one((2.0, 5.0))
        });
        assert_eq!(sum.age_spread, None);
    }

    #[test]
    fn numbers_just_below_a_half_are_rounded_by_their_thousandths() {
        let detail = Detail {
            alloc_objects: 12.4996,
            ..Detail::default()
        };
        assert_eq!(detail.values()[0], 13);
    }
}
