//! Sampled faults of one program, by page, and the assignment of its pages to them.
//!
//! Only some of the faults are sampled, so most pages have no sampled fault of their own. A page
//! that came into existence during sampling is assigned to the nearest page with a sampled fault,
//! unless that is farther away than the faults between two samples can reach.
//!
//! Two kinds of perf events sample faults: one with a period that the kernel adapts to their rate,
//! and one with a fixed period ([`FIXED_PERIOD`]), which sees the same faults once more.

use std::collections::BTreeMap;
use std::hash::Hasher;
use std::ops::Range;

use proc::Run;

use super::FIXED_PERIOD;
use super::page_set::PageSet;
use crate::mixer::{IntMap, Mixer};

/// Maximum number of pages with a sampled fault, which take some 20 MiB. Beyond it, half of them
/// are dropped at random, and the others stand for twice as many faults.
const MAX_TOUCHES: usize = 1 << 19;
/// Number of adjacent pages that one fault is assumed to make resident: 64 KiB, the kernel's
/// default of `fault_around_bytes` for file mappings. Small folios are no larger.
const FAULT_PAGES: u64 = 16;
/// Maximum distance from a sampled page, as a multiple of the number of faults between two samples.
/// If pages are touched in random order, hardly any are farther away.
const REACH_FACTOR: u64 = 4;

/// Maximum period, in faults, at which faults count as rare.
const MAX_RARE_PERIOD: u64 = 4;

/// Cause of a page's existence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Origin {
    /// Touched first by this stack, given by its node in the process's tree.
    Stack(u32),
    /// Existed before sampling began.
    Before,
    /// No fault was sampled near it.
    NotSampled,
}

/// Number of pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageCount {
    /// Resident pages.
    pub resident: u64,
    /// Pages that are swapped out.
    pub swapped: u64,
}

/// Sampled fault of a page.
#[derive(Clone, Copy, Debug)]
struct Touch {
    origin: Origin,
    /// Number of faults between this sample and its predecessor or successor in the thread,
    /// whichever is larger.
    faults: u64,
    /// Number of pages that the fault may have made resident.
    pages: u64,
    /// Number of forks of the process before the page's first fault.
    forks_at_first: u32,
    /// Number of forks of the process before the page's last fault.
    forks_at_last: u32,
    /// True if the page still exists.
    exists: bool,
    /// True if it is a part of a huge page.
    is_huge: bool,
}

/// Fault as reported by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    /// Page number.
    pub page: u64,
    /// Thread id.
    pub tid: i32,
    /// Node of its stack.
    pub stack: u32,
    /// Number of faults since the last sample. `None` for the event with a fixed period, which
    /// samples the same faults again.
    pub faults: Option<u64>,
    /// Number of pages that it may have made resident.
    pub pages: u64,
    /// True if the page was read from a disk or from swap.
    pub is_major: bool,
}

/// Last sampled fault of a thread.
#[derive(Clone, Copy, Debug, Default)]
struct LastFault {
    page: u64,
    /// Largest recent period, in faults; 0 if not known yet.
    period: u64,
}

impl LastFault {
    /// Returns the state after a sample. Each processor has a period of its own, so the period may
    /// soon be as large again as it was recently; the maximum therefore decays slowly.
    fn after(self, fault: &Fault) -> Self {
        let period = match fault.faults {
            Some(faults) => faults.max(self.period * 7 / 8),
            None => self.period,
        };
        Self {
            page: fault.page,
            period,
        }
    }

    /// Returns the number of faults between samples. If faults are frequent, it is at least
    /// [`FIXED_PERIOD`], since only the event with that period is certain to take samples.
    fn faults_between_samples(self) -> u64 {
        if (1..=MAX_RARE_PERIOD).contains(&self.period) {
            self.period
        } else {
            self.period.max(FIXED_PERIOD)
        }
    }
}

/// Sampled faults of one program.
pub struct Touches {
    /// Maximum number of pages with a sampled fault.
    max: usize,
    pages: BTreeMap<u64, Touch>,
    /// Pages that existed when sampling began.
    before: PageSet,
    /// Last sampled fault of each thread.
    last: IntMap<u32, LastFault>,
    forks: u32,
    /// Number of times that half of the touches were dropped.
    halvings: u64,
    /// Number of pages of a huge page.
    huge_pages: u64,
}

impl Touches {
    /// Creates an empty set. A huge page has the size of `huge_pages` pages.
    pub fn new(huge_pages: u64) -> Self {
        Self::limited(MAX_TOUCHES, huge_pages)
    }

