//! Makes long arrows straight by placing several items of an arrow on one vertical axis.
//!
//! The items of an arrow (wire), from one box to the other, form a chain. All inner items of a
//! chain share one axis, so a long arrow is one straight line with a bend at either end. A chain is
//! cut into several axes where straight chains are impossible (of two chains that cross between
//! inner rows, each would have to be left of the other), or where they would make the picture too
//! wide.

use crate::layers::{Item, Kind, Layered, Wire};
use crate::simplex::Constraint;
use std::cmp::Reverse;

/// Horizontal gap between two boxes, in pixels.
const BOX_GAP: f64 = 16.0;
/// Horizontal gap between a box or label and a wire, in pixels.
const MIXED_GAP: f64 = 9.0;
/// Horizontal gap between two wires, in pixels.
const WIRE_GAP: f64 = 8.0;
/// Maximum width of the picture, as a multiple of that of its widest row.
const MAX_WIDTH_RATIO: f64 = 1.45;
/// Maximum number of attempts to make the picture narrower.
const MAX_ROUNDS: usize = 80;

/// Returns the minimum distance between the axes of two neighbours in a row.
pub fn distance(a: &Item, b: &Item) -> i64 {
    let gap = match (a.kind, b.kind) {
        (Kind::Box, Kind::Box) => BOX_GAP,
        (Kind::Bend(_), Kind::Bend(_)) => WIRE_GAP,
        _ => MIXED_GAP,
    };
    (a.right + gap + b.left).ceil() as i64
}

/// Assignment of items to axes, for a connected component.
pub struct Axes<'a> {
    layered: &'a Layered,
    /// Rows above which the wire may bend, by wire.
    cuts: Vec<Vec<usize>>,
    /// Neighbours in all rows.
    pairs: Vec<Pair>,
    /// Number of axes.
    pub count: usize,
    /// Axis of each item.
    pub axis_of_item: Vec<usize>,
}

/// A possible cut of a chain.
struct Cut {
    /// Loss of straightness: the wire's weight per row.
    cost: f64,
    wire: usize,
    /// Row above which the chain is cut.
    row: usize,
}

/// Two neighbours in a row.
#[derive(Clone, Copy)]
struct Pair {
    /// Left item.
    left: usize,
    /// Right item.
    right: usize,
    /// Minimum distance between their axes, in pixels.
    distance: i64,
}

impl<'a> Axes<'a> {
    /// Chooses the axes.
    pub fn new(layered: &'a Layered, wires: &[Wire]) -> Self {
        let items = &layered.items;
        let pairs = layered.rows.iter().flat_map(|row| row.windows(2));
        let pairs = pairs
            .map(|p| Pair {
                left: p[0],
                right: p[1],
                distance: distance(&items[p[0]], &items[p[1]]),
            })
            .collect();
        let axis_of_item = (0..items.len()).collect();
        let cuts = untangle(layered, wires);
        let mut axes = Axes {
            layered,
            cuts,
            pairs,
            count: 0,
            axis_of_item,
        };
        axes.number_axes();
        axes.narrow(wires);
        axes
    }

    /// Returns the constraints that the rows impose on the axes: order and minimum distance.
    pub fn constraints(&self) -> Vec<Constraint> {
        let mut all = self.constraint_of_each_pair();
        // The first constraint between two axes is the longest, which implies the others.
        all.sort_unstable_by_key(|c| (c.tail, c.head, Reverse(c.length)));
        all.dedup_by_key(|c| (c.tail, c.head));
        all
    }

    /// Returns one constraint per pair of neighbours, in the order of `pairs`.
    fn constraint_of_each_pair(&self) -> Vec<Constraint> {
        let constraint = |pair: &Pair| Constraint {
            tail: self.axis_of_item[pair.left],
            head: self.axis_of_item[pair.right],
            length: pair.distance,
            weight: 0,
        };
        self.pairs.iter().map(constraint).collect()
    }

    /// Numbers the axes according to the current cuts.
    fn number_axes(&mut self) {
        let items = &self.layered.items;
        self.count = items.iter().filter(|i| i.kind == Kind::Box).count();
        for (chain, cuts) in self.layered.chains.iter().zip(&self.cuts) {
            for (i, &v) in chain.iter().enumerate().take(chain.len() - 1).skip(1) {
                if i == 1 || cuts.contains(&items[v].row) {
                    self.count += 1;
                }
                self.axis_of_item[v] = self.count - 1;
            }
        }
    }

    /// Cuts chains until the picture is not much wider than its widest row.
    fn narrow(&mut self, wires: &[Wire]) {
        let mut widths = vec![0; self.layered.rows.len()];
        for pair in &self.pairs {
            widths[self.layered.items[pair.left].row] += pair.distance;
        }
        let max_width = widths
            .iter()
            .max()
            .map_or(0, |&w| (w as f64 * MAX_WIDTH_RATIO) as i64);
        for _ in 0..MAX_ROUNDS {
            let path = self.widest_path(max_width);
            if path.is_empty() || !self.cut_path(&path, wires) {
                break;
            }
            self.number_axes();
        }
    }

