//! Live memory of functions and stacks, and how fast it grows between two snapshots.

use std::collections::{HashMap, HashSet};
use std::rc::Rc;
use std::time::Duration;

use mem_agents::names::FunctionId;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use profile::variance::{SamplingError, half_width};
use profile::{Detail, MERGED_ADDRESS, age, crowding};
use serde::Serialize;
use shm_protocol::snapshot::{Header, RecordView, StackSums};
use shm_protocol::tree::NodeId;

use crate::top::model::{Model, StackRow};
use crate::top::numbers::Numbers;
use crate::top::sort::Sort;

/// Live objects of a function or a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HeapNumbers {
    /// Live bytes allocated by the function itself.
    pub flat_bytes: f64,
    /// Half-width of the 95 % confidence interval of `flat_bytes`.
    pub flat_error_bytes: f64,
    /// Live bytes allocated by the function and its callees.
    pub live_bytes: f64,
    /// Half-width of the 95 % confidence interval of `live_bytes`.
    pub live_error_bytes: f64,
    /// Live objects allocated by the function and its callees.
    pub live_objects: f64,
    /// Half-width of the 95 % confidence interval of `live_objects`.
    pub live_error_objects: f64,
    /// Change of the live bytes per second.
    pub growth_per_second: f64,
    /// Half-width of the 95 % confidence interval of `growth_per_second`.
    pub growth_error_per_second: f64,
    /// Bytes allocated per second.
    pub alloc_per_second: f64,
    /// Half-width of the 95 % confidence interval of `alloc_per_second`.
    pub alloc_error_per_second: f64,
    /// Mean age of the live objects, in seconds; `None` if there are none.
    pub age_seconds: Option<f64>,
    /// Half-width of the 95 % confidence interval of the mean age, in seconds; `None` if there are
    /// too few samples.
    pub age_error_seconds: Option<f64>,
    /// Bytes allocated since the session's start.
    #[serde(skip)]
    pub alloc_bytes: f64,
    /// Sampling errors of the sums that `detail` does not have.
    #[serde(skip)]
    pub errors: Errors,
    /// Sums of the stacks.
    #[serde(skip)]
    pub detail: Detail,
}

/// Sampling errors of sums over stacks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Errors {
    /// Of the live bytes that the function itself allocated.
    flat: SamplingError,
    /// Of the change of the live bytes per second.
    growth: SamplingError,
    /// Of the bytes allocated per second.
    alloc: SamplingError,
}

/// Returns the error of a value that is divided by `divisor`.
fn divided(error: SamplingError, divisor: f64) -> SamplingError {
    SamplingError {
        variance: error.variance / (divisor * divisor),
        turnover: error.turnover / divisor,
        whole: 0.0,
    }
}

/// Bytes that leave no sample with a probability of 5 % (e⁻³), in intervals.
const MAX_UNSEEN_INTERVALS: f64 = 3.0;

/// Returns the bytes that may have left no sample at a sampling interval.
pub fn unseen(interval: u64) -> f64 {
    match interval {
        1 => 0.0,
        interval => MAX_UNSEEN_INTERVALS * interval as f64,
    }
}

/// Sums of a stack at a snapshot.
#[derive(Clone, Copy, Debug, Default)]
struct SnapshotSums {
    live_bytes: f64,
    alloc_bytes: f64,
    live_variance: f64,
    alloc_variance: f64,
}

impl SnapshotSums {
    fn new(sums: &StackSums) -> Self {
        Self {
            live_bytes: (sums.alloc_bytes - sums.free_bytes).max(0.0),
            alloc_bytes: sums.alloc_bytes,
            live_variance: sums.live_variance,
            alloc_variance: sums.alloc_variance,
        }
    }

    /// Returns the sampling error of the bytes allocated until `later`.
    fn alloc_error_until(&self, later: &Self) -> SamplingError {
        SamplingError {
            variance: (later.alloc_variance - self.alloc_variance).max(0.0),
            turnover: (later.alloc_bytes - self.alloc_bytes).max(0.0),
            whole: 0.0,
        }
    }

