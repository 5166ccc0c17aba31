//! The moments of a session, for a curve of its memory. Policy only: says when a moment is due,
//! and keeps what was read anyway, or read for it.
//!
//! # Promises
//! - At most [`MOMENTS`] moments, of which [`TABLES`] have stacks: when there are more, they are
//!   thinned and the period doubles, so a session of days takes as much memory as one of minutes.
//! - Reading tables takes at most one part in [`SHARE`] of the time, of all members together.
//! - The highest moment that was polled stays, however short it was, with its stacks if there
//!   was time to read them.

// Decision 28: memory over time is recorded from outside.
use std::time::Duration;

use heap_format::moment::{self, Held, Moment};
use heap_format::{Detail, Profile};
use shm_protocol::snapshot::{RecordView, Totals};

use crate::collect;
use crate::snapshot::Snapshot;

/// Maximum number of moments.
const MOMENTS: usize = 240;
/// Maximum number of moments with stacks.
const TABLES: usize = 24;
/// Time between two moments at first.
const PERIOD_NS: u64 = 100_000_000;
/// Least time between two moments with stacks.
const TABLE_PERIOD_NS: u64 = 200_000_000;
/// How much more must be live than at any moment with stacks for the next one to be early.
const PEAK_STEP: f64 = 1.05;
/// The time between two readings of tables, as a multiple of what the last one took.
const SHARE: u64 = 100;
/// What a reading is taken to cost before the first.
const GUESS: Duration = Duration::from_millis(1);

/// What a poll is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Due {
    /// Nothing, unless it is the highest so far.
    Nothing,
    /// A moment.
    Totals,
    /// A moment with stacks.
    Stacks,
}

/// The moments of one process's session.
pub struct Timeline {
    /// Those that have stacks name them by their leaves.
    moments: Vec<Moment>,
    period_ns: u64,
    next_ns: u64,
    last_table_ns: u64,
    /// Highest number of live bytes at any poll.
    highest: f64,
    /// That poll, while it is not a moment.
    peak: Option<Moment>,
    /// Highest number of live bytes at a moment with stacks.
    highest_table: f64,
    /// Time that the last reading of the table took.
    cost: Duration,
}

impl Default for Timeline {
    /// Of a session, which begins with nothing.
    fn default() -> Self {
        Self {
            moments: vec![Moment::default()],
            period_ns: PERIOD_NS,
            next_ns: 0,
            last_table_ns: 0,
            highest: 0.0,
            peak: None,
            highest_table: 0.0,
            cost: GUESS,
        }
    }
}

impl Timeline {
    /// Time between two moments at present.
    pub fn period(&self) -> Duration {
        Duration::from_nanos(self.period_ns)
    }

    /// What a poll so long after the start is good for, in a session of this many members.
    pub fn due(&self, at_ns: u64, totals: &Totals, members: usize) -> Due {
        let waited = at_ns.saturating_sub(self.last_table_ns);
        let cost = u64::try_from(self.cost.as_nanos()).unwrap_or(u64::MAX);
        let pause = cost.saturating_mul(SHARE * members.max(1) as u64);
        let affordable = waited >= pause.max(PERIOD_NS);
        let is_peak = totals.live_bytes > self.highest_table * PEAK_STEP;
        if affordable && is_peak {
            return Due::Stacks;
        }
        // Spread over the session so far, however long it will be.
        let spread = TABLE_PERIOD_NS.max(at_ns / TABLES as u64);
        match at_ns >= self.next_ns {
            true if affordable && waited >= spread => Due::Stacks,
            true => Due::Totals,
            false => Due::Nothing,
        }
    }

    /// Takes note of a poll that is not a moment.
    pub fn see(&mut self, at_ns: u64, totals: &Totals, resident: Option<u64>) {
        if totals.live_bytes > self.highest {
            self.highest = totals.live_bytes;
            self.peak = Some(of_totals(at_ns, totals, resident));
        }
    }

    /// Notes what reading a table took.
    pub fn spent(&mut self, cost: Duration) {
        self.cost = cost;
    }

