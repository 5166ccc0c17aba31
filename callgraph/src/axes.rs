//! Straight arrows: which items of the rows share one vertical axis.
//!
//! All items of a chain between its two boxes stand on one axis, so that a long arrow is one
//! straight line with a bend at either end. A chain is cut into several axes where it must be
//! (two chains that cross between inner rows would demand to be left of each other), and where
//! its straightness would make the picture too wide.

use crate::layers::{Item, Kind, Layered, Wire};
use crate::simplex::Constraint;
use std::cmp::Reverse;

/// Space between boxes, between a box or label and a wire, and between two wires.
const BOX_GAP: f64 = 16.0;
const MIXED_GAP: f64 = 9.0;
const WIRE_GAP: f64 = 8.0;
/// Largest width of the picture, in widths of its widest row.
const SPARE: f64 = 1.45;
/// Attempts to make it narrower.
const ROUNDS: usize = 80;

/// The least distance of two neighbours' axes.
pub fn distance(a: &Item, b: &Item) -> i64 {
    let gap = match (a.kind, b.kind) {
        (Kind::Block, Kind::Block) => BOX_GAP,
        (Kind::Bend(_), Kind::Bend(_)) => WIRE_GAP,
        _ => MIXED_GAP,
    };
    (a.right + gap + b.left).ceil() as i64
}

/// The axes of a layered part.
pub struct Axes<'a> {
    layered: &'a Layered,
    /// For each wire the rows above which it may bend.
    cuts: Vec<Vec<usize>>,
    /// Neighbours in a row and their distance.
    pairs: Vec<(usize, usize, i64)>,
    /// The number of axes.
    pub count: usize,
    /// The axis of each item.
    pub of: Vec<usize>,
}

impl<'a> Axes<'a> {
    /// Chooses the axes.
    pub fn new(layered: &'a Layered, wires: &[Wire]) -> Self {
        let items = &layered.items;
        let pairs = layered.rows.iter().flat_map(|row| row.windows(2));
        let pairs = pairs
            .map(|p| (p[0], p[1], distance(&items[p[0]], &items[p[1]])))
            .collect();
        let of = (0..items.len()).collect();
        let cuts = untangle(layered, wires);
        let mut axes = Axes {
            layered,
            cuts,
            pairs,
            count: 0,
            of,
        };
        axes.number();
        axes.narrow(wires);
        axes
    }

    /// The demands of the rows on the axes: who is right of whom, and how far at least.
    pub fn demands(&self) -> Vec<Constraint> {
        let pair = |p: &(usize, usize, i64)| (self.of[p.0], self.of[p.1], Reverse(p.2));
        let mut all: Vec<_> = self.pairs.iter().map(pair).collect();
        all.sort_unstable();
        all.dedup_by_key(|d| (d.0, d.1));
        let demand = |d: (usize, usize, Reverse<i64>)| Constraint {
            tail: d.0,
            head: d.1,
            length: d.2.0,
            weight: 0,
        };
        all.into_iter().map(demand).collect()
    }

    fn number(&mut self) {
        let items = &self.layered.items;
        self.count = items.iter().filter(|i| i.kind == Kind::Block).count();
        for (chain, cuts) in self.layered.chains.iter().zip(&self.cuts) {
            for (i, &v) in chain.iter().enumerate().take(chain.len() - 1).skip(1) {
                if i == 1 || cuts.contains(&items[v].row) {
                    self.count += 1;
                }
                self.of[v] = self.count - 1;
            }
        }
    }

    /// Cuts chains until the picture can be nearly as narrow as its widest row.
    fn narrow(&mut self, wires: &[Wire]) {
        let mut widths = vec![0; self.layered.rows.len()];
        for &(a, _, length) in &self.pairs {
            widths[self.layered.items[a].row] += length;
        }
        let most = widths
            .iter()
            .max()
            .map_or(0, |&w| (w as f64 * SPARE) as i64);
        for _ in 0..ROUNDS {
            let path = self.widest_path(most);
            if path.is_empty() || !self.cut_on(&path, wires) {
                break;
            }
            self.number();
        }
    }

