//! Leak suspects: stacks ranked by live bytes that stay, age and grow.
//!
//! All outputs use the same score. [`find`] adds up the stacks of a view that have equal entries,
//! and ranks them:
//!
//! - The *score* is the live bytes, times the fraction of its allocations that the stack keeps,
//!   times `age / (age + lifetime)`: the mean age of live objects compared with the mean lifetime
//!   of freed ones. Old bytes that are never freed count in full.
//! - With several dumps of one process, the live bytes are replaced by the proven growth: the lower
//!   95 % confidence bound of the slope of a line through the points ([`growth`]), times the time
//!   between the first and the last dump. Steadily growing stacks come first, followed by the
//!   others in the order of their scores without growth.
//!
//! Limits: ages are only in this project's dumps; without them, the score is the kept fraction of
//! the live bytes. A cache that fills looks like a leak until it is full.

#[cfg(test)]
mod coverage;
pub mod growth;
pub mod site;

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};

use profile::merge::{BASE_LABEL, DUMP_LABEL};
use profile::variance::half_width;
use profile::{Detail, LabelValue, Profile, age};

use crate::breakdown;
use crate::nodes::Nodes;
use crate::view::{View, ViewStack};
use growth::{Growth, Point};
use site::{Site, UserCode};

/// Maximum number of stacks to examine: those with the most live bytes.
const MAX_STACKS: usize = 20_000;

/// A stack that may leak.
#[derive(Clone, Debug)]
pub struct Suspect {
    /// Entries of the stack, innermost first.
    pub entries: Vec<u32>,
    /// Line of the user's own code that allocates, in the largest of the stacks that were added up.
    pub site: Option<Site>,
    /// Score that orders the suspects, in bytes.
    pub score: f64,
    /// Score if growth is ignored, in bytes.
    pub score_without_growth: f64,
    /// Live bytes in the last dump.
    pub bytes: f64,
    /// Half-width of the 95 % confidence interval of `bytes`.
    pub error: f64,
    /// Live objects.
    pub objects: f64,
    /// Live samples; `None` if the format has none.
    pub samples: Option<u64>,
    /// Fraction of the allocated bytes that is live.
    pub kept: f64,
    /// True if `kept` rests on few samples.
    pub has_few_samples: bool,
    /// Mean age of live objects in milliseconds; `None` if the format has none.
    pub age: Option<f64>,
    /// Half-width of the 95 % confidence interval of `age`; `None` if it is not known.
    pub age_error: Option<f64>,
    /// Mean lifetime of freed objects in milliseconds; `None` if none was freed.
    pub lifetime: Option<f64>,
    /// Growth from dump to dump; `None` for a single dump.
    pub growth: Option<Growth>,
}

/// Suspects of a view.
#[derive(Clone, Debug)]
pub struct Found {
    /// The suspects, worst first.
    pub suspects: Vec<Suspect>,
    /// Stacks that were not examined, since many others hold more.
    pub others: Others,
}

impl Found {
    /// Returns the number of all stacks with live bytes.
    pub fn stacks(&self) -> usize {
        self.suspects.len() + self.others.stacks
    }
}

/// Sums of stacks that were not examined.
#[derive(Clone, Copy, Debug, Default)]
pub struct Others {
    /// Number of different stacks.
    pub stacks: usize,
    /// Live bytes in the last dump.
    pub bytes: f64,
}

/// Returns the suspects of a view. Returns `None` if the profile is not a heap profile.
///
/// `moments` are the times in seconds of the dumps that the view's labels refer to, in ascending
/// order; the base of a comparison is the first. With fewer than two, growth is unknown.
pub fn find(view: &View, nodes: &Nodes, moments: &[f64]) -> Option<Found> {
    let columns = Columns::find(view.profile())?;
    let gathered = gather(view, nodes, &columns, moments.len().max(1));
    let mut suspects: Vec<Suspect> = gathered
        .examined
        .into_iter()
        .map(|(entries, sums)| sums.into_suspect(entries, moments))
        .filter(|s| s.bytes > 0.0)
        .collect();
    suspects.sort_by(|a, b| {
        (b.score.total_cmp(&a.score))
            .then(b.score_without_growth.total_cmp(&a.score_without_growth))
            .then_with(|| a.entries.cmp(&b.entries))
    });
    Some(Found {
        suspects,
        others: gathered.others,
    })
}

