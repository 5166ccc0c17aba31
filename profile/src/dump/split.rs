//! Finds integer records whose scaled values reproduce an estimate.
//!
//! Readers scale a record of `c` samples and `s` bytes by `g(s / c)`, with
//! `g(a) = 1 / (1 - exp(-a / T))`. For objects of one size, this can be inverted exactly. For mixed
//! sizes, `g` of the average is not the average of `g`, so one record cannot reproduce both the
//! objects and the bytes. Two records can: the points `(g(a), a·g(a))` lie on a convex curve, and
//! an estimate lies above it. For each way to divide the samples, a chord through the estimate cuts
//! the curve at two sizes whose average, weighted by the counts, is the estimate.

// Decision 10: a stack may take two lines in a dump.
use crate::scale::{inverse_weight, weight};

/// One record: sampled objects and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) count: u64,
    pub(crate) size: u64,
}

/// Returns one or two records for `samples` samples that stand for `objects` and `bytes`. The
/// second is zero if one suffices.
pub(crate) fn split(samples: u64, objects: f64, bytes: f64, interval: u64) -> [Record; 2] {
    let usable = |v: f64| v.is_finite() && v > 0.0 && v < 9e18;
    if interval <= 1 {
        let rounded = |v: f64| if usable(v) { v.round() as u64 } else { 0 };
        return single_record(
            rounded(objects),
            if rounded(objects) == 0 {
                0
            } else {
                rounded(bytes)
            },
        );
    }
    if !usable(objects) || !usable(bytes) {
        return [Record::default(); 2];
    }
    // From here on sizes are in units of the interval.
    let estimate = Estimate {
        objects,
        units: bytes / interval as f64,
        interval: interval as f64,
    };
    let single = estimate.one_record(samples.max(1));
    if estimate.objects_error(&[single]) <= estimate.tolerance() {
        return [single, Record::default()];
    }
    estimate.two_records(samples).unwrap_or_else(|| {
        let fitting = (estimate.objects / weight(estimate.units / estimate.objects)).round();
        [
            estimate.one_record((fitting as u64).max(1)),
            Record::default(),
        ]
    })
}

fn single_record(count: u64, size: u64) -> [Record; 2] {
    [Record { count, size }, Record::default()]
}

/// Values that records have to reproduce.
struct Estimate {
    objects: f64,
    /// Bytes, in units of the interval.
    units: f64,
    /// Sampling interval, in bytes.
    interval: f64,
}

impl Estimate {
    /// Returns the error in objects below which a better split is not sought.
    fn tolerance(&self) -> f64 {
        (self.objects * 1e-3).max(0.5)
    }

    /// Returns the estimates that readers derive from records, in objects and units.
    fn scaled(&self, records: &[Record]) -> (f64, f64) {
        records
            .iter()
            .filter(|r| r.count > 0 && r.size > 0)
            .fold((0.0, 0.0), |(o, b), r| {
                let count = r.count as f64;
                let size = r.size as f64 / self.interval;
                let scale = weight(size / count);
                (o + count * scale, b + size * scale)
            })
    }

    fn objects_error(&self, records: &[Record]) -> f64 {
        (self.scaled(records).0 - self.objects).abs()
    }

    /// Returns the record of `count` samples that reproduces the bytes. The search starts from the
    /// average size, which is exact for objects of one size.
    fn one_record(&self, count: u64) -> Record {
        let average = self.units / self.objects;
        self.record(count, average_near(self.units / count as f64, average))
    }

    /// Returns a record of `count` samples with this average size, in units.
    fn record(&self, count: u64, average: f64) -> Record {
        let size = (average * count as f64 * self.interval).round().max(1.0);
        Record {
            count,
            size: size as u64,
        }
    }

