//! Coverage of error bars: over many simulated runs, the 95 % confidence interval of a sampled
//! value contains the true value in 95 % of the runs.
//!
//! The generator's seeds are fixed, so no test here fails by chance.

use helpers::random::Random;
use profile::variance::{SamplingError, fill, half_width};
use profile::{AgeSpread, Detail, Profile, ProfileBuilder, age, dump};

/// Returns the number of runs, which is twenty times as large before a release.
fn runs() -> usize {
    let is_full = std::env::var("MEM_TESTS_PLANTED").is_ok_and(|what| what == "all");
    if is_full { 8000 } else { 400 }
}

const INTERVAL: u64 = 1024;
const WIDE: u64 = 65_536;

/// Returns the number of bytes until the next sample.
fn gap(random: &mut Random, interval: u64) -> f64 {
    -random.uniform().ln() * interval as f64
}

/// Allocations of a simulated function: sizes, number of objects of each size, and how many of 8
/// objects are freed.
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

/// Small and large objects of one stack. Some samples stand for a thousand times more objects than
/// others, so the error of the sum cannot be computed from their average.
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
    let mut left = gap(random, interval);
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
            left = gap(random, interval);
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

/// Returns the fraction of the intervals of each column that contain the true value.
fn coverage(workloads: &[Workload], interval: u64, kept: Kept) -> [f64; 4] {
    let mut random = Random(0x0123_4567_89ab_cdef);
    let mut covered = [0; 4];
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
            for (column, inside) in covered.iter_mut().enumerate() {
                let value = profile.values_of(stack)[column] as f64;
                let half = half_width(value, profile.variances[stack * 4 + column]);
                *inside += usize::from((value - truth[column]).abs() <= half);
            }
        }
    }
    covered.map(|inside| inside as f64 / (runs() * workloads.len()) as f64)
}

/// Format in which a profile is stored before its variances are computed.
#[derive(Clone, Copy)]
enum Kept {
    /// A dump that was written and read.
    Dump,
    /// Dump of the first format version, which has no variances of objects.
    FirstDump,
    /// Only the four values of each stack.
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
        profile::read(&text[..], "dump").unwrap()
    }
}

/// Converts a dump to the first format version, which has ten exact values instead of thirteen.
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

/// The two workloads give 2800 and 1600 intervals, so the standard errors of the fractions are
/// 0.4 % and 0.5 %.
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

/// Ages of a stack's objects, in milliseconds.
#[derive(Clone, Copy, Debug)]
enum Aging {
    /// As if each object replaced the oldest one.
    Even,
    /// As if objects were freed at random.
    Random,
    /// Half are of the program's start. Small ones are younger.
    Start,
}

impl Aging {
    fn of(self, size: u64, random: &mut Random) -> f64 {
        match self {
            Self::Even => 90_000.0 * random.uniform(),
            Self::Random => -20_000.0 * random.uniform().ln(),
            Self::Start if random.uniform() < 0.5 => 3_600_000.0,
            Self::Start => size as f64 * 100.0 * random.uniform(),
        }
    }
}

/// Samples live objects of several sizes, as many as one in `divisor` of the workload's. Returns
/// what the dump carries, and the true mean age.
fn run_ages(workload: &Workload, divisor: u64, aging: Aging, random: &mut Random) -> (Detail, f64) {
    let mut all = Detail::default();
    let mut truth = [0.0; 2];
    for &(size, count) in workload.sizes {
        let weight = 1.0 / (1.0 - (-(size as f64) / INTERVAL as f64).exp());
        let mut ages = Vec::new();
        for _ in 0..count.div_ceil(divisor) {
            let age = aging.of(size, random);
            truth = [truth[0] + 1.0, truth[1] + age];
            if random.uniform() < 1.0 / weight {
                ages.push(age);
            }
        }
        let samples = ages.len() as f64;
        let variance = weight * (weight - 1.0);
        let mean = ages.iter().sum::<f64>() / samples.max(1.0);
        let squares: f64 = ages.iter().map(|age| (age - mean).powi(2)).sum();
        all.add(&Detail {
            alloc_samples: ages.len() as u64,
            alloc_objects: weight * samples,
            alloc_bytes: weight * samples * size as f64,
            live_age_ms_sum: weight * samples * mean,
            alloc_object_variance: variance * samples,
            live_object_variance: variance * samples,
            age_spread: Some(AgeSpread {
                squares: variance * squares,
                deviations: 0.0,
            }),
            ..Detail::default()
        });
    }
    (all, truth[1] / truth[0])
}

/// Error bars of mean ages: objects of mixed sizes, with many samples and with few. The bar of a
/// sample that is too small is not shown.
#[test]
fn confidence_intervals_of_ages_have_the_right_coverage() {
    for aging in [Aging::Even, Aging::Random, Aging::Start] {
        for divisor in [1, 4, 16] {
            let mut random = Random(0x0a9e_5eed_89ab_cdef);
            let (mut bars, mut inside) = (0, 0);
            for number in 0..runs() {
                for workload in WORKLOADS.iter().chain(&MIXED) {
                    let (detail, truth) = run_ages(workload, divisor, aging, &mut random);
                    // Writing and reading takes most of the time.
                    let detail = match number % 20 {
                        0 => {
                            let mut builder = ProfileBuilder::new(INTERVAL);
                            builder.stack([0x1000], &detail);
                            Kept::Dump.of(builder.finish()).details[0]
                        }
                        _ => detail,
                    };
                    if let Some(error) = age::error(&detail) {
                        bars += 1;
                        inside += usize::from((detail.mean_age_ms() - truth).abs() <= error);
                    }
                }
            }
            let share = inside as f64 / bars as f64;
            let what = format!("{aging:?}, 1/{divisor}: {share} of {bars}");
            assert!((0.93..=0.97).contains(&share), "{what}");
        }
    }
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

/// The sum of sampled time is known by the clock, so that the share of a function varies like a
/// binomial one.
#[test]
fn error_bars_of_shares_of_time_have_the_right_coverage() {
    const SAMPLES: u32 = 150;
    const PERIOD: f64 = 1e7;
    let mut random = Random(20_261_201);
    for share in [0.05, 0.25, 0.5, 0.8, 0.95] {
        let mut inside = 0;
        let mut width = 0.0;
        let runs = runs() * 5;
        for _ in 0..runs {
            let hits = (0..SAMPLES).filter(|_| random.uniform() < share).count() as f64;
            let error = SamplingError {
                variance: hits * PERIOD * PERIOD,
                turnover: hits * PERIOD,
                whole: f64::from(SAMPLES) * PERIOD,
            };
            let truth = share * error.whole;
            inside += usize::from((error.turnover - truth).abs() <= error.half_width());
            width += error.half_width() / runs as f64;
        }
        let coverage = inside as f64 / runs as f64;
        assert!((0.93..0.995).contains(&coverage), "{share}: {coverage}");
        let binomial = 1.96 * (f64::from(SAMPLES) * share * (1.0 - share)).sqrt() * PERIOD;
        assert!(width < 1.35 * binomial, "{share}: {width}, {binomial}");
    }
    let all = SamplingError {
        variance: 150.0,
        turnover: 150.0,
        whole: 150.0,
    };
    assert!(all.half_width() < 3.0, "{}", all.half_width());
}
