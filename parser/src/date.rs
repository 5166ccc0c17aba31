//! Formats points in time. Always in UTC, because dumps are read on any machine.

const MONTHS: [&str; 12] = [
    "Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec",
];

/// Formats Unix time in nanoseconds like pprof: `Jan 2, 2006 at 3:04pm (UTC)`.
pub fn format_time(unix_ns: u64) -> String {
    let minutes = unix_ns / 60_000_000_000;
    let (year, month, day) = date((minutes / (24 * 60)) as i64);
    let hour = minutes / 60 % 24;
    let minute = minutes % 60;
    let half = if hour < 12 { "am" } else { "pm" };
    let hour = if hour.is_multiple_of(12) {
        12
    } else {
        hour % 12
    };
    let month = MONTHS[month as usize - 1];
    format!("{month} {day}, {year} at {hour}:{minute:02}{half} (UTC)")
}

/// Converts days since 1970 to year, month and day.
fn date(days: i64) -> (i64, i64, i64) {
    // If years start in March, the leap day is the last one, and the months before any day have
    // 30.6 days on average.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day = days.rem_euclid(146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = era * 400 + year + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_match_date() {
        let cases = [
            (0, "Jan 1, 1970 at 12:00am (UTC)"),
            (951_782_399, "Feb 28, 2000 at 11:59pm (UTC)"),
            (951_782_400, "Feb 29, 2000 at 12:00am (UTC)"),
            (1_795_235_047, "Nov 21, 2026 at 4:24am (UTC)"),
            (4_107_542_400, "Mar 1, 2100 at 12:00am (UTC)"),
            (1_735_646_340, "Dec 31, 2024 at 11:59am (UTC)"),
            (1_735_646_400, "Dec 31, 2024 at 12:00pm (UTC)"),
        ];
        for (seconds, text) in cases {
            assert_eq!(format_time(seconds * 1_000_000_000), text);
        }
        assert!(format_time(u64::MAX).contains("2554"));
    }
}
