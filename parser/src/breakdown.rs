//! Breaks a view's allocations down by size class, thread and function.

use std::collections::BTreeMap;

use profile::variance::SamplingError;
use profile::{Detail, LabelValue, Profile, THREAD_LABEL};

use crate::nodes::Nodes;
use crate::suspects::site::UserCode;
use crate::view::{View, ViewStack};

/// Sums over some stacks.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sums {
    /// Sum of each column of the profile.
    pub values: Vec<i64>,
    /// Sum of each column over the stacks of a base, which have negative values. Positive here.
    pub base: Vec<i64>,
    /// Sampling error of each sum or, if there is a base, of its change.
    pub errors: Vec<SamplingError>,
    /// Exact values, without those of a base. Only dumps of this project have them.
    pub detail: Detail,
    /// Variance of the number of short-lived objects, estimated from that of all objects: assumes
    /// that the samples of both have the same weights.
    pub short_lived_variance: f64,
}

impl Sums {
    fn add(&mut self, profile: &Profile, stack: usize) {
        let values = profile.values_of(stack);
        self.values.resize(values.len(), 0);
        for (sum, value) in self.values.iter_mut().zip(values) {
            *sum = sum.saturating_add(*value);
        }
        self.base.resize(values.len(), 0);
        for (sum, value) in self.base.iter_mut().zip(values) {
            *sum = sum.saturating_sub((*value).min(0));
        }
        self.errors.resize(values.len(), SamplingError::default());
        for (column, sum) in self.errors.iter_mut().enumerate() {
            *sum += profile.error(stack, column);
        }
        let is_base_stack = values.iter().any(|value| *value < 0);
        if !is_base_stack && let Some(detail) = profile.details.get(stack) {
            self.detail.add(detail);
            let share = detail.short_lived_objects / detail.alloc_objects;
            let variance = detail.alloc_object_variance * share.clamp(0.0, 1.0);
            if variance.is_finite() {
                self.short_lived_variance += variance;
            }
        }
    }

    /// Returns the sampling error of a column's sum.
    pub fn sampling_error(&self, column: usize) -> SamplingError {
        self.errors.get(column).copied().unwrap_or_default()
    }

    /// Returns the half-width of the 95 % confidence interval of a column's sum; 0 if it is exact
    /// or unknown.
    pub fn error(&self, column: usize) -> i64 {
        self.sampling_error(column).half_width().round() as i64
    }

    /// Returns the share of allocated objects that were short-lived, 0 to 1.
    pub fn short_lived(&self) -> f64 {
        let share = self.detail.short_lived_objects / self.detail.alloc_objects;
        Some(share)
            .filter(|s| s.is_finite())
            .unwrap_or(0.0)
            .clamp(0.0, 1.0)
    }

    /// Formats the percentage of allocated objects that were short-lived; `~` marks one that rests
    /// on few samples.
    pub fn short_lived_percent(&self) -> String {
        let percent = self.short_lived() * 100.0;
        format!(
            "{}{percent:.0}",
            few_samples_mark(has_few_samples(&self.detail))
        )
    }

    /// Returns true if shares of the objects rest on few samples.
    pub fn has_few_samples(&self) -> bool {
        has_few_samples(&self.detail)
    }

    /// Returns the mean lifetime of freed objects, in milliseconds.
    pub fn lifetime(&self) -> Option<f64> {
        let mean = self.detail.freed_lifetime_ms_sum / self.detail.freed_objects;
        Some(mean).filter(|mean| mean.is_finite() && *mean >= 0.0)
    }
}

/// Sums by size class; see [`class_name`].
pub type BySize = BTreeMap<u32, Sums>;

/// Sums the stacks of a view by size class. Returns `None` if its profile has no sizes, or only
/// average ones.
pub fn by_size(view: &View) -> Option<BySize> {
    let profile = view.profile();
    if !knows_sizes(profile) {
        return None;
    }
    let mut sizes = BySize::new();
    for ViewStack { index: stack, .. } in view
        .stacks()
        .filter(|stack| !view.is_cpu_stack(stack.index))
    {
        let class = size_class(profile, stack);
        sizes.entry(class).or_default().add(profile, stack);
    }
    Some(sizes)
}

