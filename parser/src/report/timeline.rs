//! Memory over time in a terminal: charts of live and resident memory, and a table of functions
//! with their live bytes at the peak and at the end.

use std::cmp::Ordering;
use std::fmt::Write;

use anyhow::{Result, bail};
use profile::Moment;
use profile::printable::printable;
use profile::variance::SamplingError;

use super::context::Context;
use super::format::{Dumps, Format, Needs};
use crate::date::format_time;
use crate::measure::Style;
use crate::timeline::{Change, Timeline};

/// `--timeline`.
pub const FORMAT: Format = Format {
    alias: Some("time"),
    style: Style::Own,
    needs: Needs {
        dumps: Dumps::SeparateBase,
        heap_only: true,
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report(
        "timeline",
        "Memory over time: live bytes and resident memory, the peak compared with the end",
        render,
    )
};

/// Width of a chart without its labels, in characters.
const CHART_WIDTH: usize = 65;
/// Width of the labels, in characters.
const LABEL_WIDTH: usize = 11;
/// Height of the chart of live memory, in lines.
const LIVE_ROWS: usize = 12;
/// Height of the chart of resident memory, in lines.
const RESIDENT_ROWS: usize = 6;
/// Default number of functions shown.
const DEFAULT_FUNCTIONS: usize = 10;
/// Width of a sampling error in the table, in characters.
const ERROR_WIDTH: usize = 13;
/// Minimum ratio of a peak to the end for the table to compare them.
const MIN_PEAK_RATIO: f64 = 1.05;
/// Blocks of zero to eight eighths of a line.
const BLOCKS: [char; 9] = [' ', '▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Characters of the charts.
const SIGNS: &str = "▁▂▃▄▅▆▇█│┤─┬└";
/// Replacements of [`SIGNS`] in ASCII.
const ASCII_SIGNS: &str = "...::###||-++";
/// Steps of the time axis, in seconds: from a millisecond to a year.
const STEPS: [f64; 32] = [
    0.001,
    0.002,
    0.005,
    0.01,
    0.02,
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1800.0,
    3600.0,
    7200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    86_400.0,
    172_800.0,
    432_000.0,
    864_000.0,
    2_592_000.0,
    31_536_000.0,
];

fn render(context: &Context) -> Result<String> {
    let timeline = match Timeline::new(context.view, context.nodes, &context.owners()) {
        Ok(timeline) => timeline,
        Err(why) => bail!("{why}"),
    };
    let mut out = String::new();
    header(context, &timeline, &mut out);
    if timeline.moments.iter().any(|m| m.live > 0) {
        let live = |m: &Moment| Some(m.live);
        chart(context, &timeline, "Live", LIVE_ROWS, live, &mut out);
    }
    if timeline.moments.iter().any(|m| m.resident.is_some()) {
        let resident = |m: &Moment| m.resident;
        chart(
            context,
            &timeline,
            "Resident",
            RESIDENT_ROWS,
            resident,
            &mut out,
        );
    }
    if timeline.moments.iter().any(|m| m.live > 0) {
        table(context, &timeline, &mut out);
    }
    Ok(out)
}

fn header(context: &Context, timeline: &Timeline, out: &mut String) {
    let mut lines = context.identity();
    lines.pop(); // The type of the values: here it is always the bytes in use.
    let facts = &context.view.profile().facts;
    lines.extend(
        facts
            .start_unix_ns
            .map(|at| format!("Time: {}", format_time(at))),
    );
    lines.extend(context.filters());
    let (Some(peak), Some(end)) = (peak(timeline.moments.iter()), timeline.moments.last()) else {
        return;
    };
    lines.push(if peak.live == 0 {
        format!(
            "Live: nothing of what was sampled, at any of {} moments",
            timeline.moments.len()
        )
    } else {
        format!(
            "Live: {}{} at most, at {}; {}{} at the end, at {}",
            bytes(context, peak.live),
            plus_minus(context, timeline.error(peak)),
            time(peak.at_ns),
            bytes(context, end.live),
            margin(context, "inuse_space"),
            time(end.at_ns),
        )
    });
    lines.push(format!(
        "Allocated: {}{}, {}/s",
        bytes(context, end.allocated),
        margin(context, "alloc_space"),
        bytes(
            context,
            (end.allocated as f64 / (timeline.length_ns() as f64 / 1e9)) as u64
        ),
    ));
    for line in lines {
        *out += &line;
        out.push('\n');
    }
}

/// Converts the charts of a report to ASCII. Lines outside charts are not changed.
pub fn in_ascii(text: &str) -> String {
    let is_chart_line = |line: &str| line.contains(['│', '┤', '└']);
    let sign = |c: char| {
        let at = SIGNS.chars().position(|sign| sign == c);
        at.and_then(|at| ASCII_SIGNS.chars().nth(at)).unwrap_or(c)
    };
    let line = |line: &str| {
        if is_chart_line(line) {
            line.chars().map(sign).collect()
        } else {
            line.to_owned()
        }
    };
    text.split('\n')
        .map(line)
        .collect::<Vec<String>>()
        .join("\n")
}

/// Returns the first of the moments with the most live bytes.
fn peak<'a>(moments: impl Iterator<Item = &'a Moment>) -> Option<&'a Moment> {
    moments.reduce(|high, m| if m.live > high.live { m } else { high })
}

