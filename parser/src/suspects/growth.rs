//! Growth of a stack's live bytes from dump to dump: the slope of a line through the points, and
//! its confidence interval.
//!
//! A program's heap grows and shrinks all the time, so a slope alone means little. The confidence
//! interval accounts for the scatter around the line, for the correlation of neighbouring points
//! (which reduces the effective number of points), and at least for the sampling error. Growth in
//! one jump, such as a cache that was filled, yields a slope as well: it is recognised if the
//! points are on two levels without slope, and so is growth that ended some time before the last
//! point. The rate of both is the change over the whole time. A decrease that ended is recognised
//! in the same way.

use profile::variance::{QUANTILE, half_width, student};

/// Classification of the points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Growth from dump to dump.
    Steady,
    /// Growth between the only two dumps.
    Grew,
    /// Growth in one jump, and none before or after it.
    Once,
    /// Growth at first, but none for the last quarter of the time or longer.
    Stopped,
    /// Decrease.
    Shrinks,
    /// No change, within [`MAX_LEVEL_CHANGE`].
    Level,
    /// Growth that may be due to chance.
    Unclear,
}

impl Verdict {
    /// Returns one word for display.
    pub fn word(self) -> &'static str {
        match self {
            Self::Steady => "steady",
            Self::Grew => "grew",
            Self::Once => "once",
            Self::Stopped => "stopped",
            Self::Shrinks => "shrinks",
            Self::Level => "level",
            Self::Unclear => "unclear",
        }
    }
}

/// Growth of a stack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Slope of the line, in bytes per second; for a change that ended before the last point, the
    /// change over the whole time divided by its length.
    pub rate: f64,
    /// Half-width of the 95 % confidence interval of `rate`, in bytes per second.
    pub error: f64,
    /// Classification of the points.
    pub verdict: Verdict,
    /// Time between the first and the last point, in seconds.
    pub span: f64,
}

impl Growth {
    /// Returns the lower confidence bound of the growth over the whole time, in bytes; 0 if the
    /// stack does not keep growing.
    pub fn proven_bytes(&self) -> f64 {
        match self.verdict {
            Verdict::Steady | Verdict::Grew => ((self.rate - self.error) * self.span).max(0.0),
            Verdict::Once
            | Verdict::Stopped
            | Verdict::Shrinks
            | Verdict::Level
            | Verdict::Unclear => 0.0,
        }
    }
}

/// Live bytes of a stack in one dump.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Point {
    /// Time in seconds; all points have the same origin.
    pub at: f64,
    /// Live bytes.
    pub bytes: f64,
    /// Sampling variance of `bytes`.
    pub variance: f64,
    /// Sampling variance of all bytes allocated so far; `None` if unknown.
    pub allocated_variance: Option<f64>,
    /// All bytes allocated so far; 0 if unknown.
    pub allocated_bytes: f64,
}

impl Point {
    /// Returns the sampling variance of all bytes freed so far; `None` if unknown.
    fn freed_variance(&self) -> Option<f64> {
        Some(self.allocated_variance? - self.variance)
    }

    /// Returns a lower bound of the sampling covariance with a later point.
    ///
    /// Objects that are live at both points have the same samples at both. How many there are is not
    /// known: assumes that all objects freed in between were live at this point.
    fn covariance(&self, later: &Self) -> f64 {
        let (Some(before), Some(after)) = (self.freed_variance(), later.freed_variance()) else {
            return 0.0;
        };
        let freed = (after - before).max(0.0);
        if self.is_same_session(later) && before.is_finite() && after.is_finite() {
            (self.variance - freed).clamp(0.0, later.variance.max(0.0))
        } else {
            0.0
        }
    }

    /// Returns false if another session began in between. Sessions have no objects in common.
    fn is_same_session(&self, later: &Self) -> bool {
        self.allocated_variance.is_some() && self.allocated_variance <= later.allocated_variance
    }