    /// Returns the sampling error of the change of the live bytes until `later`: the smaller of two
    /// upper bounds. One is the error of the allocations and frees in between, since objects that
    /// are live at both times cancel. The other is the sum of the errors of both values, which is
    /// smaller if most objects are freed at once.
    fn error_until(&self, later: &Self) -> SamplingError {
        let freed = |sums: &Self| SamplingError {
            variance: sums.alloc_variance - sums.live_variance,
            turnover: sums.alloc_bytes - sums.live_bytes,
            whole: 0.0,
        };
        let (freed_before, freed_later) = (freed(self), freed(later));
        let allocated = later.alloc_variance - self.alloc_variance;
        let by_events = SamplingError {
            variance: allocated + freed_later.variance - freed_before.variance,
            turnover: later.alloc_bytes - self.alloc_bytes + freed_later.turnover
                - freed_before.turnover,
            whole: 0.0,
        };
        let by_values = SamplingError {
            variance: self.live_variance + later.live_variance,
            turnover: self.live_bytes + later.live_bytes,
            whole: 0.0,
        };
        let least = if by_events.variance < by_values.variance {
            by_events
        } else {
            by_values
        };
        SamplingError {
            variance: least.variance.max(0.0),
            turnover: least.turnover.max(0.0),
            whole: 0.0,
        }
    }
}

/// State that is kept between snapshots.
#[derive(Default)]
pub struct HeapTable {
    /// Functions of the stacks, by leaf node.
    frames: HashMap<NodeId, Rc<[FunctionId]>>,
    /// Leaf nodes of stacks whose inner frames are missing because the table was too full.
    merged: HashSet<NodeId>,
    /// Sums at the last snapshot, by leaf node.
    sums_before: HashMap<NodeId, SnapshotSums>,
    /// Number of the session.
    session: u64,
    /// Time of the last snapshot, in ns of the segment's clock.
    snapshot_ns: u64,
    /// Fraction of the live bytes, or of the allocated bytes if larger, in stacks for which the
    /// table was too full.
    crowded_fraction: f64,
    /// Half-width of the 95 % confidence interval of all live bytes.
    pub live_error: f64,
    /// Half-width of the 95 % confidence interval of the growth of all live bytes per second.
    pub growth_error: f64,
}

impl HeapTable {
    /// Updates the model with a snapshot. Looks up new names now if `at_once`, otherwise when a
    /// lookup is due.
    pub fn update(
        &mut self,
        model: &mut Model<HeapNumbers>,
        snapshot: &Snapshot,
        header: &Header<'_>,
        at_once: bool,
    ) {
        if self.session != snapshot.session.number {
            self.session = snapshot.session.number;
            self.frames.clear();
            self.merged.clear();
            self.sums_before.clear();
            self.snapshot_ns = snapshot.session.start_ns;
        }
        let seconds = snapshot.end_ns.saturating_sub(self.snapshot_ns) as f64 / 1e9;
        self.snapshot_ns = snapshot.end_ns;
        model.samples = snapshot.totals.samples;
        let stacks = snapshot.stacks();
        self.name_stacks(model, &stacks, snapshot, header, at_once);
        self.fill_stacks(model, &stacks, snapshot, seconds.max(0.001));
        model.fill_functions();
    }

    /// Returns a remark about stacks for which the table was too full, or `None` if they are few.
    pub fn remark(&self) -> Option<String> {
        crowding::remark_of(self.crowded_fraction)
    }

