//! Generates graphs that look like those of profiles, to measure the layout.

use crate::{Edge, Graph, Node};
use std::collections::BTreeMap;

/// A simple pseudo-random number generator, reproducible on every platform.
pub struct Random(pub u64);

impl Random {
    /// Returns a number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) % n.max(1) as u64) as usize
    }
}

/// Builds a graph from weighted stacks of functions, outermost first, like a profiler.
pub fn from_stacks(stacks: &[(Vec<usize>, f64)], name: impl Fn(usize) -> String) -> Graph {
    let mut flat: BTreeMap<usize, f64> = BTreeMap::new();
    let mut cum: BTreeMap<usize, f64> = BTreeMap::new();
    let mut calls: BTreeMap<(usize, usize), f64> = BTreeMap::new();
    for (stack, weight) in stacks {
        let mut seen = std::collections::BTreeSet::new();
        for &f in stack.iter().filter(|f| seen.insert(**f)) {
            *cum.entry(f).or_default() += weight;
        }
        let mut seen = std::collections::BTreeSet::new();
        for pair in stack.windows(2).filter(|p| seen.insert((p[0], p[1]))) {
            *calls.entry((pair[0], pair[1])).or_default() += weight;
        }
        if let Some(&leaf) = stack.last() {
            *flat.entry(leaf).or_default() += weight;
        }
    }
    let total: f64 = stacks.iter().map(|s| s.1).sum();
    let shown: Vec<usize> = cum.keys().copied().collect();
    let label = |v: f64| format!("{:.2}MB ({:.2}%)", v, 100.0 * v / total);
    let nodes = shown.iter().map(|f| {
        let flat_value = flat.get(f).copied().unwrap_or(0.0);
        Node {
            name: name(*f),
            full_name: String::new(),
            place: format!("file{}.cc:{}", f % 17, f % 400),
            detail: String::new(),
            flat: flat_value,
            cum: cum[f],
            flat_label: if flat_value == 0.0 {
                "0".into()
            } else {
                label(flat_value)
            },
            cum_label: label(cum[f]),
            color_weight: cum[f] / total,
        }
    });
    let nodes = nodes.collect();
    let edges = calls
        .iter()
        .enumerate()
        .map(|(i, ((from, to), weight))| Edge {
            from: shown.binary_search(from).unwrap_or(0),
            to: shown.binary_search(to).unwrap_or(0),
            weight: *weight,
            label: format!("{weight:.2}MB"),
            residual: i % 11 == 7,
            inlined: i % 7 == 3,
            detail: String::new(),
        });
    let edges = edges.collect();
    let title = vec![
        "File: server".into(),
        "Type: in-use bytes".into(),
        format!("Total MB: {total:.1}"),
        format!("Showing {} functions", shown.len()),
    ];
    Graph {
        title,
        nodes,
        edges,
        total,
    }
}

/// Generates a program of `functions` functions, with samples of `stacks` stacks: mostly calls from
/// one layer to a lower one, shared helpers at the bottom, and some recursion.
pub fn program(functions: usize, stacks: usize, seed: u64) -> Graph {
    let mut random = Random(seed);
    let reach = 9.max(functions / 6);
    let callees: Vec<Vec<usize>> = (0..functions)
        .map(|f| {
            let ahead = functions - f - 1;
            let count = 1 + random.below(3);
            let near = |random: &mut Random| f + 1 + random.below(ahead.clamp(1, reach));
            let mut list: Vec<usize> = (0..count).map(|_| near(&mut random)).collect();
            if random.below(12) == 0 && f > 2 {
                list.push(f - random.below(3));
            }
            if random.below(4) == 0 {
                list.push(functions - 1 - random.below(5.min(functions)));
            }
            list.retain(|&c| c < functions);
            list
        })
        .collect();
    let mut seen = Vec::new();
    for _ in 0..stacks {
        let mut stack = vec![random.below(3.min(functions))];
        while stack.len() < 40 {
            let list = &callees[stack[stack.len() - 1]];
            if list.is_empty() || random.below(14) == 0 {
                break;
            }
            stack.push(list[random.below(list.len())]);
        }
        let weight = 0.1 + random.below(1000) as f64 * random.below(1000) as f64 / 40_000.0;
        seen.push((stack, weight));
    }
    from_stacks(&seen, name)
}

