//! Error bars hold what they promise: over many simulated runs, the interval
//! around a sampled number holds the true one in 95 of 100.
//!
//! The generator's seeds are fixed, so no test here fails by chance.

use heap_format::variance::{fill, half_width};
use heap_format::{Detail, Profile, ProfileBuilder, dump};

/// Number of runs; twenty times as many before a release.
fn runs() -> usize {
    let is_full = std::env::var("MEM_TESTS_PLANTED").is_ok_and(|what| what == "all");
    if is_full { 8000 } else { 400 }
}

const INTERVAL: u64 = 1024;
const WIDE: u64 = 65_536;

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

    /// Returns the number of bytes until the next sample.
    fn gap(&mut self, interval: u64) -> f64 {
        -self.next().ln() * interval as f64
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

/// Small and large objects of one stack: some count for a thousand times more objects
/// than others, so that their average says nothing about how far the sum may be off.
const MIXED: [Workload; 4] = [
    Workload {
        sizes: &[(16, 20_000), (64, 6_000), (512, 1_000), (8192, 60)],
        freed_of_8: 0,
    },
    Workload {
        sizes: &[(64, 30_000), (4096, 400)],
        freed_of_8: 4,
    },
    Workload {
        sizes: &[(200, 20_000), (1000, 4_000), (70_000, 100)],
        freed_of_8: 2,
    },
    Workload {
        sizes: &[(24, 100_000), (320, 8_000), (20_000, 50)],
        freed_of_8: 3,
    },
];

/// Samples a workload as the agent does. Returns what the dump carries, and
/// the truth in the order of the dump's values.
fn run(workload: &Workload, interval: u64, random: &mut Random) -> (Detail, [f64; 4]) {
    let mut d = Detail::default();
    let mut truth = [0.0; 4];
    let mut left = random.gap(interval);
    let mut number = 0u64;
    for &(size, count) in workload.sizes {
        let bytes = size as f64;
        let weight = 1.0 / (1.0 - (-bytes / interval as f64).exp());
        let of_objects = weight * (weight - 1.0);
        let variance = bytes * bytes * of_objects;
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
            left = random.gap(interval);
            d.alloc_samples += 1;
            d.alloc_objects += weight;
            d.alloc_bytes += weight * bytes;
            d.alloc_variance += variance;
            d.alloc_object_variance += of_objects;
            if freed {
                d.free_samples += 1;
                d.freed_objects += weight;
                d.freed_bytes += weight * bytes;
            } else {
                d.live_variance += variance;
                d.live_object_variance += of_objects;
            }
        }
    }
    (d, truth)
}

/// How often intervals of each column held the truth, of how many.
fn coverage(workloads: &[Workload], interval: u64, kept: Kept) -> [f64; 4] {
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut held = [0; 4];
    for _ in 0..runs() {
        let mut builder = ProfileBuilder::new(interval);
        let run = |w| run(w, interval, &mut random);
        let runs: Vec<_> = workloads.iter().map(run).collect();
        for (number, (detail, _)) in runs.iter().enumerate() {
            builder.stack([0x1000 * (number as u64 + 1)], detail);
        }
        let mut profile = kept.of(builder.finish());
        fill(&mut profile);
        for (stack, (_, truth)) in runs.iter().enumerate() {
            for (column, inside) in held.iter_mut().enumerate() {
                let value = profile.values_of(stack)[column] as f64;
                let half = half_width(value, profile.variances[stack * 4 + column]);
                *inside += usize::from((value - truth[column]).abs() <= half);
            }
        }
    }
    held.map(|inside| inside as f64 / (runs() * workloads.len()) as f64)
}

/// What a format keeps of what was sampled.
#[derive(Clone, Copy)]
enum Kept {
    /// A dump that was written and read.
    Dump,
    /// One of the first version, without the variances of objects.
    FirstDump,
    /// The four values alone.
    Values,
}

impl Kept {
    fn of(self, mut profile: Profile) -> Profile {
        if let Self::Values = self {
            profile.details.clear();
            return profile;
        }
        let mut text = Vec::new();
        dump::write(&profile, &mut text).unwrap();
        if let Self::FirstDump = self {
            let text_of_first = String::from_utf8(text).unwrap();
            text = first_version(&text_of_first).into();
        }
        heap_format::read(&text[..], "dump").unwrap()
    }
}

/// A dump as the first version wrote it: ten exact values, not thirteen.
fn first_version(text: &str) -> String {
    let line = |line: &str| match line.strip_prefix("# s ") {
        Some(values) => {
            let values: Vec<&str> = values.split(' ').take(10).collect();
            format!("# s {}\n", values.join(" "))
        }
        None => format!(
            "{}\n",
            line.replace("# mem-profiler dump 3", "# mem-profiler dump 1")
        ),
    };
    text.lines().map(line).collect()
}

/// 2800 and 1600 intervals: their share strays by 0.4 and 0.5 % (one standard error).
#[test]
fn confidence_intervals_have_the_right_coverage() {
    for (workloads, interval) in [
        (&WORKLOADS[..], INTERVAL),
        (&MIXED, INTERVAL),
        (&MIXED, WIDE),
    ] {
        let shares = coverage(workloads, interval, Kept::Dump);
        let right = shares.iter().all(|share| (0.93..=0.97).contains(share));
        assert!(right, "at {interval}: {shares:?}");
    }
}

/// Other formats carry no variances: with objects of one size the intervals
/// are as good, with mixed ones only near.
#[test]
fn intervals_without_exact_values_are_approximate() {
    for kept in [Kept::FirstDump, Kept::Values] {
        let shares = coverage(&WORKLOADS, INTERVAL, kept);
        let near = shares.iter().all(|share| (0.80..=0.97).contains(share));
        assert!(near, "{shares:?}");
    }
}

#[test]
fn confidence_intervals_of_sums_have_the_right_coverage() {
    let mut random = Random(0xfeed_f00d_1234_5678);
    let mut inside = 0;
    for _ in 0..runs() {
        let mut value = 0.0;
        let mut variance = 0.0;
        let mut total = 0.0;
        for workload in &WORKLOADS {
            let (detail, truth) = run(workload, INTERVAL, &mut random);
            value += detail.live_bytes();
            variance += detail.live_variance;
            total += truth[3];
        }
        inside += usize::from((value - total).abs() <= half_width(value, variance));
    }
    // With 400 intervals, one standard error is 1.1 %.
    let share = inside as f64 / runs() as f64;
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