    /// Looks up the functions of new stacks.
    fn name_stacks(
        &mut self,
        model: &mut Model<HeapNumbers>,
        stacks: &[RecordView],
        snapshot: &Snapshot,
        header: &Header<'_>,
        at_once: bool,
    ) {
        let mut addresses = Vec::new();
        let mut new = Vec::new();
        let mut all_addresses = Vec::new();
        for record in stacks {
            if !self.frames.contains_key(&record.node) {
                let is_whole = snapshot.frames(record.node, &mut addresses);
                all_addresses.extend_from_slice(&addresses);
                new.push((record.node, addresses.clone(), is_whole));
            }
        }
        let pid = model.symbols.pid();
        let codes = snapshot.codes();
        let profile = |addresses: &[u64]| {
            mem_agents::collect::profile_of_addresses(header, pid, addresses, codes)
        };
        model
            .symbols
            .resolve(all_addresses.into_iter(), at_once, profile);
        for (leaf, addresses, is_whole) in new {
            // If a function is still unknown, the next refresh tries again.
            let Some(mut frames) = model.symbols.frames(&addresses) else {
                continue;
            };
            if addresses.first() == Some(&MERGED_ADDRESS) {
                self.merged.insert(leaf);
            }
            if !is_whole {
                frames.push(model.symbols.intern("[truncated]"));
            }
            self.frames.insert(leaf, frames.into());
        }
    }

    fn fill_stacks(
        &mut self,
        model: &mut Model<HeapNumbers>,
        stacks: &[RecordView],
        snapshot: &Snapshot,
        seconds: f64,
    ) {
        let now = snapshot.end_tick();
        let not_named: Rc<[FunctionId]> = Rc::new([model.symbols.intern("[not named yet]")]);
        let table_full: Rc<[FunctionId]> = Rc::new([model.symbols.intern("[table full]")]);
        let mut sums_before = std::mem::take(&mut self.sums_before);
        let mut crowded = HeapNumbers::default();
        let mut live_variance = 0.0;
        let mut change = SamplingError::default();
        // The sums over size classes lack the spread of ages, so details are summed here.
        let mut details: HashMap<NodeId, Detail> = HashMap::new();
        let full_record = (!snapshot.table_full.is_empty()).then_some(&snapshot.table_full);
        for record in snapshot.records().iter().chain(full_record) {
            let sum = details.entry(record.node).or_default();
            sum.add(&mem_agents::collect::detail(record, now));
        }
        model.stacks.clear();
        model.total = HeapNumbers::default();
        for record in stacks.iter().chain(full_record) {
            let sums = record.sums(now);
            let current = SnapshotSums::new(&sums);
            let live = current.live_bytes;
            live_variance += sums.live_variance;
            let earlier = sums_before.remove(&record.node).unwrap_or_default();
            let stack_change = earlier.error_until(&current);
            change += stack_change;
            let numbers = HeapNumbers {
                flat_bytes: live,
                live_bytes: live,
                live_objects: (sums.alloc_objects - sums.free_objects).max(0.0),
                growth_per_second: (live - earlier.live_bytes) / seconds,
                alloc_per_second: ((sums.alloc_bytes - earlier.alloc_bytes) / seconds).max(0.0),
                alloc_bytes: sums.alloc_bytes,
                errors: Errors {
                    flat: SamplingError {
                        variance: sums.live_variance,
                        turnover: live,
                        whole: 0.0,
                    },
                    growth: divided(stack_change, seconds),
                    alloc: divided(earlier.alloc_error_until(&current), seconds),
                },
                detail: details.get(&record.node).copied().unwrap_or_default(),
                ..HeapNumbers::default()
            };
            let is_full = std::ptr::eq(record, &raw const snapshot.table_full);
            let frames = match self.frames.get(&record.node) {
                _ if is_full => table_full.clone(),
                Some(frames) => frames.clone(),
                None => not_named.clone(),
            };
            if is_full || self.merged.contains(&record.node) {
                crowded.add(&numbers, true);
            }
            model.total.add(&numbers, true);
            self.sums_before.insert(record.node, current);
            model.stacks.push(StackRow {
                id: record.node,
                frames,
                numbers: numbers.with_derived(),
            });
        }
        let total = &model.total;
        let interval = snapshot.intervals.last();
        let interval = interval.map_or(snapshot.session.interval, |period| period.interval);
        let unseen = unseen(interval);
        self.live_error = half_width(total.live_bytes, live_variance).max(unseen);
        self.growth_error = change.half_width().max(unseen) / seconds;
        let live_share = crowded.live_bytes / total.live_bytes.max(1.0);
        let alloc_share = crowded.alloc_bytes / total.alloc_bytes.max(1.0);
        self.crowded_fraction = live_share.max(alloc_share);
        model.total = model.total.with_derived();
        // As the table states them: with what may have no sample.
        model.total.live_error_bytes = self.live_error;
        model.total.growth_error_per_second = self.growth_error;
    }
}

