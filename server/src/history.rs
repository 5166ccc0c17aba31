//! Memory of a process over time, in bounded space: the latest points, and *spaced* points since
//! the start, whose spacing doubles whenever their space is used up.

use std::collections::VecDeque;

/// Maximum number of latest points.
const MAX_RECENT: usize = 200;
/// Maximum number of spaced points.
const MAX_SPACED: usize = 240;
/// Initial spacing, in ms.
const FIRST_SPACING_MS: u64 = 15_000;
/// Maximum time between two points for which the values in between count as known, in ms. A longer
/// time is a gap without measurements.
pub const GAP_MS: u64 = 45_000;

/// Memory of a process at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    /// Time of the segment's clock, in ms.
    pub at_ms: u64,
    /// Best known value of the bytes in use.
    pub live: Option<u64>,
    /// Resident bytes.
    pub rss: Option<u64>,
}

/// Point in 18 bytes: three numbers of 48 bits. A server may keep a million of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Packed([u16; 9]);

/// Stands for an unknown value. Known values are limited to smaller ones.
const UNKNOWN: u64 = (1 << 48) - 1;

impl Packed {
    fn new(point: Point) -> Self {
        let value = |value: Option<u64>| value.map_or(UNKNOWN, |value| value.min(UNKNOWN - 1));
        let numbers = [point.at_ms, value(point.live), value(point.rss)];
        Self(std::array::from_fn(|index| {
            (numbers[index / 3] >> (index % 3 * 16)) as u16
        }))
    }

    fn point(self) -> Point {
        let number = |index: usize| {
            (0..3).fold(0, |sum, part| {
                sum | (u64::from(self.0[index * 3 + part]) << (part * 16))
            })
        };
        let value = |index: usize| Some(number(index)).filter(|value| *value != UNKNOWN);
        Point {
            at_ms: number(0),
            live: value(1),
            rss: value(2),
        }
    }

    fn has_values_of(self, other: Self) -> bool {
        self.0[3..] == other.0[3..]
    }
}

/// Growth over a time that ends at the latest point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Change of the resident bytes.
    pub bytes: i64,
    /// Length of the time, in ms. Shorter than requested if the history is shorter.
    pub span_ms: u64,
}

/// The points of a process, in order of time.
#[derive(Clone, Debug)]
pub struct History {
    recent: VecDeque<Packed>,
    spaced: Vec<Packed>,
    spacing_ms: u64,
}

impl Default for History {
    fn default() -> Self {
        Self {
            recent: VecDeque::new(),
            spaced: Vec::new(),
            spacing_ms: FIRST_SPACING_MS,
        }
    }
}

impl History {
    /// Restores a history from its spaced points. Points out of order are left out, as are those
    /// after `now_ms`.
    pub fn restored(points: impl IntoIterator<Item = Point>, now_ms: u64) -> Self {
        let mut history = Self::default();
        for point in points {
            if point.at_ms <= now_ms {
                history.push_spaced(point);
            }
        }
        history
    }

    /// Adds a point. Leaves it out if it is not later than the latest one.
    pub fn push(&mut self, point: Point) {
        if self.last().is_some_and(|last| last.at_ms >= point.at_ms) {
            return;
        }
        if self.is_last_redundant(point) {
            self.recent.pop_back();
        }
        self.recent.push_back(Packed::new(point));
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
        self.push_spaced(point);
    }

    /// Returns true if the latest point is redundant, because the points before and after it are
    /// near and have the same values.
    fn is_last_redundant(&self, next: Point) -> bool {
        let mut latest = self.recent.iter().rev();
        let (Some(last), Some(before)) = (latest.next(), latest.next()) else {
            return false;
        };
        last.has_values_of(*before)
            && last.has_values_of(Packed::new(next))
            && next.at_ms - before.point().at_ms <= FIRST_SPACING_MS
    }

    fn push_spaced(&mut self, point: Point) {
        let last = self.spaced.last().map(|last| last.point().at_ms);
        let due = last.map(|last_ms| last_ms + self.spacing_ms);
        if due.is_some_and(|due| point.at_ms < due) {
            return;
        }
        self.spaced.push(Packed::new(point));
        if self.spaced.len() > MAX_SPACED {
            let mut number = 0;
            self.spaced.retain(|_| {
                number += 1;
                number % 2 == 1
            });
            self.spacing_ms = self.spacing_ms.saturating_mul(2);
        }
    }

    /// Returns the spaced points, from which [`History::restored`] restores a history.
    pub fn spaced(&self) -> impl ExactSizeIterator<Item = Point> {
        self.spaced.iter().map(|packed| packed.point())
    }

    /// Returns the latest point.
    pub fn last(&self) -> Option<Point> {
        let last = self.recent.back().or(self.spaced.last());
        last.map(|packed| packed.point())
    }

    /// Returns all points in order of time.
    pub fn points(&self) -> impl Iterator<Item = Point> {
        let first = self.recent.front();
        let recent_start = first.map_or(u64::MAX, |first| first.point().at_ms);
        let older = self.spaced();
        older
            .take_while(move |point| point.at_ms < recent_start)
            .chain(self.recent.iter().map(|packed| packed.point()))
    }

    /// Returns at most `max_points` points, evenly chosen, including the latest one.
    pub fn outline(&self, max_points: usize) -> Vec<Point> {
        let all: Vec<Point> = self.points().collect();
        let step = all.len().div_ceil(max_points.max(1)).max(1);
        let chosen = all.iter().rev().step_by(step);
        let mut chosen: Vec<Point> = chosen.copied().collect();
        chosen.reverse();
        chosen
    }

