//! A symbolized profile as reports see it: one column, without allocator frames.
//!
//! A [`View`] never copies stacks. Dropping frames narrows a stack's range or hides a location;
//! both are small tables in addition to the profile.

mod allocator;
mod filter;
mod materialize;
mod prefixes;

use std::sync::Arc;

use anyhow::{Result, bail};
use profile::merge::BASE_LABEL;
use profile::variance::{self, SamplingError};
use profile::{Line, Profile, beside};

/// A stack as a view shows it.
#[derive(Clone, Copy, Debug)]
pub struct ViewStack<'a> {
    /// Index of the stack in the profile.
    pub index: usize,
    /// Value in the view's column.
    pub value: i64,
    /// Locations, leaf first; some may be [hidden](View::is_hidden).
    pub frames: &'a [u32],
}

/// A profile with a selected column and a selection of its stacks and frames.
#[derive(Clone, Debug)]
pub struct View {
    profile: Arc<Profile>,
    /// Index of the column shown.
    column: usize,
    /// Source-level frames of all locations.
    lines: Vec<Line>,
    /// First index in `lines` and count, for each location.
    ranges: Vec<(u32, u32)>,
    /// Locations that are hidden in all stacks.
    hidden: Vec<bool>,
    /// Range of shown frames, for each stack: first, and end.
    spans: Vec<(u32, u32)>,
    /// Stacks that are dropped.
    dropped: Vec<bool>,
    /// Value that counts as 100 %.
    total: i64,
    /// Set if 100 % is the sum of what is shown, not of the whole profile.
    relative: bool,
    /// For each stack, set if it is of a CPU profile combined with a heap profile; empty without
    /// one.
    cpu_stacks: Vec<bool>,
}

impl View {
    /// Returns a view of the whole profile, with the column `wanted` or the profile's default.
    pub fn new(mut profile: Profile, wanted: Option<&str>) -> Result<Self> {
        let column = find_column(&profile, wanted)?;
        profile.wholes = variance::wholes(&profile);
        let lines = profile.lines.clone();
        let ranges = profile
            .locations
            .iter()
            .map(|l| (l.first_line, l.line_count))
            .collect();
        let hidden = vec![false; profile.locations.len()];
        let spans = profile
            .stacks
            .iter()
            .map(|frames| (0, frames.len() as u32))
            .collect();
        let dropped = vec![false; profile.stacks.len()];
        let cpu_stacks = beside::cpu_stacks(&profile);
        let mut view = Self {
            profile: Arc::new(profile),
            column,
            lines,
            ranges,
            hidden,
            spans,
            dropped,
            total: 0,
            relative: false,
            cpu_stacks,
        };
        view.total = view.sum_of_magnitudes();
        Ok(view)
    }

    /// Returns the profile that the view shows.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// Returns the profile, dropping the view.
    pub fn into_profile(self) -> Profile {
        Arc::unwrap_or_clone(self.profile)
    }

    /// Returns the index of the column shown.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Returns the name of the column shown.
    pub fn kind(&self) -> &str {
        &self.profile.sample_types[self.column].kind
    }

    /// Returns the unit of the column shown.
    pub fn unit(&self) -> &str {
        &self.profile.sample_types[self.column].unit
    }

    /// Returns the value that counts as 100 %: the sum of the absolute values.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// Returns the source-level frames of a location that are shown, innermost first. Empty if it
    /// has no names.
    pub fn lines(&self, location: u32) -> &[Line] {
        let (first, count) = self.ranges[location as usize];
        &self.lines[first as usize..(first + count) as usize]
    }

    /// Returns the stacks that are shown.
    pub fn stacks(&self) -> impl Iterator<Item = ViewStack<'_>> + '_ {
        let columns = self.profile.sample_types.len();
        (0..self.spans.len())
            .filter(|&i| !self.dropped[i])
            .map(move |i| {
                let (from, to) = self.spans[i];
                ViewStack {
                    index: i,
                    value: self.profile.values[i * columns + self.column],
                    frames: &self.profile.stacks.get(i)[from as usize..to as usize],
                }
            })
    }

    /// Returns the sampling error of a stack's value. In comparisons, that of its change.
    pub fn error(&self, stack: usize) -> SamplingError {
        self.error_in(stack, self.column)
    }

    /// Returns the sampling error of a stack's value in another column.
    pub fn error_in(&self, stack: usize, column: usize) -> SamplingError {
        self.profile.error(stack, column)
    }

