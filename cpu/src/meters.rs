//! What samples stand for where the kernel's events sample processors, and count nothing of a
//! thread or a process.
//!
//! Such samples hit all that a process does alike, threads that live for a moment too. So what it
//! used since its clock was last read is shared evenly by the samples that came of it meanwhile,
//! over a time in which each processor has had many: of two threads that run side by side, one has
//! its samples a moment before the other, and would have the time of both where samples were weighed
//! as they come. The clock is read when there are samples: the next ones stand for what went by
//! without any.
//!
//! The kernel says how many samples were lost, but not whose: what a process lacks of those that its
//! clock would have is its part.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

/// Periods after which samples are weighed, within these limits.
const PERIODS: u64 = 20;
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(1);

/// What a sample is of: a stack in the recording, as it gave it; `None`: no stack.
pub(crate) type Place = Option<(u64, u32)>;

/// What a process's samples stand for.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Weighed {
    pub pid: i32,
    /// Nanoseconds for each place.
    pub times: Vec<(Place, u64)>,
    /// Samples that were lost.
    pub lost: u64,
}

/// How samples of processes are weighed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scale {
    /// By what they used since their clocks were last read.
    Clock,
    /// By their periods, but not more than the process has used: the rest is its next program's.
    Periods,
}

/// Clocks of processes, and their samples that are not weighed yet.
pub(crate) struct Meters {
    period: u64,
    /// The CPU time of each when its clock was last read.
    told: HashMap<i32, u64>,
    /// How many samples there are of each place, by process.
    samples: HashMap<i32, HashMap<Place, u64>>,
    /// Processes of which samples may have been lost since their clocks were read.
    lossy: HashSet<i32>,
    /// When samples were last weighed.
    weighed: Instant,
}

impl Meters {
    /// Of samples that come after `period` nanoseconds each.
    pub(crate) fn new(period: u64) -> Self {
        Self {
            period: period.max(1),
            told: HashMap::new(),
            samples: HashMap::new(),
            lossy: HashSet::new(),
            weighed: Instant::now(),
        }
    }

    /// A process is sampled from now on, when its clock says this.
    pub(crate) fn begin(&mut self, pid: i32, now: Option<u64>) {
        self.told.insert(pid, now.unwrap_or(0));
    }

    /// Samples were lost, of whoever it was.
    pub(crate) fn some_were_lost(&mut self) {
        self.lossy.extend(self.told.keys());
    }

    /// A sample came of a process.
    pub(crate) fn count(&mut self, pid: i32, place: Place) {
        let places = self.samples.entry(pid).or_default();
        *places.entry(place).or_default() += 1;
    }

    /// Whether it is time to weigh.
    pub(crate) fn is_due(&self) -> bool {
        let periods = Duration::from_nanos(self.period.saturating_mul(PERIODS));
        self.weighed.elapsed() >= periods.clamp(SHORTEST, LONGEST)
    }

    /// What all samples stand for that came since the last time. `clock` gives a process's clock.
    pub(crate) fn weigh_all(&mut self, clock: impl Fn(i32) -> Option<u64>) -> Vec<Weighed> {
        self.weighed = Instant::now();
        let pids: Vec<i32> = self.samples.keys().copied().collect();
        let weighed = pids.into_iter();
        weighed
            .filter_map(|pid| self.weigh(pid, Scale::Clock, &clock))
            .collect()
    }

    /// The same of one process. `None`: there are no samples of it.
    pub(crate) fn weigh(
        &mut self,
        pid: i32,
        scale: Scale,
        clock: impl Fn(i32) -> Option<u64>,
    ) -> Option<Weighed> {
        let places = self.samples.remove(&pid)?;
        let count: u64 = places.values().sum();
        let periods = count.saturating_mul(self.period);
        // One that has ended has no clock.
        let now = clock(pid);
        let before = self.told.entry(pid).or_insert_with(|| now.unwrap_or(0));
        let used = now.map(|now| now.saturating_sub(*before));
        let told = match (scale, used) {
            (_, None) => periods,
            (Scale::Clock, Some(used)) => used,
            (Scale::Periods, Some(used)) => used.min(periods),
        };
        *before = before.saturating_add(told);
        let lost = match used.filter(|_| self.lossy.remove(&pid)) {
            Some(used) => (used / self.period).saturating_sub(count),
            None => 0,
        };
        Some(Weighed {
            pid,
            times: shares(places, count, told),
            lost,
        })
    }

    /// Processes ended.
    pub(crate) fn forget(&mut self, pids: &[i32]) {
        self.told.retain(|pid, _| !pids.contains(pid));
        self.samples.retain(|pid, _| !pids.contains(pid));
        self.lossy.retain(|pid| !pids.contains(pid));
    }
}

