//! Tests with simulated programs, whose true sums are known. The seeds are fixed.

use super::*;
use crate::{Gaps, weight};
use std::collections::HashMap;
use std::vec::Vec;

const INTERVAL: u64 = 1024;
const SEEDS: u64 = 400;

/// Estimates for one stack: samples, and allocated and live bytes with their variances.
#[derive(Clone, Copy, Default)]
struct Sums {
    samples: u64,
    alloc: (f64, f64),
    live: (f64, f64),
}

/// Profiler of simulated allocations.
struct Sampler {
    gaps: Gaps,
    sites: std::boxed::Box<Sites>,
    max_step: u32,
    left: i64,
    stacks: HashMap<u64, Sums>,
}

/// Allocation, with the call site by which it is thinned and its stack.
#[derive(Clone, Copy)]
struct Request {
    site: u64,
    stack: u64,
    bytes: u64,
}

/// Sampled object: stack, estimated bytes and their variance.
type Object = (u64, f64, f64);

impl Sampler {
    fn new(seed: u64, max_step: u32) -> Self {
        let mut gaps = Gaps::new(seed);
        let left = gaps.draw_gap(INTERVAL as f64);
        let mut sites = std::boxed::Box::new(Sites(
            [Site {
                tag: 0,
                run: 0,
                step: 0,
            }; SITES],
        ));
        sites.forget();
        Self {
            gaps,
            sites,
            max_step,
            left,
            stacks: HashMap::new(),
        }
    }

    /// Allocates as the agent does. Returns the object if it is sampled.
    fn allocate(&mut self, request: Request) -> Option<Object> {
        self.left -= request.bytes as i64;
        if self.left >= 0 {
            return None;
        }
        self.left = self.gaps.draw_gap(INTERVAL as f64);
        let registers = Registers {
            ip: request.site,
            sp: 0,
            fp: 0,
        };
        let key = Key::of(&registers, request.bytes as usize);
        let step = self.sites.step(key);
        if self.max_step > 0 && !self.gaps.is_one_in_pow2(step) {
            return None;
        }
        let objects = f64::from(weight(request.bytes, INTERVAL as f64)) * f64::from(1 << step);
        let bytes = request.bytes as f64;
        let estimate = bytes * objects;
        let variance = estimate * (estimate - bytes);
        let sums = self.stacks.entry(request.stack).or_default();
        sums.samples += 1;
        for (sum, spread) in [&mut sums.alloc, &mut sums.live] {
            *sum += estimate;
            *spread += variance;
        }
        let known = StackSums {
            samples: sums.samples,
            live_bytes: sums.live.0 as u64,
        };
        let taken = TakenSample {
            bytes: request.bytes,
            interval: INTERVAL,
            max_step: self.max_step,
        };
        self.sites.update(key, known, taken);
        Some((request.stack, estimate, variance))
    }

    fn free(&mut self, object: Option<Object>) {
        if let Some((stack, estimate, variance)) = object {
            let sums = self.stacks.get_mut(&stack).expect("a stack");
            sums.live.0 -= estimate;
            sums.live.1 -= variance;
        }
    }
}

/// Simulated program: allocates, frees, and returns the true allocated and live bytes of each
/// stack.
type Program = fn(&mut Sampler) -> Vec<(u64, f64, f64)>;

/// Objects are freed immediately; another stack of the same call site keeps one object in 300.
fn leak_among_freed_objects(sampler: &mut Sampler) -> Vec<(u64, f64, f64)> {
    let churn = Request {
        site: 1,
        stack: 1,
        bytes: 64,
    };
    let leak = Request {
        site: 1,
        stack: 2,
        bytes: 64,
    };
    let rounds = 600_000;
    for round in 0..rounds {
        let object = sampler.allocate(churn);
        sampler.free(object);
        if round % 30 == 0 {
            sampler.allocate(leak);
        }
    }
    let leaked = f64::from(rounds / 30 * 64);
    std::vec![(1, f64::from(rounds * 64), 0.0), (2, leaked, leaked)]
}

/// Call site whose objects are freed immediately at first, and kept later.
fn freed_then_kept(sampler: &mut Sampler) -> Vec<(u64, f64, f64)> {
    let request = Request {
        site: 1,
        stack: 1,
        bytes: 128,
    };
    let freed = 300_000;
    let kept = 8192;
    for _ in 0..freed {
        let object = sampler.allocate(request);
        sampler.free(object);
    }
    for _ in 0..kept {
        sampler.allocate(request);
    }
    let stack_bytes = f64::from(kept * 128);
    std::vec![(1, f64::from((freed + kept) * 128), stack_bytes)]
}

