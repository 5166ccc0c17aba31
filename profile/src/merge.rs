//! Combines several profiles into one: sums and differences.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::path::PathBuf;

use crate::detail::Detail;
use crate::elapsed::Clock;
use crate::nesting::{Nesting, StackRow};
use crate::profile::{
    BuildId, Cost, Facts, Format, Function, Label, LabelValue, Line, Location, Mapping, NO_MAPPING,
    Profile,
};
use crate::python::PYTHON_START;
use crate::sampling;
use crate::value_type::ValueType;

/// Key of the label of a base's stacks, as in pprof.
pub const BASE_LABEL: &str = "pprof::base";

/// Key of the label with the number of the dump that a stack is from.
pub const DUMP_LABEL: &str = "dump";

/// Error of combining profiles that have no column in common.
#[derive(Debug, thiserror::Error)]
#[error("the profiles have no values in common: {first} and {second}")]
pub struct MergeError {
    first: String,
    second: String,
}

/// Treatment of a base, whose values are subtracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Base {
    /// Equal stacks cancel out. Percentages relate to the remainder.
    Difference,
    /// Stacks of the base stay separate, labelled [`BASE_LABEL`]; their values are negated, but not
    /// their details. Percentages relate to the base.
    Comparison,
}

/// Returns the sum of `profiles`, of which there must be at least one. Merges equal stacks, and
/// mappings of one file at different addresses. Drops columns that are not in all profiles, and
/// stacks whose values are all zero.
pub fn merge(profiles: &[Profile]) -> Result<Profile, MergeError> {
    combine(profiles, &[], Base::Difference, false)
}

/// Returns the sum of `profiles` minus the sum of `bases`. Drops stacks whose values cancel out.
pub fn subtract(
    profiles: &[Profile],
    bases: &[Profile],
    base: Base,
) -> Result<Profile, MergeError> {
    combine(profiles, bases, base, false)
}

/// Returns the difference between two dumps of one session, like [`subtract`]. Objects that are in
/// both dumps contribute no sampling error.
pub fn change_within_session(
    early: &Profile,
    late: &Profile,
    base: Base,
) -> Result<Profile, MergeError> {
    let slice_of = std::slice::from_ref;
    combine(slice_of(late), slice_of(early), base, true)
}

/// Returns all stacks of `profiles` (at least one), each labelled [`DUMP_LABEL`] with the index of
/// its profile.
pub fn side_by_side(profiles: &[Profile]) -> Result<Profile, MergeError> {
    let mut merger = Merger::new(profiles, &[], Base::Difference)?;
    for (number, profile) in profiles.iter().enumerate() {
        let value = LabelValue::Number(number as i64, String::new());
        merger.add(profile, 1, Some((DUMP_LABEL, value)));
    }
    Ok(merger.finish())
}

fn combine(
    profiles: &[Profile],
    bases: &[Profile],
    base: Base,
    is_nested: bool,
) -> Result<Profile, MergeError> {
    let mut merger = Merger::new(profiles, bases, base)?;
    for profile in profiles {
        let numbers = merger.add(profile, 1, None);
        // Moments belong to one session, so a difference has none.
        if profiles.len() == 1 && (bases.is_empty() || base == Base::Comparison) {
            let number = |stack: u32| numbers.get(stack as usize).copied().flatten();
            let moments = profile.moments.iter().map(|m| m.renumbered(number));
            merger.out.moments = moments.collect();
        }
    }
    let mark = (BASE_LABEL, LabelValue::Text("true".into()));
    for profile in bases {
        let mark = (base == Base::Comparison).then(|| mark.clone());
        merger.add(profile, -1, mark);
    }
    if merger.has_variances && !bases.is_empty() {
        let nesting = if is_nested {
            Nesting::of_session(&merger.out)
        } else {
            Nesting::independent(&merger.out)
        };
        match base {
            Base::Difference => merger.set_errors(&nesting),
            Base::Comparison => merger.set_errors_of_pairs(&nesting),
        }
    }
    Ok(merger.finish())
}