    /// Creates an empty set of at most `max` sampled faults.
    fn limited(max: usize, huge_pages: u64) -> Self {
        Self {
            max,
            huge_pages: huge_pages.max(1),
            pages: BTreeMap::new(),
            before: PageSet::default(),
            last: IntMap::default(),
            forks: 0,
            halvings: 0,
        }
    }

    /// Sets the pages that existed when sampling began.
    pub fn begin(&mut self, before: PageSet) {
        self.before = before;
    }

    /// Handles a fork of the process. After it, a page's next fault may be a mere copy
    /// (copy-on-write).
    pub fn fork(&mut self) {
        self.forks = self.forks.wrapping_add(1);
    }

    /// Handles the exit of a thread.
    pub fn end_thread(&mut self, tid: i32) {
        self.last.remove(&tid.cast_unsigned());
    }

    /// Records a fault. If it only copies a page after a fork, or reads it back from a disk, the
    /// page stays assigned to the stack that touched it first.
    pub fn add(&mut self, fault: Fault) {
        let last = self.last.entry(fault.tid.cast_unsigned()).or_default();
        let after = last.after(&fault);
        let faults = after.faults_between_samples();
        if let Some(touch) = self.pages.get_mut(&last.page) {
            touch.faults = touch.faults.max(faults);
        }
        *last = after;
        let known = self.pages.get(&fault.page).copied();
        let is_copy = known.map_or(0, |touch| touch.forks_at_last) != self.forks;
        let owner = known
            .map(|touch| (touch.origin, touch.forks_at_first))
            .or_else(|| self.earlier_owner(fault.page));
        let (origin, forks_at_first) = match owner {
            Some(owner) if is_copy || fault.is_major => owner,
            _ => (Origin::Stack(fault.stack), self.forks),
        };
        let touch = Touch {
            origin,
            faults,
            pages: fault.pages.max(1),
            forks_at_first,
            forks_at_last: self.forks,
            exists: false,
            is_huge: false,
        };
        self.pages.insert(fault.page, touch);
        if self.pages.len() > self.max {
            self.halve();
        }
    }

    /// Returns the origin of a page without a sampled fault that is assumed to have existed at the
    /// last fork, and the number of forks before it was touched. Returns `None` for other pages.
    ///
    /// A page is assumed to have existed then if
    /// - it existed before sampling; or
    /// - its nearest sampled neighbours were both touched before the fork, and are so close to each
    ///   other that the pages between them must have been touched as well; or
    /// - one neighbour was touched before the fork, and is even closer.
    fn earlier_owner(&self, page: u64) -> Option<(Origin, u32)> {
        if self.before.contains(page) {
            return Some((Origin::Before, 0));
        }
        let is_old = |(_, touch): &(&u64, &Touch)| touch.forks_at_first < self.forks;
        let low = self.pages.range(..page).next_back().filter(is_old);
        let high = self.pages.range(page..).next().filter(is_old);
        if let (Some((low, first)), Some((high, second))) = (low, high) {
            let faults = first.faults.max(second.faults);
            let max_gap = reach(faults, first.pages.max(second.pages));
            let nearer = if page - low <= high - page {
                first
            } else {
                second
            };
            if high - low <= max_gap {
                return Some((nearer.origin, nearer.forks_at_first));
            }
        }
        let is_near = |(other, touch): &(&u64, &Touch)| page.abs_diff(**other) < touch.faults;
        let (_, touch) = low.filter(is_near).or(high.filter(is_near))?;
        Some((touch.origin, touch.forks_at_first))
    }

    /// Drops half of the touches.
    fn halve(&mut self) {
        self.halvings += 1;
        let halvings = self.halvings;
        self.pages.retain(|page, touch| {
            let mut hasher = Mixer::default();
            hasher.write_u64(halvings);
            hasher.write_u64(*page);
            touch.faults = touch.faults.saturating_mul(2);
            (hasher.finish() >> 40) & 1 == 0
        });
    }

    /// Returns true if a fault was sampled in a range of pages.
    pub fn has_any(&self, pages: Range<u64>) -> bool {
        self.pages.range(pages).next().is_some()
    }

    /// Removes the marks of [`mark`](Self::mark) in a range of pages.
    pub fn unmark(&mut self, pages: Range<u64>) {
        for (_, touch) in self.pages.range_mut(pages) {
            touch.exists = false;
        }
    }

