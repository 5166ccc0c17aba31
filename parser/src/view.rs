//! The symbolized profile as reports see it: without allocator frames, with
//! one column selected.
//!
//! A [`View`] never copies stacks. Leaving frames out narrows a stack's range
//! or hides a location; both are small tables in addition to the profile.

mod allocator;
mod beginnings;
mod filter;
mod materialize;

use std::sync::Arc;

use anyhow::{Result, bail};
use heap_format::merge::BASE_LABEL;
use heap_format::{Line, Profile, beside};

/// A profile with what is left out of it, and the column that counts.
#[derive(Clone, Debug)]
pub struct View {
    profile: Arc<Profile>,
    /// Index of the column that is shown.
    column: usize,
    /// Source-level frames of locations, in ranges.
    lines: Vec<Line>,
    ranges: Vec<(u32, u32)>,
    /// Locations that are left out of stacks.
    hidden: Vec<bool>,
    /// For each stack the frames that are shown, from and to.
    spans: Vec<(u32, u32)>,
    /// Stacks that are left out.
    dropped: Vec<bool>,
    total: i64,
    /// 100 % is what is shown.
    relative: bool,
    /// Stacks of the CPU profile beside a heap profile; empty without one.
    beside: Vec<bool>,
}

impl View {
    /// A view of the whole profile, of the column called `wanted` or of the
    /// profile's default one.
    pub fn new(profile: Profile, wanted: Option<&str>) -> Result<Self> {
        let column = column(&profile, wanted)?;
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
        let beside = beside::stacks(&profile);
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
            beside,
        };
        view.total = view.sum_of_magnitudes();
        Ok(view)
    }

    /// The profile behind the view.
    pub fn profile(&self) -> &Profile {
        &self.profile
    }

    /// The profile by itself again.
    pub fn into_profile(self) -> Profile {
        Arc::unwrap_or_clone(self.profile)
    }

    /// Index of the column shown.
    pub fn column(&self) -> usize {
        self.column
    }

    /// Name of the column shown.
    pub fn kind(&self) -> &str {
        &self.profile.sample_types[self.column].kind
    }

    /// Unit of the column shown.
    pub fn unit(&self) -> &str {
        &self.profile.sample_types[self.column].unit
    }

    /// 100 %: the sum of the magnitudes of all values.
    pub fn total(&self) -> i64 {
        self.total
    }

    /// The source-level frames of a location that are shown, innermost first.
    /// None when it has no names.
    pub fn lines(&self, location: u32) -> &[Line] {
        let (first, count) = self.ranges[location as usize];
        &self.lines[first as usize..(first + count) as usize]
    }

    /// The stacks that are shown: index, value, frames from the leaf on.
    pub fn stacks(&self) -> impl Iterator<Item = (usize, i64, &[u32])> + '_ {
        let columns = self.profile.sample_types.len();
        (0..self.spans.len())
            .filter(|&i| !self.dropped[i])
            .map(move |i| {
                let (from, to) = self.spans[i];
                let frames = &self.profile.stacks.get(i)[from as usize..to as usize];
                (i, self.profile.values[i * columns + self.column], frames)
            })
    }

    /// Variance of a stack's value by sampling; 0 where unknown or exact.
    pub fn variance(&self, stack: usize) -> f64 {
        self.variance_in(stack, self.column)
    }

    /// The same for another column.
    pub fn variance_in(&self, stack: usize, column: usize) -> f64 {
        let columns = self.profile.sample_types.len();
        let at = stack * columns + column;
        self.profile.variances.get(at).copied().unwrap_or(0.0)
    }

    /// Whether a stack is of the CPU profile beside the heap profile.
    pub fn is_beside(&self, stack: usize) -> bool {
        self.beside.get(stack).copied().unwrap_or(false)
    }

    /// Whether a location is left out of stacks.
    pub fn is_hidden(&self, location: u32) -> bool {
        self.hidden[location as usize]
    }

    /// The sum of magnitudes; of the base's stacks alone, where they are kept
    /// apart for comparison.
    fn sum_of_magnitudes(&self) -> i64 {
        let sum = |base_only: bool| {
            let base = |i: usize| !base_only || self.is_base(i);
            let values = self.stacks().filter(|&(i, _, _)| base(i));
            values.fold(0i64, |sum, (_, value, _)| {
                sum.saturating_add(value.saturating_abs())
            })
        };
        let compared = self.profile.labels.iter().any(|l| l.key == BASE_LABEL);
        match if compared { sum(true) } else { 0 } {
            0 => sum(false),
            base => base,
        }
    }

    /// Makes 100 % what is shown now.
    pub fn total_of_shown(&mut self) {
        self.relative = true;
        self.total = self.sum_of_magnitudes();
    }

    /// Whether 100 % is of this stack, too: of all of them, or of those that are shown.
    pub fn is_of_total(&self, stack: usize) -> bool {
        !self.relative || !self.dropped[stack]
    }

    /// Makes 100 % this much.
    pub fn set_total(&mut self, total: i64) {
        self.total = total;
    }

    /// The same view of another column; without the base's stacks where they
    /// are kept apart, unless `with_base`.
    pub fn of_column(&self, column: usize, with_base: bool) -> Self {
        let mut view = self.clone();
        view.column = column;
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
        let mut own = labels[start..]
            .iter()
            .take_while(|l| l.stack as usize == stack);
        own.any(|l| l.key == BASE_LABEL)
    }
}

/// A name without its parameter list.
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

fn column(profile: &Profile, wanted: Option<&str>) -> Result<usize> {
    let types = &profile.sample_types;
    let Some(wanted) = wanted else {
        if types.is_empty() {
            bail!("the profile has no values");
        }
        return Ok(profile.default_type.min(types.len() - 1));
    };
    // Profiles without allocated values call the ones in use plainly.
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