/// Returns the columns that all profiles have, in the order of the first.
fn common_columns<'a>(
    mut profiles: impl Iterator<Item = &'a Profile> + Clone,
) -> Result<Vec<ValueType>, MergeError> {
    let Some(first) = profiles.next() else {
        return Ok(Vec::new());
    };
    let names = |p: &Profile| {
        p.sample_types
            .iter()
            .map(|t| t.kind.as_str())
            .collect::<Vec<_>>()
            .join(", ")
    };
    let mut common = first.sample_types.clone();
    for profile in profiles {
        common.retain(|t| profile.sample_types.contains(t));
        if common.is_empty() {
            return Err(MergeError {
                first: names(first),
                second: names(profile),
            });
        }
    }
    Ok(common)
}

/// Returns the cost of sampling in all sessions of `profiles`; `None` unless every profile has its
/// cost. Several dumps of one session count once, with the cost of the latest.
fn cost_of(profiles: &[Profile]) -> Option<Cost> {
    let mut costs = HashMap::new();
    for facts in profiles.iter().map(|profile| &profile.facts) {
        let session = (facts.pid, &facts.boot_id, facts.start_unix_ns);
        let cost = facts.cost?;
        let known = costs.entry(session).or_insert(cost);
        if cost.cpu_ns > known.cpu_ns {
            *known = cost;
        }
    }
    costs.into_values().reduce(|sum, cost| sum.plus(&cost))
}

/// Identity of a mapping across processes.
#[derive(PartialEq, Eq, Hash)]
pub(crate) struct MappingKey {
    /// Size in pages, because writers round differently.
    pages: u64,
    offset: u64,
    build_id: BuildId,
    /// Path, if there is no build id; otherwise empty.
    path: PathBuf,
}

impl MappingKey {
    pub(crate) fn new(m: &Mapping) -> Self {
        let path = if m.build_id.is_empty() {
            m.path.clone()
        } else {
            PathBuf::new()
        };
        let pages = m.end.saturating_sub(m.start).div_ceil(0x1000);
        Self {
            pages,
            offset: m.file_offset,
            build_id: m.build_id.clone(),
            path,
        }
    }
}

/// Identity of a stack in the sum.
#[derive(PartialEq, Eq, Hash)]
struct StackKey {
    frames: Vec<u32>,
    labels: Vec<(String, String, i64)>,
    block_size: i64,
}

/// Builder of the combined profile.
struct Merger {
    out: Profile,
    /// Set if details can be added up.
    has_details: bool,
    /// Set if variances can be added up.
    has_variances: bool,
    /// Values of the bases, in the order of the values of `out`; empty without variances.
    base_values: Vec<i64>,
    /// Variances of the bases' values, in the same order.
    base_variances: Vec<f64>,
    mappings: HashMap<MappingKey, u32>,
    functions: HashMap<Function, u32>,
    locations: HashMap<(u32, u64, Vec<Line>), u32>,
    stacks: HashMap<StackKey, u32>,
    /// Number of Python locations.
    python: u64,
    /// Clock of `span`.
    clock: Clock,
    /// Time from the first start of a session to the last end, in ns of `clock`.
    span: Option<Range<u64>>,
}

/// Indices in the combined profile of the parts of another one.
struct Renumbering {
    /// Index of the mapping, and the offset to add to addresses in it.
    mappings: Vec<(u32, u64)>,
    functions: Vec<u32>,
    locations: Vec<u32>,
}

