//! How a stack's live bytes grow from dump to dump: a line through the
//! points, and how far its slope may be off.
//!
//! A program's heap grows and shrinks all the time, so a slope alone says little. The interval of
//! the slope counts the scatter around the line, that neighbouring points are not independent
//! (fewer points than there are count, by the correlation of neighbouring residuals), and at least
//! the error of sampling. Growth that happened in one jump, a cache that was filled, makes a slope
//! as well: where the points are two levels without slope, it is recognised.

use heap_format::variance::QUANTILE;

/// Judgement of the points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Grows from dump to dump.
    Steady,
    /// Has grown between two dumps, and there are no others.
    Grew,
    /// Grew in one jump, and not before or after it.
    Once,
    /// Becomes less.
    Shrinks,
    /// Stays the same, within a hundredth of what is live.
    Level,
    /// No growth that could not be chance.
    Unclear,
}

impl Verdict {
    /// One word for display.
    pub fn word(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Grew => "grew",
            Self::Once => "once",
            Self::Shrinks => "shrinks",
            Self::Level => "level",
            Self::Unclear => "unclear",
        }
    }
}

/// Growth of a stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Slope of the line: bytes per second.
    pub rate: f64,
    /// Half of the width of the slope's interval at 95 %.
    pub error: f64,
    /// Judgement of the points.
    pub verdict: Verdict,
    /// Time between the first and the last point, in seconds.
    pub span: f64,
}

impl Growth {
    /// The least growth over the whole time that is not chance; 0 where the
    /// stack does not keep growing.
    pub fn proven(&self) -> f64 {
        match self.verdict {
            Verdict::Steady | Verdict::Grew => ((self.rate - self.error) * self.span).max(0.0),
            Verdict::Once | Verdict::Shrinks | Verdict::Level | Verdict::Unclear => 0.0,
        }
    }
}

/// A point: seconds, bytes, and the variance of the bytes by sampling.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Seconds since any moment that all points share.
    pub at: f64,
    /// Live bytes.
    pub bytes: f64,
    /// Their variance by sampling.
    pub variance: f64,
    /// Variance, by sampling, of all bytes that were allocated so far; `None` if that is not known.
    pub allocated: Option<f64>,
}

/// The variance, by sampling, of the change between two points of one session. Objects that are live at both
/// are in it with the same weights, and cancel: what varies is what was allocated in between, and what
/// was freed. Objects that were both count twice, though they cancel too, so it is never more than that of two
/// points that have nothing in common.
fn change_variance(earlier: &Point, later: &Point) -> f64 {
    let apart = (earlier.variance + later.variance).max(0.0);
    let (Some(before), Some(after)) = (earlier.allocated, later.allocated) else {
        return apart;
    };
    let allocated = after - before;
    let freed = (after - later.variance) - (before - earlier.variance);
    match allocated >= 0.0 && freed.is_finite() {
        true => (allocated + freed.max(0.0)).min(apart),
        false => apart,
    }
}

/// Fits points, in ascending order of time. `None` for fewer than two, or
/// without time between them.
pub fn fit(points: &[Point]) -> Option<Growth> {
    let (first, last) = (points.first()?, points.last()?);
    let span = last.at - first.at;
    if points.len() < 2 || span.is_nan() || span <= 0.0 {
        return None;
    }
    let line = Line::through(&[points])?;
    let sampling = QUANTILE * change_variance(first, last).sqrt() / span;
    let error = line.error.max(sampling);
    let verdict = if is_one_jump(points) {
        Verdict::Once
    } else if line.slope - error > 0.0 {
        match points.len() {
            2 => Verdict::Grew,
            _ => Verdict::Steady,
        }
    } else if line.slope + error < 0.0 {
        Verdict::Shrinks
    } else if (line.slope.abs() + error) * span <= LEVEL * last.bytes {
        Verdict::Level
    } else {
        Verdict::Unclear
    };
    Some(Growth {
        rate: line.slope,
        error,
        verdict,
        span,
    })
}

/// Change over the whole time, as a share of what is live, that counts as none.
const LEVEL: f64 = 0.01;