    /// Returns two records that reproduce objects and bytes. Tries several ways to divide the
    /// count, and uses the one with the least rounding error.
    fn two_records(&self, samples: u64) -> Option<[Record; 2]> {
        // With more samples than this, no sizes yield so few objects.
        let max_count = self.objects / weight(self.units / self.objects);
        let count = samples.min(max_count as u64);
        if count < 2 {
            return None;
        }
        let mut best: Option<(f64, [Record; 2])> = None;
        for share in [0.5, 0.8, 0.2, 0.65] {
            let small = ((count as f64 * share) as u64).clamp(1, count - 1);
            let sizes = self.sizes(small as f64, (count - small) as f64);
            let Some((small_average, large_average)) = sizes else {
                continue;
            };
            // The bytes of a record are an integer: try rounding down and up.
            let size = small_average * small as f64 * self.interval;
            for size in [size.floor(), size.ceil()] {
                let chord = self.chord(small, size as u64, count - small, large_average);
                let Some((records, error)) = chord else {
                    continue;
                };
                if error <= self.tolerance() {
                    return Some(records);
                }
                if best
                    .as_ref()
                    .is_none_or(|(min_error, _)| error < *min_error)
                {
                    best = Some((error, records));
                }
            }
        }
        best.map(|(_, records)| records)
    }

    /// Returns a record of `small` samples with `size` bytes in total, and one of `large` samples
    /// for the rest, whose average size is about `large_average` units. Also returns the error of
    /// the two records in objects.
    fn chord(
        &self,
        small: u64,
        size: u64,
        large: u64,
        large_average: f64,
    ) -> Option<([Record; 2], f64)> {
        let first = Record {
            count: small,
            size: size.max(1),
        };
        let (objects, units) = self.scaled(&[first]);
        let rest = (self.units - units) / large as f64;
        if rest.is_nan() || rest <= 1.0 {
            return None;
        }
        // `u·g(u)` lies above `1 + u/2` and above `u`, and below `1 + u`: this bounds the guess.
        let guess = large_average.clamp(rest - 1.0, rest.min(2.0 * (rest - 1.0)));
        let second = self.record(large, average_near(rest, guess));
        let objects = objects + self.scaled(&[second]).0;
        Some(([first, second], (objects - self.objects).abs()))
    }

    /// Returns the two sizes in units: the smaller one exactly, the larger one approximately.
    ///
    /// The objects are given, so the weight `g` of the smaller size determines that of the larger
    /// one. The bytes of both are a convex function of `g`, with its minimum where the sizes are
    /// equal. Newton's method finds the root, starting from the parabola at the minimum and kept
    /// between bounds.
    fn sizes(&self, small: f64, large: f64) -> Option<(f64, f64)> {
        let equal = self.objects / (small + large);
        let mut low = equal;
        let mut high = (self.objects - large) / small;
        let missing = self.units - self.objects * inverse_weight(equal);
        if !(low > 1.0 && high > low && missing > 0.0) {
            return None;
        }
        let curvature = small * (1.0 + small / large) / (equal * (equal - 1.0).powi(2));
        let mut g = low + (2.0 * missing / curvature).sqrt();
        let mut v = 0.0;
        for _ in 0..100 {
            if !(g > low && g < high) {
                g = (low + high) / 2.0;
            }
            let other = (self.objects - small * g) / large;
            let u = inverse_weight(g);
            v = inverse_weight(other);
            let excess = small * g * u + large * other * v - self.units;
            // Rounding the sizes loses a hundredth of a byte anyway.
            if excess.abs() * self.interval <= 0.01 || high - low <= low * 1e-14 {
                break;
            }
            *(if excess < 0.0 { &mut low } else { &mut high }) = g;
            let slope = small * ((u - 1.0 / (g - 1.0)) - (v - 1.0 / (other - 1.0)));
            g -= excess / slope;
        }
        Some((inverse_weight(g), v))
    }
}

