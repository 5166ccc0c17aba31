//! Horizontal coordinates: long arrows straight, heavy ones first, everything close together.
//!
//! Minimises the weighted sum of the sideways steps between linked items under the order and
//! the distances of each row, exactly, by network simplex on the usual helper graph: one helper
//! per link, left of both its ends.

use super::layers::{Item, Kind, Layered, Wire};
use super::simplex::{self, Constraint};
use std::collections::HashMap;

/// Pivots after which the coordinates are good enough.
const STEPS: usize = 30_000;
/// Space between boxes, between a box or label and a wire, and between two wires.
const BOX_GAP: f64 = 16.0;
const MIXED_GAP: f64 = 9.0;
const WIRE_GAP: f64 = 8.0;

/// Coordinates of the layered form.
pub struct Positions {
    /// Axis of each item.
    pub x: Vec<f64>,
    /// For each wire, where it leaves the upper box and enters the lower one, from the axes.
    pub ports: Vec<[f64; 2]>,
}

/// Places all items.
pub fn place(layered: &Layered, wires: &[Wire]) -> Positions {
    let ports = ports(layered, wires);
    let x = solve(layered, wires, &ports);
    Positions {
        x: x.iter().map(|&v| v as f64).collect(),
        ports,
    }
}

/// Spreads the wires over the lower and upper sides of each box, in the order of their ends.
fn ports(layered: &Layered, wires: &[Wire]) -> Vec<[f64; 2]> {
    let mut ports = vec![[0.0; 2]; wires.len()];
    // The first link of a chain names it from the upper box, the last from the lower one.
    let mut upper = HashMap::new();
    let mut lower = HashMap::new();
    for (wire, chain) in layered.chains.iter().enumerate() {
        upper.insert(chain[1], wire);
        lower.insert(chain[chain.len() - 2], wire);
    }
    for item in layered.items.iter().filter(|i| i.kind == Kind::Block) {
        let half = item.left;
        for (side, links, names) in [(0, &item.below, &upper), (1, &item.above, &lower)] {
            let list: Vec<usize> = links.iter().map(|v| names[v]).collect();
            for (wire, offset) in list.iter().zip(spread(&list, wires, half)) {
                ports[*wire][side] = offset;
            }
        }
    }
    ports
}

/// Offsets of the wires along a side of half length `half`, centred, wider apart when thick.
fn spread(list: &[usize], wires: &[Wire], half: f64) -> Vec<f64> {
    let gaps: Vec<f64> = list
        .windows(2)
        .map(|w| 8.0 + (wires[w[0]].thickness + wires[w[1]].thickness) / 2.0)
        .collect();
    let wide: f64 = gaps.iter().sum();
    let shrink = if wide > 0.0 {
        (1.7 * half / wide).min(1.0)
    } else {
        1.0
    };
    let mut at = -wide * shrink / 2.0;
    let mut offsets = vec![at.round()];
    for gap in gaps {
        at += gap * shrink;
        offsets.push(at.round());
    }
    offsets
}

/// The least distance of two neighbours' axes.
fn distance(a: &Item, b: &Item) -> i64 {
    let gap = match (a.kind, b.kind) {
        (Kind::Block, Kind::Block) => BOX_GAP,
        (Kind::Bend(_), Kind::Bend(_)) => WIRE_GAP,
        _ => MIXED_GAP,
    };
    (a.right + gap + b.left).ceil() as i64
}

fn solve(layered: &Layered, wires: &[Wire], ports: &[[f64; 2]]) -> Vec<i64> {
    let items = &layered.items;
    let mut constraints = Vec::new();
    let mut x = vec![0i64; items.len()];
    for row in &layered.rows {
        for pair in row.windows(2) {
            let length = distance(&items[pair[0]], &items[pair[1]]);
            x[pair[1]] = x[pair[0]] + length;
            constraints.push(Constraint {
                tail: pair[0],
                head: pair[1],
                length,
                weight: 0,
            });
        }
    }
    for (wire, chain) in layered.chains.iter().enumerate() {
        let last = chain.len() - 2;
        for (i, pair) in chain.windows(2).enumerate() {
            let upper = if i == 0 { ports[wire][0] as i64 } else { 0 };
            let lower = if i == last { ports[wire][1] as i64 } else { 0 };
            let kind = if i > 0 && i < last { 8 } else { 2 };
            let weight = wires[wire].weight * kind;
            let helper = x.len();
            x.push((x[pair[0]] + upper).min(x[pair[1]] + lower));
            for (head, port) in [(pair[0], upper), (pair[1], lower)] {
                constraints.push(Constraint {
                    tail: helper,
                    head,
                    length: -port,
                    weight,
                });
            }
        }
    }
    let count = x.len();
    let mut x = simplex::solve(count, &constraints, Some(x), STEPS, true);
    x.truncate(items.len());
    x
}