/// Stacks of a view, added up by their entries.
struct Gathered {
    /// Sums of the examined stacks, by entries.
    examined: HashMap<Vec<u32>, Sums>,
    others: Others,
}

/// Columns of a heap profile.
struct Columns {
    objects: usize,
    bytes: usize,
    allocated: Option<usize>,
}

impl Columns {
    fn find(profile: &Profile) -> Option<Self> {
        let either = |a: &str, b: &str| profile.type_index(a).or_else(|| profile.type_index(b));
        Some(Self {
            objects: either("inuse_objects", "objects")?,
            bytes: either("inuse_space", "space")?,
            allocated: profile.type_index("alloc_space"),
        })
    }
}

/// Sums of stacks with equal entries.
#[derive(Default)]
struct Sums {
    site: Option<Site>,
    /// Values in each dump. Times are set later, when all are known.
    points: Vec<Point>,
    /// Values in the last dump.
    last: LastDump,
}

/// Values of a stack in the last dump.
#[derive(Default)]
struct LastDump {
    objects: f64,
    allocated: f64,
    detail: Option<Detail>,
}

fn gather(view: &View, nodes: &Nodes, columns: &Columns, dumps: usize) -> Gathered {
    let profile = view.profile();
    let own = UserCode::new(profile);
    let numbers = dump_numbers(profile, dumps);
    let bytes = |stack: usize| profile.values_of(stack)[columns.bytes].unsigned_abs();
    let live = view.stacks().filter(|stack| bytes(stack.index) > 0);
    let mut largest: Vec<ViewStack> = live.collect();
    largest.sort_by_key(|stack| (std::cmp::Reverse(bytes(stack.index)), stack.index));
    let examined = MAX_STACKS.saturating_mul(dumps).min(largest.len());
    let smaller = largest.split_off(examined);
    let entries = |frames: &[u32]| -> Vec<u32> {
        let visible = frames.iter().filter(|&&f| !view.is_hidden(f));
        let entries = visible.flat_map(|&f| nodes.of_location(f).iter().copied());
        entries.collect()
    };
    let number = |stack: usize| numbers.get(stack).copied().unwrap_or(dumps - 1);
    let mut sums_by_stack: HashMap<Vec<u32>, Sums> = HashMap::new();
    for ViewStack {
        index: stack,
        frames,
        ..
    } in largest
    {
        let sums = sums_by_stack
            .entry(entries(frames))
            .or_insert_with(|| Sums {
                site: own.innermost_site(view, frames),
                ..Sums::default()
            });
        sums.count(profile, stack, columns, number(stack), dumps);
    }
    // Smaller stacks, and those whose objects were all freed, may have the entries of an examined
    // stack, with objects of other sizes or threads. They are added to it.
    let freed = view.stacks().filter(|stack| bytes(stack.index) == 0);
    let mut others = Others::default();
    let mut different = HashSet::new();
    for ViewStack {
        index: stack,
        frames,
        ..
    } in smaller.into_iter().chain(freed)
    {
        let entries = entries(frames);
        if let Some(sums) = sums_by_stack.get_mut(&entries) {
            sums.count(profile, stack, columns, number(stack), dumps);
        } else if number(stack) + 1 == dumps && bytes(stack) > 0 {
            others.bytes += bytes(stack) as f64;
            // Counts by hash, because the entries themselves would take much memory.
            different.insert(BuildHasherDefault::<DefaultHasher>::default().hash_one(&entries));
        }
    }
    others.stacks = different.len();
    Gathered {
        examined: sums_by_stack,
        others,
    }
}