/// Writes a chart of `rows` lines.
fn chart(
    context: &Context,
    timeline: &Timeline,
    title: &str,
    rows: usize,
    value: impl Fn(&Moment) -> Option<u64>,
    out: &mut String,
) {
    let columns = columns(timeline, value);
    let top = columns
        .iter()
        .flatten()
        .fold(0.0, |top: f64, &v| top.max(v));
    let _ = writeln!(out, "\n{title:>LABEL_WIDTH$}");
    for row in (0..rows).rev() {
        // Labels at the top, in the middle and at the axis.
        let label = match row {
            row if row + 1 == rows => bytes(context, top as u64),
            row if row + 1 == rows / 2 => bytes(context, (top / 2.0) as u64),
            _ => String::new(),
        };
        let mark = if label.is_empty() { '│' } else { '┤' };
        let eighths = |v: f64| (v / top.max(1.0) * rows as f64 - row as f64) * 8.0;
        let block = |v: &Option<f64>| {
            v.map_or(' ', |v| BLOCKS[eighths(v).round().clamp(0.0, 8.0) as usize])
        };
        let blocks: String = columns.iter().map(block).collect();
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(out, "{label:>LABEL_WIDTH$} {mark}{}", blocks.trim_end());
    }
    axis(timeline.length_ns(), out);
}

/// Returns the maximum value in the time of each column of the chart. Columns without a moment are
/// interpolated.
fn columns(timeline: &Timeline, value: impl Fn(&Moment) -> Option<u64>) -> Vec<Option<f64>> {
    let length = timeline.length_ns() as f64;
    let known = timeline.moments.iter();
    let known: Vec<(f64, f64)> = known
        .filter_map(|m| {
            Some((
                m.at_ns as f64 / length * CHART_WIDTH as f64,
                value(m)? as f64,
            ))
        })
        .collect();
    let column = |at: usize| {
        let from = at as f64;
        let to = at as f64 + 1.0;
        let last = at + 1 == CHART_WIDTH;
        let in_column = known
            .iter()
            .filter(|(x, _)| *x >= from && (*x < to || last));
        in_column
            .map(|(_, v)| *v)
            .reduce(f64::max)
            .or_else(|| interpolate(&known, from + 0.5))
    };
    (0..CHART_WIDTH).map(column).collect()
}

fn interpolate(known: &[(f64, f64)], at: f64) -> Option<f64> {
    let after = known.partition_point(|(x, _)| *x < at);
    let ((x0, v0), (x1, v1)) = (known.get(after.checked_sub(1)?)?, known.get(after)?);
    Some(v0 + (v1 - v0) * (at - x0) / (x1 - x0).max(f64::MIN_POSITIVE))
}

