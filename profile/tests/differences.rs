//! Error bars of differences between two dumps of one session: what is in both was sampled once, so
//! that only what was allocated and freed in between has an error.

use helpers::random::Random;
use profile::variance::{fill, half_width};
use profile::{Detail, Profile, ProfileBuilder, dump, merge, read};

const INTERVAL: f64 = 1024.0;
const BYTES: f64 = 200.0;
/// Allocated before the first dump.
const OLD: usize = 4000;

fn weight() -> f64 {
    1.0 / (1.0 - (-BYTES / INTERVAL).exp())
}

/// Writes and reads a dump of one stack with this many samples and frees.
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

/// Returns how often the bars of both columns of bytes hold the true change, and the mean bar of
/// what is live.
fn coverage(new: usize, freed: usize) -> ([f64; 2], f64) {
    const RUNS: usize = 2000;
    let mut random = Random(0x2545_f491_4f6c_dd1d);
    let mut sampled = |count: usize| {
        (0..count)
            .filter(|_| random.uniform() < 1.0 / weight())
            .count()
    };
    let truth = [new as f64 * BYTES, (new as f64 - freed as f64) * BYTES];
    let (mut held, mut bars) = ([0; 2], 0.0);
    for _ in 0..RUNS {
        let (kept, gone, more) = (sampled(OLD - freed), sampled(freed), sampled(new));
        let early = dumped(kept + gone, 0);
        let late = dumped(kept + gone + more, gone);
        let change = merge::change(&early, &late).unwrap();
        for (at, kind) in ["alloc_space", "inuse_space"].iter().enumerate() {
            let column = change.type_index(kind).unwrap();
            let value = change.total(column) as f64;
            let half = half_width(value, change.variances.get(column).copied().unwrap_or(0.0));
            held[at] += usize::from((value - truth[at]).abs() <= half + 1.0);
            bars += if at == 1 { half } else { 0.0 };
        }
    }
    (
        held.map(|count| count as f64 / RUNS as f64),
        bars / RUNS as f64,
    )
}

#[test]
fn differences_hold_the_truth_in_95_of_100_runs() {
    for (new, freed) in [(2000, 0), (4000, 500), (500, 0), (0, 2000)] {
        let (held, _) = coverage(new, freed);
        for (kind, held) in ["allocated", "in use"].iter().zip(held) {
            let is_certain = new == 0 && *kind == "allocated";
            assert!(
                (0.93..=0.975).contains(&held) || is_certain,
                "{kind}, {new} new, {freed} freed: {held}"
            );
        }
    }
    // As much is freed as is new: few samples cannot be told from a small difference, so the bar is
    // wider.
    let (held, _) = coverage(2000, 2000);
    assert!(held[1] >= 0.95, "{held:?}");
}

/// As wide as if the old objects did not exist.
#[test]
fn what_is_in_both_dumps_has_no_error() {
    let (_, bar) = coverage(2000, 0);
    let alone = 1.96 * (2000.0 * (weight() - 1.0)).sqrt() * BYTES;
    assert!((bar / alone - 1.0).abs() < 0.02, "{bar}, {alone}");
    let same = dumped(700, 0);
    assert!(merge::change(&same, &same).unwrap().values.is_empty());
}

/// Only a caller knows whether dumps are of one session.
#[test]
fn differences_of_sessions_have_the_errors_of_both() {
    let (early, late) = (dumped(700, 0), dumped(900, 0));
    let column = late.type_index("inuse_space").unwrap();
    let one = std::slice::from_ref;
    let [nested, difference] = [
        merge::change(&early, &late),
        merge::subtract(one(&late), one(&early), merge::Base::Difference),
    ]
    .map(|profile| profile.unwrap().variances[column]);
    let sum = early.variances[column] + late.variances[column];
    assert!((difference / sum - 1.0).abs() < 1e-9, "{difference}, {sum}");
    assert!((nested / sum - 200.0 / 1600.0).abs() < 1e-3, "{nested}");
    // Sums of allocations that shrink are of two sessions.
    let reversed = merge::change(&late, &early).unwrap().variances[column];
    assert!((reversed / sum - 1.0).abs() < 1e-9, "{reversed}, {sum}");
}