/// Returns true if the objects of each stack of the profile are of one size class.
fn knows_sizes(profile: &Profile) -> bool {
    profile.split_by_size_class && profile.block_sizes.len() == profile.stacks.len()
}

/// Returns the size class of a stack's objects, which are all of one class.
fn size_class(profile: &Profile, stack: usize) -> u32 {
    match profile.details.get(stack) {
        Some(detail) if detail.alloc_objects > 0.0 => class_of_mean(
            detail.alloc_samples,
            detail.alloc_objects,
            detail.alloc_bytes,
        ),
        _ => (profile.block_sizes[stack].max(1) as u64).ilog2(),
    }
}

/// Returns the maximum rounding error of a mean size, in bytes. A dump has three decimals of
/// objects and bytes, and the agent rounds each sample's weight to 4096ths of an object and 256ths
/// of a byte.
pub fn rounding_of_mean(samples: u64, objects: f64, bytes: f64) -> f64 {
    const DECIMALS: f64 = 0.001;
    let object_rounding = DECIMALS + samples as f64 / 4096.0;
    let byte_rounding = DECIMALS + samples as f64 / 256.0;
    (bytes / objects * object_rounding + byte_rounding) / objects
}

/// Returns the size class of objects that are all of one class. Sizes are integers, so a mean that
/// rounding may have moved below a power of two counts as that power.
fn class_of_mean(samples: u64, objects: f64, bytes: f64) -> u32 {
    let mean = bytes / objects;
    let class = (mean as u64).max(1).ilog2();
    let next = 2.0_f64.powi(class as i32 + 1);
    let is_next = mean + rounding_of_mean(samples, objects, bytes) >= next;
    class + u32::from(class < 63 && is_next)
}

/// Formats the sizes of a class: `64-127 B`, `1-2 KiB`.
pub fn class_name(class: u32) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let unit = (class / 10).min(6) as usize;
    let low = 1u64 << (class % 10);
    match class {
        0 => "0-1 B".to_owned(),
        1..10 => format!("{low}-{} B", 2 * low - 1),
        _ => format!("{low}-{} {}", 2 * low, UNITS[unit]),
    }
}

/// Sums the stacks of a view by thread name. Returns `None` if its profile has no threads.
pub fn by_thread(owners: &OwnerFinder) -> Option<BTreeMap<String, Breakdown>> {
    let view = owners.view;
    let profile = view.profile();
    let single_thread = match profile.facts.threads.as_slice() {
        [thread] => Some(thread.title()),
        _ => None,
    };
    let names = thread_names(profile);
    if names.is_empty() && single_thread.is_none() && !profile.stacks.is_empty() {
        return None;
    }
    let mut threads: BTreeMap<String, Breakdown> = BTreeMap::new();
    for ViewStack {
        index: stack,
        frames,
        ..
    } in view.stacks()
    {
        let name = names.get(stack).copied().flatten();
        let name = name
            .or(single_thread.as_deref())
            .unwrap_or(profile::OTHER_THREADS);
        let thread = threads.entry(name.to_owned()).or_default();
        thread.total.add(profile, stack);
        if let Some(entry) = owners.owner_of(frames) {
            thread.parts.entry(entry).or_default().add(profile, stack);
        }
    }
    Some(threads)
}

/// Returns the name of each stack's thread. Empty if no stack has one.
fn thread_names(profile: &Profile) -> Vec<Option<&str>> {
    let is_thread = |label: &&profile::Label| label.key == THREAD_LABEL;
    let mut names = Vec::new();
    for label in profile.labels.iter().filter(is_thread) {
        names.resize(profile.stacks.len(), None);
        if let (LabelValue::Text(name), Some(slot)) =
            (&label.value, names.get_mut(label.stack as usize))
        {
            *slot = Some(name.as_str());
        }
    }
    names
}

/// Sums of a function or thread, in total and by part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Breakdown {
    /// Total.
    pub total: Sums,
    /// For a function: sums by size class. For a thread: sums by owning function, as an entry of
    /// [`Nodes`].
    pub parts: BTreeMap<u32, Sums>,
}

