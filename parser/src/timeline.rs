//! Memory over time: totals at the moments of a session, and for some moments the live bytes of
//! each stack, compared with the end.

use std::collections::{BTreeMap, HashMap, HashSet};

use profile::variance::SamplingError;
use profile::{Detail, Format, Moment, Profile};

use crate::breakdown::OwnerFinder;
use crate::combine;
use crate::nodes::Nodes;
use crate::view::View;
use crate::view::ViewStack;

/// Stacks of a view at the moments of its session.
pub struct Timeline<'a> {
    /// Moments in order of time; at least one.
    pub moments: &'a [Moment],
    /// Stacks that are shown and held memory at any time, summed over threads and sizes.
    pub stacks: Vec<Stack>,
    /// Index in `stacks` by the stack's index in the profile.
    indices: HashMap<u32, usize>,
}

/// A stack of the timeline.
pub struct Stack {
    /// Entries of its frames ([`Nodes`]), innermost first.
    pub entries: Vec<u32>,
    /// Entry of the function that it is attributed to; `None` if all its frames are hidden.
    pub owner: Option<u32>,
    /// Live bytes at the end.
    pub end: u64,
    /// Upper bound of the live bytes at any moment.
    pub max_bytes: u64,
    /// Allocated and freed bytes of the whole session, with sampling errors.
    pub sampled: Sampled,
}

/// Allocated and freed bytes of a stack, or of several, and sampling errors.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sampled {
    /// Bytes allocated.
    allocated: f64,
    /// Bytes freed.
    pub freed: f64,
    /// Variance of the bytes allocated.
    variance: f64,
    /// Sampling error of the live bytes at the end.
    pub live: SamplingError,
}

impl Sampled {
    fn of(detail: Option<&Detail>, live: SamplingError) -> Self {
        detail.map_or_else(Self::default, |detail| Self {
            allocated: detail.alloc_bytes,
            freed: detail.freed_bytes,
            variance: detail.alloc_variance,
            live,
        })
    }

    /// Adds the bytes and errors of other stacks.
    pub fn add(&mut self, other: &Self) {
        self.live += other.live;
        self.allocated += other.allocated;
        self.freed += other.freed;
        self.variance += other.variance;
    }

    /// Returns the sampling error of `bytes` of the allocated bytes. Their objects are assumed to
    /// have the same mix of sizes as all allocated ones.
    pub fn error(&self, bytes: f64) -> SamplingError {
        SamplingError {
            variance: self.variance_per_byte() * bytes,
            turnover: bytes,
            whole: 0.0,
        }
    }

    /// Returns the variance per byte that [`error`](Self::error) uses.
    pub fn variance_per_byte(&self) -> f64 {
        (self.variance / self.allocated.max(1.0)).max(0.0)
    }

    /// Returns the sampling error of the change of the live bytes from a moment to the end. Objects
    /// that are live at both times contribute nothing. The others are at most the bytes that the
    /// session freed, and those that took their place.
    fn error_of_change(&self, then: u64, end: u64) -> SamplingError {
        let lost = (then as f64).min(self.freed);
        let gained = (end as f64 - (then as f64 - lost)).clamp(0.0, end as f64);
        let share = gained / (end as f64).max(1.0);
        let mut error = self.error(lost);
        error += SamplingError {
            variance: self.live.variance * share,
            turnover: gained,
            whole: 0.0,
        };
        error
    }
}

/// Live bytes at a moment and at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Change {
    /// Live bytes at the moment.
    pub at_moment: u64,
    /// Live bytes at the end.
    pub end: u64,
    /// Sampling error of `at_moment`.
    pub moment_error: SamplingError,
    /// Sampling error of `end`.
    pub end_error: SamplingError,
    /// Sampling error of the change.
    pub error: SamplingError,
}

impl Change {
    /// Adds the bytes of a stack.
    pub fn add(&mut self, at_moment: u64, end: u64, sampled: &Sampled) {
        self.at_moment = self.at_moment.saturating_add(at_moment);
        self.end = self.end.saturating_add(end);
        self.moment_error += sampled.error(at_moment as f64);
        self.end_error += sampled.live;
        self.error += sampled.error_of_change(at_moment, end);
    }
}