impl Numbers for HeapNumbers {
    const HEADS: &'static [&'static str] =
        &["FLAT", "LIVE", "GROWTH/s", "ALLOC/s", "AGE", "\u{b1}"];
    const SORTS: &'static [Sort] = &[Sort::Live, Sort::Flat, Sort::Growth, Sort::Rate, Sort::Age];

    fn column(sort: Sort) -> Option<usize> {
        match sort {
            Sort::Flat => Some(0),
            Sort::Live => Some(1),
            Sort::Growth => Some(2),
            Sort::Rate => Some(3),
            Sort::Age => Some(4),
            Sort::Now | Sort::FlatNow | Sort::Cpu => None,
        }
    }

    fn medium_columns(sorted: usize) -> [usize; 3] {
        match sorted {
            0 => [0, 1, 2],
            4 => [1, 4, 5],
            _ => [1, 2, 3],
        }
    }

    fn value(&self, sort: Sort) -> f64 {
        match sort {
            Sort::Flat => self.flat_bytes,
            Sort::Growth => self.growth_per_second,
            Sort::Rate => self.alloc_per_second,
            Sort::Age => self.age_seconds.unwrap_or_default(),
            _ => self.live_bytes,
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            text::bytes(self.flat_bytes),
            text::bytes(self.live_bytes),
            format_signed(self.growth_per_second),
            text::bytes(self.alloc_per_second),
            self.age_seconds.map_or("-".to_owned(), format_seconds),
            self.age_error_seconds.map_or("-".to_owned(), format_error),
        ]
    }

    fn summary(&self) -> Vec<String> {
        vec![
            format!("live {}", text::bytes(self.live_bytes)),
            format!("{}/s", format_signed(self.growth_per_second)),
            format!("allocating {}/s", text::bytes(self.alloc_per_second)),
            format!("age {}", self.age()),
        ]
    }

    fn add(&mut self, stack: &Self, is_leaf: bool) {
        if is_leaf {
            self.flat_bytes += stack.live_bytes;
            self.errors.flat += stack.errors.flat;
        }
        self.errors.growth += stack.errors.growth;
        self.errors.alloc += stack.errors.alloc;
        self.live_bytes += stack.live_bytes;
        self.live_objects += stack.live_objects;
        self.growth_per_second += stack.growth_per_second;
        self.alloc_per_second += stack.alloc_per_second;
        self.alloc_bytes += stack.alloc_bytes;
        self.detail.add(&stack.detail);
    }

    fn with_derived(mut self) -> Self {
        self.live_error_bytes = half_width(self.live_bytes, self.detail.live_variance);
        self.live_error_objects = half_width(self.live_objects, self.detail.live_object_variance);
        self.flat_error_bytes = self.errors.flat.half_width();
        self.growth_error_per_second = self.errors.growth.half_width();
        self.alloc_error_per_second = self.errors.alloc.half_width();
        let is_live = self.live_objects > 0.0;
        self.age_seconds = is_live.then(|| self.detail.mean_age_ms() / 1e3);
        let error = age::error(&self.detail).filter(|_| is_live);
        self.age_error_seconds = error.map(|ms| ms / 1e3);
        self
    }

    fn is_nonzero(&self) -> bool {
        self.alloc_bytes > 0.0
    }
}