/// Sums the stacks of a view by the function that owns them, and by size class where sizes are
/// known.
pub fn by_function(owners: &OwnerFinder) -> BTreeMap<u32, Breakdown> {
    let view = owners.view;
    let profile = view.profile();
    let sized = knows_sizes(profile);
    let mut functions: BTreeMap<u32, Breakdown> = BTreeMap::new();
    for ViewStack {
        index: stack,
        frames,
        ..
    } in view
        .stacks()
        .filter(|stack| !view.is_cpu_stack(stack.index))
    {
        let Some(entry) = owners.owner_of(frames) else {
            continue;
        };
        let function = functions.entry(entry).or_default();
        function.total.add(profile, stack);
        if sized {
            let class = size_class(profile, stack);
            function.parts.entry(class).or_default().add(profile, stack);
        }
    }
    functions
}

/// Finds the function that a stack is attributed to: its owner.
pub struct OwnerFinder<'a> {
    view: &'a View,
    nodes: &'a Nodes,
    /// Finds the user's own code. `None`: the function that allocates owns a stack, whoever called
    /// it.
    own: Option<UserCode>,
}

impl<'a> OwnerFinder<'a> {
    /// Makes the innermost function of the user's own code the owner of a stack; the allocating
    /// function if there is none or if `all_frames` is set.
    pub fn new(view: &'a View, nodes: &'a Nodes, all_frames: bool) -> Self {
        let own = (!all_frames).then(|| UserCode::new(view.profile()));
        Self { view, nodes, own }
    }

    /// Returns the entry of a stack's owner.
    pub fn owner_of(&self, frames: &[u32]) -> Option<u32> {
        self.own_entry(frames).or_else(|| {
            let leaf = frames.iter().find(|&&frame| !self.view.is_hidden(frame))?;
            self.nodes.of_location(*leaf).first().copied()
        })
    }

    fn own_entry(&self, frames: &[u32]) -> Option<u32> {
        let own = self.own.as_ref()?;
        let line = own.innermost_line(self.view, frames);
        let function = line.map(|line| line.function);
        let function = function.or_else(|| own.innermost_function(self.view, frames))?;
        let mut visible = frames.iter().filter(|&&frame| !self.view.is_hidden(frame));
        visible.find_map(|&frame| {
            let mut lines = self.view.lines(frame).iter();
            let depth = lines.position(|line| line.function == function)?;
            let entries = self.nodes.of_location(frame);
            // Inlined functions may be merged into their caller.
            entries.get(depth).or(entries.last()).copied()
        })
    }
}

/// Minimum number of samples of a share that is printed without a mark.
const MIN_SAMPLES: u64 = 10;

/// Returns true if shares of the objects rest on few samples, and not on all objects.
pub fn has_few_samples(detail: &Detail) -> bool {
    let unseen = detail.alloc_objects - detail.alloc_samples as f64;
    detail.alloc_samples > 0 && detail.alloc_samples < MIN_SAMPLES && unseen > 0.5
}

/// Returns the mark in front of a share: `~` if it rests on few samples.
pub fn few_samples_mark(has_few_samples: bool) -> &'static str {
    if has_few_samples { "~" } else { "" }
}

#[cfg(test)]
mod tests {
    use profile::{Function, Line, ProfileBuilder};

    use super::*;
    use crate::nodes::Granularity;

    #[test]
    fn classes_have_names() {
        let names = [0, 1, 2, 6, 9, 10, 13, 19, 20, 30, 47, 63].map(class_name);
        let expected = [
            "0-1 B",
            "2-3 B",
            "4-7 B",
            "64-127 B",
            "512-1023 B",
            "1-2 KiB",
            "8-16 KiB",
            "512-1024 KiB",
            "1-2 MiB",
            "1-2 GiB",
            "128-256 TiB",
            "8-16 EiB",
        ];
        assert_eq!(names, expected);
    }

