//! Keeps the moments of a session, from which its memory over time is drawn. Decides when a moment
//! is due; the caller reads the tables of stacks.
//!
//! # Guarantees
//! - At most `MAX_MOMENTS` moments, of which at most `MAX_TABLES` have stacks. When the limit
//!   is reached, they are thinned and the period doubles, so a session of days takes no more memory
//!   than one of minutes.
//! - Reading tables takes at most 1/`TABLE_COST_FACTOR` of the time, over all processes of the
//!   session.
//! - The highest moment seen by a poll is never dropped, however short it was. It has stacks if
//!   there was time to read them.

// Decision 28: memory over time is recorded from outside.
use std::time::Duration;

use profile::moment::{self, Moment, StackBytes};
use profile::{Detail, Profile};
use shm_protocol::snapshot::{RecordView, Totals};

use crate::collect;
use crate::snapshot::Snapshot;

/// Maximum number of moments.
const MAX_MOMENTS: usize = 240;
/// Maximum number of moments with stacks.
const MAX_TABLES: usize = 24;
/// Initial time between two moments.
const PERIOD_NS: u64 = 100_000_000;
/// Minimum time between two moments with stacks.
const TABLE_PERIOD_NS: u64 = 200_000_000;
/// Growth of the live heap, relative to the highest moment with stacks, that makes a moment with
/// stacks due early.
const PEAK_STEP: f64 = 1.05;
/// Minimum time between two readings of the tables, as a multiple of the time the last one took.
const TABLE_COST_FACTOR: u64 = 100;
/// Assumed cost of the first reading of the tables.
const INITIAL_COST: Duration = Duration::from_millis(1);

/// Decision on what to record at a poll.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing, unless the poll turns out to be the peak ([`Timeline::note_poll`]).
    Nothing,
    /// A moment with totals only.
    Totals,
    /// A moment with stacks.
    Stacks,
}

/// Moments of one process's session.
#[derive(Clone)]
pub struct Timeline {
    /// Moments so far. Their stacks are identified by leaf nodes.
    moments: Vec<Moment>,
    /// Time between two moments.
    period_ns: u64,
    /// Time at which the next moment is due.
    next_ns: u64,
    /// Time of the last moment with stacks.
    last_table_ns: u64,
    /// Highest number of live bytes seen by any poll.
    highest: f64,
    /// Poll at which `highest` was seen, if it is not among `moments`.
    peak: Option<Moment>,
    /// Highest number of live bytes of a moment with stacks.
    highest_table: f64,
    /// Time that the last reading of the tables took.
    cost: Duration,
}

impl Default for Timeline {
    /// Creates the timeline of a session, which starts with an empty heap.
    fn default() -> Self {
        Self {
            moments: vec![Moment::default()],
            period_ns: PERIOD_NS,
            next_ns: 0,
            last_table_ns: 0,
            highest: 0.0,
            peak: None,
            highest_table: 0.0,
            cost: INITIAL_COST,
        }
    }
}

impl Timeline {
    /// Wraps moments that another timeline has recorded, to build a profile from them.
    pub fn of(moments: Vec<Moment>) -> Self {
        Self {
            moments,
            ..Self::default()
        }
    }

    /// Returns the moments so far, in ascending order of time. Their stacks are identified by leaf
    /// nodes.
    pub fn moments(&self) -> impl Iterator<Item = &Moment> {
        self.all()
    }

    /// Returns the current time between two moments.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// Decides what to record at a poll `at_ns` after the start. `members` is the number of
    /// processes in the session, which share the cost limit.
    pub fn due(&self, at_ns: u64, totals: &Totals, members: usize) -> Due {
        let waited = at_ns.saturating_sub(self.last_table_ns);
        let cost = u64::try_from(self.cost.as_nanos()).unwrap_or(u64::MAX);
        let pause = cost.saturating_mul(TABLE_COST_FACTOR * members.max(1) as u64);
        let affordable = waited >= pause.max(PERIOD_NS);
        let is_peak = totals.live_bytes > self.highest_table * PEAK_STEP;
        if affordable && is_peak {
            return Due::Stacks;
        }
        // Spreads the moments with stacks over the session so far, since its length is unknown.
        let spread = TABLE_PERIOD_NS.max(at_ns / MAX_TABLES as u64);
        if at_ns < self.next_ns {
            Due::Nothing
        } else if affordable && waited >= spread {
            Due::Stacks
        } else {
            Due::Totals
        }
    }