/// Returns for each stack the index of its dump; the last one if it has no label, and `dumps` if
/// the stack is to be ignored.
fn dump_numbers(profile: &Profile, dumps: usize) -> Vec<usize> {
    let mut numbers = vec![dumps - 1; profile.stacks.len()];
    for label in &profile.labels {
        let number = match (&label.value, label.key.as_str()) {
            (LabelValue::Number(n, _), DUMP_LABEL) => usize::try_from(*n).unwrap_or(dumps),
            // A single dump cannot be ordered relative to its base, which is ignored.
            (_, BASE_LABEL) if dumps == 1 => dumps,
            (_, BASE_LABEL) => 0,
            _ => continue,
        };
        numbers[label.stack as usize] = number;
    }
    numbers
}

impl Sums {
    fn count(
        &mut self,
        profile: &Profile,
        stack: usize,
        columns: &Columns,
        number: usize,
        dumps: usize,
    ) {
        self.points.resize(dumps, Point::default());
        let values = profile.values_of(stack);
        let width = values.len();
        let Some(point) = self.points.get_mut(number) else {
            return;
        };
        let variance = profile.variances.get(stack * width + columns.bytes);
        // The base of a comparison has negative values.
        point.bytes += values[columns.bytes].unsigned_abs() as f64;
        point.variance += variance.copied().unwrap_or(0.0);
        let column = columns.allocated.filter(|_| !profile.details.is_empty());
        let variance = column.and_then(|at| profile.variances.get(stack * width + at));
        if let (Some(column), Some(variance)) = (column, variance) {
            *point.allocated_variance.get_or_insert(0.0) += variance;
            point.allocated_bytes += values[column].unsigned_abs() as f64;
        }
        if number + 1 != dumps {
            return;
        }
        let magnitude = |column: usize| values[column].unsigned_abs() as f64;
        self.last.objects += magnitude(columns.objects);
        self.last.allocated += columns.allocated.map_or(0.0, magnitude);
        let details = profile.details.get(stack);
        if let Some(detail) = details.filter(|_| !profile.is_of_go()) {
            self.last.detail.get_or_insert_default().add(detail);
        }
    }

    fn into_suspect(mut self, entries: Vec<u32>, moments: &[f64]) -> Suspect {
        let LastDump {
            objects,
            allocated,
            detail,
        } = self.last;
        let last = self.points.last().copied().unwrap_or_default();
        let kept = if allocated > 0.0 {
            ratio(last.bytes, allocated).min(1.0)
        } else {
            1.0
        };
        let (age, lifetime) = detail.as_ref().map_or((None, None), ages);
        let age_factor = match (age, lifetime) {
            (Some(age), Some(lifetime)) => ratio(age, age + lifetime),
            _ => 1.0,
        };
        for (point, at) in self.points.iter_mut().zip(moments) {
            point.at = *at;
        }
        let growth = (moments.len() > 1)
            .then(|| growth::fit(&self.points))
            .flatten();
        let weight = kept * age_factor;
        let score_without_growth = last.bytes * weight;
        Suspect {
            entries,
            site: self.site,
            score: growth.map_or(score_without_growth, |g| {
                g.proven_bytes().min(last.bytes) * weight
            }),
            score_without_growth,
            bytes: last.bytes,
            error: half_width(last.bytes, last.variance),
            objects,
            samples: detail.as_ref().map(Detail::live_samples),
            kept,
            has_few_samples: detail.as_ref().is_some_and(breakdown::has_few_samples),
            age,
            age_error: detail.as_ref().and_then(age::error),
            lifetime,
            growth,
        }
    }
}