impl Merger {
    fn new(profiles: &[Profile], bases: &[Profile], base: Base) -> Result<Self, MergeError> {
        let all = || profiles.iter().chain(bases);
        let first = &profiles[0];
        let columns = common_columns(all())?;
        let default = first.sample_types.get(first.default_type);
        let default_type = columns.iter().position(|t| Some(t) == default);
        let out = Profile {
            format: first.format,
            default_type: default_type.unwrap_or(columns.len().saturating_sub(1)),
            sample_types: columns,
            period_type: first.period_type.clone(),
            drop_frames: first.drop_frames.clone(),
            keep_frames: first.keep_frames.clone(),
            facts: Facts {
                start_unix_ns: None,
                end_unix_ns: None,
                end_boot_ns: None,
                duration_ns: None,
                cpu: sampling::sum(profiles.iter().map(|profile| profile.facts.cpu.as_ref())),
                cost: cost_of(profiles),
                ..first.facts.clone()
            },
            ..Profile::default()
        };
        let exact = |p: &Profile| p.details.len() == p.stacks.len();
        let has_variances = |p: &Profile| p.variances.len() == p.values.len();
        let clock = Clock::common_to(all().map(|profile| &profile.facts));
        Ok(Self {
            out,
            has_details: (bases.is_empty() || base == Base::Comparison) && all().all(exact),
            has_variances: all().all(has_variances),
            base_values: Vec::new(),
            base_variances: Vec::new(),
            mappings: HashMap::new(),
            functions: HashMap::new(),
            locations: HashMap::new(),
            stacks: HashMap::new(),
            python: 0,
            clock: clock.unwrap_or(Clock::System),
            span: None,
        })
    }

    /// Adds a profile, with its values multiplied by `sign` and its stacks labelled `mark`. Returns
    /// the index in the sum of each of its stacks; `None` for one without values.
    fn add(
        &mut self,
        profile: &Profile,
        sign: i64,
        mark: Option<(&str, LabelValue)>,
    ) -> Vec<Option<u32>> {
        self.out.period = self.out.period.max(profile.period);
        self.add_session(profile);
        let new = |c: &&String| !self.out.comments.contains(c);
        let comments: Vec<String> = profile.comments.iter().filter(new).cloned().collect();
        self.out.comments.extend(comments);
        let numbers = self.add_parts(profile);
        let columns: Vec<usize> = self
            .out
            .sample_types
            .iter()
            .filter_map(|t| profile.sample_types.iter().position(|known| known == t))
            .collect();
        let mut labels = profile.labels.iter().peekable();
        let mut stacks = vec![None; profile.stacks.len()];
        for (i, frames) in profile.stacks.iter().enumerate() {
            let mut labels_of_stack: Vec<Label> = Vec::new();
            while let Some(label) = labels.next_if(|l| l.stack as usize == i) {
                labels_of_stack.push(label.clone());
            }
            labels_of_stack.extend(mark.iter().map(|(key, value)| Label {
                stack: 0,
                key: (*key).to_owned(),
                value: value.clone(),
            }));
            let values = profile.values_of(i);
            if values.iter().all(|&v| v == 0) {
                continue;
            }
            let values = columns.iter().map(|&c| values[c].saturating_mul(sign));
            let frames = frames
                .iter()
                .map(|&f| numbers.locations[f as usize])
                .collect();
            // pprof does not merge stacks of different sizes. In this project's dumps a size is the
            // average of a stack, which differs from dump to dump.
            let sizes = profile.block_sizes.get(i).copied();
            let block_size = sizes.filter(|_| profile.format != Format::Dump);
            let stack = self.add_stack(frames, labels_of_stack, block_size);
            self.add_values(stack, values, profile.details.get(i));
            self.add_variances(profile, i, stack, &columns, sign < 0);
            stacks[i] = Some(stack as u32);
        }
        stacks
    }

