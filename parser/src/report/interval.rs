//! Formats the interval history of a session.

use std::fmt::Write;

use profile::{Facts, IntervalPeriod, elapsed};

use crate::measure::{self, percentage};

/// Maximum number of intervals in one line, which takes two lines of a terminal of 80 columns then.
/// If there are more, the line shows only the first and the last one, and takes one.
const MAX_LINE_PERIODS: usize = 3;

/// Maximum number of intervals on the page. If there are more, it shows only the first and the last
/// ones.
const MAX_PAGE_PERIODS: usize = 8;

/// Formats the intervals for a line of a table, if the interval changed: how long each was used,
/// and the CPU overhead of sampling in that time.
///
/// `256 bytes (14.64% of CPU time) for 128ms, 5 more, 2048 (4.22%) for 7.87s`
pub fn short_history(facts: &Facts) -> Option<String> {
    format_history(facts, MAX_LINE_PERIODS, 1)
}

/// Formats the intervals for the page, if the interval changed.
pub fn history(facts: &Facts) -> Option<String> {
    format_history(facts, MAX_PAGE_PERIODS, MAX_PAGE_PERIODS / 2)
}

/// Formats up to `max` intervals, or the first `outer` ones and as many of the last.
fn format_history(facts: &Facts, max: usize, outer: usize) -> Option<String> {
    let count = facts.intervals.len();
    if count < 2 {
        return None;
    }
    let join = |range: std::ops::Range<usize>| {
        let periods: Vec<String> = range.map(|index| format_period(facts, index)).collect();
        periods.join(", ")
    };
    Some(if count <= max {
        join(0..count)
    } else {
        let between = count - 2 * outer;
        let first = join(0..outer);
        format!("{first}, {between} more, {}", join(count - outer..count))
    })
}

/// Formats the interval with index `index`: value, CPU overhead and duration, where known.
fn format_period(facts: &Facts, index: usize) -> String {
    let IntervalPeriod {
        from_unix_ns,
        interval,
        overhead,
    } = facts.intervals[index];
    // Only the first interval is followed by units.
    let (unit, share_of) = match index {
        0 => (" bytes", " of CPU time"),
        _ => ("", ""),
    };
    let mut text = format!("{interval}{unit}");
    if let Some(millionths) = overhead {
        let share = percentage(millionths.into(), 1_000_000);
        // Writing to a string cannot fail.
        let _ = write!(text, " ({}{share_of})", share.trim());
    }
    let next = facts.intervals.get(index + 1).map(|p| p.from_unix_ns);
    if let Some(until) = next.or(elapsed::end_by_length(facts)) {
        let length = i64::try_from(until.saturating_sub(from_unix_ns)).unwrap_or(i64::MAX);
        let _ = write!(
            text,
            " for {}",
            measure::label(length, "nanoseconds", "auto")
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(periods: &[(u64, u64, Option<u32>)], end: Option<u64>) -> Facts {
        let period = |&(ms, interval, overhead): &(u64, u64, Option<u32>)| IntervalPeriod {
            from_unix_ns: ms * 1_000_000,
            interval,
            overhead,
        };
        Facts {
            intervals: periods.iter().map(period).collect(),
            end_unix_ns: end.map(|ms| ms * 1_000_000),
            ..Facts::default()
        }
    }

    #[test]
    fn a_constant_interval_has_no_history() {
        assert_eq!(history(&facts(&[], Some(9))), None);
        assert_eq!(history(&facts(&[(1, 256, Some(5))], Some(9))), None);
    }

    #[test]
    fn each_interval_is_shown_with_its_share_and_time() {
        let periods = [
            (1000, 256, Some(146_378)),
            (1128, 2048, None),
            (1232, 9253, Some(9_900)),
        ];
        assert_eq!(
            history(&facts(&periods, Some(9000))).unwrap(),
            "256 bytes (14.64% of CPU time) for 128ms, 2048 for 104ms, 9253 (0.99%) for 7.77s"
        );
        let open = history(&facts(&periods, None)).unwrap();
        assert!(open.ends_with(", 9253 (0.99%)"), "{open}");
        // A clock that was set back.
        let back = history(&facts(&periods, Some(0))).unwrap();
        assert!(back.ends_with("for 0"), "{back}");
    }

    #[test]
    fn first_and_last_of_many_intervals_are_shown() {
        let periods: Vec<_> = (0..30).map(|i| (i * 500, 1000 + i, None)).collect();
        let text = history(&facts(&periods, Some(15_000))).unwrap();
        assert!(text.starts_with("1000 bytes for 500ms, 1001"), "{text}");
        assert!(text.contains("1003 for 500ms, 22 more, 1026 for"), "{text}");
        assert!(text.ends_with("1029 for 500ms"), "{text}");
    }

    #[test]
    fn a_table_has_room_for_few_intervals() {
        let period = |i: u64| (i * 12_000, 100_000 + i, Some(146_378));
        let line = |count: u64| {
            let periods: Vec<_> = (0..count).map(period).collect();
            short_history(&facts(&periods, Some(count * 12_000))).unwrap()
        };
        assert_eq!(
            line(4),
            "100000 bytes (14.64% of CPU time) for 12s, 2 more, 100003 (14.64%) for 12s"
        );
        assert!(line(300).contains(", 298 more, 100299 (14.64%)"));
        assert_eq!(line(3).matches(" for ").count(), 3);
        for count in 2..30 {
            assert!(
                format!("Interval: {}", line(count)).len() <= 2 * 80,
                "{count}"
            );
        }
    }
}