    /// Returns true if a stack is of a CPU profile combined with a heap profile.
    pub fn is_cpu_stack(&self, stack: usize) -> bool {
        self.cpu_stacks.get(stack).copied().unwrap_or(false)
    }

    /// Returns true if a location is hidden.
    pub fn is_hidden(&self, location: u32) -> bool {
        self.hidden[location as usize]
    }

    /// Returns the sum of absolute values; in a comparison, of the base's stacks only.
    fn sum_of_magnitudes(&self) -> i64 {
        let sum = |base_only: bool| {
            let stacks = self.stacks();
            let summed = stacks.filter(|stack| !base_only || self.is_base(stack.index));
            summed.fold(0i64, |sum, stack| {
                sum.saturating_add(stack.value.saturating_abs())
            })
        };
        let compared = self.profile.labels.iter().any(|l| l.key == BASE_LABEL);
        let base = if compared { sum(true) } else { 0 };
        if base != 0 { base } else { sum(false) }
    }

    /// Makes the sum of what is shown now 100 %.
    pub fn set_total_to_shown(&mut self) {
        self.relative = true;
        self.total = self.sum_of_magnitudes();
    }

    /// Returns true if a stack is part of the 100 %.
    pub fn counts_in_total(&self, stack: usize) -> bool {
        !self.relative || !self.dropped[stack]
    }

    /// Sets the value that counts as 100 %.
    pub fn set_total(&mut self, total: i64) {
        self.total = total;
    }

    /// Returns a view of another column. Drops the base's stacks of a comparison, unless
    /// `with_base`.
    pub fn with_column(&self, column: usize, with_base: bool) -> Self {
        let mut view = self.clone();
        view.column = column;
        // 100 % is everything, unless percentages are relative to what is shown.
        if !view.relative {
            view.dropped.fill(false);
        }
        if !with_base {
            view.drop_base();
        }
        view.total = view.sum_of_magnitudes();
        view.dropped.copy_from_slice(&self.dropped);
        if !with_base {
            view.drop_base();
        }
        view
    }

    fn drop_base(&mut self) {
        let profile = Arc::clone(&self.profile);
        for label in profile.labels.iter().filter(|l| l.key == BASE_LABEL) {
            self.dropped[label.stack as usize] = true;
        }
    }

    fn is_base(&self, stack: usize) -> bool {
        let labels = &self.profile.labels;
        let start = labels.partition_point(|l| (l.stack as usize) < stack);
        let mut labels_of_stack = labels[start..]
            .iter()
            .take_while(|l| l.stack as usize == stack);
        labels_of_stack.any(|l| l.key == BASE_LABEL)
    }
}

/// Returns a name without its parameter list.
pub(crate) fn without_parameters(name: &str) -> &str {
    let name = name.strip_prefix('.').unwrap_or(name);
    let reserved = ["(anonymous namespace)", "operator()"];
    let mut at = 0;
    while let Some(found) = name[at..].find(['(', 'o']) {
        at += found;
        if let Some(word) = reserved.iter().find(|word| name[at..].starts_with(**word)) {
            at += word.len();
        } else if name[at..].starts_with('(') {
            return &name[..at];
        } else {
            at += 1;
        }
    }
    name
}

fn find_column(profile: &Profile, wanted: Option<&str>) -> Result<usize> {
    let types = &profile.sample_types;
    let Some(wanted) = wanted else {
        if types.is_empty() {
            bail!("the profile has no values");
        }
        return Ok(profile.default_type.min(types.len() - 1));
    };
    // Profiles without allocated values have columns `objects` and `space`.
    let plain = wanted.strip_prefix("inuse_");
    let found = types
        .iter()
        .position(|t| t.kind == wanted)
        .or_else(|| types.iter().position(|t| Some(t.kind.as_str()) == plain))
        .or_else(|| wanted.parse::<usize>().ok().filter(|&i| i < types.len()));
    let Some(found) = found else {
        let kinds: Vec<&str> = types.iter().map(|t| t.kind.as_str()).collect();
        bail!(
            "the profile has no values called {wanted}, only {}",
            kinds.join(", ")
        );
    };
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_removed_but_not_reserved_parentheses() {
        let cases = [
            ("operator new(unsigned long)", "operator new"),
            ("(anonymous namespace)::f(int)", "(anonymous namespace)::f"),
            ("A::operator()(int)", "A::operator()"),
            ("foo", "foo"),
        ];
        for (name, expected) in cases {
            assert_eq!(without_parameters(name), expected);
        }
    }
}