    /// Marks the touches whose pages are in a run of existing pages. Must have been called for all
    /// runs of a mapping before [`assign`](Self::assign).
    pub fn mark(&mut self, run: &Run, page_size: u64) {
        let pages = run.range.start / page_size..run.range.end.div_ceil(page_size);
        for (_, touch) in self.pages.range_mut(pages) {
            touch.exists = true;
            touch.is_huge = run.is_huge;
        }
    }

    /// Returns the cells of the pages of a mapping: for each sampled page that still exists, the
    /// pages around it that are assigned to it, in order.
    pub fn cells(&self, pages: Range<u64>) -> Vec<Cell> {
        let touches = self.pages.range(pages.clone());
        let mut cells: Vec<Cell> = Vec::new();
        // Centre and reach of the previous cell.
        let mut previous: Option<(u64, u64)> = None;
        for (page, touch) in touches.filter(|(_, touch)| touch.exists) {
            let (start, len) = if touch.is_huge {
                (page / self.huge_pages * self.huge_pages, self.huge_pages)
            } else {
                (*page, 1)
            };
            let centre = start + len / 2;
            let own_reach = reach(touch.faults, touch.pages.max(len));
            let mut low = start.saturating_sub(own_reach).max(pages.start);
            let high = (start + len).saturating_add(own_reach);
            if let (Some(cell), Some((previous_centre, previous_reach))) =
                (cells.last_mut(), previous)
            {
                // The larger reach counts for both.
                let shared_reach = own_reach.max(previous_reach);
                low = start.saturating_sub(shared_reach).max(pages.start);
                cell.pages.end = previous_centre
                    .saturating_add(shared_reach)
                    .max(cell.pages.end);
                // Rounded up, so that the lower cell contains its own page.
                let middle = previous_centre + (centre - previous_centre).div_ceil(2);
                low = low.max(middle);
                cell.pages.end = cell.pages.end.min(middle).max(cell.pages.start);
            }
            cells.push(Cell {
                page: *page,
                pages: low..high.min(pages.end),
                origin: touch.origin,
            });
            previous = Some((centre, own_reach));
        }
        cells
    }

    /// Assigns the pages of a run to the origins of `cells`. Calls `visit` with each origin and its
    /// number of pages.
    pub fn assign(
        &self,
        run: &Run,
        page_size: u64,
        cells: &[Cell],
        visit: &mut dyn FnMut(Origin, PageCount),
    ) {
        let mut add = |origin: Origin, count: u64| {
            let (resident, swapped) = if run.is_swapped {
                (0, count)
            } else {
                (count, 0)
            };
            visit(origin, PageCount { resident, swapped });
        };
        let pages = run.range.start / page_size..run.range.end.div_ceil(page_size);
        self.before.split(pages, |part, existed| {
            let default_origin = if existed {
                Origin::Before
            } else {
                Origin::NotSampled
            };
            let mut done = part.start;
            let first = cells.partition_point(|cell| cell.pages.end <= part.start);
            for cell in &cells[first..] {
                if cell.pages.start >= part.end {
                    break;
                }
                // Of pages that existed before, only those that were touched again count.
                let counted = if existed {
                    cell.page..cell.page + 1
                } else {
                    cell.pages.clone()
                };
                let start = counted.start.max(done);
                let end = counted.end.min(part.end);
                if start >= end {
                    continue;
                }
                add(default_origin, start - done);
                add(cell.origin, end - start);
                done = end;
            }
            add(default_origin, part.end - done);
        });
    }
}

/// Returns the maximum distance, in pages, between a sampled page and the pages that it stands for.
/// `faults` is the number of faults between samples; each makes `fault_pages` pages resident.
fn reach(faults: u64, fault_pages: u64) -> u64 {
    let between = faults.saturating_sub(1).saturating_mul(fault_pages);
    between
        .saturating_mul(REACH_FACTOR)
        .saturating_add(FAULT_PAGES)
}

