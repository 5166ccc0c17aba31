//! Memory of a process over time, in bounded space: the latest points one by one, and all points
//! since the first at a spacing that doubles whenever their room is used up.

use std::collections::VecDeque;

/// Maximum number of points kept one by one.
const MAX_RECENT: usize = 200;
/// Maximum number of spaced points.
const MAX_SPACED: usize = 240;
/// Initial spacing, in ms.
const FIRST_SPACING_MS: u64 = 15_000;
/// Maximum time without points within which values are taken as known, in ms. A longer time is a
/// gap: nobody measured in it.
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

/// Growth over a time that ends at the latest point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Growth {
    /// Change of the resident bytes.
    pub bytes: i64,
    /// Length of the time, in ms. Shorter than requested if the history is.
    pub span_ms: u64,
}

/// The points of a process, in order of time.
#[derive(Clone, Debug)]
pub struct History {
    recent: VecDeque<Point>,
    spaced: Vec<Point>,
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
        self.recent.push_back(point);
        if self.recent.len() > MAX_RECENT {
            self.recent.pop_front();
        }
        self.push_spaced(point);
    }

    fn push_spaced(&mut self, point: Point) {
        let due = self.spaced.last().map(|last| last.at_ms + self.spacing_ms);
        if due.is_some_and(|due| point.at_ms < due) {
            return;
        }
        self.spaced.push(point);
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
    pub fn spaced(&self) -> &[Point] {
        &self.spaced
    }

    /// Returns the latest point.
    pub fn last(&self) -> Option<&Point> {
        self.recent.back().or(self.spaced.last())
    }

    /// Returns all points in order of time.
    pub fn points(&self) -> impl Iterator<Item = &Point> {
        let recent_from = self.recent.front().map_or(u64::MAX, |first| first.at_ms);
        let older = self.spaced.iter();
        older
            .take_while(move |point| point.at_ms < recent_from)
            .chain(&self.recent)
    }

    /// Returns at most `most` points, evenly chosen, among them the latest one.
    pub fn outline(&self, most: usize) -> Vec<Point> {
        let all: Vec<Point> = self.points().copied().collect();
        let step = all.len().div_ceil(most.max(1)).max(1);
        let from_end = all.iter().rev().step_by(step);
        let mut chosen: Vec<Point> = from_end.copied().collect();
        chosen.reverse();
        chosen
    }

    /// Returns the growth of the resident memory since `window_ms` before the latest point, or
    /// since the first point if that is later. Returns `None` with fewer than two known points.
    pub fn growth(&self, window_ms: u64) -> Option<Growth> {
        let known = || self.points().filter(|point| point.rss.is_some());
        let last = known().last()?;
        let from = last.at_ms.saturating_sub(window_ms);
        let base = known()
            .take_while(|point| point.at_ms <= from)
            .last()
            // The latest one before the window says nothing of it if it is far away.
            .filter(|point| from - point.at_ms <= self.spacing_ms.max(GAP_MS))
            .or_else(|| known().find(|point| point.at_ms >= from))?;
        let span_ms = last.at_ms - base.at_ms;
        let (now, then) = (last.rss?, base.rss?);
        (span_ms > 0).then_some(Growth {
            bytes: now as i64 - then as i64,
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
        let saved = history.spaced().to_vec();
        let mut restored = History::restored(saved.clone(), 10_000_000);
        assert_eq!(restored.spaced(), saved);
        restored.push(point(800_000, 99));
        assert_eq!(restored.growth(u64::MAX).unwrap().bytes, 99);
        // Of a damaged file: points out of order, and of the future.
        let wrong = [point(50_000, 1), point(10_000, 2), point(99_000_000, 3)];
        assert_eq!(History::restored(wrong, 10_000_000).spaced().len(), 1);
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