/// Formats bytes with a sign, in at most ten characters, the width of a column.
fn format_signed(bytes: f64) -> String {
    let amount = text::bytes(bytes.abs());
    let amount = match amount.split_once(' ') {
        Some((number, unit)) if number.len() > "999.9".len() => {
            let whole = number.parse::<f64>().map_or(0.0, f64::round);
            format!("{whole} {unit}")
        }
        _ => amount,
    };
    match bytes {
        b if b >= 0.5 => format!("+{amount}"),
        b if b <= -0.5 => format!("-{amount}"),
        _ => "0 B".to_owned(),
    }
}

impl HeapNumbers {
    /// Formats the mean age with its error, if that is known and not zero.
    fn age(&self) -> String {
        let age = self.age_seconds.map_or("-".to_owned(), format_seconds);
        match self.age_error_seconds.filter(|half| *half > 0.0) {
            Some(half) => format!("{age} \u{b1} {}", format_error(half)),
            None => age,
        }
    }
}

/// Formats the half-width of a confidence interval in seconds; 0 only for exact values.
fn format_error(half: f64) -> String {
    match half {
        0.0 => "0".to_owned(),
        // Shorter times are below the resolution of the agent's clock.
        half if half < 0.005 => "< 0.01 s".to_owned(),
        half => format_seconds(half),
    }
}

/// Formats a number of seconds.
fn format_seconds(seconds: f64) -> String {
    match seconds {
        s if s < 10.0 => format!("{s:.2} s"),
        s => text::duration(Duration::from_secs_f64(s.min(1e9))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums after `allocated` and `freed` samples of 100 bytes that stand for 1000 bytes each.
    fn sums(allocated: u32, freed: u32) -> SnapshotSums {
        let bytes = |samples: u32| f64::from(samples) * 1000.0;
        let variance = |samples: u32| f64::from(samples) * 100.0 * 100.0 * 10.0 * 9.0;
        SnapshotSums {
            live_bytes: bytes(allocated - freed),
            alloc_bytes: bytes(allocated),
            live_variance: variance(allocated - freed),
            alloc_variance: variance(allocated),
        }
    }

    #[test]
    fn nothing_has_no_age() {
        let freed = Detail {
            alloc_samples: 9,
            alloc_objects: 9.0,
            freed_objects: 9.0,
            ..Detail::default()
        };
        let nothing = HeapNumbers {
            detail: freed,
            ..HeapNumbers::default()
        };
        let cells = nothing.with_derived().cells();
        assert_eq!(cells[4..], ["-", "-"]);
        assert_eq!(nothing.age(), "-");
    }

    #[test]
    fn growth_fits_its_column() {
        let kib = 1024.0;
        assert_eq!(format_signed(1018.8 * kib), "+1019 KiB");
        assert_eq!(format_signed(-1018.8 * kib), "-1019 KiB");
        assert_eq!(format_signed(913.4 * kib), "+913.4 KiB");
        assert_eq!(format_signed(0.2), "0 B");
        for exponent in 0..60 {
            let text = format_signed(1.96 * f64::powi(2.0, exponent));
            assert!(text.len() <= 10, "{text}");
        }
    }

    #[test]
    fn objects_that_stay_do_not_make_growth_uncertain() {
        let same = sums(500, 20).error_until(&sums(500, 20));
        assert_eq!((same.variance, same.turnover), (0.0, 0.0));
        let grown = sums(500, 20).error_until(&sums(510, 20));
        assert_eq!(grown.turnover, 10_000.0);
        assert_eq!(grown.variance, sums(10, 0).live_variance);
    }

    #[test]
    fn objects_that_are_freed_at_once_do_not_make_growth_uncertain() {
        let churn = sums(4, 0).error_until(&sums(100_004, 99_999));
        assert_eq!(churn.turnover, 9000.0);
        assert_eq!(churn.variance, sums(9, 0).live_variance);
    }

    #[test]
    fn a_cache_that_turns_over_makes_growth_uncertain() {
        let turned = sums(300, 200).error_until(&sums(400, 300));
        assert_eq!(turned.turnover, 200_000.0);
        assert_eq!(turned.variance, 2.0 * sums(100, 0).live_variance);
    }
}