    /// Returns the growth of the resident memory since `window_ms` before the latest point, or
    /// since the first point if that is later. Returns `None` with fewer than two known points.
    pub fn growth(&self, window_ms: u64) -> Option<Growth> {
        let known = || self.points().filter(|point| point.rss.is_some());
        let last = known().last()?;
        let window_start = last.at_ms.saturating_sub(window_ms);
        let base = known()
            .take_while(|point| point.at_ms <= window_start)
            .last()
            // Does not use the latest point before the window if it is far away.
            .filter(|point| window_start - point.at_ms <= self.spacing_ms.max(GAP_MS))
            .or_else(|| known().find(|point| point.at_ms >= window_start))?;
        let span_ms = last.at_ms - base.at_ms;
        let (last_rss, base_rss) = (last.rss?, base.rss?);
        (span_ms > 0).then_some(Growth {
            bytes: last_rss as i64 - base_rss as i64,
            span_ms,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_ms: u64, rss: u64) -> Point {
        Point {
            at_ms,
            live: None,
            rss: Some(rss),
        }
    }

    #[test]
    fn a_week_of_points_fits_and_covers_the_week() {
        let mut history = History::default();
        let week = 7 * 86_400_000;
        for at in (0..week).step_by(10_000) {
            history.push(point(at, at));
        }
        let points: Vec<_> = history.points().collect();
        assert!(points.len() <= MAX_RECENT + MAX_SPACED, "{}", points.len());
        assert_eq!(points[0].at_ms, 0);
        assert_eq!(points[points.len() - 1].at_ms, week - 10_000);
        assert!(points.windows(2).all(|two| two[0].at_ms < two[1].at_ms));
        let widest = points.windows(2).map(|two| two[1].at_ms - two[0].at_ms);
        let widest = widest.max().unwrap();
        assert!(widest <= week / (MAX_SPACED as u64 / 2) * 2, "{widest}");
        let last_minutes = points.iter().filter(|p| p.at_ms >= week - 1_800_000);
        assert_eq!(last_minutes.count(), 180);
    }

    #[test]
    fn growth_is_of_the_window_or_of_what_is_known() {
        let mut history = History::default();
        assert_eq!(history.growth(60_000), None);
        history.push(point(1_000, 100));
        assert_eq!(history.growth(60_000), None);
        for at in 1..=100 {
            history.push(point(1_000 + at * 10_000, 100 + at));
        }
        let growth = |window| history.growth(window).unwrap();
        assert_eq!((growth(60_000).bytes, growth(60_000).span_ms), (6, 60_000));
        assert_eq!(growth(600_000).bytes, 60);
        assert_eq!(growth(u64::MAX).bytes, 100);
        assert_eq!(growth(u64::MAX).span_ms, 1_000_000);
    }

    #[test]
    fn a_point_of_before_a_gap_is_no_base() {
        let mut history = History::default();
        history.push(point(0, 5));
        history.push(point(1_000_000, 50));
        history.push(point(1_010_000, 60));
        let growth = history.growth(60_000).unwrap();
        assert_eq!((growth.bytes, growth.span_ms), (10, 10_000));
    }

    #[test]
    fn a_restored_history_goes_on() {
        let mut history = History::default();
        for at in 0..50 {
            history.push(point(at * 15_000, at));
        }
        let saved: Vec<Point> = history.spaced().collect();
        let mut restored = History::restored(saved.clone(), 10_000_000);
        assert!(restored.spaced().eq(saved));
        restored.push(point(800_000, 99));
        assert_eq!(restored.growth(u64::MAX).unwrap().bytes, 99);
        // A damaged file has points out of order, and in the future.
        let wrong = [point(50_000, 1), point(10_000, 2), point(99_000_000, 3)];
        assert_eq!(History::restored(wrong, 10_000_000).spaced().len(), 1);
    }

    #[test]
    fn points_are_kept_exactly() {
        for live in [None, Some(0), Some(1 << 16), Some((1 << 47) + 12_345)] {
            let at_ms = (1 << 40) + 7;
            let rss = Some(u64::from(u32::MAX) + 1);
            let point = Point { at_ms, live, rss };
            assert_eq!(Packed::new(point).point(), point);
        }
        assert_eq!(size_of::<Packed>(), 18);
    }

    /// Of a process that does nothing, only the ends of the time are kept, and a point now and
    /// then.
    #[test]
    fn points_between_equal_ones_are_left_out() {
        let mut history = History::default();
        for at in 0..100 {
            history.push(point(at * 1_000, 7));
        }
        for at in 100..110 {
            history.push(point(at * 1_000, at));
        }
        let points: Vec<Point> = history.points().collect();
        assert!(points.len() < 30, "{}", points.len());
        let widest = points.windows(2).map(|two| two[1].at_ms - two[0].at_ms);
        assert!(widest.max().unwrap() <= FIRST_SPACING_MS);
        let last_before = points.iter().rfind(|point| point.rss == Some(7)).unwrap();
        assert_eq!(last_before.at_ms, 99_000);
        assert_eq!(history.growth(9_000).unwrap().bytes, 9);
    }

    #[test]
    fn an_outline_ends_with_the_latest_point() {
        let mut history = History::default();
        for at in 1..=1000 {
            history.push(point(at * 1_500, at));
        }
        let outline = history.outline(40);
        assert!(outline.len() <= 40, "{}", outline.len());
        assert_eq!(outline[outline.len() - 1].at_ms, 1_500_000);
    }
}