/// Writes the time axis, with labels that do not overlap.
fn axis(length_ns: u64, out: &mut String) {
    let length = length_ns as f64 / 1e9;
    let step = STEPS.iter().find(|&&step| length / step <= 7.0);
    let step = step.copied().unwrap_or(length);
    let mut line = vec!['─'; CHART_WIDTH];
    let mut labels = vec![' '; LABEL_WIDTH + 2 + CHART_WIDTH + LABEL_WIDTH];
    let mut free = 0;
    for i in 0..=(length / step) as usize {
        let at = ((i as f64 * step / length * CHART_WIDTH as f64) as usize).min(CHART_WIDTH - 1);
        line[at] = '┬';
        let text = tick(i as f64 * step, step);
        let start = (LABEL_WIDTH + 2 + at).saturating_sub(text.chars().count() / 2);
        if start >= free {
            let room = labels[start..].iter_mut();
            room.zip(text.chars()).for_each(|(slot, c)| *slot = c);
            free = start + text.chars().count() + 1;
        }
    }
    let line: String = line.into_iter().collect();
    let labels: String = labels.into_iter().collect();
    let _ = writeln!(out, "{:>LABEL_WIDTH$} └{line}\n{}", "0", labels.trim_end());
}

/// Formats a time on the axis, in the unit of the axis' step.
fn tick(seconds: f64, step: f64) -> String {
    let units = [("d", 86_400.0), ("h", 3600.0), ("min", 60.0), ("s", 1.0)];
    let fits = units.iter().find(|(_, size)| step >= *size);
    let (unit, size) = fits.copied().unwrap_or(("ms", 0.001));
    let value = (seconds / size * 1000.0).round() / 1000.0;
    if value == 0.0 {
        "0".to_owned()
    } else {
        format!("{value} {unit}")
    }
}

/// Returns the moment to compare with the end, and its description: the peak, or if the end is
/// nearly as high, the middle of the session.
fn compared_moment<'a>(timeline: &Timeline<'a>) -> Option<(&'a Moment, &'static str)> {
    let known = || timeline.moments.iter().filter(|m| m.stacks.is_some());
    let highest = peak(known())?;
    let end = timeline.moments.last()?;
    if highest.live as f64 > end.live as f64 * MIN_PEAK_RATIO {
        let is_peak = peak(timeline.moments.iter())?.live == highest.live;
        let near = "the highest moment of which functions are known";
        return Some((highest, if is_peak { "the peak" } else { near }));
    }
    let middle = timeline.length_ns() / 2;
    let nearest = known().min_by_key(|m| m.at_ns.abs_diff(middle))?;
    Some((nearest, "near the middle"))
}

/// Writes the table of functions at a moment and at the end.
fn table(context: &Context, timeline: &Timeline, out: &mut String) {
    let Some((moment, which)) = compared_moment(timeline) else {
        *out += "\nThe dump has no moment with the values of functions: the session was too \
                 short\n";
        return;
    };
    let functions = timeline.functions(moment).unwrap_or_default();
    let max_rows = context.max_rows(DEFAULT_FUNCTIONS);
    let _ = writeln!(
        out,
        "\nAt {}, {which}, {}{} live:",
        time(moment.at_ns),
        bytes(context, moment.live),
        plus_minus(context, timeline.error(moment)),
    );
    let mut rows: Vec<(Option<u32>, &str, Change)> = functions
        .iter()
        .take(max_rows)
        .map(|&(entry, change)| (Some(entry), context.nodes.name(entry), change))
        .collect();
    let listed_sum = |bytes_of: fn(&Change) -> u64| {
        rows.iter()
            .fold(0, |sum: u64, (.., c)| sum.saturating_add(bytes_of(c)))
    };
    let end = timeline
        .stacks
        .iter()
        .fold(0, |sum: u64, s| sum.saturating_add(s.end));
    let rest_at_moment = moment.live.saturating_sub(listed_sum(|c| c.at_moment));
    let rest_at_end = end.saturating_sub(listed_sum(|c| c.end));
    if rest_at_moment > 0 || rest_at_end > 0 {
        let mut rest = Change::default();
        let sampled = timeline.sampled_except(rows.iter().map(|(owner, ..)| *owner));
        rest.add(rest_at_moment, rest_at_end, &sampled);
        rows.push((None, "(all others)", rest));
    }
    let is_exact = rows
        .iter()
        .all(|(.., change)| change.moment_error.variance + change.end_error.variance == 0.0);
    let width = if is_exact { 0 } else { ERROR_WIDTH };
    let _ = writeln!(
        out,
        "{:>11}{:width$} {:>11}{:width$} {:>12}{:width$}  function",
        "then", "", "at the end", "", "change", ""
    );
    for (_, name, change) in rows {
        let error = |error: SamplingError| {
            let text = plus_minus(context, error);
            format!("{text:<width$}")
        };
        let sign = match change.end.cmp(&change.at_moment) {
            Ordering::Less => "-",
            Ordering::Equal => "",
            Ordering::Greater => "+",
        };
        let amount = format!(
            "{sign}{}",
            bytes(context, change.end.abs_diff(change.at_moment))
        );
        let _ = writeln!(
            out,
            "{:>11}{} {:>11}{} {amount:>12}{}  {}",
            bytes(context, change.at_moment),
            error(change.moment_error),
            bytes(context, change.end),
            error(change.end_error),
            error(change.error),
            printable(name)
        );
    }
}