    /// Adds the times of a session. The sum spans the time from the earliest start to the latest
    /// end. As in pprof, its duration is the sum of all sessions', including the bases', but at
    /// most that span, because sessions of several processes may overlap. The intervals are those
    /// of the latest dump if all are of one session.
    fn add_session(&mut self, profile: &Profile) {
        let out = &mut self.out.facts;
        let new = &profile.facts;
        let end = self.clock.end_ns(new);
        let is_later = end > self.span.as_ref().map(|span| span.end);
        let start = |facts: &Facts| facts.intervals.first().map(|p| p.from_unix_ns);
        if start(out) != start(new) {
            out.intervals.clear();
        } else if is_later {
            out.intervals.clone_from(&new.intervals);
        }
        if out.peak_ns != new.peak_ns {
            out.peak_ns = None;
        }
        out.thinning = out.thinning.max(new.thinning);
        out.python_hides = out.python_hides.max(new.python_hides);
        let start = out.start_unix_ns.into_iter().chain(new.start_unix_ns);
        out.start_unix_ns = start.min();
        out.end_unix_ns = out.end_unix_ns.max(new.end_unix_ns);
        if self.clock == Clock::Boot {
            out.end_boot_ns = out.end_boot_ns.max(new.end_boot_ns);
        }
        let lengths = out.duration_ns.into_iter().chain(new.duration_ns);
        let sum = lengths.reduce(u64::saturating_add);
        // If the system clock was set, a session may end before it starts.
        let session = end.filter(|_| new.start_unix_ns.is_some());
        let session = session.map(|end| end.saturating_sub(new.duration_ns.unwrap_or(0))..end);
        let joined = |session: &Range<u64>| match &self.span {
            Some(span) => span.start.min(session.start)..span.end.max(session.end),
            None => session.clone(),
        };
        let span = session.as_ref().map(joined);
        let limit = span.as_ref().map_or(u64::MAX, |span| span.end - span.start);
        out.duration_ns = sum.map(|sum| sum.min(limit));
        self.span = span.or(self.span.take());
    }

    fn add_parts(&mut self, profile: &Profile) -> Renumbering {
        let mappings = profile
            .mappings
            .iter()
            .map(|m| self.add_mapping(m))
            .collect();
        let functions = profile
            .functions
            .iter()
            .map(|f| self.add_function(f))
            .collect();
        let mut numbers = Renumbering {
            mappings,
            functions,
            locations: Vec::new(),
        };
        for location in &profile.locations {
            let number = self.add_location(profile, location, &numbers);
            numbers.locations.push(number);
        }
        numbers
    }

    /// Returns the index of a mapping, and the offset to add to addresses in it.
    fn add_mapping(&mut self, mapping: &Mapping) -> (u32, u64) {
        let next = self.out.mappings.len() as u32;
        match self.mappings.entry(MappingKey::new(mapping)) {
            Entry::Occupied(known) => {
                let number = *known.get();
                let start = self.out.mappings[number as usize].start;
                (number, start.wrapping_sub(mapping.start))
            }
            Entry::Vacant(slot) => {
                slot.insert(next);
                self.out.mappings.push(mapping.clone());
                (next, 0)
            }
        }
    }

    fn add_function(&mut self, function: &Function) -> u32 {
        let next = self.out.functions.len() as u32;
        let number = *self.functions.entry(function.clone()).or_insert(next);
        if number == next {
            self.out.functions.push(function.clone());
        }
        number
    }

    fn add_location(
        &mut self,
        profile: &Profile,
        location: &Location,
        numbers: &Renumbering,
    ) -> u32 {
        let (mapping, shift) = match location.mapping {
            NO_MAPPING => (NO_MAPPING, 0),
            i => numbers.mappings[i as usize],
        };
        // Each dump numbers its Python locations in its own way.
        let is_python = profile.is_python(location);
        let address = if is_python {
            PYTHON_START
        } else {
            location.address.wrapping_add(shift)
        };
        let renumber = |l: &Line| Line {
            function: numbers.functions[l.function as usize],
            ..*l
        };
        let lines: Vec<Line> = profile.lines_of(location).iter().map(renumber).collect();
        let next = self.out.locations.len() as u32;
        match self.locations.entry((mapping, address, lines)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(slot) => {
                let lines = &slot.key().2;
                let first_line = self.out.lines.len() as u32;
                let line_count = lines.len() as u32;
                self.out.lines.extend_from_slice(lines);
                self.python += u64::from(is_python);
                let address = if is_python {
                    PYTHON_START + self.python
                } else {
                    address
                };
                self.out.locations.push(Location {
                    address,
                    mapping,
                    first_line,
                    line_count,
                });
                *slot.insert(next)
            }
        }
    }

