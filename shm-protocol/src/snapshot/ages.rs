//! Ages of a record's live objects, from wrapping sums of their births.
//!
//! Sums of births wrap, but sums of the ages of live objects do not. The latter are computed from
//! the former with wrapping integers, and only the results become floats.

use crate::record::TIME_ONE;
use crate::squares;

/// Maximum coefficient of variation (squared) of the weights of objects of one size class at one
/// interval: weights differ by up to a factor of two.
const MAX_VARIATION: f64 = 0.125;

/// Sums over the live objects of a record, in fixed point.
pub(super) struct Births {
    /// Sum of the weights.
    pub(super) objects: u64,
    /// Sum of weight × birth, modulo 2^64.
    pub(super) births: u64,
    /// Sum of weight × birth², modulo 2^96, if known.
    pub(super) squares: Option<u128>,
    /// Present tick.
    pub(super) now: u32,
}

/// Weights of the live samples of a record.
pub(super) struct Weights {
    /// Number of samples.
    pub(super) samples: f64,
    /// Sum of the weights: the estimated number of objects.
    pub(super) sum: f64,
    /// Sum of w·(w − 1).
    pub(super) variance: f64,
}

/// Ages of the live objects of a record.
pub(super) struct Ages {
    /// Sum of weight × age, in object-ticks.
    pub(super) sum: f64,
    /// Sum of weight × (age − mean age)², in object-ticks², if known.
    squares: Option<f64>,
    /// Upper bound of (age − mean age)², in ticks².
    limit: f64,
}

impl Ages {
    pub(super) fn of(births: &Births) -> Self {
        let &Births { objects, now, .. } = births;
        // Sum of the ages: objects × now − births, exact before it becomes a float. Values in the
        // last sixteenth of the range are negative.
        let whole = objects.wrapping_mul(u64::from(now));
        let ages = whole.wrapping_sub(births.births);
        let is_negative = ages >> 60 == 0xf;
        let live = (objects as i64).max(0) as f64;
        let max = live * f64::from(now);
        let sum = if is_negative { 0.0 } else { ages as f64 }.min(max);
        let mean = if live > 0.0 { sum / live } else { 0.0 };
        let furthest = mean.max(f64::from(now) - mean);
        let is_plausible = u128::from(ages) <= u128::from(objects) * u128::from(now);
        let squares = births.squares.filter(|_| is_plausible && live > 0.0);
        Self {
            sum: sum / TIME_ONE,
            squares: match (squares, objects) {
                (_, 0) => Some(0.0),
                (squares, _) => squares.and_then(|squares| deviations(squares, births, ages)),
            },
            limit: furthest * furthest,
        }
    }

    /// Returns the sum of w·(w − 1)·(age − mean age)², if known.
    ///
    /// Exact if all weights are equal, as those of objects of one size are. Within a size class,
    /// the weights are taken to be independent of the ages. Weights that differ by more, because
    /// the interval changed during the session, make it an upper bound.
    pub(super) fn spread(&self, weights: &Weights) -> Option<f64> {
        let squares = self.squares?;
        let &Weights {
            samples,
            sum,
            variance,
        } = weights;
        if samples < 1.0 || sum <= 0.0 {
            return Some(0.0);
        }
        let variation = (samples * (variance + sum) / (sum * sum) - 1.0).max(0.0);
        if variation <= MAX_VARIATION {
            return Some(squares * variance / sum);
        }
        // No sample's weight is larger (Samuelson's inequality).
        let largest = sum / samples * (1.0 + square_root(variation * (samples - 1.0)));
        Some((squares * (largest - 1.0).max(0.0)).min(variance * self.limit))
    }
}

/// Returns a square root, which the core library has for integers only. Exact to a millionth.
fn square_root(value: f64) -> f64 {
    const UNIT: f64 = (1 << 20) as f64;
    ((value * UNIT * UNIT) as u128).isqrt() as f64 / UNIT
}

