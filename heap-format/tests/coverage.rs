//! Error bars hold what they promise: over many simulated runs, the interval
//! around a sampled number holds the true one in 95 of 100.

use heap_format::variance::{fill, half_width};
use heap_format::{Detail, ProfileBuilder};

const RUNS: usize = 200;
const INTERVAL: u64 = 1024;

/// A small generator (xorshift), so that every test run is the same.
struct Random(u64);

impl Random {
    /// Uniform in (0, 1].
    fn next(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((self.0 >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// The bytes to the next sample.
    fn gap(&mut self) -> f64 {
        -self.next().ln() * INTERVAL as f64
    }
}

/// What a simulated function allocates: sizes, how many of each, and how many
/// of 8 objects are freed.
struct Workload {
    sizes: &'static [(u64, u64)],
    freed_of_8: u64,
}

const WORKLOADS: [Workload; 7] = [
    Workload {
        sizes: &[(64, 400)],
        freed_of_8: 0,
    },
    Workload {
        sizes: &[(16, 5_000)],
        freed_of_8: 4,
    },
    Workload {
        sizes: &[(24, 2_000), (4096, 50)],
        freed_of_8: 2,
    },
    Workload {
        sizes: &[(512, 100), (48, 3_000), (900, 80)],
        freed_of_8: 6,
    },
    Workload {
        sizes: &[(1024, 40)],
        freed_of_8: 0,
    },
    Workload {
        sizes: &[(16, 4_000), (64, 1_000), (256, 300), (2048, 60)],
        freed_of_8: 3,
    },
    Workload {
        sizes: &[(700, 500)],
        freed_of_8: 7,
    },
];

/// Samples a workload as the agent does. Returns what the dump carries, and
/// the truth in the order of the dump's values.
fn run(workload: &Workload, random: &mut Random) -> (Detail, [f64; 4]) {
    let mut d = Detail::default();
    let mut truth = [0.0; 4];
    let mut left = random.gap();
    let mut number = 0u64;
    for &(size, count) in workload.sizes {
        let bytes = size as f64;
        let weight = 1.0 / (1.0 - (-bytes / INTERVAL as f64).exp());
        let variance = bytes * bytes * weight * (weight - 1.0);
        for _ in 0..count {
            number += 1;
            let freed = number % 8 < workload.freed_of_8;
            truth[0] += 1.0;
            truth[1] += bytes;
            if !freed {
                truth[2] += 1.0;
                truth[3] += bytes;
            }
            left -= bytes;
            if left > 0.0 {
                continue;
            }
            left = random.gap();
            d.alloc_samples += 1;
            d.alloc_objects += weight;
            d.alloc_bytes += weight * bytes;
            d.alloc_variance += variance;
            if freed {
                d.free_samples += 1;
                d.freed_objects += weight;
                d.freed_bytes += weight * bytes;
            } else {
                d.live_variance += variance;
            }
        }
    }
    (d, truth)
}

/// How often intervals of each column held the truth, of how many.
fn coverage(with_details: bool) -> [(usize, usize); 4] {
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut held = [(0, 0); 4];
    for _ in 0..RUNS {
        let mut builder = ProfileBuilder::new(INTERVAL);
        let runs: Vec<_> = WORKLOADS.iter().map(|w| run(w, &mut random)).collect();
        for (number, (detail, _)) in runs.iter().enumerate() {
            builder.stack([0x1000 * (number as u64 + 1)], detail);
        }
        let mut profile = builder.finish();
        if !with_details {
            profile.details.clear();
        }
        fill(&mut profile);
        for (stack, (_, truth)) in runs.iter().enumerate() {
            for (column, (inside, all)) in held.iter_mut().enumerate() {
                let value = profile.values_of(stack)[column] as f64;
                let half = half_width(value, profile.variances[stack * 4 + column]);
                *inside += usize::from((value - truth[column]).abs() <= half);
                *all += 1;
            }
        }
    }
    held
}

/// 1400 intervals: their share strays by 0.6 % (one standard error) by chance.
#[test]
fn intervals_hold_the_truth_in_95_of_100_runs() {
    for (column, (inside, all)) in coverage(true).into_iter().enumerate() {
        assert_eq!(all, RUNS * WORKLOADS.len());
        let share = inside as f64 / all as f64;
        assert!((0.93..=0.97).contains(&share), "column {column}: {share}");
    }
}

/// Other formats carry no variances: with objects of one size the intervals
/// are as good, with mixed ones only near.
#[test]
fn without_exact_values_intervals_are_near() {
    for (column, (inside, all)) in coverage(false).into_iter().enumerate() {
        let share = inside as f64 / all as f64;
        assert!((0.80..=0.97).contains(&share), "column {column}: {share}");
    }
}

#[test]
fn sums_of_stacks_hold_the_truth_too() {
    let mut random = Random(0xfeed_f00d_1234_5678);
    let mut inside = 0;
    for _ in 0..RUNS {
        let (mut value, mut variance, mut total) = (0.0, 0.0, 0.0);
        for workload in &WORKLOADS {
            let (detail, truth) = run(workload, &mut random);
            value += detail.live_bytes();
            variance += detail.live_variance;
            total += truth[3];
        }
        inside += usize::from((value - total).abs() <= half_width(value, variance));
    }
    // 200 intervals: 1.5 % one standard error.
    let share = inside as f64 / RUNS as f64;
    assert!((0.92..=0.98).contains(&share), "{share}");
}

#[test]
fn exact_dumps_have_no_error() {
    let mut builder = ProfileBuilder::new(1);
    let detail = Detail {
        alloc_samples: 3,
        alloc_objects: 3.0,
        alloc_bytes: 96.0,
        ..Detail::default()
    };
    builder.stack([0x1000], &detail);
    let mut profile = builder.finish();
    fill(&mut profile);
    assert_eq!(profile.variances, [0.0; 4]);
    assert_eq!(half_width(96.0, 0.0), 0.0);
}
