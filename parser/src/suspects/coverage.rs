//! Bars of growth and of live bytes over many simulated programs, from dumps to suspects: objects
//! of mixed sizes are sampled at 1024, and what is live at several dumps has the same samples in
//! each.
//!
//! The seeds are fixed. `MEM_TESTS_PLANTED=all` simulates twenty times as many, as before a
//! release.

use helpers::random::Random;
use profile::{Detail, Profile, ProfileBuilder, merge, variance};

use super::growth::Verdict;
use super::{Suspect, find};
use crate::nodes::{Granularity, Nodes};
use crate::view::View;

const INTERVAL: f64 = 1024.0;
/// Seconds between two dumps.
const DISTANCE: f64 = 10.0;
/// Stacks of a series, each of which is a case.
const STACKS: u64 = 100;
/// Sizes of a stack's objects, each a class of its own, and how many there are at first.
const KINDS: [(u64, usize); 3] = [(64, 300), (1000, 80), (6000, 10)];

/// Returns the number of series for each history.
fn series() -> usize {
    let is_full = std::env::var("MEM_TESTS_PLANTED").is_ok_and(|what| what == "all");
    if is_full { 600 } else { 30 }
}

/// Fate of the objects from one dump to the next.
#[derive(Clone, Copy, Debug)]
enum History {
    /// Grows by a tenth of the initial objects in each dump.
    Grows,
    /// The oldest quarter is replaced.
    Turns,
    /// All are replaced, three times.
    Busy,
}

/// Objects of one size of one stack.
struct Kind {
    bytes: f64,
    weight: f64,
    first: usize,
    /// For each live object, oldest first, whether it is sampled.
    live: Vec<bool>,
    allocated: u64,
    freed: u64,
}

impl Kind {
    fn new(bytes: u64, first: usize) -> Self {
        let bytes = bytes as f64;
        Self {
            bytes,
            weight: 1.0 / (1.0 - (-bytes / INTERVAL).exp()),
            first,
            live: Vec::new(),
            allocated: 0,
            freed: 0,
        }
    }

    fn allocate(&mut self, count: usize, random: &mut Random) {
        for _ in 0..count {
            let is_sampled = random.uniform() < 1.0 / self.weight;
            self.allocated += u64::from(is_sampled);
            self.live.push(is_sampled);
        }
    }

    fn free(&mut self, count: usize) {
        let freed = self.live.drain(..count).filter(|is_sampled| *is_sampled);
        self.freed += freed.count() as u64;
    }

    fn go_on(&mut self, history: History, random: &mut Random) {
        match history {
            History::Grows => self.allocate(self.first / 10, random),
            History::Turns => {
                self.free(self.first / 4);
                self.allocate(self.first / 4, random);
            }
            History::Busy => {
                for _ in 0..3 {
                    self.free(self.first);
                    self.allocate(self.first, random);
                }
            }
        }
    }

    fn detail(&self) -> Detail {
        let all = self.allocated as f64;
        let freed = self.freed as f64;
        let object_variance = self.weight * (self.weight - 1.0);
        let byte_variance = object_variance * self.bytes * self.bytes;
        Detail {
            alloc_samples: self.allocated,
            free_samples: self.freed,
            alloc_objects: all * self.weight,
            alloc_bytes: all * self.weight * self.bytes,
            freed_objects: freed * self.weight,
            freed_bytes: freed * self.weight * self.bytes,
            alloc_variance: all * byte_variance,
            live_variance: (all - freed) * byte_variance,
            alloc_object_variance: all * object_variance,
            live_object_variance: (all - freed) * object_variance,
            ..Detail::default()
        }
    }
}

/// Dumps of a program with many stacks, and the true growth per second and live bytes of each
/// stack.
struct Series {
    dumps: Vec<Profile>,
    rate: f64,
    live: f64,
}

impl Series {
    fn of(history: History, count: usize, random: &mut Random) -> Self {
        let mut stacks: Vec<[Kind; 3]> = (0..STACKS)
            .map(|_| KINDS.map(|(bytes, first)| Kind::new(bytes, first)))
            .collect();
        let mut dumps = Vec::new();
        for dump in 0..count {
            let mut builder = ProfileBuilder::new(INTERVAL as u64);
            for (number, kinds) in (1..).zip(&mut stacks) {
                for kind in kinds {
                    match dump {
                        0 => kind.allocate(kind.first, random),
                        _ => kind.go_on(history, random),
                    }
                    builder.stack([0x1001 + 0x100 * number], &kind.detail());
                }
            }
            let mut profile = builder.finish();
            variance::fill(&mut profile);
            dumps.push(profile);
        }
        let live = |kind: &Kind| kind.live.len() as f64 * kind.bytes;
        let first = |kind: &Kind| kind.first as f64 * kind.bytes;
        let live = stacks[0].iter().map(live).sum::<f64>();
        let grown = live - stacks[0].iter().map(first).sum::<f64>();
        Self {
            dumps,
            rate: grown / (DISTANCE * (count - 1) as f64),
            live,
        }
    }

    fn suspects(&self) -> Vec<Suspect> {
        let moments: Vec<f64> = (0..self.dumps.len()).map(|n| n as f64 * DISTANCE).collect();
        let profile = merge::side_by_side(&self.dumps).unwrap();
        let view = View::new(profile, None).unwrap();
        let nodes = Nodes::new(&view, Granularity::Addresses, true, false);
        find(&view, &nodes, &moments).unwrap().suspects
    }
}

/// Shares of suspects whose error bars contain the true value, and of suspects that are reported to
/// grow.
#[derive(Debug)]
struct Shares {
    growth: f64,
    live: f64,
    grows: f64,
}

impl Shares {
    fn of(history: History, dumps: usize, random: &mut Random) -> Self {
        let mut growth = 0;
        let mut live = 0;
        let mut grows = 0;
        for _ in 0..series() {
            let series = Series::of(history, dumps, random);
            let suspects = series.suspects();
            assert_eq!(suspects.len() as u64, STACKS);
            for suspect in suspects {
                let found = suspect.growth.expect("several dumps");
                growth += usize::from((found.rate - series.rate).abs() <= found.error);
                live += usize::from((suspect.bytes - series.live).abs() <= suspect.error);
                grows += usize::from(matches!(found.verdict, Verdict::Grew | Verdict::Steady));
            }
        }
        let cases = (series() as u64 * STACKS) as f64;
        let [growth, live, grows] = [growth, live, grows].map(|held| held as f64 / cases);
        Self {
            growth,
            live,
            grows,
        }
    }
}

/// 3,000 intervals each: their share strays by 0.4 % (one standard error).
#[test]
fn error_bars_of_mixed_sizes_have_the_right_coverage() {
    let mut random = Random(0x5eed_0f91_a27e_d001);
    for history in [History::Grows, History::Turns, History::Busy] {
        for dumps in [2, 6] {
            let shares = Shares::of(history, dumps, &mut random);
            let what = format!("{history:?}, {dumps} dumps: {shares:?}");
            assert!((0.93..=0.97).contains(&shares.live), "{what}");
            // With more dumps, the error bar is the larger one of sampling error and scatter, so
            // its coverage may be higher.
            let most = if dumps == 2 { 0.97 } else { 1.0 };
            assert!((0.93..=most).contains(&shares.growth), "{what}");
            match history {
                History::Grows => {}
                // One in forty, by chance.
                History::Turns | History::Busy => assert!(shares.grows <= 0.04, "{what}"),
            }
        }
    }
}