/// Whether the points are two levels, the second higher than the first, with
/// no growth on either.
fn is_one_jump(points: &[Point]) -> bool {
    let rise = |pair: &[Point]| pair[1].bytes - pair[0].bytes;
    let rises = points.windows(2).map(rise).enumerate();
    let Some((at, jump)) = rises.max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return false;
    };
    let (before, after) = points.split_at(at + 1);
    // A level of one point is none: what grew at the very end may continue to grow.
    if before.len() < 2 || after.len() < 2 {
        return false;
    }
    let Some(levels) = Line::through(&[before, after]) else {
        return false;
    };
    let bytes = |p: &Point| p.bytes;
    let highest = points.iter().map(bytes).fold(f64::MIN, f64::max);
    let lowest = points.iter().map(bytes).fold(f64::MAX, f64::min);
    let sampling = change_variance(&points[at], &points[at + 1]).sqrt();
    let level = levels.slope - levels.error <= 0.0;
    let step = mean(after, bytes) - mean(before, bytes);
    level
        && jump >= 0.5 * (highest - lowest)
        && step > 4.0 * levels.scatter
        && step > QUANTILE * sampling
}

/// Lines of one slope through groups of points, each at a height of its own.
struct Line {
    slope: f64,
    /// Half of the width of the slope's interval at 95 %.
    error: f64,
    /// Standard deviation of the points around the lines.
    scatter: f64,
}

impl Line {
    fn through(groups: &[&[Point]]) -> Option<Self> {
        let (mut spread, mut product) = (0.0, 0.0);
        let mut centred: Vec<(f64, f64)> = Vec::new();
        for group in groups {
            let (time, bytes) = (mean(group, |p| p.at), mean(group, |p| p.bytes));
            for p in *group {
                let (t, b) = (p.at - time, p.bytes - bytes);
                spread += t * t;
                product += t * b;
                centred.push((t, b));
            }
        }
        if !spread.is_normal() || !product.is_finite() {
            return None;
        }
        let slope = product / spread;
        let residuals: Vec<f64> = centred.iter().map(|(t, b)| b - slope * t).collect();
        let squares: f64 = residuals.iter().map(|r| r * r).sum();
        let correlation = correlation(&residuals, squares);
        let count = residuals.len() as f64;
        let effective = count * (1.0 - correlation) / (1.0 + correlation);
        let fitted = 1.0 + groups.len() as f64;
        if count <= fitted {
            // The lines go through all points: nothing shows how good they are.
            return Some(Self {
                slope,
                error: 0.0,
                scatter: 0.0,
            });
        }
        let freedom = (effective - fitted).max(1.0);
        let scatter = (squares / freedom).sqrt();
        Some(Self {
            slope,
            error: student(freedom) * scatter / spread.sqrt(),
            scatter,
        })
    }
}

/// How much each residual says of the next one; `squares` is the sum of their squares.
fn correlation(residuals: &[f64], squares: f64) -> f64 {
    let neighbours: f64 = residuals.windows(2).map(|r| r[0] * r[1]).sum();
    if squares > 0.0 {
        (neighbours / squares).clamp(0.0, 0.9)
    } else {
        0.0
    }
}

fn mean(points: &[Point], of: impl Fn(&Point) -> f64) -> f64 {
    points.iter().map(of).sum::<f64>() / points.len() as f64
}