    /// Returns the critical path: the pairs whose distances add up to the full width, right to
    /// left. Empty if the width is at most `max_width`.
    fn widest_path(&self, max_width: i64) -> Vec<Pair> {
        let constraints = self.constraint_of_each_pair();
        let x = leftmost_positions(self.count, &constraints);
        // The tight constraint of each axis, which determines its position.
        let mut tight = vec![usize::MAX; self.count];
        for (e, c) in constraints.iter().enumerate() {
            if x[c.tail] + c.length == x[c.head] {
                tight[c.head] = e;
            }
        }
        let mut path = Vec::new();
        let last = (0..self.count)
            .max_by_key(|&v| x[v])
            .filter(|&v| x[v] > max_width);
        let mut pair = last.map_or(usize::MAX, |v| tight[v]);
        while pair != usize::MAX {
            path.push(self.pairs[pair]);
            pair = tight[constraints[pair].tail];
        }
        path
    }

    /// Cuts some of the chains on the critical path: those whose straightness matters least.
    /// Returns false if there are none.
    fn cut_path(&mut self, path: &[Pair], wires: &[Wire]) -> bool {
        let items = &self.layered.items;
        let mut candidates: Vec<Cut> = Vec::new();
        for pair in path.windows(2) {
            // From right to left, the path reaches the chain's axis in one row and leaves it in
            // another.
            let reached = pair[0].left;
            let left = pair[1].right;
            let (Kind::Bend(wire) | Kind::Label(wire)) = items[reached].kind else {
                continue;
            };
            let a = items[reached].row;
            let b = items[left].row;
            if a != b {
                let cost = wires[wire].weight as f64 / a.abs_diff(b) as f64;
                candidates.push(Cut {
                    cost,
                    wire,
                    row: (a + b).div_ceil(2),
                });
            }
        }
        candidates.sort_by(|a, b| a.cost.total_cmp(&b.cost));
        candidates.truncate(candidates.len().div_ceil(4));
        for cut in &candidates {
            self.cuts[cut.wire].push(cut.row);
        }
        !candidates.is_empty()
    }
}

/// A step of a chain between two inner rows.
#[derive(Clone, Copy)]
struct Step {
    wire: usize,
    /// Position in the upper row.
    upper: usize,
    /// Position in the lower row.
    lower: usize,
}

impl Step {
    fn crosses(&self, other: &Self) -> bool {
        (other.upper < self.upper) != (other.lower < self.lower)
    }
}

/// Returns the cuts that keep the constraints free of cycles: where two chains cross between inner
/// rows, the lighter one is cut.
fn untangle(layered: &Layered, wires: &[Wire]) -> Vec<Vec<usize>> {
    let items = &layered.items;
    let mut position = vec![0; items.len()];
    for row in &layered.rows {
        row.iter().enumerate().for_each(|(i, &v)| position[v] = i);
    }
    let mut steps: Vec<Vec<Step>> = vec![Vec::new(); layered.rows.len()];
    for (wire, chain) in layered.chains.iter().enumerate() {
        for pair in chain[1..chain.len() - 1].windows(2) {
            steps[items[pair[0]].row].push(Step {
                wire,
                upper: position[pair[0]],
                lower: position[pair[1]],
            });
        }
    }
    let mut cuts: Vec<Vec<usize>> = vec![Vec::new(); layered.chains.len()];
    for (row, steps) in steps.iter_mut().enumerate() {
        steps.sort_by_key(|s| (Reverse(wires[s.wire].weight), s.wire));
        let mut uncut: Vec<Step> = Vec::new();
        for &step in steps.iter() {
            if uncut.iter().all(|other| !step.crosses(other)) {
                uncut.push(step);
            } else {
                cuts[step.wire].push(row + 1);
            }
        }
    }
    cuts
}

/// Returns the leftmost position of every axis that satisfies the constraints.
pub fn leftmost_positions(count: usize, constraints: &[Constraint]) -> Vec<i64> {
    let mut x = vec![0; count];
    let mut waiting = vec![0; count];
    // Linked lists of the constraints that start at each axis.
    let mut first = vec![usize::MAX; count];
    let mut next = vec![usize::MAX; constraints.len()];
    for (e, c) in constraints.iter().enumerate() {
        waiting[c.head] += 1;
        next[e] = std::mem::replace(&mut first[c.tail], e);
    }
    let mut ready: Vec<usize> = (0..count).filter(|&v| waiting[v] == 0).collect();
    let mut done = 0;
    while let Some(v) = ready.pop() {
        done += 1;
        let mut e = first[v];
        while e != usize::MAX {
            let c = constraints[e];
            x[c.head] = x[c.head].max(x[v] + c.length);
            waiting[c.head] -= 1;
            if waiting[c.head] == 0 {
                ready.push(c.head);
            }
            e = next[e];
        }
    }
    debug_assert_eq!(done, count, "the constraints form a cycle");
    x
}