/// Shares a time by the samples of each place. The shares add up to it.
fn shares(places: HashMap<Place, u64>, count: u64, ns: u64) -> Vec<(Place, u64)> {
    let mut places: Vec<(Place, u64)> = places.into_iter().collect();
    places.sort_unstable();
    let part = |samples: u64| (u128::from(ns) * u128::from(samples) / u128::from(count)) as u64;
    let mut so_far = 0;
    let share = |(place, samples): (Place, u64)| {
        let before = part(so_far);
        so_far += samples;
        (place, part(so_far) - before)
    };
    places.into_iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: Place = Some((1, 1));
    const OTHER: Place = Some((1, 2));

    fn count(meters: &mut Meters, pid: i32, places: &[Place]) {
        places.iter().for_each(|place| meters.count(pid, *place));
    }

    #[test]
    fn samples_share_what_their_process_used_since_the_last_ones() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(100));
        meters.begin(8, None);
        let mut round = |seven: Option<u64>, eight: Option<u64>| {
            count(&mut meters, 7, &[ONE, OTHER, ONE]);
            count(&mut meters, 8, &[None]);
            let mut weighed = meters.weigh_all(|pid| if pid == 7 { seven } else { eight });
            weighed.sort_by_key(|of| of.pid);
            assert_eq!((weighed[0].pid, weighed[1].pid), (7, 8));
            let times = weighed.iter().flat_map(|of| &of.times);
            times.map(|(_, ns)| *ns).collect::<Vec<u64>>()
        };
        assert_eq!(round(Some(136), Some(11)), [24, 12, 11]);
        // Most of the samples were lost; the shares add up.
        assert_eq!(round(Some(336), Some(12)), [133, 67, 1]);
        // One's clock went backwards; the other has ended.
        assert_eq!(round(Some(300), None), [0, 0, 10]);
        assert_eq!(round(Some(366), Some(25)), [20, 10, 3]);
        // No sample, nothing to weigh.
        assert_eq!(meters.weigh_all(|_| Some(1000)), []);
        meters.forget(&[7]);
        meters.count(7, ONE);
        let weighed = meters.weigh(7, Scale::Clock, |_| Some(1000));
        assert_eq!(weighed.expect("a sample").times, [(ONE, 0)]);
        meters.count(7, ONE);
        let weighed = meters.weigh(7, Scale::Clock, |_| Some(1010));
        assert_eq!(weighed.expect("a sample").times, [(ONE, 10)]);
    }

    /// Of threads that run side by side, one has its samples a moment before the other.
    #[test]
    fn who_is_sampled_first_has_no_more_than_the_other() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(0));
        let mut clock = 0;
        let mut times = HashMap::new();
        for _ in 0..50 {
            for (place, passed) in [(ONE, 19), (OTHER, 1)] {
                clock += passed;
                meters.count(7, place);
            }
        }
        for of in meters.weigh_all(|_| Some(clock)) {
            times.extend(of.times);
        }
        assert_eq!(times, HashMap::from([(ONE, 500), (OTHER, 500)]));
    }

    #[test]
    fn samples_before_a_program_is_executed_do_not_have_the_next_ones_time() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(0));
        count(&mut meters, 7, &[ONE, ONE]);
        let weighed = meters.weigh(7, Scale::Periods, |_| Some(100));
        assert_eq!(weighed.expect("samples").times, [(ONE, 20)]);
        count(&mut meters, 7, &[OTHER]);
        let weighed = meters.weigh(7, Scale::Clock, |_| Some(100));
        assert_eq!(weighed.expect("a sample").times, [(OTHER, 80)]);
    }

    #[test]
    fn what_was_lost_is_told_of_those_whose_clocks_went_on() {
        let mut meters = Meters::new(10);
        meters.begin(7, Some(0));
        meters.begin(8, Some(0));
        let round = |meters: &mut Meters, pids: &[i32], now: u64| {
            for pid in pids {
                count(meters, *pid, &[ONE, ONE]);
            }
            let mut lost: Vec<(i32, u64)> = (meters.weigh_all(|_| Some(now)).iter())
                .map(|of| (of.pid, of.lost))
                .collect();
            lost.sort_unstable();
            lost
        };
        // Late samples are none that were lost.
        assert_eq!(round(&mut meters, &[7, 8], 100), [(7, 0), (8, 0)]);
        meters.some_were_lost();
        // Of the other one there is no sample now: it is told with the next.
        assert_eq!(round(&mut meters, &[7], 200), [(7, 8)]);
        assert_eq!(round(&mut meters, &[7, 8], 220), [(7, 0), (8, 10)]);
        meters.some_were_lost();
        meters.forget(&[7, 8]);
        assert_eq!(round(&mut meters, &[7, 8], 500), [(7, 0), (8, 0)]);
    }
}