    /// Adds a moment.
    pub fn add(&mut self, at_ns: u64, totals: &Totals, resident: Option<u64>) {
        self.push(of_totals(at_ns, totals, resident));
    }

    /// Adds a moment with the sums of all stacks, of which the heaviest are kept.
    pub fn add_stacks(&mut self, at_ns: u64, sums: &[RecordView], resident: Option<u64>) {
        self.push_table(of_sums(at_ns, sums, resident));
    }

    fn push_table(&mut self, moment: Moment) {
        self.highest_table = self.highest_table.max(moment.live as f64);
        self.last_table_ns = moment.at_ns;
        self.push(moment);
        if self.tables().count() > TABLES {
            self.drop_table();
        }
    }

    fn push(&mut self, moment: Moment) {
        let last = self.moments.last().map_or(0, |last| last.at_ns);
        let peak = self.peak.take();
        let between = |peak: &Moment| last < peak.at_ns && peak.at_ns < moment.at_ns;
        if let Some(peak) = peak.filter(|peak| between(peak) && peak.live > moment.live) {
            self.append(peak);
        }
        if moment.at_ns > last {
            self.append(moment);
        }
    }

    fn append(&mut self, moment: Moment) {
        self.highest = self.highest.max(moment.live as f64);
        if self.moments.len() >= MOMENTS {
            moment::thin(&mut self.moments);
            self.period_ns = self.period_ns.saturating_mul(2);
        }
        let periods = moment.at_ns / self.period_ns + 1;
        self.next_ns = periods.saturating_mul(self.period_ns);
        self.moments.push(moment);
    }

    /// All moments, in ascending order of time. The clock is coarse: a poll that was higher than
    /// the last moment may have been at the same time.
    fn all(&self) -> impl Iterator<Item = &Moment> {
        let last = self.moments.last().map_or(0, |last| last.at_ns);
        let peak = self.peak.as_ref().filter(|peak| peak.at_ns > last);
        self.moments.iter().chain(peak)
    }

    /// Indices of the moments with stacks.
    fn tables(&self) -> impl Iterator<Item = usize> + '_ {
        let all = 0..self.moments.len();
        all.filter(|&at| self.moments[at].stacks.is_some())
    }

    /// Forgets the stacks of the moment that has another one with stacks nearest on both sides,
    /// but of neither the highest nor the latest.
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

    /// The moments until a snapshot was taken, and the snapshot as the last one, without its sums.
    pub fn until(&self, snapshot: &Snapshot) -> Vec<Moment> {
        let end_ns = snapshot.end_ns.saturating_sub(snapshot.session.start_ns);
        let all: Vec<&Moment> = self.all().collect();
        let before = all.partition_point(|m| m.at_ns < end_ns);
        let (moments, later) = all.split_at(before);
        let mut moments: Vec<Moment> = moments.iter().map(|m| (*m).clone()).collect();
        moments.push(Moment {
            at_ns: end_ns,
            // For a snapshot of an earlier time, what is known of the time right after it.
            resident: later.first().and_then(|m| m.resident),
            ..of_totals(end_ns, &snapshot.totals, None)
        });
        moments
    }
}

/// Adds the maximum of the live heap to the moments of a dump, the last of which is the dump itself.
/// Its time is known to a tick of the clock: what was allocated until then says which moments were
/// before it.
pub fn insert_peak(moments: &mut Vec<Moment>, at_ns: u64, sums: &[RecordView]) {
    let mut peak = of_sums(at_ns, sums, None);
    let before = moments.len().saturating_sub(1);
    let place = moments[..before].partition_point(|m| m.allocated < peak.allocated);
    let earlier = place.checked_sub(1).map(|at| moments[at].at_ns);
    let (least, next) = (earlier.map_or(0, |at| at + 1), moments[place].at_ns);
    if least < next {
        peak.at_ns = at_ns.clamp(least, next - 1);
        moments.insert(place, peak);
    } else if place < before {
        // As another one at the same time.
        (peak.at_ns, peak.resident) = (next, moments[place].resident);
        moments[place] = peak;
    }
}