/// Returns the sum of weight × (age − mean age)², in object-ticks². Returns `None` for sums that do
/// not belong together, as in a torn copy, or that may have wrapped.
fn deviations(squares: u128, births: &Births, ages: u64) -> Option<f64> {
    let now = u128::from(births.now);
    let objects = u128::from(births.objects);
    let sum = u128::from(ages);
    // The largest possible value: half of the objects as old as the session, the others new.
    let half = f64::from(births.now) / 2.0;
    let max = births.objects as f64 * (half * half + 1.0);
    if max >= (1_u128 << (squares::BITS - 1)) as f64 {
        return None;
    }
    // Around the present: sum of w·(now − birth)². Then around the mean age, rounded to a tick.
    let around_now = squares
        .wrapping_add((2 * now).wrapping_mul(sum))
        .wrapping_sub((now * now).wrapping_mul(objects));
    let mean = sum / objects;
    let around_mean = around_now
        .wrapping_sub((2 * mean).wrapping_mul(sum))
        .wrapping_add((mean * mean).wrapping_mul(objects))
        & ((1 << squares::BITS) - 1);
    if around_mean as f64 > max * (1.0 + f64::EPSILON) {
        return None;
    }
    let remainder = (sum - mean * objects) as f64;
    let deviations = around_mean as f64 - remainder * remainder / births.objects as f64;
    Some(deviations.max(0.0) / TIME_ONE)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::VecDeque;
    use std::format;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::vec::Vec;

    use super::*;
    use crate::layout::{Node, Record};
    use crate::record::{FreeSample, NewSample, RecordKey, RecordLimits, Records, size_class};
    use crate::snapshot::{RecordView, StackSums, Table};
    use helpers::random::Random;

    /// Lifetime of the test's objects, in ticks. One is allocated in each tick.
    const LIFETIME: u32 = 250;

    /// Records of one stack, and memory for them.
    struct Stack {
        records: Vec<Record>,
        node: Node,
        count: AtomicU32,
        peak: AtomicU32,
    }

    impl Stack {
        fn new() -> Self {
            // SAFETY: zeros are valid for both types.
            let (records, node) = unsafe {
                let records = (0..8).map(|_| std::mem::zeroed()).collect();
                (records, std::mem::zeroed())
            };
            Self {
                records,
                node,
                count: AtomicU32::new(0),
                peak: AtomicU32::new(0),
            }
        }

        fn records(&self) -> Records<'_> {
            Records::new(&self.records, &self.count, &self.peak)
        }

        fn record_of(&self, bytes: u64, shard: u32) -> u32 {
            let room = RecordLimits {
                limit: 8,
                crowded: 8,
            };
            self.records()
                .find_or_create(
                    &self.node,
                    RecordKey::new(1, size_class(bytes)),
                    shard,
                    room,
                )
                .expect("a record")
        }

        fn views(&self, peak: u32) -> Vec<RecordView> {
            // SAFETY: the memory is initialised and has this size, and nothing writes to it while
            // the slice exists.
            let bytes = unsafe {
                let start = self.records.as_ptr().cast::<u8>();
                std::slice::from_raw_parts(start, size_of_val(&self.records[..]))
            };
            let views = Table::new(&[], bytes).records_at_peak(peak);
            views.filter(|record| !record.is_empty()).collect()
        }

        fn sums(&self, now: u32) -> Vec<StackSums> {
            self.views(0)
                .iter()
                .map(|record| record.sums(now))
                .collect()
        }
    }

    fn weight(bytes: u64, interval: f64) -> f64 {
        1.0 / (1.0 - (-(bytes as f64) / interval).exp())
    }

    /// Returns the mean age of live objects and its standard error. Adds up records as readers of
    /// dumps do.
    fn mean_age(sums: &[StackSums]) -> [f64; 2] {
        let live = |s: &StackSums| s.alloc_objects - s.free_objects;
        let objects: f64 = sums.iter().map(live).sum();
        let age = sums.iter().map(|s| s.live_age_ticks).sum::<f64>() / objects;
        let around = |s: &StackSums| {
            let own = if live(s) > 0.0 {
                s.live_age_ticks / live(s)
            } else {
                age
            };
            s.live_age_spread.expect("a spread") + s.live_object_variance * (own - age).powi(2)
        };
        [age, sums.iter().map(around).sum::<f64>().sqrt() / objects]
    }

    /// Returns the records of a session of `ticks` ticks in which one object is allocated and one
    /// freed per tick.
    fn ring(bytes: u64, interval: f64, ticks: u32) -> Stack {
        let stack = Stack::new();
        let id = stack.record_of(bytes, 0);
        let mut ring = VecDeque::new();
        for tick in ticks - 3 * LIFETIME..=ticks {
            let born = NewSample {
                bytes,
                weight: weight(bytes, interval) as f32,
                tick,
            };
            stack.records().count_new(id, &born, true);
            ring.push_back(born);
            if ring.len() > LIFETIME as usize {
                let born = ring.pop_front().expect("an object");
                let free = FreeSample { born, tick };
                stack.records().count_free(id, &free, true);
            }
        }
        stack
    }

    /// Any rounding of weights would be multiplied by the ticks since the session's start. For
    /// example, weights rounded to 1/512 of an object would make ages wrong by half a second after
    /// a day. Squares of births would be rounded even in floats of 64 bits.
    #[test]
    fn ages_and_their_spread_are_exact_in_sessions_of_any_length() {
        let a_day = 24 * 3600 * 250;
        let expected = f64::from(LIFETIME - 1) / 2.0;
        let squares = (f64::from(LIFETIME).powi(2) - 1.0) / 12.0;
        for ticks in [1000, 15_000, 900_000, a_day, 30 * a_day, 104 * a_day] {
            for (bytes, interval) in [(4096, 1024.0), (2048, 1024.0), (1000, 1024.0), (24, 512e3)] {
                let stack = ring(bytes, interval, ticks);
                let [age, error] = mean_age(&stack.sums(ticks));
                let what = format!("{bytes} at {interval}, {ticks}: {age} ± {error}");
                assert!((age - expected).abs() < 1e-6, "{what}");
                let weight = weight(bytes, interval);
                let right = ((1.0 - 1.0 / weight) * squares / f64::from(LIFETIME)).sqrt();
                assert!((error / right - 1.0).abs() < 1e-3, "{what}, not {right}");
            }
        }
    }

    /// Sums from a torn copy or a hostile target yield no age beyond the session's length, and no
    /// spread that such ages cannot have.
    #[test]
    fn impossible_sums_give_no_age_beyond_the_session() {
        for births in [0, 1, 5000 * 4096, 1 << 40, 1 << 63, u64::MAX] {
            for squares in [0, 1, 1 << 60, 1 << 95, u128::MAX] {
                let ages = Ages::of(&Births {
                    objects: 4096,
                    births,
                    squares: Some(squares),
                    now: 1000,
                });
                let what = format!("{births} {squares}: {}", ages.sum);
                assert!((0.0..=1000.0).contains(&ages.sum), "{what}");
                let weights = Weights {
                    samples: 1.0,
                    sum: 1.0,
                    variance: 2.0,
                };
                let spread = ages.spread(&weights).unwrap_or(0.0);
                assert!(
                    (0.0..=2.0 * 250_001.0).contains(&spread),
                    "{what}, {spread}"
                );
            }
        }
    }

    /// The sum wraps if millions of objects are live for months. An error bar that may be wrong is
    /// not shown.
    #[test]
    fn a_spread_that_may_have_wrapped_is_not_known() {
        let spread = |objects: u64, now: u32| {
            Ages::of(&Births {
                objects: objects << 12,
                births: 0,
                squares: Some(0),
                now,
            })
            .squares
        };
        let months = (1 << 31) - 1;
        assert_eq!(spread(1 << 20, months), Some(0.0));
        assert_eq!(spread(1 << 40, months), None);
    }

    /// Threads that share a record add the halves of the sum one after the other.
    #[test]
    fn threads_that_share_a_record_lose_no_carry() {
        let stack = Stack::new();
        let id = stack.record_of(64, 0);
        let tick = 1 << 28;
        let born = |tick| NewSample {
            bytes: 64,
            weight: 100.0,
            tick,
        };
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let records = stack.records();
                scope.spawn(move || {
                    for number in 0..20_000 {
                        let born = born(tick + number % 100);
                        records.count_new(id, &born, false);
                        if number % 4 != thread {
                            records.count_free(id, &FreeSample { born, tick }, false);
                        }
                    }
                });
            }
        });
        // Thread `n` leaves objects of the ticks that are `n` modulo 4.
        let [age, error] = mean_age(&stack.sums(tick + 100));
        let squares = (100_f64.powi(2) - 1.0) / 12.0;
        let right = ((1.0 - 1.0 / 100.0) * squares / 20_000.0).sqrt();
        assert!((age - 50.5).abs() < 1e-6, "{age}");
        assert!((error / right - 1.0).abs() < 1e-3, "{error}, not {right}");
    }

    /// The copies of a peak do not include the squares.
    #[test]
    fn ages_at_a_former_peak_have_no_known_spread() {
        let stack = ring(1000, 1024.0, 1000);
        stack.peak.store(1, Ordering::Relaxed);
        let known = |peak| stack.views(peak)[0].sums(1000).live_age_spread.is_some();
        assert!(known(1), "unchanged since the peak");
        let born = NewSample {
            bytes: 1000,
            weight: 1.5,
            tick: 1000,
        };
        stack
            .records()
            .count_new(stack.record_of(1000, 0), &born, true);
        assert!(!known(1) && known(0));
    }

    /// Sizes of a stack's objects in bytes, and how many of each size are allocated, evenly spread
    /// over a session.
    const SIZES: [(u64, u32); 3] = [(64, 1500), (512, 400), (3000, 100)];
    /// Length of a session, in ticks.
    const SESSION: u32 = 15_000;

    /// Simulates sampling of a stack's objects, every third of which is freed later. The interval
    /// changes from the first to the second one in the middle of the session. Returns the estimated
    /// mean age of live objects, its standard error, and the true mean age, in ticks.
    fn sampled_age(intervals: [f64; 2], random: &mut Random) -> [f64; 3] {
        let stack = Stack::new();
        let mut live = 0.0;
        let mut live_age = 0.0;
        for (bytes, objects) in SIZES {
            let id = stack.record_of(bytes, 0);
            for number in 0..objects {
                let tick = number * (SESSION / objects);
                let weight = weight(bytes, intervals[usize::from(tick > SESSION / 2)]);
                let death = (number % 3 == 0).then_some((tick + 2000).min(SESSION - 1));
                if death.is_none() {
                    live += 1.0;
                    live_age += f64::from(SESSION - tick);
                }
                if random.uniform() > 1.0 / weight {
                    continue;
                }
                let born = NewSample {
                    bytes,
                    weight: weight as f32,
                    tick,
                };
                stack.records().count_new(id, &born, true);
                if let Some(tick) = death {
                    let free = FreeSample { born, tick };
                    stack.records().count_free(id, &free, true);
                }
            }
        }
        let [age, error] = mean_age(&stack.sums(SESSION));
        [age, error, live_age / live]
    }

    /// The 95 % confidence interval of the mean age must contain the true mean age in about 95 % of
    /// runs, with mixed sizes and some of the objects freed. With 2,000 runs, the standard error of
    /// that share is 0.5 %. If the interval changes, the error is an upper bound.
    #[test]
    fn confidence_intervals_of_ages_have_the_right_coverage() {
        let is_full = std::env::var("MEM_TESTS_PLANTED").is_ok_and(|what| what == "all");
        let runs = if is_full { 40_000 } else { 2000 };
        let mut random = Random(0xa9e5_0f5a_3b1e_d001);
        let cases = [
            ([1024.0, 1024.0], 0.97),
            ([1024.0, 3000.0], 0.999),
            ([4000.0, 1024.0], 0.999),
        ];
        for (intervals, max) in cases {
            let mut covered = 0;
            let mut deviations = 0.0;
            for _ in 0..runs {
                let [age, error, truth] = sampled_age(intervals, &mut random);
                covered += usize::from((age - truth).abs() <= 1.959_964 * error);
                deviations += (age - truth) / error;
            }
            let share = f64::from(covered as u32) / f64::from(runs as u32);
            assert!((0.93..=max).contains(&share), "{intervals:?}: {share}");
            // The estimates must not be biased.
            let bias = deviations / f64::from(runs as u32);
            assert!(bias.abs() < 0.1, "{intervals:?}: {bias} standard errors");
        }
    }
}