    /// Returns the index of the stack with these frames and labels; adds it if necessary.
    fn add_stack(
        &mut self,
        frames: Vec<u32>,
        labels: Vec<Label>,
        block_size: Option<i64>,
    ) -> usize {
        let label = |l: &Label| match &l.value {
            LabelValue::Text(text) => (l.key.clone(), text.clone(), 0),
            LabelValue::Number(n, unit) => (l.key.clone(), unit.clone(), *n),
        };
        let key = StackKey {
            frames,
            labels: labels.iter().map(label).collect(),
            block_size: block_size.unwrap_or(0),
        };
        let next = self.out.stacks.len() as u32;
        match self.stacks.entry(key) {
            Entry::Occupied(known) => *known.get() as usize,
            Entry::Vacant(slot) => {
                slot.key()
                    .frames
                    .iter()
                    .for_each(|&f| self.out.stacks.push_frame(f));
                self.out.stacks.close();
                let zeros = self.out.sample_types.len();
                self.out.values.extend(std::iter::repeat_n(0, zeros));
                self.out.block_sizes.push(block_size.unwrap_or(0));
                self.out
                    .labels
                    .extend(labels.into_iter().map(|l| Label { stack: next, ..l }));
                if self.has_variances {
                    self.base_values.extend(std::iter::repeat_n(0, zeros));
                    let zeros = std::iter::repeat_n(0.0, zeros);
                    self.base_variances.extend(zeros.clone());
                    self.out.variances.extend(zeros);
                }
                if self.has_details {
                    self.out.details.push(Detail::default());
                }
                slot.insert(next);
                next as usize
            }
        }
    }

    /// Adds values and details to a stack of the sum.
    fn add_values(
        &mut self,
        stack: usize,
        values: impl Iterator<Item = i64>,
        detail: Option<&Detail>,
    ) {
        let columns = self.out.sample_types.len();
        let sums = &mut self.out.values[stack * columns..(stack + 1) * columns];
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = sum.saturating_add(value);
        }
        if self.has_details
            && let Some(detail) = detail
        {
            self.out.details[stack].add(detail);
        }
    }

    /// Adds the variances of stack `from` of a dump or base to stack `to` of the sum.
    fn add_variances(
        &mut self,
        profile: &Profile,
        from: usize,
        to: usize,
        columns: &[usize],
        is_base: bool,
    ) {
        if !self.has_variances {
            return;
        }
        let width = columns.len();
        let profile_width = profile.sample_types.len();
        let range = to * width..(to + 1) * width;
        if is_base {
            let sums = self.base_values[range.clone()].iter_mut();
            for (sum, column) in sums.zip(columns) {
                *sum = sum.saturating_add(profile.values_of(from)[*column]);
            }
        }
        let all = if is_base {
            &mut self.base_variances
        } else {
            &mut self.out.variances
        };
        for (sum, column) in all[range].iter_mut().zip(columns) {
            *sum += profile.variances[from * profile_width + column];
        }
    }

    /// Returns the bases' part of a stack of the sum.
    fn base_row(&self, stack: usize) -> StackRow {
        let width = self.out.sample_types.len();
        let range = stack * width..(stack + 1) * width;
        let values = self.base_values[range.clone()].iter().copied();
        StackRow::new(values, &self.base_variances[range])
    }

    /// Returns the dumps' part of a stack of the sum.
    fn dump_row(&self, stack: usize) -> StackRow {
        let width = self.out.sample_types.len();
        let range = stack * width..(stack + 1) * width;
        let sums = self.out.values[range.clone()].iter();
        let values = sums.zip(&self.base_values[range.clone()]);
        let values = values.map(|(sum, base)| sum.saturating_add(*base));
        StackRow::new(values, &self.out.variances[range])
    }

    /// Sets errors and variances if the bases' stacks were subtracted from those of the dumps.
    fn set_errors(&mut self, nesting: &Nesting) {
        let mut errors = Vec::with_capacity(self.out.values.len());
        for stack in 0..self.out.stacks.len() {
            errors.extend(nesting.errors(&self.base_row(stack), &self.dump_row(stack)));
        }
        self.out.variances = errors.iter().map(|error| error.variance).collect();
        self.out.errors = errors;
    }

    /// Sets errors and variances if the bases' stacks are separate, with [`BASE_LABEL`] as their
    /// last label. If a stack is in both, the dump's stack gets the error of the difference, and
    /// the base's stack gets none.
    fn set_errors_of_pairs(&mut self, nesting: &Nesting) {
        let width = self.out.sample_types.len();
        let mut bases: Vec<Option<usize>> = vec![None; self.out.stacks.len()];
        let mut is_paired = vec![false; bases.len()];
        for (key, &base) in &self.stacks {
            let marked = key.labels.last().is_some_and(|label| label.0 == BASE_LABEL);
            if !marked {
                continue;
            }
            let unmarked_key = StackKey {
                frames: key.frames.clone(),
                labels: key.labels[..key.labels.len() - 1].to_vec(),
                block_size: key.block_size,
            };
            if let Some(&stack) = self.stacks.get(&unmarked_key) {
                bases[stack as usize] = Some(base as usize);
                is_paired[base as usize] = true;
            }
        }
        let nothing = StackRow::new(std::iter::repeat_n(0, width), &vec![0.0; width]);
        let mut errors = Vec::with_capacity(self.out.values.len());
        for (stack, base) in bases.iter().enumerate() {
            let early = match base {
                Some(base) => self.base_row(*base),
                None => self.base_row(stack),
            };
            if is_paired[stack] {
                errors.extend(nesting.errors(&nothing, &nothing));
            } else {
                errors.extend(nesting.errors(&early, &self.dump_row(stack)));
            }
        }
        self.out.errors = errors;
        let variances = self.out.variances.iter_mut();
        for (sum, base) in variances.zip(&self.base_variances) {
            *sum += base;
        }
    }

    fn finish(mut self) -> Profile {
        if self.out.block_sizes.iter().all(|&size| size == 0) {
            self.out.block_sizes.clear();
        }
        drop_zero_stacks(self.out)
    }
}