/// Pages that are assigned to one sampled fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Page with the fault.
    page: u64,
    pages: Range<u64>,
    origin: Origin,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const SIZE: u64 = 4096;
    const HUGE_PAGES: u64 = 512;

    fn run(pages: Range<u64>) -> Run {
        Run {
            range: pages.start * SIZE..pages.end * SIZE,
            is_swapped: false,
            is_huge: false,
            is_file: false,
        }
    }

    fn fault(page: u64, stack: u32, faults: u64) -> Fault {
        let faults = Some(faults);
        Fault {
            page,
            tid: 1,
            stack,
            faults,
            pages: 1,
            is_major: false,
        }
    }

    /// Assigns the pages of `runs` in a mapping. Returns the resident pages by origin.
    fn assigned(touches: &mut Touches, mapping: Range<u64>, runs: &[Run]) -> BTreeMap<Origin, u64> {
        touches.unmark(mapping.clone());
        for run in runs {
            touches.mark(run, SIZE);
        }
        let cells = touches.cells(mapping);
        let mut sums: BTreeMap<Origin, u64> = BTreeMap::new();
        for run in runs {
            touches.assign(run, SIZE, &cells, &mut |origin, count| {
                *sums.entry(origin).or_default() += count.resident + count.swapped;
            });
        }
        sums.retain(|_, count| *count > 0);
        sums
    }

    #[test]
    fn sampled_pages_stand_for_those_around_them() {
        let mut touches = Touches::new(HUGE_PAGES);
        for page in (1000..5000).step_by(100) {
            touches.add(fault(page, 1, 100));
        }
        for page in (5000..9000).step_by(100) {
            touches.add(fault(page, 2, 100));
        }
        let sums = assigned(&mut touches, 1000..9000, &[run(1000..9000)]);
        let first = sums[&Origin::Stack(1)];
        assert_eq!(first + sums[&Origin::Stack(2)], 8000);
        assert!(first.abs_diff(4000) <= 50, "{sums:?}");
    }

    #[test]
    fn with_every_fault_sampled_each_page_is_its_own() {
        let mut touches = Touches::new(HUGE_PAGES);
        for page in 0..100 {
            touches.add(fault(1000 + page, (page % 2) as u32, 1));
        }
        let sums = assigned(&mut touches, 1000..3000, &[run(1000..3000)]);
        assert_eq!(sums[&Origin::Stack(0)], 50);
        // One fault may make adjacent pages resident.
        assert_eq!(sums[&Origin::Stack(1)], 50 + FAULT_PAGES);
        assert_eq!(sums[&Origin::NotSampled], 1900 - FAULT_PAGES);
    }

    #[test]
    fn a_distance_that_was_large_lately_may_be_so_again() {
        let mut touches = Touches::new(HUGE_PAGES);
        touches.add(fault(1000, 1, 100));
        touches.add(fault(5000, 2, 1));
        touches.add(Fault {
            faults: None,
            ..fault(5001, 2, 1)
        });
        let sums = assigned(&mut touches, 5000..9000, &[run(5000..5300)]);
        assert_eq!(sums, BTreeMap::from([(Origin::Stack(2), 300)]));
        for page in 5002..5100 {
            touches.add(fault(page, 2, 1));
        }
        let sums = assigned(&mut touches, 5000..9000, &[run(5000..5300)]);
        assert!(sums[&Origin::NotSampled] > 150, "{sums:?}");
    }

    #[test]
    fn freed_pages_do_not_count() {
        let mut touches = Touches::new(HUGE_PAGES);
        touches.add(fault(1000, 1, 1));
        touches.add(fault(1500, 2, 1));
        let sums = assigned(&mut touches, 1000..2000, &[run(1500..1501)]);
        assert_eq!(sums, BTreeMap::from([(Origin::Stack(2), 1)]));
        assert!(assigned(&mut touches, 1000..2000, &[]).is_empty());
    }

    #[test]
    fn pages_that_existed_before_count_only_if_touched_again() {
        let mut touches = Touches::new(HUGE_PAGES);
        let mut before = PageSet::default();
        before.insert(1000..1100);
        touches.begin(before);
        touches.add(fault(1010, 1, 1));
        touches.add(fault(1100, 2, 1));
        let sums = assigned(&mut touches, 1000..1200, &[run(1000..1101)]);
        let expected = [
            (Origin::Stack(1), 1),
            (Origin::Stack(2), 1),
            (Origin::Before, 99),
        ];
        assert_eq!(sums, BTreeMap::from(expected));
    }

    #[test]
    fn the_first_toucher_keeps_a_page_that_is_only_copied() {
        let mut touches = Touches::new(HUGE_PAGES);
        let mut before = PageSet::default();
        before.insert(1001..1002);
        touches.begin(before);
        touches.add(fault(1000, 1, 1));
        touches.fork();
        touches.add(fault(1000, 2, 1));
        touches.add(fault(1001, 2, 1));
        let sums = assigned(&mut touches, 1000..1002, &[run(1000..1002)]);
        let expected = [(Origin::Stack(1), 1), (Origin::Before, 1)];
        assert_eq!(sums, BTreeMap::from(expected));
        // The page was freed, and touched again.
        touches.add(fault(1000, 3, 1));
        // It came back from swap.
        let swapped_in = Fault {
            is_major: true,
            ..fault(1000, 4, 1)
        };
        touches.add(swapped_in);
        let sums = assigned(&mut touches, 1000..1002, &[run(1000..1002)]);
        let expected = [(Origin::Stack(3), 1), (Origin::Before, 1)];
        assert_eq!(sums, BTreeMap::from(expected));
    }

    #[test]
    fn copies_of_pages_that_were_not_sampled_are_recognised() {
        let mut touches = Touches::new(HUGE_PAGES);
        for page in (1000..5000).step_by(100) {
            touches.add(fault(page, 1, 100));
        }
        for round in 0..2 {
            touches.fork();
            for page in (1050..4900).step_by(70) {
                touches.add(fault(page, 2 + round, 70));
            }
        }
        // The mapping has grown meanwhile.
        for page in (5000..9000).step_by(100) {
            touches.add(fault(page, 9, 100));
        }
        let sums = assigned(&mut touches, 1000..9000, &[run(1000..9000)]);
        assert!(sums[&Origin::Stack(1)].abs_diff(4000) <= 50, "{sums:?}");
        assert!(sums[&Origin::Stack(9)].abs_diff(4000) <= 50, "{sums:?}");
        assert_eq!(sums.len(), 2);
    }

    #[test]
    fn a_fault_stands_for_its_huge_page() {
        // With pages of 4, 16 and 64 KiB.
        for size in [HUGE_PAGES, 2048, 8192] {
            let mut touches = Touches::new(size);
            for (block, stack) in [(2u64, 1), (3, 2), (4, 1)] {
                touches.add(fault(block * size + 7, stack, 1));
            }
            let mut huge = run(2 * size..5 * size);
            huge.is_huge = true;
            let sums = assigned(&mut touches, 0..6 * size, &[huge]);
            let expected = [(Origin::Stack(1), 2 * size), (Origin::Stack(2), size)];
            assert_eq!(sums, BTreeMap::from(expected));
        }
    }

    #[test]
    fn the_number_of_touches_is_bounded() {
        const MAX_PAGES: usize = 1 << 14;
        let mut touches = Touches::limited(MAX_PAGES, HUGE_PAGES);
        let count = 3 * MAX_PAGES as u64;
        for page in 0..count {
            touches.add(fault(page, u32::from(page >= count / 2), 1));
        }
        assert!(touches.pages.len() <= MAX_PAGES);
        let sums = assigned(&mut touches, 0..count, &[run(0..count)]);
        for stack in [0, 1] {
            let found = sums[&Origin::Stack(stack)];
            assert!(found.abs_diff(count / 2) < count / 100, "{sums:?}");
        }
    }

    #[test]
    fn pages_that_were_freed_since_the_last_time_are_nobodys() {
        let mut touches = Touches::new(HUGE_PAGES);
        for page in 1000..1010 {
            touches.add(fault(page, 1, 1));
        }
        let sums = assigned(&mut touches, 1000..1100, &[run(1000..1010)]);
        assert_eq!(sums[&Origin::Stack(1)], 10);
        // The next ten have no sampled fault, and those near them no longer exist.
        let sums = assigned(&mut touches, 1000..1100, &[run(1010..1020)]);
        assert_eq!(sums, BTreeMap::from([(Origin::NotSampled, 10)]));
    }

    #[test]
    fn any_faults_assign_each_page_once() {
        let mut random = 7u64;
        let mut next = |limit: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % limit
        };
        for _ in 0..200 {
            let mut touches = Touches::new(HUGE_PAGES);
            let mut before = PageSet::default();
            let old = 4000 + next(200);
            before.insert(old..old + next(300));
            touches.begin(before);
            for _ in 0..next(40) {
                if next(5) == 0 {
                    touches.fork();
                }
                touches.add(fault(4000 + next(2000), next(4) as u32, 1 + next(50)));
            }
            let mut huge = run(5120..5632);
            huge.is_huge = true;
            let runs = [run(4000..4000 + next(1000)), huge, run(5700..5800)];
            let all: u64 = runs
                .iter()
                .map(|run| (run.range.end - run.range.start) / SIZE)
                .sum();
            let sums = assigned(&mut touches, 4000..6000, &runs);
            assert_eq!(sums.values().sum::<u64>(), all);
        }
    }
}