/// Student's quantile for an interval of 95 %.
fn student(freedom: f64) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    let whole = freedom.max(1.0) as usize;
    TABLE
        .get(whole - 1)
        .copied()
        .unwrap_or(QUANTILE + 2.4 / freedom)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A small generator (xorshift), so that every run is the same.
    struct Random(u64);

    impl Random {
        fn uniform(&mut self) -> f64 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
        }

        /// Normally distributed around 0 (Box and Muller).
        fn normal(&mut self) -> f64 {
            let (a, b) = (self.uniform(), self.uniform());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        }
    }

    const RUNS: usize = 400;

    /// Number, of 400 series, that `make` draws get this verdict.
    fn share(
        verdict: Verdict,
        count: usize,
        mut make: impl FnMut(usize, &mut Random) -> f64,
    ) -> f64 {
        let mut random = Random(0x1234_5678_9abc_def1);
        let mut hits = 0;
        for _ in 0..RUNS {
            let points: Vec<Point> = (0..count)
                .map(|i| Point {
                    at: i as f64,
                    bytes: make(i, &mut random),
                    variance: 0.0,
                    allocated: None,
                })
                .collect();
            hits += usize::from(fit(&points).unwrap().verdict == verdict);
        }
        hits as f64 / RUNS as f64
    }

    #[test]
    fn steady_growth_is_found_through_noise() {
        // 100 a step, and noise of a quarter of a step up to a whole one.
        for (count, noise, least) in [(5, 10.0, 0.95), (10, 50.0, 0.95), (20, 100.0, 0.95)] {
            let found = share(Verdict::Steady, count, |i, random| {
                1e4 + 100.0 * i as f64 + noise * random.normal()
            });
            assert!(found >= least, "{count} points, noise {noise}: {found}");
        }
    }

    #[test]
    fn noise_is_rarely_taken_for_growth() {
        for count in [4, 6, 10, 20] {
            let wrong = share(Verdict::Steady, count, |_, random| {
                1e4 + 500.0 * random.normal()
            });
            // Half of the 5 % outside an interval lie above it.
            assert!(wrong <= 0.06, "{count} points: {wrong}");
        }
    }

    #[test]
    fn a_heap_that_wanders_is_mostly_not_taken_for_growth() {
        let mut level = 0.0;
        let wrong = share(Verdict::Steady, 20, |i, random| {
            level = if i == 0 { 0.0 } else { level + random.normal() };
            1e4 + 100.0 * level
        });
        assert!(wrong <= 0.25, "{wrong}");
    }

    #[test]
    fn growth_in_one_jump_is_distinguished_from_steady_growth() {
        for count in [6, 10, 20] {
            let at = |i: usize| if i < count / 2 { 1000.0 } else { 9000.0 };
            let make = |i: usize, random: &mut Random| at(i) + 200.0 * random.normal();
            let (once, steady) = (
                share(Verdict::Once, count, make),
                share(Verdict::Steady, count, make),
            );
            assert!(once >= 0.9 && steady <= 0.05, "{count}: {once} {steady}");
        }
    }

    #[test]
    fn intervals_of_the_slope_hold_the_true_one() {
        let mut random = Random(0xfeed_beef_dead_0001);
        let mut inside = 0;
        for _ in 0..RUNS {
            let point = |i: usize| Point {
                at: i as f64 * 10.0,
                bytes: 5e5 + 300.0 * i as f64 + 400.0 * random.normal(),
                variance: 0.0,
                allocated: None,
            };
            let points: Vec<Point> = (0..12).map(point).collect();
            let growth = fit(&points).unwrap();
            inside += usize::from((growth.rate - 30.0).abs() <= growth.error);
        }
        let share = inside as f64 / RUNS as f64;
        assert!((0.92..=1.0).contains(&share), "{share}");
    }

    /// Dumps of one session have the same samples: what has not changed in between is no error.
    #[test]
    fn what_is_live_at_both_points_is_no_error_of_the_change() {
        let point = |at, bytes, variance, allocated| Point {
            at,
            bytes,
            variance,
            allocated: Some(allocated),
        };
        let (huge, small) = (1e12, 1e4);
        let level = [point(0.0, 1e7, huge, huge), point(10.0, 1e7, huge, huge)];
        let growth = fit(&level).unwrap();
        assert_eq!((growth.rate, growth.error), (0.0, 0.0));
        assert_eq!(growth.verdict, Verdict::Level);
        let grown = huge + small;
        let step = [
            point(0.0, 1e7, huge, huge),
            point(10.0, 1.1e7, grown, grown),
        ];
        let growth = fit(&step).unwrap();
        assert!((growth.error - QUANTILE * 10.0).abs() < 0.1, "{growth:?}");
        assert_eq!(growth.verdict, Verdict::Grew);
        // Freed and allocated again.
        let turned = [
            point(0.0, 1e7, huge, huge),
            point(10.0, 1e7, huge, 3.0 * huge),
        ];
        let error = fit(&turned).unwrap().error;
        assert!((error - QUANTILE * (2.0 * huge).sqrt() / 10.0).abs() < 1.0);
    }

    #[test]
    fn two_points_distinguish_growth_from_sampling_error() {
        let point = |at: f64, bytes: f64| Point {
            at,
            bytes,
            variance: 100.0 * 100.0,
            allocated: None,
        };
        let growth = |bytes| fit(&[point(0.0, 1000.0), point(10.0, bytes)]).unwrap();
        assert_eq!(growth(1200.0).verdict, Verdict::Unclear);
        assert_eq!(growth(2000.0).verdict, Verdict::Grew);
        assert_eq!(growth(0.0).verdict, Verdict::Shrinks);
        assert_eq!(growth(2000.0).rate, 100.0);
        let error = growth(2000.0).error;
        assert!(
            (error - QUANTILE * 2f64.sqrt() * 10.0).abs() < 1e-9,
            "{error}"
        );
    }

    #[test]
    fn points_without_information_are_refused() {
        let at = |at: f64| Point {
            at,
            bytes: 1.0,
            variance: 0.0,
            allocated: None,
        };
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[at(1.0)]), None);
        assert_eq!(fit(&[at(1.0), at(1.0)]), None);
        assert_eq!(fit(&[at(0.0), at(f64::NAN)]), None);
    }
}