/// Drops stacks whose values have cancelled out, like pprof.
fn drop_zero_stacks(mut profile: Profile) -> Profile {
    let is_zero = |p: &Profile, stack| p.values_of(stack).iter().all(|&v| v == 0);
    let stacks = 0..profile.stacks.len();
    if !stacks.clone().any(|stack| is_zero(&profile, stack)) {
        return profile;
    }
    let mut kept = profile.without_stacks();
    let mut numbers = vec![None; profile.stacks.len()];
    for stack in stacks.filter(|&stack| !is_zero(&profile, stack)) {
        numbers[stack] = Some(kept.stacks.len() as u32);
        kept.push_stack_of(&profile, stack, profile.stacks.get(stack));
    }
    let number = |stack: u32| numbers.get(stack as usize).copied().flatten();
    let moments = profile.moments.iter().map(|m| m.renumbered(number));
    kept.moments = moments.collect();
    kept.locations = std::mem::take(&mut profile.locations);
    kept.lines = std::mem::take(&mut profile.lines);
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(pid: u32, cost: Option<Cost>) -> Profile {
        let mut profile = crate::ProfileBuilder::new(1024).finish();
        profile.facts = Facts {
            pid: Some(pid),
            start_unix_ns: Some(1),
            cost,
            ..Facts::default()
        };
        profile
    }

    #[test]
    fn the_cost_of_a_sum_is_that_of_all_its_sessions() {
        let cost = |cpu_ns, spent_ns, error_ns| {
            Some(Cost {
                cpu_ns,
                spent_ns,
                error_ns,
            })
        };
        let [first, later] = [cost(100, 10, 3), cost(200, 20, 3)];
        let other = session(2, cost(800, 30, 4));
        // Of one session, the latest dump has all of it.
        let one = [session(1, later), session(1, first)];
        assert_eq!(merge(&one).unwrap().facts.cost, later);
        let two = [session(1, first), other.clone(), session(1, later)];
        assert_eq!(merge(&two).unwrap().facts.cost, cost(1000, 50, 5));
        let unknown = [other, session(3, None)];
        assert_eq!(merge(&unknown).unwrap().facts.cost, None);
    }
}