/// Returns the mean age of live objects and, if any were freed, their mean lifetime, in
/// milliseconds.
fn ages(detail: &Detail) -> (Option<f64>, Option<f64>) {
    let age = detail.mean_age_ms();
    let freed = (detail.freed_objects > 0.0)
        .then(|| ratio(detail.freed_lifetime_ms_sum, detail.freed_objects));
    (Some(age), freed)
}

/// Divides two non-negative numbers. Returns 0 for invalid results of hostile input.
fn ratio(part: f64, whole: f64) -> f64 {
    let ratio = part / whole;
    if ratio.is_finite() {
        ratio.max(0.0)
    } else {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Granularity;
    use profile::{ProfileBuilder, merge, variance};

    /// Returns the counts of a stack that allocated `objects` objects of 100 bytes and freed
    /// `freed` of them. Ages and lifetimes are in milliseconds.
    fn detail(objects: f64, freed: f64, age: f64, lifetime: f64) -> Detail {
        Detail {
            alloc_samples: 10,
            free_samples: if freed > 0.0 { 5 } else { 0 },
            alloc_objects: objects,
            alloc_bytes: objects * 100.0,
            freed_objects: freed,
            freed_bytes: freed * 100.0,
            live_age_ms_sum: age * (objects - freed),
            freed_lifetime_ms_sum: lifetime * freed,
            ..Detail::default()
        }
    }

    /// Returns a dump with these stacks, each at its own address.
    fn dump(stacks: &[Detail]) -> Profile {
        let mut builder = ProfileBuilder::new(1024);
        for (i, detail) in stacks.iter().enumerate() {
            builder.stack([0x1001 + 0x100 * i as u64], detail);
        }
        let mut profile = builder.finish();
        variance::fill(&mut profile);
        profile
    }

    fn suspects(profile: Profile, moments: &[f64]) -> Vec<(u64, Suspect)> {
        let view = View::new(profile, None).unwrap();
        let nodes = Nodes::new(&view, Granularity::Addresses, true, false);
        let found = find(&view, &nodes, moments).unwrap();
        let address = |s: &Suspect| nodes.entry(s.entries[0]).address;
        found
            .suspects
            .into_iter()
            .map(|s| (address(&s), s))
            .collect()
    }

    /// The stacks that hold least of very many are counted, though not judged.
    #[test]
    fn smaller_stacks_of_many_are_counted() {
        const SMALLER: usize = 7;
        let address = |number: usize| 0x1001 + ((number as u64) << 8);
        let [large, small] = [100.0, 1.0].map(|objects| detail(objects, 0.0, 50.0, 0.0));
        let mut builder = ProfileBuilder::new(1024);
        for number in 0..MAX_STACKS {
            builder.stack([address(number)], &large);
        }
        for number in MAX_STACKS..MAX_STACKS + SMALLER {
            builder.stack([address(number)], &small);
        }
        // Of a stack that holds much in objects of another size.
        builder.stack([address(0)], &small);
        let view = View::new(builder.finish(), None).unwrap();
        let nodes = Nodes::new(&view, Granularity::Addresses, true, false);
        let found = find(&view, &nodes, &[]).unwrap();
        assert_eq!(found.suspects.len(), MAX_STACKS);
        assert_eq!(found.stacks(), MAX_STACKS + SMALLER);
        assert_eq!(found.others.bytes, 100.0 * SMALLER as f64);
        assert_eq!(found.suspects[0].bytes, 10_100.0);
    }

    #[test]
    fn old_stacks_without_frees_count_fully() {
        let leak = detail(100.0, 0.0, 50.0, 0.0);
        let cache = detail(100.0, 50.0, 50.0, 50.0);
        let slow = detail(100.0, 50.0, 5000.0, 50.0);
        let found = suspects(dump(&[cache, slow, leak]), &[]);
        let order: Vec<u64> = found.iter().map(|(a, _)| *a).collect();
        assert_eq!(order, [0x1200, 0x1100, 0x1000]);
        assert_eq!(found[0].1.score, 10_000.0);
        assert_eq!(found[0].1.lifetime, None);
        assert_eq!(found[2].1.score, 5000.0 * 0.5 * 0.5);
        assert!(found.iter().all(|(_, s)| s.growth.is_none()));
    }

    /// A growing vector: its last buffer stays live, the smaller ones before it do not.
    #[test]
    fn frees_of_other_size_classes_do_not_count() {
        let mut builder = ProfileBuilder::new(1024);
        builder.stack([0x1001], &detail(100.0, 0.0, 50.0, 0.0));
        builder.stack([0x1001], &detail(300.0, 300.0, 0.0, 2.0));
        builder.stack([0x2001], &detail(9.0, 9.0, 0.0, 1.0));
        let mut profile = builder.finish();
        variance::fill(&mut profile);
        let found = suspects(profile, &[]);
        assert_eq!(found.len(), 1);
        let suspect = &found[0].1;
        assert_eq!((suspect.kept, suspect.bytes), (0.25, 10_000.0));
        assert_eq!((suspect.age, suspect.lifetime), (Some(50.0), Some(2.0)));
    }

    #[test]
    fn steady_growth_is_ranked_before_larger_constant_stacks() {
        let series: Vec<Profile> = (0..6)
            .map(|i| {
                let leak = detail(1000.0 + 200.0 * f64::from(i), 0.0, 50.0, 0.0);
                let filled = if i < 3 { 100.0 } else { 50_000.0 };
                dump(&[
                    detail(90_000.0, 0.0, 9000.0, 0.0),
                    leak,
                    detail(filled, 0.0, 900.0, 0.0),
                ])
            })
            .collect();
        let profile = merge::side_by_side(&series).unwrap();
        let found = suspects(profile, &[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
        let verdict = |i: usize| found[i].1.growth.unwrap().verdict;
        assert_eq!((found[0].0, verdict(0)), (0x1100, growth::Verdict::Steady));
        assert!((found[0].1.growth.unwrap().rate - 20_000.0).abs() < 1.0);
        // Constant stacks, and those that grew in one jump, follow by size.
        assert_eq!((found[1].0, verdict(1)), (0x1000, growth::Verdict::Level));
        assert_eq!((found[2].0, verdict(2)), (0x1200, growth::Verdict::Once));
        assert_eq!((found[1].1.score, found[2].1.score), (0.0, 0.0));
    }

    #[test]
    fn a_base_is_the_first_of_two_dumps() {
        let early = dump(&[detail(1e5, 0.0, 1.0, 0.0), detail(1e3, 0.0, 1.0, 0.0)]);
        let late = dump(&[detail(1e5, 0.0, 9.0, 0.0), detail(5e4, 0.0, 5.0, 0.0)]);
        let compare = |moments: &[f64]| {
            let both = merge::subtract(
                std::slice::from_ref(&late),
                std::slice::from_ref(&early),
                merge::Base::Comparison,
            );
            suspects(both.unwrap(), moments)
        };
        let found = compare(&[0.0, 10.0]);
        let growth = found[0].1.growth.unwrap();
        assert_eq!(
            (found[0].0, growth.verdict),
            (0x1100, growth::Verdict::Grew)
        );
        assert_eq!(growth.rate, 490_000.0);
        // Without an order of time, only the later dump is used.
        let found = compare(&[]);
        assert_eq!((found[0].0, found[0].1.bytes), (0x1000, 1e7));
    }

    #[test]
    fn other_formats_are_ranked_by_live_bytes() {
        let text = "heap profile: 3: 9 [9: 99] @ heapprofile\n\
            1: 1000 [9: 9000] @ 0x1001\n2: 900 [2: 900] @ 0x2001\n\
            MAPPED_LIBRARIES:\n";
        let found = suspects(profile::read(text.as_bytes(), "x").unwrap(), &[]);
        assert_eq!(found[0].0, 0x2000);
        assert_eq!((found[0].1.age, found[0].1.samples), (None, None));
    }
}