    /// Returns the bytes that are live at only one of this point and a later one: only these
    /// contribute to the sampling error of the change. Points of different sessions have none in
    /// common. Assumes that all bytes freed in between were live at this point, like
    /// [`covariance`](Self::covariance).
    fn turnover(&self, later: &Self) -> f64 {
        if !self.is_same_session(later) {
            return self.bytes + later.bytes;
        }
        let allocated = (later.allocated_bytes - self.allocated_bytes).max(0.0);
        let freed = (allocated - (later.bytes - self.bytes)).max(0.0);
        let common = (self.bytes - freed).clamp(0.0, later.bytes.max(0.0));
        self.bytes + later.bytes - 2.0 * common
    }
}

/// Returns the sampling variance of the change between two points.
fn change_variance(earlier: &Point, later: &Point) -> f64 {
    let independent = earlier.variance + later.variance;
    (independent - 2.0 * earlier.covariance(later)).max(0.0)
}

/// Returns the half-width of the 95 % confidence interval of the change between two points.
fn change_error(earlier: &Point, later: &Point) -> f64 {
    half_width(earlier.turnover(later), change_variance(earlier, later))
}

/// Returns the half-width of the slope's 95 % confidence interval due to sampling. If there are few
/// samples, it is widened by the same factor as that of the whole change.
fn slope_error(points: &[Point], first: &Point, last: &Point) -> f64 {
    let normal_error = QUANTILE * change_variance(first, last).sqrt();
    let widening = if normal_error > 0.0 {
        change_error(first, last) / normal_error
    } else {
        1.0
    };
    QUANTILE * slope_variance(points).sqrt() * widening
}

/// Maximum number of points used for the slope's variance, which is O(n²). If there are more, only
/// every n-th one is used.
const MAX_COMPARED: usize = 128;

/// Returns the sampling variance of the slope of a line through the points.
fn slope_variance(points: &[Point]) -> f64 {
    let step = points.len().div_ceil(MAX_COMPARED);
    let compared: Vec<&Point> = points.iter().step_by(step).collect();
    let time = compared.iter().map(|p| p.at).sum::<f64>() / compared.len() as f64;
    let spread: f64 = compared.iter().map(|p| (p.at - time).powi(2)).sum();
    let mut sum = 0.0;
    for (i, earlier) in compared.iter().enumerate() {
        let t = earlier.at - time;
        sum += t * t * earlier.variance;
        for later in &compared[i + 1..] {
            sum += 2.0 * t * (later.at - time) * earlier.covariance(later);
        }
    }
    (sum / (spread * spread)).max(0.0)
}