/// Generates names like those of C, C++ and Rust programs.
pub fn name(f: usize) -> String {
    const WORDS: [&str; 12] = [
        "alloc", "parse", "insert", "node", "table", "reserve", "event", "loop", "string", "push",
        "read", "buffer",
    ];
    let a = WORDS[f % 12];
    let b = WORDS[(f / 5 + 3) % 12];
    let c = WORDS[(f / 7 + 6) % 12];
    match f % 5 {
        0 => format!("{a}_{b}{f}"),
        1 => format!("std::{a}<{b}::{c}{f}, std::allocator<{b}::{c}{f}> >::{c}"),
        2 => format!("{a}{f}"),
        3 => format!("core::{a}::{b}::{c}{f}"),
        _ => format!("ns{}::{a}::{b}{f}(unsigned long, {c} const&)", f % 3),
    }
}

/// Builds a graph with these weighted arrows and small boxes.
pub fn plain(count: usize, arrows: &[(usize, usize, f64)]) -> Graph {
    let total = arrows.iter().map(|a| a.2).fold(1.0, f64::max);
    let nodes = (0..count).map(|i| Node {
        name: format!("f{i}"),
        flat_label: "0".into(),
        cum_label: format!("{i}MB"),
        ..Node::default()
    });
    let edges = arrows.iter().map(|&(from, to, weight)| Edge {
        from,
        to,
        weight,
        label: format!("{weight:.1}MB"),
        ..Edge::default()
    });
    Graph {
        title: vec![],
        nodes: nodes.collect(),
        edges: edges.collect(),
        total,
    }
}

/// Returns named graphs of many shapes, up to 400 boxes.
pub fn all() -> Vec<(String, Graph)> {
    let mut graphs = Vec::new();
    let sizes = [
        (6, 20),
        (12, 40),
        (20, 60),
        (30, 90),
        (45, 140),
        (60, 160),
        (80, 220),
        (120, 300),
    ];
    for (functions, stacks) in sizes {
        for seed in [1, 2] {
            let name = format!("program-{functions}-{seed}");
            graphs.push((name, program(functions, stacks, seed)));
        }
    }
    graphs.push(("program-300".into(), program(300, 900, 5)));
    graphs.push(("program-480".into(), program(480, 2600, 6)));
    let mut random = Random(11);
    let mut pairs = |count: usize, arrows: usize, forward: bool| -> Vec<(usize, usize, f64)> {
        let mut list = Vec::new();
        for _ in 0..arrows {
            let a = random.below(count);
            let b = random.below(count);
            let (a, b) = if forward {
                (a.min(b), a.max(b))
            } else {
                (a, b)
            };
            list.push((a, b, 1.0 + random.below(50) as f64));
        }
        list
    };
    graphs.push(("forward-30-45".into(), plain(30, &pairs(30, 45, true))));
    graphs.push(("tangle-25-60".into(), plain(25, &pairs(25, 60, false))));
    graphs.push(("sparse-60-50".into(), plain(60, &pairs(60, 50, true))));
    graphs.push(("complete-7".into(), plain(7, &complete(7))));
    graphs.push((
        "star-40".into(),
        plain(41, &(1..41).map(|i| (0, i, i as f64)).collect::<Vec<_>>()),
    ));
    let hub: Vec<_> = (1..30)
        .flat_map(|i| [(0, i, i as f64), (i, 30, i as f64)])
        .collect();
    graphs.push(("hub-30".into(), plain(31, &hub)));
    let chain: Vec<_> = (0..60).map(|i| (i, i + 1, 60.0 - i as f64)).collect();
    graphs.push(("chain-60".into(), plain(61, &chain)));
    let ring: Vec<_> = (0..9).map(|i| (i, (i + 1) % 9, 9.0)).collect();
    graphs.push(("ring-9".into(), plain(9, &ring)));
    graphs.push((
        "loops".into(),
        plain(
            3,
            &[
                (0, 0, 5.0),
                (0, 0, 3.0),
                (0, 1, 9.0),
                (1, 1, 2.0),
                (1, 0, 1.0),
                (2, 2, 1.0),
            ],
        ),
    ));
    graphs.push((
        "parallel".into(),
        plain(
            3,
            &[
                (0, 1, 5.0),
                (0, 1, 3.0),
                (1, 0, 9.0),
                (1, 2, 2.0),
                (1, 2, 1.0),
                (0, 2, 1.0),
            ],
        ),
    ));
    graphs.push(("single".into(), plain(1, &[])));
    graphs.push(("apart-20".into(), plain(20, &[])));
    graphs
}

fn complete(count: usize) -> Vec<(usize, usize, f64)> {
    let pairs = (0..count).flat_map(|a| (0..count).map(move |b| (a, b)));
    pairs
        .filter(|(a, b)| a != b)
        .map(|(a, b)| (a, b, (1 + a * 3 + b) as f64))
        .collect()
}