    /// Records the totals of a poll that adds no moment, in case they are the peak.
    pub fn note_poll(&mut self, at_ns: u64, totals: &Totals, resident: Option<u64>) {
        if totals.live_bytes > self.highest {
            self.highest = totals.live_bytes;
            self.peak = Some(moment_of_totals(at_ns, totals, resident));
        }
    }

    /// Records the time that reading the tables took.
    pub fn set_table_cost(&mut self, cost: Duration) {
        self.cost = cost;
    }

    /// Adds a moment without stacks.
    pub fn add(&mut self, at_ns: u64, totals: &Totals, resident: Option<u64>) {
        self.push(moment_of_totals(at_ns, totals, resident));
    }

    /// Adds a moment with the sums of all stacks. Only the heaviest are kept.
    pub fn add_stacks(&mut self, at_ns: u64, sums: &[RecordView], resident: Option<u64>) {
        self.push_table(moment_of_sums(at_ns, sums, resident));
    }

    fn push_table(&mut self, moment: Moment) {
        self.highest_table = self.highest_table.max(moment.live as f64);
        self.last_table_ns = moment.at_ns;
        self.push(moment);
        if self.tables().count() > MAX_TABLES {
            self.drop_table();
        }
    }

    fn push(&mut self, moment: Moment) {
        let last_ns = self.moments.last().map_or(0, |moment| moment.at_ns);
        let peak = self.peak.take();
        let between = |peak: &Moment| last_ns < peak.at_ns && peak.at_ns < moment.at_ns;
        if let Some(peak) = peak.filter(|peak| between(peak) && peak.live > moment.live) {
            self.append(peak);
        }
        if moment.at_ns > last_ns {
            self.append(moment);
        }
    }

    fn append(&mut self, moment: Moment) {
        self.highest = self.highest.max(moment.live as f64);
        if self.moments.len() >= MAX_MOMENTS {
            moment::drop_half(&mut self.moments);
            self.period_ns = self.period_ns.saturating_mul(2);
        }
        let periods = moment.at_ns / self.period_ns + 1;
        self.next_ns = periods.saturating_mul(self.period_ns);
        self.moments.push(moment);
    }

    /// Returns all moments in ascending order of time. The clock is coarse, so the peak may have
    /// the same time as the last moment; it is omitted then.
    fn all(&self) -> impl Iterator<Item = &Moment> {
        let last_ns = self.moments.last().map_or(0, |moment| moment.at_ns);
        let peak = self.peak.as_ref().filter(|peak| peak.at_ns > last_ns);
        self.moments.iter().chain(peak)
    }

    /// Returns the indices of the moments with stacks.
    fn tables(&self) -> impl Iterator<Item = usize> + '_ {
        let all = 0..self.moments.len();
        all.filter(|&at| self.moments[at].stacks.is_some())
    }

    /// Drops the stacks of one moment: the one whose neighbours with stacks are closest together,
    /// but neither the highest moment nor the first or last.
    fn drop_table(&mut self) {
        let tables: Vec<usize> = self.tables().collect();
        let live = |at: usize| self.moments[at].live;
        let highest = tables.iter().copied().max_by_key(|&at| live(at));
        let time = |at: usize| self.moments[at].at_ns;
        let inner = (1..tables.len().saturating_sub(1)).filter(|&i| Some(tables[i]) != highest);
        let room = |&i: &usize| time(tables[i + 1]) - time(tables[i - 1]);
        if let Some(i) = inner.min_by_key(room) {
            self.moments[tables[i]].stacks = None;
        }
    }

    /// Returns the moments before a snapshot, followed by the snapshot itself as a moment without
    /// stacks.
    pub fn until(&self, snapshot: &Snapshot) -> Vec<Moment> {
        let end_ns = snapshot.end_ns.saturating_sub(snapshot.session.start_ns);
        let all: Vec<&Moment> = self.all().collect();
        let before = all.partition_point(|m| m.at_ns < end_ns);
        let (moments, later) = all.split_at(before);
        let mut moments: Vec<Moment> = moments.iter().map(|m| (*m).clone()).collect();
        moments.push(Moment {
            at_ns: end_ns,
            // The resident size was not read at the time of a past snapshot; uses that of the next
            // moment.
            resident: later.first().and_then(|m| m.resident),
            ..moment_of_totals(end_ns, &snapshot.totals, None)
        });
        moments
    }
}