/// Formats the sampling error of a column's sum at the end of the session; empty if it is exact or
/// unknown.
fn margin(context: &Context, column: &str) -> String {
    let profile = context.view.profile();
    let mut error = SamplingError::default();
    if let Some(column) = profile.type_index(column) {
        (0..profile.stacks.len()).for_each(|stack| error += context.view.error_in(stack, column));
    }
    plus_minus(context, error)
}

/// Formats a sampling error, to follow a value; empty if it is exact or unknown.
fn plus_minus(context: &Context, error: SamplingError) -> String {
    if error.variance > 0.0 {
        format!(
            " \u{b1} {}",
            bytes(context, error.half_width().round() as u64)
        )
    } else {
        String::new()
    }
}

fn bytes(context: &Context, value: u64) -> String {
    let value = context.divide(i64::try_from(value).unwrap_or(i64::MAX));
    Style::Own.label(value, "bytes", &context.options.unit)
}

fn time(ns: u64) -> String {
    let ns = i64::try_from(ns).unwrap_or(i64::MAX);
    Style::Own.label(ns, "nanoseconds", "auto")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_have_the_unit_of_their_step() {
        for (seconds, step, text) in [
            (0.0, 1.0, "0"),
            (0.25, 0.05, "250 ms"),
            (1.5, 0.5, "1500 ms"),
            (90.0, 30.0, "90 s"),
            (90.0, 60.0, "1.5 min"),
            (7200.0, 3600.0, "2 h"),
            (172_800.0, 86_400.0, "2 d"),
        ] {
            assert_eq!(tick(seconds, step), text);
        }
    }

    #[test]
    fn an_axis_of_any_length_has_room() {
        for length_ns in [
            1,
            1_000,
            700_000_000,
            5_000_000_000,
            86_400_000_000_000,
            u64::MAX,
        ] {
            let mut out = String::new();
            axis(length_ns, &mut out);
            let widest = out.lines().map(|line| line.chars().count()).max();
            assert!(
                widest <= Some(LABEL_WIDTH + 2 + CHART_WIDTH + LABEL_WIDTH),
                "{out}"
            );
            assert!(out.contains('┬'), "{out}");
        }
    }

    #[test]
    fn charts_have_an_ascii_form() {
        assert_eq!(SIGNS.chars().count(), ASCII_SIGNS.chars().count());
        let mut out = String::new();
        axis(1_000_000_000, &mut out);
        out += "      1 MiB ┤ ▁▄█\n/tmp/█";
        let ascii = in_ascii(&out);
        assert_eq!(ascii.lines().count(), out.lines().count());
        assert!(ascii.ends_with("      1 MiB | .:#\n/tmp/█"), "{ascii}");
        assert!(ascii.starts_with("          0 ++---"), "{ascii}");
    }

    #[test]
    fn values_are_interpolated_linearly() {
        let known = [(0.0, 10.0), (4.0, 30.0)];
        assert_eq!(interpolate(&known, 1.0), Some(15.0));
        assert_eq!(interpolate(&known, 5.0), None);
        assert_eq!(interpolate(&[], 1.0), None);
    }
}