    /// Uses sums over objects of one size, rounded as in a dump, for many sample counts and
    /// intervals.
    #[test]
    fn objects_of_exactly_a_power_of_two_are_in_its_class() {
        let sum = |samples: f64, value: f64, one: f64| {
            let counted = samples * (value * one).round() / one;
            (counted * 1000.0).round() / 1000.0
        };
        for (interval, samples, power) in (1..1000).flat_map(|n| {
            [1.0, 64.0, 1000.0, 1024.0, 65536.0].map(|interval| (interval, f64::from(n), n % 30))
        }) {
            let size = f64::from(1u32 << power);
            let estimated_class = |size: f64| {
                let weight = 1.0 / (1.0 - (-size / interval).exp());
                let objects = sum(samples, weight, 4096.0);
                class_of_mean(samples as u64, objects, sum(samples, weight * size, 256.0))
            };
            assert_eq!(
                estimated_class(size),
                power,
                "{samples} samples of {size} at {interval}"
            );
            // The next smaller size is distinguished, unless the dump has too few decimals.
            if (2.0..300.0).contains(&size) {
                assert_eq!(
                    estimated_class(size - 1.0),
                    power - 1,
                    "{size} - 1 at {interval}"
                );
            }
        }
        assert_eq!(class_of_mean(1, 1e-9, f64::MAX), 63);
        assert_eq!(class_of_mean(1, 1.0, f64::NAN), 0);
    }

    #[test]
    fn stacks_belong_to_the_innermost_function_of_the_users_own_code() {
        const VECTOR: &str = "/usr/include/c++/12/bits/stl_vector.h";
        let function = |name: &str, file: &str| Function {
            name: name.into(),
            file: file.into(),
            ..Function::default()
        };
        let line = |function| Line {
            function,
            line: 7,
            column: 0,
        };
        let mut builder = ProfileBuilder::new(1);
        let places = [0x1000, 0x2000, 0x3000].map(|address| builder.location(address));
        let [filled, started, bare] = places;
        for (stack, bytes) in [
            (&[filled, started][..], 100.0),
            (&[started], 10.0),
            (&[bare], 1.0),
        ] {
            let detail = Detail {
                alloc_samples: 1,
                alloc_objects: 1.0,
                alloc_bytes: bytes,
                ..Detail::default()
            };
            builder.stack_of(stack, &detail);
        }
        let mut profile = builder.finish();
        profile.functions = vec![
            function("std::vector::push_back", VECTOR),
            function("Cache::fill", "/src/cache.cpp"),
            function("main", "/src/main.cpp"),
        ];
        profile.lines = vec![line(0), line(1), line(2)];
        // The library's function is inlined at the first place.
        for (location, (first, count)) in profile.locations.iter_mut().zip([(0, 2), (2, 1), (0, 1)])
        {
            location.first_line = first;
            location.line_count = count;
        }
        let view = View::new(profile, None).unwrap();
        let nodes = Nodes::new(&view, Granularity::Usual, true, false);
        let owned = |all_frames| -> Vec<(String, i64)> {
            let sums = by_function(&OwnerFinder::new(&view, &nodes, all_frames)).into_iter();
            let named = sums.map(|(entry, owner)| (nodes.name(entry), owner.total.values[1]));
            named
                .map(|(name, value)| (name.to_owned(), value))
                .collect()
        };
        let library = "std::vector::push_back".to_owned();
        let own = ("Cache::fill".to_owned(), 100);
        let main = ("main".to_owned(), 10);
        assert_eq!(owned(false), [(library.clone(), 1), own, main.clone()]);
        assert_eq!(owned(true), [(library, 101), main]);
    }

    #[test]
    fn shares_of_nan_are_zero() {
        let mut sums = Sums::default();
        assert_eq!((sums.short_lived(), sums.lifetime()), (0.0, None));
        sums.detail.short_lived_objects = 5.0;
        sums.detail.alloc_objects = 2.0;
        assert_eq!(sums.short_lived(), 1.0);
        sums.detail.alloc_objects = f64::NAN;
        assert_eq!(sums.short_lived(), 0.0);
    }

    #[test]
    fn shares_of_few_samples_are_marked() {
        let percent = |alloc_samples, alloc_objects, short_lived_objects| {
            let detail = Detail {
                alloc_samples,
                alloc_objects,
                short_lived_objects,
                ..Detail::default()
            };
            let sums = Sums {
                detail,
                ..Sums::default()
            };
            sums.short_lived_percent()
        };
        assert_eq!(percent(4, 40.0, 10.0), "~25");
        assert_eq!(percent(10, 40.0, 10.0), "25");
        // Every object is sampled.
        assert_eq!(percent(4, 4.0, 1.0), "25");
    }
}