/// Inserts the session's high-water mark into the moments of a dump, whose last moment is the dump
/// itself. The time of the peak is known only to a clock tick, so its position is found by the
/// bytes allocated until then.
pub fn insert_peak(moments: &mut Vec<Moment>, at_ns: u64, sums: &[RecordView]) {
    let mut peak = moment_of_sums(at_ns, sums, None);
    let before = moments.len().saturating_sub(1);
    let index = moments[..before].partition_point(|m| m.allocated < peak.allocated);
    let previous_ns = index.checked_sub(1).map(|previous| moments[previous].at_ns);
    let earliest_ns = previous_ns.map_or(0, |ns| ns + 1);
    let next_ns = moments[index].at_ns;
    if earliest_ns < next_ns {
        peak.at_ns = at_ns.clamp(earliest_ns, next_ns - 1);
        moments.insert(index, peak);
    } else if index < before {
        // No timestamp before the next moment is free, so the peak replaces that moment.
        peak.at_ns = next_ns;
        peak.resident = moments[index].resident;
        moments[index] = peak;
    }
}

/// Replaces the leaf nodes in `moments` by stack numbers of `profile`, which was built from
/// `snapshot`. The last moment gets the profile's own sums.
pub fn with_stack_numbers(
    moments: &[Moment],
    snapshot: &Snapshot,
    profile: &Profile,
) -> Vec<Moment> {
    let mut numbers: Vec<Option<u32>> = vec![None];
    // The first record of a stack stands for those of its other size classes.
    for (number, record) in (0..).zip(snapshot.records()) {
        let leaf = record.node as usize;
        numbers.resize(numbers.len().max(leaf + 1), None);
        numbers[leaf].get_or_insert(number);
    }
    if !snapshot.table_full.is_empty() {
        numbers[0] = Some(snapshot.records().len() as u32);
    }
    let number = |leaf: u32| numbers.get(leaf as usize).copied().flatten();
    let mut moments: Vec<Moment> = moments.iter().map(|m| m.renumbered(number)).collect();
    let total = |kind: &str| {
        let column = profile.type_index(kind);
        column.map_or(0, |c| u64::try_from(profile.total(c)).unwrap_or(0))
    };
    if let Some(last) = moments.last_mut() {
        last.live = total("inuse_space");
        last.allocated = total("alloc_space");
        last.resident = last.resident.or_else(|| resident(profile));
    }
    moments
}

/// Builds a moment from the sums of all stacks. Keeps the heaviest stacks.
fn moment_of_sums(at_ns: u64, sums: &[RecordView], resident: Option<u64>) -> Moment {
    let mut moment = Moment {
        at_ns,
        resident,
        ..Moment::default()
    };
    let stacks = sums.iter().map(|record| {
        let detail = collect::detail(record, 0);
        let bytes = live_bytes(&detail);
        moment.live = moment.live.saturating_add(bytes);
        let allocated = detail.alloc_bytes.round() as u64;
        moment.allocated = moment.allocated.saturating_add(allocated);
        let stack = record.node;
        StackBytes { stack, bytes }
    });
    let stacks: Vec<StackBytes> = stacks.collect();
    moment.stacks = Some(moment::heaviest(stacks.into_iter()));
    moment
}

/// Builds a moment without stacks.
fn moment_of_totals(at_ns: u64, totals: &Totals, resident: Option<u64>) -> Moment {
    Moment {
        at_ns,
        // The cast saturates.
        live: totals.live_bytes.round() as u64,
        allocated: totals.alloc_bytes.round() as u64,
        resident,
        stacks: None,
    }
}

/// Returns the live bytes of a stack, rounded as in the profile.
fn live_bytes(detail: &Detail) -> u64 {
    u64::try_from(detail.values()[3]).unwrap_or(0)
}