    /// The demands that add up to the full width, right to left, as pairs of items; none if
    /// the width is at most `most`.
    fn widest_path(&self, most: i64) -> Vec<(usize, usize)> {
        let demands: Vec<Constraint> = self
            .pairs
            .iter()
            .map(|p| Constraint {
                tail: self.of[p.0],
                head: self.of[p.1],
                length: p.2,
                weight: 0,
            })
            .collect();
        let x = leftmost(self.count, &demands);
        // The demand that decides where each axis is.
        let mut tight = vec![usize::MAX; self.count];
        for (e, c) in demands.iter().enumerate() {
            if x[c.tail] + c.length == x[c.head] {
                tight[c.head] = e;
            }
        }
        let mut path = Vec::new();
        let last = (0..self.count)
            .max_by_key(|&v| x[v])
            .filter(|&v| x[v] > most);
        let mut at = last.map_or(usize::MAX, |v| tight[v]);
        while at != usize::MAX {
            path.push((self.pairs[at].0, self.pairs[at].1));
            at = tight[demands[at].tail];
        }
        path
    }

    /// Cuts the lightest and longest of the chains that carry a demand from one row to another.
    fn cut_on(&mut self, path: &[(usize, usize)], wires: &[Wire]) -> bool {
        let items = &self.layered.items;
        let mut found: Vec<(f64, usize, usize)> = Vec::new();
        for pair in path.windows(2) {
            // The axis is entered from the left in one row and left to the right in another.
            let (out, inc) = (pair[0].0, pair[1].1);
            let (Kind::Bend(wire) | Kind::Label(wire)) = items[out].kind else {
                continue;
            };
            let (a, b) = (items[out].row, items[inc].row);
            if a != b {
                let cost = wires[wire].weight as f64 / a.abs_diff(b) as f64;
                found.push((cost, wire, (a + b).div_ceil(2)));
            }
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        found.truncate(found.len().div_ceil(4));
        for &(_, wire, row) in &found {
            self.cuts[wire].push(row);
        }
        !found.is_empty()
    }
}

/// The cuts without which the demands "left of" could form a circle: where two chains cross
/// between inner rows, the lighter one.
fn untangle(layered: &Layered, wires: &[Wire]) -> Vec<Vec<usize>> {
    let items = &layered.items;
    let mut position = vec![0; items.len()];
    for row in &layered.rows {
        row.iter().enumerate().for_each(|(i, &v)| position[v] = i);
    }
    // Inner steps by the row that they start in: wire, upper and lower position.
    let mut steps: Vec<Vec<(usize, usize, usize)>> = vec![Vec::new(); layered.rows.len()];
    for (wire, chain) in layered.chains.iter().enumerate() {
        for pair in chain[1..chain.len() - 1].windows(2) {
            steps[items[pair[0]].row].push((wire, position[pair[0]], position[pair[1]]));
        }
    }
    let mut cuts: Vec<Vec<usize>> = vec![Vec::new(); layered.chains.len()];
    for (row, steps) in steps.iter_mut().enumerate() {
        steps.sort_by_key(|s| (Reverse(wires[s.0].weight), s.0));
        let mut kept: Vec<(usize, usize)> = Vec::new();
        for &(wire, upper, lower) in steps.iter() {
            if kept.iter().all(|k| (k.0 < upper) == (k.1 < lower)) {
                kept.push((upper, lower));
            } else {
                cuts[wire].push(row + 1);
            }
        }
    }
    cuts
}

/// Every axis as far left as its demands allow.
pub fn leftmost(count: usize, demands: &[Constraint]) -> Vec<i64> {
    let mut x = vec![0; count];
    let mut waiting = vec![0; count];
    // The demands of each axis on others, as a linked list.
    let mut first = vec![usize::MAX; count];
    let mut next = vec![usize::MAX; demands.len()];
    for (e, c) in demands.iter().enumerate() {
        waiting[c.head] += 1;
        next[e] = std::mem::replace(&mut first[c.tail], e);
    }
    let mut ready: Vec<usize> = (0..count).filter(|&v| waiting[v] == 0).collect();
    let mut done = 0;
    while let Some(v) = ready.pop() {
        done += 1;
        let mut e = first[v];
        while e != usize::MAX {
            let c = demands[e];
            x[c.head] = x[c.head].max(x[v] + c.length);
            waiting[c.head] -= 1;
            if waiting[c.head] == 0 {
                ready.push(c.head);
            }
            e = next[e];
        }
    }
    debug_assert_eq!(done, count, "the demands form a circle");
    x
}