/// Returns the average size `u`, in units, at which `u·g(u)` is `h`, searched from an initial
/// guess. Returns a tiny size if `h` is at most 1, which no size reaches.
///
/// `u·g(u)` is `1 + u/2 + u²/12` near 0 and convex everywhere. So Newton's method converges
/// monotonically from above, and a step from below leads above.
fn average_near(h: f64, guess: f64) -> f64 {
    if h >= 40.0 {
        return h;
    }
    let mut u = guess;
    if h <= 1.0 || u <= 0.0 {
        return f64::MIN_POSITIVE;
    }
    for _ in 0..60 {
        let shrink = (-u).exp_m1();
        let g = -1.0 / shrink;
        let slope = g * (1.0 - u * (1.0 + shrink) * g);
        let next = u - (u * g - h) / slope;
        if next.is_nan() || next <= 0.0 {
            return f64::MIN_POSITIVE;
        }
        // Each step squares the error, which is now below a double's precision.
        if (next - u).abs() <= u * 1e-8 {
            return next;
        }
        u = next;
    }
    u
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Estimates that readers make of the records, in objects and bytes.
    fn read_back(records: &[Record; 2], interval: u64) -> (f64, f64) {
        records
            .iter()
            .filter(|r| r.count > 0 && r.size > 0)
            .fold((0.0, 0.0), |(o, b), r| {
                let average = r.size as f64 / r.count as f64;
                let scale = if interval <= 1 {
                    1.0
                } else {
                    1.0 / (1.0 - (-average / interval as f64).exp())
                };
                (o + r.count as f64 * scale, b + r.size as f64 * scale)
            })
    }

    fn estimate(sizes: &[u64], interval: u64) -> (f64, f64) {
        sizes.iter().fold((0.0, 0.0), |(o, b), &size| {
            let scale = 1.0 / (1.0 - (-(size as f64) / interval as f64).exp());
            (o + scale, b + size as f64 * scale)
        })
    }

    #[test]
    fn one_size_is_one_exact_record() {
        for (size, n) in [(1, 1), (16, 7), (1000, 1_000_000), (1 << 30, 3)] {
            let (objects, bytes) = estimate(&[size], 1024);
            let records = split(n, objects * n as f64, bytes * n as f64, 1024);
            assert_eq!(records, single_record(n, n * size));
        }
    }

    #[test]
    fn interval_one_is_exact() {
        assert_eq!(split(3, 3.0, 1234.0, 1), single_record(3, 1234));
        assert_eq!(split(0, 0.0, 0.0, 1), single_record(0, 0));
        assert_eq!(
            split(2, 0.0, 5.0, 1),
            single_record(0, 0),
            "readers refuse bytes without objects"
        );
    }

    #[test]
    fn implausible_estimates_give_valid_records() {
        for (o, b) in [
            (f64::NAN, 1.0),
            (-1.0, 5.0),
            (1.0, f64::INFINITY),
            (0.0, 3.0),
        ] {
            assert_eq!(split(5, o, b, 1024), [Record::default(); 2]);
        }
        // Fewer bytes than any sampled object can stand for.
        let records = split(5, 1000.0, 3.0, 1024);
        assert!(records.iter().all(|r| (r.count == 0) == (r.size == 0)));
    }

    proptest! {
        #[test]
        fn mixtures_come_back_within_rounding(
            sizes in prop::collection::vec((0u32..24, 1u64..64), 2..60),
            log_interval in 0u32..20,
        ) {
            let interval = 1u64 << log_interval;
            let sizes: Vec<u64> = sizes.iter().map(|&(e, m)| (m << e) / 8 + 1).collect();
            let (objects, bytes) = estimate(&sizes, interval);
            let (objects, bytes) = if interval == 1 {
                (sizes.len() as f64, sizes.iter().sum::<u64>() as f64)
            } else { (objects, bytes) };
            let records = split(sizes.len() as u64, objects, bytes, interval);
            let (o, b) = read_back(&records, interval);
            prop_assert!((b - bytes).abs() <= 1.0 + bytes * 1e-9, "bytes {bytes} came back as {b}");
            // A whole byte of the smaller record moves the objects by up to g'(a) = T / a^2, where
            // a is the smallest average that the mix allows.
            let smallest = *sizes.iter().min().unwrap() as f64;
            let step = interval as f64 / (smallest * smallest);
            prop_assert!((o - objects).abs() <= 1.0 + objects * 1e-3 + step,
                "objects {objects} came back as {o}");
        }
    }
}
