//! Reduces the number of stacks of a profile for a receiver: the smallest stacks are folded into
//! one.

use std::collections::HashMap;

use crate::profile::{Function, Line, Location, Mapping, NO_MAPPING, Profile};

/// Name of the pseudo-frame that stands for the folded stacks.
pub const OTHER: &str = "[other]";

/// Returns the profile with at most `max_stacks` stacks, but at least one. Keeps the stacks with
/// the largest values, and sums up the others in one stack, whose only frame is [`OTHER`]. No total
/// changes.
///
/// Only the values of stacks are kept, no labels or details, so equal stacks should be merged
/// first. Locations, functions and mappings that are no longer used are dropped.
pub fn fold(profile: &Profile, max_stacks: usize) -> Profile {
    let count = profile.stacks.len();
    let columns = profile.sample_types.len();
    // A stack's weight is its largest share of any column.
    let totals: Vec<f64> = (0..columns)
        .map(|c| profile.total(c).max(1) as f64)
        .collect();
    let weight = |stack: usize| {
        let shares = profile.values_of(stack).iter().zip(&totals);
        shares
            .map(|(&v, total)| v.unsigned_abs() as f64 / total)
            .fold(0.0, f64::max)
    };
    let mut order: Vec<(f64, usize)> = (0..count).map(|s| (weight(s), s)).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let keep = if count <= max_stacks {
        count
    } else {
        max_stacks.saturating_sub(1)
    };
    let mut kept: Vec<usize> = order[..keep].iter().map(|&(_, stack)| stack).collect();
    kept.sort_unstable();
    let mut out = SubsetBuilder::new(profile);
    for stack in kept {
        let frames: Vec<u32> = profile
            .stacks
            .get(stack)
            .iter()
            .map(|&f| out.copy_location(f))
            .collect();
        out.push_stack(&frames, profile.values_of(stack));
    }
    if keep < count {
        let mut sums = vec![0i64; columns];
        for &(_, stack) in &order[keep..] {
            let values = sums.iter_mut().zip(profile.values_of(stack));
            values.for_each(|(sum, &value)| *sum = sum.saturating_add(value));
        }
        let other = out.add_other_location();
        out.push_stack(&[other], &sums);
    }
    out.profile
}

/// Builder of a profile with some of the stacks of another one.
struct SubsetBuilder<'a> {
    original: &'a Profile,
    profile: Profile,
    /// Index in `profile` of each location of `original`.
    locations: HashMap<u32, u32>,
    /// Index in `profile` of each function of `original`.
    functions: HashMap<u32, u32>,
    /// Index in `profile` of each mapping of `original`.
    mappings: HashMap<u32, u32>,
}

impl<'a> SubsetBuilder<'a> {
    fn new(original: &'a Profile) -> Self {
        let mut profile = original.without_stacks();
        profile.functions.clear();
        profile.mappings.clear();
        Self {
            original,
            profile,
            locations: HashMap::new(),
            functions: HashMap::new(),
            mappings: HashMap::new(),
        }
    }

    fn push_stack(&mut self, frames: &[u32], values: &[i64]) {
        frames
            .iter()
            .for_each(|&f| self.profile.stacks.push_frame(f));
        self.profile.stacks.close();
        self.profile.values.extend_from_slice(values);
    }

    fn copy_location(&mut self, number: u32) -> u32 {
        if let Some(&known) = self.locations.get(&number) {
            return known;
        }
        let location = self.original.locations[number as usize];
        let first_line = self.profile.lines.len() as u32;
        for line in self.original.lines_of(&location) {
            let function = self.copy_function(line.function);
            self.profile.lines.push(Line { function, ..*line });
        }
        let mapping = self.copy_mapping(location.mapping);
        let next = self.profile.locations.len() as u32;
        self.profile.locations.push(Location {
            mapping,
            first_line,
            ..location
        });
        self.locations.insert(number, next);
        next
    }

    fn copy_function(&mut self, number: u32) -> u32 {
        let next = self.profile.functions.len() as u32;
        *self.functions.entry(number).or_insert_with(|| {
            let function = self.original.functions[number as usize].clone();
            self.profile.functions.push(function);
            next
        })
    }

    /// Returns the index of a mapping. A location without one gets a mapping for unknown code,
    /// because receivers require one.
    fn copy_mapping(&mut self, number: u32) -> u32 {
        let known = self.original.mappings.get(number as usize);
        let number = if known.is_some() { number } else { NO_MAPPING };
        let next = self.profile.mappings.len() as u32;
        *self.mappings.entry(number).or_insert_with(|| {
            let unknown = || Mapping {
                end: u64::MAX,
                path: "[unknown]".into(),
                ..Mapping::default()
            };
            self.profile
                .mappings
                .push(known.cloned().unwrap_or_else(unknown));
            next
        })
    }

    /// Adds the location of the pseudo-frame.
    fn add_other_location(&mut self) -> u32 {
        let function = self.profile.functions.len();
        let first_line = self.profile.lines.len();
        self.profile.functions.push(Function {
            name: OTHER.to_owned(),
            ..Function::default()
        });
        self.profile.lines.push(Line {
            function: function as u32,
            ..Line::default()
        });
        let mapping = self.copy_mapping(NO_MAPPING);
        self.profile.locations.push(Location {
            address: 0,
            mapping,
            first_line: first_line as u32,
            line_count: 1,
        });
        self.profile.locations.len() as u32 - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Detail, ProfileBuilder};

    #[test]
    fn totals_are_kept_and_every_location_has_a_mapping() {
        let mut builder = ProfileBuilder::new(1);
        for n in 1..=100u64 {
            let detail = Detail {
                alloc_samples: n,
                alloc_objects: n as f64,
                alloc_bytes: (n * 100) as f64,
                ..Detail::default()
            };
            builder.stack([n << 12, 0xffff], &detail);
        }
        let profile = builder.finish();
        for max in [1, 2, 10, 99, 100, 1000] {
            let folded = fold(&profile, max);
            assert_eq!(folded.stacks.len(), max.min(100));
            for column in 0..4 {
                assert_eq!(folded.total(column), profile.total(column), "{max}");
            }
            let mapped = |l: &Location| (l.mapping as usize) < folded.mappings.len();
            assert!(folded.locations.iter().all(mapped));
        }
        // The largest stay.
        let folded = fold(&profile, 3);
        assert_eq!(folded.values_of(0)[1], 9900);
        assert_eq!(folded.values_of(1)[1], 10000);
        assert_eq!(folded.functions[0].name, OTHER);
    }
}