impl<'a> Timeline<'a> {
    /// Returns the timeline of a view's session. The error explains why there is none, and what to
    /// do.
    pub fn new(view: &'a View, nodes: &Nodes, owners: &OwnerFinder) -> Result<Self, &'static str> {
        let profile = view.profile();
        let column = profile.type_index("inuse_space");
        let (Some(column), false) = (column, profile.moments.is_empty()) else {
            return Err(missing_reason(profile));
        };
        let mut max_bytes: HashMap<u32, u64> = HashMap::new();
        for held in profile.moments.iter().filter_map(|m| m.stacks.as_ref()) {
            for held in held {
                let max_bytes = max_bytes.entry(held.stack).or_default();
                *max_bytes = held.bytes.max(*max_bytes);
            }
        }
        let mut stacks: Vec<Stack> = Vec::new();
        let mut indices = HashMap::new();
        let mut index_by_entries: HashMap<Vec<u32>, usize> = HashMap::new();
        for ViewStack { index, frames, .. } in view.stacks() {
            // Stacks of a base have negative values, and are not of this session.
            let Ok(end) = u64::try_from(profile.values_of(index)[column]) else {
                continue;
            };
            let index = index as u32;
            let max_bytes = max_bytes.get(&index).copied().unwrap_or(0).max(end);
            if max_bytes == 0 {
                continue;
            }
            let visible = frames.iter().filter(|&&frame| !view.is_hidden(frame));
            let entries = visible.flat_map(|&frame| nodes.of_location(frame).iter().copied());
            let entries: Vec<u32> = entries.collect();
            let at = *index_by_entries
                .entry(entries)
                .or_insert_with_key(|entries| {
                    stacks.push(Stack {
                        entries: entries.clone(),
                        owner: owners.owner_of(frames),
                        end: 0,
                        max_bytes: 0,
                        sampled: Sampled::default(),
                    });
                    stacks.len() - 1
                });
            indices.insert(index, at);
            let stack = &mut stacks[at];
            stack.end = stack.end.saturating_add(end);
            stack.max_bytes = stack.max_bytes.saturating_add(max_bytes);
            let detail = profile.details.get(index as usize);
            let live = profile.error(index as usize, column);
            stack.sampled.add(&Sampled::of(detail, live));
        }
        Ok(Self {
            moments: &profile.moments,
            stacks,
            indices,
        })
    }

    /// Returns index and bytes of each stack that held memory at a moment, in ascending order of
    /// index; `None` if unknown.
    pub fn bytes_by_stack(&self, moment: &Moment) -> Option<Vec<(usize, u64)>> {
        let stacks = moment.stacks.as_ref()?;
        let mut sums: BTreeMap<usize, u64> = BTreeMap::new();
        for held in stacks {
            if let Some(&index) = self.indices.get(&held.stack) {
                let sum = sums.entry(index).or_default();
                *sum = sum.saturating_add(held.bytes);
            }
        }
        Some(sums.into_iter().collect())
    }

    /// Returns the live bytes of each function's stacks at a moment and at the end: the function's
    /// entry, and the sums. Sorted by bytes at the moment, largest first.
    pub fn functions(&self, moment: &Moment) -> Option<Vec<(u32, Change)>> {
        let held: HashMap<usize, u64> = self.bytes_by_stack(moment)?.into_iter().collect();
        let mut sums: HashMap<u32, Change> = HashMap::new();
        for (index, stack) in self.stacks.iter().enumerate() {
            let Some(owner) = stack.owner else {
                continue;
            };
            let sum = sums.entry(owner).or_default();
            let then = held.get(&index).copied().unwrap_or(0);
            sum.add(then, stack.end, &stack.sampled);
        }
        let mut all: Vec<(u32, Change)> = sums.into_iter().collect();
        all.sort_unstable_by_key(|&(entry, c)| (u64::MAX - c.at_moment, u64::MAX - c.end, entry));
        Some(all)
    }

    /// Returns the sums of all stacks that are not attributed to one of these functions.
    pub fn sampled_except(&self, owners: impl Iterator<Item = Option<u32>>) -> Sampled {
        let owners: HashSet<Option<u32>> = owners.collect();
        let mut sum = Sampled::default();
        let others = self.stacks.iter();
        others
            .filter(|stack| stack.owner.is_none() || !owners.contains(&stack.owner))
            .for_each(|stack| sum.add(&stack.sampled));
        sum
    }

    /// Returns the sampling error of all live bytes at a moment. Bytes whose stacks are not known
    /// get the mean variance of all allocated bytes.
    pub fn error(&self, moment: &Moment) -> SamplingError {
        let mut all = Sampled::default();
        self.stacks.iter().for_each(|stack| all.add(&stack.sampled));
        let mut error = SamplingError::default();
        let mut rest = moment.live;
        for (index, bytes) in self.bytes_by_stack(moment).unwrap_or_default() {
            rest = rest.saturating_sub(bytes);
            error += self.stacks[index].sampled.error(bytes as f64);
        }
        error += all.error(rest as f64);
        error
    }

    /// Returns the duration covered by the moments, in nanoseconds; at least 1.
    pub fn length_ns(&self) -> u64 {
        self.moments.last().map_or(1, |last| last.at_ns.max(1))
    }
}

fn missing_reason(profile: &Profile) -> &'static str {
    if profile.type_index("inuse_space").is_none() || profile.format != Format::Dump {
        "this profile has no timeline: only dumps of mem_profiler have one"
    } else if combine::is_sum(profile) || profile.details.is_empty() {
        "several sessions have no timeline in common: take one dump, or several of one session"
    } else {
        "the dump has no timeline: mem_profiler -s 60 -p PID or run PROGRAM records one; dump, stop and recover find none"
    }
}