/// The moments of a dump whose stacks are named by their leaves, with the stacks' numbers in the
/// profile that was made of the snapshot; the last one has the sums of the profile.
pub fn numbered(moments: &[Moment], snapshot: &Snapshot, profile: &Profile) -> Vec<Moment> {
    let mut numbers: Vec<Option<u32>> = vec![None];
    // Of the sizes of a stack, the first one stands for all.
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

/// The moment at which the stacks had these sums, the heaviest of which are kept.
fn of_sums(at_ns: u64, sums: &[RecordView], resident: Option<u64>) -> Moment {
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
        Held { stack, bytes }
    });
    let stacks: Vec<Held> = stacks.collect();
    moment.stacks = Some(moment::heaviest(stacks.into_iter()));
    moment
}

fn of_totals(at_ns: u64, totals: &Totals, resident: Option<u64>) -> Moment {
    Moment {
        at_ns,
        // Saturates.
        live: totals.live_bytes.round() as u64,
        allocated: totals.alloc_bytes.round() as u64,
        resident,
        stacks: None,
    }
}

/// Live bytes of a stack, rounded as in the profile.
fn live_bytes(detail: &Detail) -> u64 {
    u64::try_from(detail.values()[3]).unwrap_or(0)
}

/// Resident memory of the process as in its dump.
fn resident(profile: &Profile) -> Option<u64> {
    let memory = &profile.facts.memory;
    let parts = ["rss_anon", "rss_file", "rss_shmem"].map(|name| memory.get(name));
    let known = parts.iter().any(Option::is_some);
    let sum = parts.into_iter().flatten();
    known.then(|| sum.fold(0, |sum: u64, part| sum.saturating_add(*part)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn polls_at_one_time_are_one_moment() {
        let mut timeline = Timeline::default();
        timeline.see(0, &totals(5), None);
        timeline.add(4 * MS, &totals(10), None);
        timeline.see(4 * MS, &totals(20), None);
        timeline.add(4 * MS, &totals(30), None);
        timeline.see(4 * MS, &totals(40), None);
        let times: Vec<u64> = timeline.all().map(|moment| moment.at_ns).collect();
        assert_eq!(times, [0, 4 * MS]);
        timeline.see(8 * MS, &totals(50), None);
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

    /// Watches for this many looks of 100 ms, of which every table costs `cost`; gives the number
    /// of tables that were read.
    fn watch(
        timeline: &mut Timeline,
        looks: u64,
        cost: Duration,
        live: impl Fn(u64) -> u64,
    ) -> u64 {
        let mut tables = 0;
        for look in 1..=looks {
            let (at_ns, totals) = (look * 100 * MS, totals(live(look)));
            match timeline.due(at_ns, &totals, 1) {
                Due::Nothing => timeline.see(at_ns, &totals, None),
                Due::Totals => timeline.add(at_ns, &totals, None),
                Due::Stacks => {
                    tables += 1;
                    let mut moment = of_totals(at_ns, &totals, None);
                    moment.stacks = Some(Vec::new());
                    timeline.push_table(moment);
                    timeline.spent(cost);
                }
            }
            assert!(timeline.moments.len() <= MOMENTS);
            assert!(timeline.tables().count() <= TABLES);
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
        assert!(moments.len() >= MOMENTS / 2);
        assert_eq!(moments[0], Moment::default());
        assert!(moments.is_sorted_by_key(|m| m.at_ns));
        let highest = moments.iter().find(|m| m.live == 1 << 30);
        let highest = highest.expect("ten seconds of a week");
        assert!(highest.stacks.is_some());
        assert!(timeline.tables().count() > TABLES / 2);
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
        // Of sixty members each has a sixtieth.
        let timeline = Timeline::default();
        assert_eq!(timeline.due(6000 * MS, &totals(1), 60), Due::Stacks);
        assert_eq!(timeline.due(5999 * MS, &totals(1), 60), Due::Totals);
    }
}