/// Fits a line through the points, which are in ascending order of time. Returns `None` for fewer
/// than two points, or if the first and the last have the same time.
pub fn fit(points: &[Point]) -> Option<Growth> {
    let first = points.first()?;
    let last = points.last()?;
    let span = last.at - first.at;
    if points.len() < 2 || span.is_nan() || span <= 0.0 {
        return None;
    }
    let line = Line::through(&[points])?;
    if let Some(verdict) = ended(points) {
        return Some(Growth {
            rate: (last.bytes - first.bytes) / span,
            error: change_error(first, last) / span,
            verdict,
            span,
        });
    }
    let error = line.error.max(slope_error(points, first, last));
    let verdict = if line.slope - error > 0.0 {
        match points.len() {
            2 => Verdict::Grew,
            _ => Verdict::Steady,
        }
    } else if line.slope + error < 0.0 {
        Verdict::Shrinks
    } else if (line.slope.abs() + error) * span <= MAX_LEVEL_CHANGE * last.bytes {
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

/// Returns the verdict on a change that ended before the last point.
fn ended(points: &[Point]) -> Option<Verdict> {
    if is_one_jump(points) {
        return Some(Verdict::Once);
    }
    if has_stopped(points) {
        return Some(Verdict::Stopped);
    }
    let highest = points.iter().map(|p| p.bytes).fold(f64::MIN, f64::max);
    let mirror = |p: &Point| Point {
        bytes: highest - p.bytes,
        ..*p
    };
    let fallen: Vec<Point> = points.iter().map(mirror).collect();
    has_stopped(&fallen).then_some(Verdict::Shrinks)
}

/// Maximum change over the whole time that counts as none, as a share of the live bytes.
const MAX_LEVEL_CHANGE: f64 = 0.01;

/// Returns true if the points are on two levels, the second one higher, without growth on either.
fn is_one_jump(points: &[Point]) -> bool {
    let rise = |pair: &[Point]| pair[1].bytes - pair[0].bytes;
    let rises = points.windows(2).map(rise).enumerate();
    let Some((at, jump)) = rises.max_by(|a, b| a.1.total_cmp(&b.1)) else {
        return false;
    };
    let (before, after) = points.split_at(at + 1);
    // A single point is not a level: memory that grew at the last point may continue to grow.
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

/// Minimum length of the time without growth, as a share of the time with growth before it.
const MIN_PLATEAU_RATIO: f64 = 1.0 / 3.0;
/// Minimum difference between the growth expected at the former rate and the growth observed, in
/// standard errors. Larger than for one comparison, because many possible ends are tried.
const MIN_LAG_ERRORS: f64 = 4.0;

/// Returns true if the points rise to a level and stay there: the rise is significant, the change
/// after it is within the sampling error, and far below that expected at the former rate.
fn has_stopped(points: &[Point]) -> bool {
    let (Some(first), Some(last)) = (points.first(), points.last()) else {
        return false;
    };
    let error = |a: &Point, b: &Point| change_variance(a, b).sqrt();
    let is_level = |p: &Point| (last.bytes - p.bytes).abs() <= QUANTILE * error(p, last);
    let plateau = points.iter().rev().take_while(|p| is_level(p)).count();
    let starts = points.len() - plateau..points.len().saturating_sub(2);
    starts.filter(|start| *start > 0).any(|start| {
        let end = &points[start];
        let rise = end.bytes - first.bytes;
        let share = (last.at - end.at) / (end.at - first.at);
        let lag = rise * share - (last.bytes - end.bytes);
        let lag_error = error(first, end).mul_add(share, error(end, last));
        rise > (QUANTILE * error(first, end)).max(MAX_LEVEL_CHANGE * last.bytes)
            && share >= MIN_PLATEAU_RATIO
            && lag > MIN_LAG_ERRORS * lag_error
    })
}

/// Lines with one slope through groups of points, each at its own height.
struct Line {
    slope: f64,
    /// Half-width of the slope's 95 % confidence interval.
    error: f64,
    /// Standard deviation of the points around the lines.
    scatter: f64,
}

impl Line {
    fn through(groups: &[&[Point]]) -> Option<Self> {
        let mut spread = 0.0;
        let mut product = 0.0;
        let mut centred: Vec<(f64, f64)> = Vec::new();
        for group in groups {
            let time = mean(group, |p| p.at);
            let bytes = mean(group, |p| p.bytes);
            for p in *group {
                let t = p.at - time;
                let b = p.bytes - bytes;
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
            // The lines go through all points, so their scatter is unknown.
            return Some(Self {
                slope,
                error: 0.0,
                scatter: 0.0,
            });
        }
        let degrees_of_freedom = (effective - fitted).max(1.0);
        let scatter = (squares / degrees_of_freedom).sqrt();
        Some(Self {
            slope,
            error: student(degrees_of_freedom) * scatter / spread.sqrt(),
            scatter,
        })
    }
}

/// Returns the correlation of neighbouring residuals. `squares` is the sum of their squares.
fn correlation(residuals: &[f64], squares: f64) -> f64 {
    let neighbours: f64 = residuals.windows(2).map(|r| r[0] * r[1]).sum();
    if squares > 0.0 {
        (neighbours / squares).clamp(0.0, 0.9)
    } else {
        0.0
    }
}

fn mean(points: &[Point], value_of: impl Fn(&Point) -> f64) -> f64 {
    points.iter().map(value_of).sum::<f64>() / points.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use helpers::random::Random;

    const RUNS: usize = 400;

    /// Returns the fraction of the series that `make` generates that get this verdict.
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
                    allocated_variance: None,
                    allocated_bytes: 0.0,
                })
                .collect();
            hits += usize::from(fit(&points).unwrap().verdict == verdict);
        }
        hits as f64 / RUNS as f64
    }

    #[test]
    fn steady_growth_is_found_through_noise() {
        // Growth of 100 per step, with noise between a quarter of a step and a whole step.
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
            // Of the 5 % of values outside a confidence interval, half are above it.
            assert!(wrong <= 0.06, "{count} points: {wrong}");
        }
    }

    #[test]
    fn a_wandering_heap_is_rarely_taken_for_growth() {
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
            let once = share(Verdict::Once, count, make);
            let steady = share(Verdict::Steady, count, make);
            assert!(once >= 0.9 && steady <= 0.05, "{count}: {once} {steady}");
        }
    }

    #[test]
    fn a_decrease_that_ended_is_no_chance() {
        // Down in steps, or at once, to a level: the values are exact.
        for live in [
            [50.0, 40.0, 30.0, 20.0, 10.0, 5.0, 5.0, 5.0, 5.0],
            [50.0, 50.0, 50.0, 50.0, 5.0, 5.0, 5.0, 5.0, 5.0],
        ] {
            let points: Vec<Point> = (0..)
                .zip(live)
                .map(|(at, bytes)| Point {
                    at: f64::from(at),
                    bytes,
                    allocated_variance: Some(0.0),
                    allocated_bytes: 50.0,
                    ..Point::default()
                })
                .collect();
            let growth = fit(&points).expect("a line");
            assert_eq!(growth.verdict, Verdict::Shrinks, "{live:?}");
            assert_eq!((growth.rate, growth.error), (-45.0 / 8.0, 0.0), "{live:?}");
            assert_eq!(growth.proven_bytes(), 0.0);
        }
        // Noise falls as often as it rises.
        for count in [4, 6, 10, 20] {
            let wrong = share(Verdict::Shrinks, count, |_, random| {
                1e4 + 500.0 * random.normal()
            });
            assert!(wrong <= 0.06, "{count} points: {wrong}");
        }
    }

    #[test]
    fn confidence_intervals_of_the_slope_have_the_right_coverage() {
        let mut random = Random(0xfeed_beef_dead_0001);
        let mut inside = 0;
        for _ in 0..RUNS {
            let point = |i: usize| Point {
                at: i as f64 * 10.0,
                bytes: 5e5 + 300.0 * i as f64 + 400.0 * random.normal(),
                variance: 0.0,
                allocated_variance: None,
                allocated_bytes: 0.0,
            };
            let points: Vec<Point> = (0..12).map(point).collect();
            let growth = fit(&points).unwrap();
            inside += usize::from((growth.rate - 30.0).abs() <= growth.error);
        }
        let share = inside as f64 / RUNS as f64;
        assert!((0.92..=1.0).contains(&share), "{share}");
    }

    /// Dumps of one session have the same samples, so objects live in both contribute no sampling
    /// error to the change.
    #[test]
    fn objects_live_at_both_points_do_not_widen_the_change() {
        let point = |at, bytes, variance, allocated| Point {
            at,
            bytes,
            variance,
            allocated_variance: Some(allocated),
            // So many samples that the correction for few samples is negligible.
            allocated_bytes: allocated,
        };
        let huge = 1e12;
        let small = 1e4;
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
        let expected = QUANTILE * (2.0 * huge).sqrt() / 10.0;
        // The correction for few samples, by what is live at either point.
        assert!((1.0..1.01).contains(&(error / expected)), "{error}");
    }

    /// Stack whose objects of 1000 bytes are sampled at an interval of 1024, as its dumps show it.
    /// An element is true if its object was sampled.
    struct Sampled {
        live: Vec<bool>,
        /// Samples of all that were allocated.
        allocated: usize,
        points: Vec<Point>,
    }

    /// Fate of objects from one dump to the next.
    #[derive(Clone, Copy, Debug)]
    enum History {
        /// So many more.
        Grows(usize),
        /// So many are replaced, the oldest first.
        Turns(usize),
        /// All objects are replaced this many times.
        Busy(usize),
        /// Grows by this many objects per dump in the first half of the dumps, and then stays
        /// constant.
        Stops(usize),
    }

    impl Sampled {
        const BYTES: f64 = 1000.0;

        fn weight() -> f64 {
            1.0 / (1.0 - (-Self::BYTES / 1024.0).exp())
        }

        fn allocate(&mut self, random: &mut Random) -> bool {
            let is_sampled = random.uniform() < 1.0 / Self::weight();
            self.allocated += usize::from(is_sampled);
            is_sampled
        }

        fn point(&mut self, at: f64) {
            let estimate = Self::weight() * Self::BYTES;
            let own = Self::BYTES;
            let live = self.live.iter().filter(|is_sampled| **is_sampled).count() as f64;
            let variance = estimate * (estimate - own);
            self.points.push(Point {
                at,
                bytes: live * estimate,
                variance: live * variance,
                allocated_variance: Some(self.allocated as f64 * variance),
                allocated_bytes: self.allocated as f64 * estimate,
            });
        }

        /// Returns the points of a history, and its true rate.
        fn of(history: History, dumps: usize, random: &mut Random) -> (Vec<Point>, f64) {
            const START: usize = 1000;
            let mut all = Self {
                live: Vec::new(),
                allocated: 0,
                points: Vec::new(),
            };
            let add = |all: &mut Self, count: usize, random: &mut Random| {
                for _ in 0..count {
                    let is_sampled = all.allocate(random);
                    all.live.push(is_sampled);
                }
            };
            add(&mut all, START, random);
            all.point(0.0);
            for dump in 1..dumps {
                match history {
                    History::Grows(count) => add(&mut all, count, random),
                    History::Stops(count) if 2 * dump <= dumps => add(&mut all, count, random),
                    History::Stops(_) => {}
                    History::Turns(count) => {
                        all.live.drain(..count);
                        add(&mut all, count, random);
                    }
                    History::Busy(times) => {
                        for _ in 0..times {
                            all.live.clear();
                            add(&mut all, START, random);
                        }
                    }
                }
                all.point(dump as f64 * 10.0);
            }
            let rate = match history {
                History::Grows(count) => count as f64 * Self::BYTES / 10.0,
                _ => 0.0,
            };
            (all.points, rate)
        }
    }

    /// Error bars of growth if sampling is the only source of error: what dumps of one session have
    /// in common counts only once in them. Of 3,000 intervals 95 % are in 94.2 to 95.8 (two
    /// standard errors); the seed is fixed.
    #[test]
    fn error_bars_of_growth_have_the_right_coverage() {
        const SERIES: usize = 3000;
        let mut random = Random(0x0dd0_5eed_1234_8765);
        for history in [
            History::Grows(100),
            History::Turns(250),
            History::Turns(1000),
            History::Busy(5),
        ] {
            for dumps in [2, 3, 5, 12] {
                let mut by_sampling = 0;
                let mut shown = 0;
                for _ in 0..SERIES {
                    let (points, rate) = Sampled::of(history, dumps, &mut random);
                    let slope = Line::through(&[&points]).unwrap().slope;
                    let bar = slope_error(&points, &points[0], &points[dumps - 1]);
                    by_sampling += usize::from((slope - rate).abs() <= bar);
                    let growth = fit(&points).unwrap();
                    shown += usize::from((growth.rate - rate).abs() <= growth.error);
                }
                let [by_sampling, shown] =
                    [by_sampling, shown].map(|held| held as f64 / SERIES as f64);
                assert!(
                    (0.93..=0.97).contains(&by_sampling),
                    "{history:?}, {dumps}: {by_sampling}"
                );
                // If the points scatter too, the larger of both errors is used.
                assert!(shown >= 0.93, "{history:?}, {dumps}: {shown}");
            }
        }
    }

    #[test]
    fn growth_that_ended_is_distinguished() {
        const SERIES: usize = 500;
        let mut random = Random(0x5eed_0000_1111_2222);
        let share = |history, dumps, verdict, random: &mut Random| {
            let has_verdict = |_: &usize| {
                let (points, _) = Sampled::of(history, dumps, random);
                fit(&points).unwrap().verdict == verdict
            };
            (0..SERIES).filter(has_verdict).count() as f64 / SERIES as f64
        };
        for dumps in [6, 8, 20] {
            for (history, verdict, least, most) in [
                (History::Stops(500), Verdict::Stopped, 0.9, 1.0),
                (History::Stops(500), Verdict::Steady, 0.0, 0.01),
                (History::Grows(100), Verdict::Stopped, 0.0, 0.01),
                (History::Grows(100), Verdict::Steady, 0.9, 1.0),
                (History::Turns(250), Verdict::Stopped, 0.0, 0.01),
                (History::Busy(5), Verdict::Stopped, 0.0, 0.01),
                (History::Busy(5), Verdict::Steady, 0.0, 0.05),
            ] {
                let found = share(history, dumps, verdict, &mut random);
                assert!(
                    (least..=most).contains(&found),
                    "{history:?}, {dumps} dumps, {verdict:?}: {found}"
                );
            }
        }
    }

    /// If every object is sampled, the change is exact, and so is the verdict that growth ended.
    #[test]
    fn growth_that_ended_has_the_rate_of_the_whole_time() {
        let point = |at: f64, bytes: f64| Point {
            at,
            bytes,
            variance: 0.0,
            allocated_variance: Some(0.0),
            allocated_bytes: bytes,
        };
        let mib = f64::from(1 << 20);
        let points: Vec<Point> = (0..8)
            .map(|i| point(f64::from(i), mib * f64::from(i.min(3) + 1)))
            .collect();
        let growth = fit(&points).unwrap();
        assert_eq!(growth.verdict, Verdict::Stopped);
        assert_eq!((growth.rate * 7.0, growth.error), (3.0 * mib, 0.0));
        assert!(growth.proven_bytes().abs() < 1.0);
        // Growth has not been over for long enough.
        let growing: Vec<Point> = (0..8)
            .map(|i| point(f64::from(i), mib * f64::from(i.min(6) + 1)))
            .collect();
        assert_ne!(fit(&growing).unwrap().verdict, Verdict::Stopped);
    }

    #[test]
    fn two_points_distinguish_growth_from_sampling_error() {
        let point = |at: f64, bytes: f64| Point {
            at,
            bytes,
            variance: 100.0 * 100.0,
            allocated_variance: None,
            allocated_bytes: 0.0,
        };
        let growth = |bytes| fit(&[point(0.0, 1000.0), point(10.0, bytes)]).unwrap();
        assert_eq!(growth(1200.0).verdict, Verdict::Unclear);
        assert_eq!(growth(2000.0).verdict, Verdict::Grew);
        assert_eq!(growth(0.0).verdict, Verdict::Shrinks);
        assert_eq!(growth(2000.0).rate, 100.0);
        let error = growth(2000.0).error;
        assert!(
            (error - QUANTILE * 2f64.sqrt() * 10.0).abs() < 0.1,
            "{error}"
        );
    }

    #[test]
    fn points_without_information_are_refused() {
        let at = |at: f64| Point {
            at,
            bytes: 1.0,
            variance: 0.0,
            allocated_variance: None,
            allocated_bytes: 0.0,
        };
        assert_eq!(fit(&[]), None);
        assert_eq!(fit(&[at(1.0)]), None);
        assert_eq!(fit(&[at(1.0), at(1.0)]), None);
        assert_eq!(fit(&[at(0.0), at(f64::NAN)]), None);
    }
}
