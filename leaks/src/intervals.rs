//! Sets of numbers, stored as intervals.

use std::collections::BTreeMap;
use std::ops::Range;

/// Set of numbers: disjoint intervals, from start to end.
#[derive(Debug, Default)]
pub struct Intervals(BTreeMap<u64, u64>);

impl Intervals {
    /// Adds a range. Calls `visit_new` with each part that was not in the set before.
    pub fn add(&mut self, range: Range<u64>, mut visit_new: impl FnMut(Range<u64>)) {
        if range.start >= range.end {
            return;
        }
        let before = self.0.range(..=range.start).next_back();
        let mut merged = match before {
            Some((&start, &end)) if end >= range.start => start..end,
            _ => range.start..range.start,
        };
        let mut at = range.start.max(merged.end);
        while at <= range.end
            && let Some((&start, &end)) = self.0.range(at..=range.end).next()
        {
            if start > at {
                visit_new(at..start);
            }
            self.0.remove(&start);
            at = at.max(end);
        }
        if at < range.end {
            visit_new(at..range.end);
        }
        merged.end = at.max(range.end);
        self.0.insert(merged.start, merged.end);
    }
}

/// Sorts ranges and merges those that touch or overlap.
pub fn joined(ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    let mut all = Intervals::default();
    for range in ranges {
        all.add(range, |_| {});
    }
    all.0.into_iter().map(|(start, end)| start..end).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::single_range_in_vec_init, reason = "parts are ranges")]
    fn only_new_parts_are_passed_on() {
        let mut set = Intervals::default();
        let mut add = |range| {
            let mut new = Vec::new();
            set.add(range, |part| new.push(part));
            new
        };
        assert_eq!(add(10..20), [10..20]);
        assert_eq!(add(10..20), []);
        assert_eq!(add(12..15), []);
        assert_eq!(add(30..40), [30..40]);
        assert_eq!(add(20..25), [20..25]);
        assert_eq!(add(5..45), [5..10, 25..30, 40..45]);
        assert_eq!(add(0..50), [0..5, 45..50]);
        assert_eq!(add(7..7), []);
        assert_eq!(add(u64::MAX - 1..u64::MAX), [u64::MAX - 1..u64::MAX]);
        assert_eq!(
            joined(vec![40..50, 10..20, 15..18, 20..22]),
            [10..22, 40..50]
        );
    }
}