/// Returns the resident size of the process as recorded in the dump.
fn resident(profile: &Profile) -> Option<u64> {
    let memory = &profile.facts.memory;
    let parts = ["rss_anon", "rss_file", "rss_shmem"].map(|name| memory.get(name));
    let is_known = parts.iter().any(Option::is_some);
    let sum = parts.into_iter().flatten();
    is_known.then(|| sum.fold(0, |sum: u64, part| sum.saturating_add(*part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn polls_at_the_same_time_become_one_moment() {
        let mut timeline = Timeline::default();
        timeline.note_poll(0, &totals(5), None);
        timeline.add(4 * MS, &totals(10), None);
        timeline.note_poll(4 * MS, &totals(20), None);
        timeline.add(4 * MS, &totals(30), None);
        timeline.note_poll(4 * MS, &totals(40), None);
        let times: Vec<u64> = timeline.all().map(|moment| moment.at_ns).collect();
        assert_eq!(times, [0, 4 * MS]);
        timeline.note_poll(8 * MS, &totals(50), None);
        let times: Vec<u64> = timeline.all().map(|moment| moment.at_ns).collect();
        assert_eq!(times, [0, 4 * MS, 8 * MS]);
    }

    fn totals(live: u64) -> Totals {
        Totals {
            live_bytes: live as f64,
            alloc_bytes: 2.0 * live as f64,
            ..Totals::default()
        }
    }

    /// Polls `polls` times, every 100 ms. Reading the tables takes `cost`. Returns the number of
    /// readings.
    fn watch(
        timeline: &mut Timeline,
        polls: u64,
        cost: Duration,
        live: impl Fn(u64) -> u64,
    ) -> u64 {
        let mut tables = 0;
        for poll in 1..=polls {
            let at_ns = poll * 100 * MS;
            let totals = totals(live(poll));
            match timeline.due(at_ns, &totals, 1) {
                Due::Nothing => timeline.note_poll(at_ns, &totals, None),
                Due::Totals => timeline.add(at_ns, &totals, None),
                Due::Stacks => {
                    tables += 1;
                    let mut moment = moment_of_totals(at_ns, &totals, None);
                    moment.stacks = Some(Vec::new());
                    timeline.push_table(moment);
                    timeline.set_table_cost(cost);
                }
            }
            assert!(timeline.moments.len() <= MAX_MOMENTS);
            assert!(timeline.tables().count() <= MAX_TABLES);
        }
        tables
    }

    #[test]
    fn a_session_of_a_week_is_bounded_and_keeps_its_outline() {
        let mut timeline = Timeline::default();
        let week = 7 * 86_400 * 10;
        let peak = week / 3;
        let live = |look| {
            if look / 100 == peak / 100 {
                1 << 30
            } else {
                look % 1000
            }
        };
        watch(&mut timeline, week, Duration::from_micros(300), live);
        let moments = &timeline.moments;
        assert!(moments.len() >= MAX_MOMENTS / 2);
        assert_eq!(moments[0], Moment::default());
        assert!(moments.is_sorted_by_key(|m| m.at_ns));
        let highest = moments.iter().find(|m| m.live == 1 << 30);
        let highest = highest.expect("ten seconds of a week");
        assert!(highest.stacks.is_some());
        assert!(timeline.tables().count() > MAX_TABLES / 2);
        let widest = moments.windows(2).map(|w| w[1].at_ns - w[0].at_ns).max();
        assert!(widest.unwrap() < week * 100 * MS / 20);
    }

    #[test]
    fn a_short_session_has_a_curve_with_stacks() {
        let mut timeline = Timeline::default();
        let tables = watch(&mut timeline, 50, Duration::from_millis(1), |look| look);
        assert!(timeline.moments.len() >= 51);
        assert!((20..=50).contains(&tables), "{tables}");
    }

    #[test]
    fn reading_tables_takes_no_more_than_its_share() {
        for cost_ms in [1, 5, 50, 300] {
            let mut timeline = Timeline::default();
            let cost = Duration::from_millis(cost_ms);
            let tables = watch(&mut timeline, 6000, cost, |look| look * look);
            let share = (tables * cost_ms) as f64 / 600_000.0;
            assert!(share <= 0.0101, "{cost_ms} ms: {share}");
        }
        // Each of sixty members has a sixtieth of the time.
        let timeline = Timeline::default();
        assert_eq!(timeline.due(6000 * MS, &totals(1), 60), Due::Stacks);
        assert_eq!(timeline.due(5999 * MS, &totals(1), 60), Due::Totals);
    }
}
