//! Input of a report: the view, its entries, and the formatting of values.

use std::path::Path;

use profile::merge::Base;
use profile::printable::printable;
use profile::variance::{QUANTILE, SamplingError};
use regex::Regex;
use symbols::main_mapping;

use super::interval::short_history;
use super::sampling;
use crate::breakdown::OwnerFinder;
use crate::date::format_time;
use crate::graph::{Trim, Trimmed};
use crate::measure::{self, Style};
use crate::nodes::Nodes;
use crate::options::Options;
use crate::series::Series;
use crate::view::View;

/// Input of a report.
pub struct Context<'a> {
    /// The profile, with its selected column.
    pub view: &'a View,
    /// Entries of the view.
    pub nodes: &'a Nodes,
    /// Times of the dumps that the profile has side by side.
    pub series: &'a Series,
    /// Requested treatment of a base, which determines what percentages are of.
    pub base_rule: Base,
    /// Limits of graphs.
    pub trim: Trim,
    /// Pattern of the requested functions, if any.
    pub pattern: Option<&'a Regex>,
    /// Program, as given by the user or as recorded.
    pub program: Option<&'a Path>,
    /// Style of values.
    pub style: Style,
    /// Options of the user.
    pub options: &'a Options,
}

impl Context<'_> {
    /// Returns the finder of the functions that own stacks, by the user's options.
    pub fn owners(&self) -> OwnerFinder<'_> {
        OwnerFinder::new(self.view, self.nodes, self.options.all_frames)
    }

    /// Formats a value with its unit.
    pub fn format(&self, value: i64, unit: &str) -> String {
        let value = self.divide(value);
        self.style.label(value, self.view.unit(), unit)
    }

    /// Formats a value in this unit, or in the best unit if it would be shown as 0.
    pub fn format_nonzero(&self, value: i64, unit: &str) -> String {
        let formatted = self.format(value, unit);
        let is_lost = value != 0 && !formatted.contains(|c: char| ('1'..='9').contains(&c));
        if is_lost {
            self.format(value, "minimum")
        } else {
            formatted
        }
    }

    /// Returns the width of a column of values: at least pprof's, in characters.
    pub fn width(&self, values: impl Iterator<Item = i64>, unit: &str) -> usize {
        self.column_width(values.map(|value| self.format(value, unit)))
    }

    /// Returns the width of a column of formatted values.
    pub fn column_width(&self, values: impl Iterator<Item = String>) -> usize {
        /// Width of pprof's columns, in characters.
        const MIN_WIDTH: usize = 10;
        let widths = values.map(|value| value.chars().count());
        widths.fold(MIN_WIDTH, usize::max)
    }

    /// Formats the half-width of a value's 95 % confidence interval, with its unit.
    pub fn format_error(&self, error: SamplingError, unit: &str) -> String {
        self.format(error.half_width().round() as i64, unit)
    }

    /// Formats the half-width with `±`, to follow a value. Empty if it is unknown or zero.
    pub fn plus_minus(&self, error: SamplingError, unit: &str) -> String {
        if error.variance > 0.0 {
            format!(" \u{b1}{}", self.format_error(error, unit))
        } else {
            String::new()
        }
    }

    /// Returns a value divided by the requested divisor.
    pub fn divide(&self, value: i64) -> i64 {
        if self.options.divide_by == 1.0 {
            value
        } else {
            (value as f64 / self.options.divide_by) as i64
        }
    }

    /// Returns the unit for all values of a report: that of the smallest value, unless the largest
    /// value is much larger and has another unit.
    pub fn common_unit(&self, trimmed: &Trimmed) -> String {
        self.unit_for(trimmed, true)
    }

    /// Returns the unit for all values. If `may_vanish`, small values may be rounded to 0.
    pub fn unit_for(&self, trimmed: &Trimmed, may_vanish: bool) -> String {
        if self.options.unit != "minimum" || trimmed.graph.nodes.is_empty() {
            return self.options.unit.clone();
        }
        let value = |n: &crate::graph::Node| if n.flat == 0 { n.cum } else { n.flat };
        let values = trimmed
            .graph
            .nodes
            .iter()
            .map(|n| value(n).saturating_abs());
        let largest = self.view.total();
        let smallest = values.filter(|&v| v > 0).min().unwrap_or(largest);
        let smallest = self.divide(smallest);
        let largest = self.divide(largest);
        let best = |value| measure::scale(value, self.view.unit(), "minimum").1;
        let unit = if may_vanish
            && best(smallest) != best(largest)
            && smallest.saturating_mul(100) < largest
        {
            best(smallest.saturating_mul(100))
        } else {
            best(smallest)
        };
        if unit.is_empty() {
            self.view.unit().to_owned()
        } else {
            unit
        }
    }

    /// Returns the legend: origin of the values, filters, and how much is shown.
    pub fn legend(&self, trimmed: &Trimmed, unit: &str) -> Vec<String> {
        let mut lines = if self.options.compact_labels {
            Vec::new()
        } else {
            self.origin_in(unit)
        };
        lines.extend(self.filters());
        lines.extend(self.coverage(trimmed, unit));
        lines
    }

    /// Returns a line with the sampling error, for layouts that show none beside values. For
    /// memory: the half-width of the total. For time: the largest half-width that a share of the
    /// total may have, or in a comparison a change. `None` for exact values.
    pub fn sampling_error(&self, unit: &str) -> Option<String> {
        let profile = self.view.profile();
        let stacks = 0..profile.stacks.len();
        let is_change = !profile.errors.is_empty();
        let mut sum = SamplingError::default();
        stacks.clone().for_each(|i| sum += self.view.error(i));
        let is_time = sampling::is_about(profile, self.view.column());
        let error = if is_time && is_change {
            // The change of a part with half of the time has the largest error.
            let half = QUANTILE * (sum.variance / 4.0).sqrt();
            let half = self.format(half.round() as i64, unit);
            (sum.variance > 0.0).then(|| format!("changes up to \u{b1}{half}"))?
        } else if is_time {
            let column = profile.type_index("samples")?;
            let columns = profile.sample_types.len();
            let samples = stacks.map(|i| profile.values[i * columns + column]);
            let samples = samples.fold(0, i64::saturating_add);
            // A share of one half has the largest error.
            let share = QUANTILE * (0.25 / samples.max(1) as f64).sqrt();
            (samples > 0).then(|| format!("shares up to \u{b1}{:.0}%", share.min(1.0) * 100.0))?
        } else {
            (sum.variance > 0.0).then(|| format!("total \u{b1}{}", self.format_error(sum, unit)))?
        };
        Some(format!(
            "Sampling error: {error} at 95 %; -t --ci shows each function's"
        ))
    }

    /// Returns the active filters.
    pub fn filters(&self) -> Vec<String> {
        let active = self.options.filters.active();
        if active.is_empty() {
            return Vec::new();
        }
        let filters = active.iter().map(|f| format!("   {}", printable(f)));
        std::iter::once("Active filters:".to_owned())
            .chain(filters)
            .collect()
    }

    /// Returns the heading of a report: origin and filters, one line each.
    pub fn heading(&self) -> String {
        let lines = self.origin().into_iter().chain(self.filters());
        lines.map(|line| line + "\n").collect()
    }

    /// Returns the maximum number of rows: that of `-n`, where 0 means all, or `default`.
    pub fn max_rows(&self, default: usize) -> usize {
        match self.options.node_count {
            Some(0) => usize::MAX,
            count => count.unwrap_or(default),
        }
    }

    /// Returns the line after a list of `all` rows of which only `shown` are shown.
    pub fn more_rows_line(all: usize, shown: usize) -> String {
        match all.saturating_sub(shown) {
            0 => String::new(),
            rest => format!("{rest} more: -n 0 shows all\n"),
        }
    }

    /// Returns the origin of the profile.
    pub fn origin(&self) -> Vec<String> {
        self.origin_in(&self.options.unit)
    }

    fn origin_in(&self, unit: &str) -> Vec<String> {
        let mut lines = self.identity();
        lines.extend(self.session(unit));
        lines
    }

    /// Returns the program of the profile, and what it counts.
    pub fn identity(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let Some(name) = self.program.and_then(|p| p.file_name()) {
            lines.push(format!("File: {}", printable(&name.to_string_lossy())));
        }
        let profile = self.view.profile();
        let main = main_mapping(profile).map(|i| &profile.mappings[i].build_id);
        if let Some(id) = main.filter(|id| !id.is_empty()) {
            lines.push(format!("Build ID: {id}"));
        }
        let comments = &profile.comments;
        lines.extend(
            comments
                .iter()
                .filter(|c| !c.starts_with('#'))
                .map(|c| printable(c).into()),
        );
        lines.extend(self.leak_check());
        lines.push(format!("Type: {}", self.view.kind()));
        lines
    }

    /// Returns a line if the profile is of a leak check.
    pub fn leak_check(&self) -> Option<String> {
        let check = self.view.profile().facts.leak_check.as_ref()?;
        let live = i64::try_from(check.live_bytes).unwrap_or(i64::MAX);
        let unit = &self.options.unit;
        let live = self.style.label(self.divide(live), "bytes", unit);
        let about = if self.view.profile().period == 1 {
            ""
        } else {
            "about "
        };
        Some(format!(
            "Leak check: what no pointer led to, while {about}{live} was live"
        ))
    }

    /// Returns the start and the duration of the session.
    fn session(&self, unit: &str) -> Vec<String> {
        let facts = &self.view.profile().facts;
        let mut lines = Vec::new();
        if let Some(start) = facts.start_unix_ns {
            lines.push(format!("Time: {}", format_time(start)));
        }
        if let Some(length) = facts.duration_ns {
            let length = i64::try_from(length).unwrap_or(i64::MAX);
            let total = self.view.total();
            let is_time = measure::scale(1, self.view.unit(), "nanoseconds").1 == "ns";
            let share = if is_time && total != 0 {
                let spent = measure::scale(total, self.view.unit(), "nanoseconds").0;
                format!("({})", measure::percentage(spent as i64, length))
            } else {
                String::new()
            };
            let length = self.style.label(length, "nanoseconds", "auto");
            let total = self.format(total, unit);
            lines.push(format!(
                "Duration: {length}, Total samples = {total} {share}"
            ));
        }
        lines.extend(facts.peak_ns.map(|at| {
            let at = i64::try_from(at).unwrap_or(i64::MAX);
            let at = self.style.label(at, "nanoseconds", "auto");
            format!("Peak: the live heap's high-water mark, {at} after the start")
        }));
        lines.extend(self.sampling());
        lines.extend(short_history(facts).map(|text| format!("Interval: {text}")));
        let cost = facts.cost.map(|cost| cost.share());
        lines.extend(cost.map(|share| format!("Cost: {share} of CPU time")));
        lines
    }

    /// Returns facts about the sampling of a CPU profile.
    fn sampling(&self) -> Vec<String> {
        let profile = self.view.profile();
        let column = self.view.column();
        let facts = if sampling::is_about(profile, column) {
            sampling::facts(profile)
        } else {
            Vec::new()
        };
        facts
            .into_iter()
            .map(|(name, text)| format!("{name}: {}", printable(&text)))
            .collect()
    }

    /// Returns how much is shown, and what was dropped.
    pub fn coverage(&self, trimmed: &Trimmed, unit: &str) -> Vec<String> {
        let nodes = &trimmed.graph.nodes;
        let total = self.view.total();
        let flat = nodes.iter().fold(0i64, |sum, n| sum.saturating_add(n.flat));
        let mut lines = vec![format!(
            "Showing nodes accounting for {}, {} of {} total",
            self.format(flat, unit),
            measure::percentage(flat, total).trim(),
            self.format(total, unit),
        )];
        if total == 0 {
            return lines;
        }
        let mut dropped = |count: usize, what: &str, which: &str, fraction: f64| {
            if count > 0 {
                let plural = if count > 1 { "s" } else { "" };
                let limit = ((total as f64 * fraction) as i64).saturating_abs();
                let limit = self.format(limit, unit);
                lines.push(format!(
                    "Dropped {count} {what}{plural} ({which} <= {limit})"
                ));
            }
        };
        dropped(
            trimmed.dropped_nodes,
            "node",
            "cum",
            self.trim.node_fraction,
        );
        if self.trim.order == crate::graph::Order::Entropy {
            dropped(
                trimmed.dropped_edges,
                "edge",
                "freq",
                self.trim.edge_fraction,
            );
        }
        if !nodes.is_empty() && nodes.len() < trimmed.candidates {
            let shown = nodes.len();
            let all = trimmed.candidates;
            lines.push(format!("Showing top {shown} nodes out of {all}"));
        }
        lines
    }
}
