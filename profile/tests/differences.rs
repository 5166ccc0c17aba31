//! Error bars of differences between two dumps of one session: what is in both was sampled once, so
//! that only what was allocated and freed in between has an error.

use helpers::random::Random;
use profile::merge::Base;
use profile::variance::fill;
use profile::{Detail, Profile, ProfileBuilder, dump, merge, read};

const INTERVAL: f64 = 1024.0;
const BYTES: f64 = 200.0;
/// Allocated before the first dump.
const OLD: usize = 4000;

fn weight() -> f64 {
    1.0 / (1.0 - (-BYTES / INTERVAL).exp())
}

/// Writes and reads a dump with so many samples of one stack.
fn dumped(allocated: usize, freed: usize) -> Profile {
    let [all, gone] = [allocated, freed].map(|samples| samples as f64 * weight());
    let variance = (weight() - 1.0) * BYTES * BYTES;
    let detail = Detail {
        alloc_samples: allocated as u64,
        free_samples: freed as u64,
        alloc_objects: all,
        alloc_bytes: all * BYTES,
        freed_objects: gone,
        freed_bytes: gone * BYTES,
        alloc_variance: all * variance,
        live_variance: (all - gone) * variance,
        alloc_object_variance: all * (weight() - 1.0),
        live_object_variance: (all - gone) * (weight() - 1.0),
        ..Detail::default()
    };
    let mut builder = ProfileBuilder::new(INTERVAL as u64);
    builder.stack([0x1000], &detail);
    let mut text = Vec::new();
    dump::write(&builder.finish(), &mut text).unwrap();
    let mut profile = read(&text, "a dump").unwrap();
    fill(&mut profile);
    profile
}

/// Numbers of objects: at the first dump, allocated after it, and of the first ones freed.
#[derive(Clone, Copy, Debug)]
struct Change {
    old: usize,
    new: usize,
    freed: usize,
}

/// Shares of runs in which the bars of both columns of bytes hold the true change, and the mean bar
/// of live bytes.
#[derive(Debug)]
struct Coverage {
    allocated: f64,
    live: f64,
    bar: f64,
}

/// Dumps a program twice, many times over, and counts how often the bars hold.
fn coverage(planted: Change) -> Coverage {
    const RUNS: usize = 2000;
    let Change { old, new, freed } = planted;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut sampled = |count: usize| {
        (0..count)
            .filter(|_| random.uniform() < 1.0 / weight())
            .count()
    };
    let truth = [new as f64 * BYTES, (new as f64 - freed as f64) * BYTES];
    let (mut held, mut bars) = ([0; 2], 0.0);
    for _ in 0..RUNS {
        let (kept, gone, more) = (sampled(old - freed), sampled(freed), sampled(new));
        let early = dumped(kept + gone, 0);
        let late = dumped(kept + gone + more, gone);
        let change = merge::change_within_session(&early, &late, Base::Difference).unwrap();
        for (at, kind) in ["alloc_space", "inuse_space"].iter().enumerate() {
            let column = change.type_index(kind).unwrap();
            let is_none = change.values.is_empty();
            let (value, half) = if is_none {
                (0.0, 0.0)
            } else {
                let error = change.error(0, column);
                (change.values[column] as f64, error.half_width())
            };
            held[at] += usize::from((value - truth[at]).abs() <= half + 1.0);
            bars += if at == 1 { half } else { 0.0 };
        }
    }
    let [allocated, live] = held.map(|count| count as f64 / RUNS as f64);
    Coverage {
        allocated,
        live,
        bar: bars / RUNS as f64,
    }
}

/// Among them such where as much is freed as is new, all of it or a part, and some with few
/// samples.
#[test]
fn differences_hold_the_truth_in_95_of_100_runs() {
    let old = OLD;
    let changes = [
        (old, 2000, 0),
        (old, 4000, 500),
        (old, 500, 0),
        (old, 0, 2000),
        (old, 2000, 2000),
        (old, old, old),
        (150, 150, 150),
        (400, 60, 60),
        (60, 200, 30),
    ];
    for (old, new, freed) in changes {
        let planted = Change { old, new, freed };
        let found = coverage(planted);
        let is_right = |held: f64| (0.93..=0.975).contains(&held);
        assert!(is_right(found.live), "{planted:?}: {found:?}");
        let is_certain = new == 0;
        assert!(
            is_right(found.allocated) || is_certain,
            "{planted:?}: {found:?}"
        );
    }
}

/// The bars of a comparison, whose stacks stay separate, are those of the difference.
#[test]
fn comparisons_have_the_errors_of_the_change() {
    let (early, late) = (dumped(700, 0), dumped(900, 300));
    let change = merge::change_within_session(&early, &late, Base::Difference).unwrap();
    let compared = merge::change_within_session(&early, &late, Base::Comparison).unwrap();
    assert_eq!(compared.stacks.len(), 2);
    for column in 0..4 {
        let sum = compared.error(0, column).variance + compared.error(1, column).variance;
        assert_eq!(sum, change.error(0, column).variance, "{column}");
        let sum = compared.error(0, column).turnover + compared.error(1, column).turnover;
        let rounding = 2.0;
        let off = (sum - change.error(0, column).turnover).abs();
        assert!(off <= rounding, "{column}: {off}");
        // Each side's own are kept.
        assert_eq!(compared.variances[column], late.variances[column]);
        assert_eq!(compared.variances[4 + column], early.variances[column]);
    }
}

/// As wide as if the old objects did not exist.
#[test]
fn what_is_in_both_dumps_has_no_error() {
    let bar = coverage(Change {
        old: OLD,
        new: 2000,
        freed: 0,
    })
    .bar;
    let alone = 1.96 * (2000.0 * (weight() - 1.0)).sqrt() * BYTES;
    assert!((bar / alone - 1.0).abs() < 0.02, "{bar}, {alone}");
    let same = dumped(700, 0);
    assert!(
        merge::change_within_session(&same, &same, Base::Difference)
            .unwrap()
            .values
            .is_empty()
    );
}

/// Only a caller knows whether dumps are of one session.
#[test]
fn differences_of_sessions_have_the_errors_of_both() {
    let (early, late) = (dumped(700, 0), dumped(900, 0));
    let column = late.type_index("inuse_space").unwrap();
    let one = std::slice::from_ref;
    let [nested, apart] = [
        merge::change_within_session(&early, &late, Base::Difference),
        merge::subtract(one(&late), one(&early), merge::Base::Difference),
    ]
    .map(|profile| profile.unwrap().variances[column]);
    let sum = early.variances[column] + late.variances[column];
    assert!((apart / sum - 1.0).abs() < 1e-9, "{apart}, {sum}");
    assert!((nested / sum - 200.0 / 1600.0).abs() < 1e-3, "{nested}");
    // Sums of allocations that shrink are of two sessions.
    let reversed = merge::change_within_session(&late, &early, Base::Difference)
        .unwrap()
        .variances[column];
    assert!((reversed / sum - 1.0).abs() < 1e-9, "{reversed}, {sum}");
}
