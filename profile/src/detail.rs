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
}

/// Number of values of a stack in a dump.
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

    /// Returns the fields as floats, in the order of a dump.
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

    /// Builds a detail from the values that [`Detail::to_fields`] returns.
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
        }
    }

    /// Adds `other`, to merge two stacks.
    pub fn add(&mut self, other: &Detail) {
        let a = self.to_fields();
        let b = other.to_fields();
        *self = Detail::from_fields(std::array::from_fn(|i| a[i] + b[i]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dump::numbers::fraction;
    use proptest::prelude::*;

    fn read_back(value: f64) -> f64 {
        let mut text = Vec::new();
        fraction(&mut text, value);
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

    #[test]
    fn numbers_just_below_a_half_are_rounded_by_their_thousandths() {
        let detail = Detail {
            alloc_objects: 12.4996,
            ..Detail::default()
        };
        assert_eq!(detail.values()[0], 13);
    }
}