/// Cache that replaces its objects one by one, while large blocks are allocated and freed.
fn cache(sampler: &mut Sampler) -> Vec<(u64, f64, f64)> {
    let entry = Request {
        site: 1,
        stack: 1,
        bytes: 256,
    };
    let block = Request {
        site: 2,
        stack: 2,
        bytes: 9000,
    };
    let mut entries = std::collections::VecDeque::new();
    let rounds = 60_000;
    for _ in 0..rounds {
        entries.push_back(sampler.allocate(entry));
        if entries.len() > 4096 {
            let old = entries.pop_front().expect("one");
            sampler.free(old);
        }
        let object = sampler.allocate(block);
        sampler.free(object);
    }
    std::vec![
        (1, f64::from(rounds * 256), f64::from(4096 * 256)),
        (2, f64::from(rounds) * 9000.0, 0.0),
    ]
}

/// Mean errors in standard errors of the mean, root mean square errors, and shares of runs in
/// which the truth lies within 95 % bars; for allocated and for live bytes of each stack.
#[derive(Debug)]
struct Quality {
    bias: f64,
    rms: f64,
    covered: f64,
}

fn quality(program: Program, max_step: u32) -> Vec<[Quality; 2]> {
    let mut errors: Vec<[Vec<(f64, f64)>; 2]> = Vec::new();
    for seed in 0..SEEDS {
        let mut sampler = Sampler::new(seed * 7919 + 1, max_step);
        let truth = program(&mut sampler);
        errors.resize_with(truth.len(), Default::default);
        for ((stack, alloc, live), errors) in truth.into_iter().zip(&mut errors) {
            let sums = sampler.stacks.get(&stack).copied().unwrap_or_default();
            errors[0].push((sums.alloc.0 - alloc, sums.alloc.1));
            errors[1].push((sums.live.0 - live, sums.live.1));
        }
    }
    let quality_of = |errors: &Vec<(f64, f64)>| {
        let n = errors.len() as f64;
        let mean = errors.iter().map(|(error, _)| error).sum::<f64>() / n;
        let square = errors.iter().map(|(error, _)| error * error).sum::<f64>() / n;
        let within =
            |(error, variance): &&(f64, f64)| error.abs() <= 1.96 * variance.max(0.0).sqrt() + 1e-6;
        Quality {
            bias: mean / (square / n).sqrt().max(1e-9),
            rms: square.sqrt(),
            covered: errors.iter().filter(within).count() as f64 / n,
        }
    };
    errors
        .iter()
        .map(|e| [quality_of(&e[0]), quality_of(&e[1])])
        .collect()
}

#[test]
fn thinned_estimates_are_unbiased_and_within_their_error_bars() {
    for program in [leak_among_freed_objects, freed_then_kept, cache] as [Program; 3] {
        for (stack, both) in quality(program, MAX_STEP).iter().enumerate() {
            for quality in both {
                // 4 standard errors; 95 % of 400 runs are covered within 4 of 1.1 %.
                assert!(quality.bias.abs() < 4.0, "{stack}: {quality:?}");
                assert!(quality.covered > 0.906, "{stack}: {quality:?}");
            }
        }
    }
}

#[test]
fn errors_of_live_bytes_hardly_grow() {
    for (program, stack) in [
        (leak_among_freed_objects as Program, 1),
        (freed_then_kept, 0),
        (cache, 0),
    ] {
        let plain = &quality(program, 0)[stack][1];
        let thinned = &quality(program, MAX_STEP)[stack][1];
        // Of 400 runs each, the ratio has a standard error of 5 %.
        assert!(
            thinned.rms < 1.35 * plain.rms,
            "{plain:?} {thinned:?} of {stack}"
        );
    }
}

#[test]
fn only_sites_that_free_at_once_are_thinned() {
    let samples = |program: Program, max_step| {
        let mut sampler = Sampler::new(1, max_step);
        program(&mut sampler);
        let mut counts: Vec<_> = sampler
            .stacks
            .iter()
            .map(|(stack, s)| (*stack, s.samples))
            .collect();
        counts.sort_unstable();
        counts
            .into_iter()
            .map(|(_, samples)| samples)
            .collect::<Vec<_>>()
    };
    let plain = samples(freed_then_kept, 0);
    let thinned = samples(freed_then_kept, MAX_STEP);
    assert!(thinned[0] * 3 < plain[0], "{plain:?} {thinned:?}");
    let plain = samples(cache, 0);
    let thinned = samples(cache, MAX_STEP);
    assert!(thinned[0] * 10 > plain[0] * 9, "{plain:?} {thinned:?}");
}
