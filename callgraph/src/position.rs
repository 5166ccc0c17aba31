//! Horizontal coordinates: long arrows straight, heavy ones first, everything close together.
//!
//! Minimises the weighted sum of the sideways steps of the arrows under the order and the
//! distances of each row, by network simplex on the usual helper graph: one helper per link,
//! left of both its ends. What moves are the axes, not the single items.

use crate::axes::{Axes, leftmost};
use crate::layers::{Kind, Layered, Wire};
use crate::simplex::{self, Constraint};
use std::collections::HashMap;

/// Pivots after which the coordinates are good enough.
const STEPS: usize = 30_000;
/// What a sideways step of a wire costs inside a chain and at a box, and how strongly the two
/// sides of the picture attract each other.
const INNER: i64 = 8;
const OUTER: i64 = 2;
const WALLS: i64 = 60;

/// Coordinates of the layered form.
pub struct Positions {
    /// Axis of each item.
    pub x: Vec<f64>,
    /// For each wire, where it leaves the upper box and enters the lower one, from the axes.
    pub ports: Vec<[f64; 2]>,
}

/// Assigns coordinates to all items.
pub fn assign(layered: &Layered, wires: &[Wire]) -> Positions {
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

fn solve(layered: &Layered, wires: &[Wire], ports: &[[f64; 2]]) -> Vec<i64> {
    let axes = Axes::new(layered, wires);
    let axis = &axes.of;
    let mut constraints = axes.demands();
    let mut x = leftmost(axes.count, &constraints);
    for (wire, chain) in layered.chains.iter().enumerate() {
        let last = chain.len() - 2;
        for (i, pair) in chain.windows(2).enumerate() {
            let (above, below) = (axis[pair[0]], axis[pair[1]]);
            if above == below {
                continue;
            }
            let upper = if i == 0 { ports[wire][0] as i64 } else { 0 };
            let lower = if i == last { ports[wire][1] as i64 } else { 0 };
            let inner = i > 0 && i < last;
            let weight = wires[wire].weight * if inner { INNER } else { OUTER };
            let helper = x.len();
            x.push((x[above] + upper).min(x[below] + lower));
            for (head, port) in [(above, upper), (below, lower)] {
                constraints.push(Constraint {
                    tail: helper,
                    head,
                    length: -port,
                    weight,
                });
            }
        }
    }
    add_walls(layered, axis, &mut x, &mut constraints);
    let x = simplex::solve(x.len(), &constraints, Some(x), STEPS, true);
    axis.iter().map(|&a| x[a]).collect()
}

/// Two helpers left and right of everything, which attract each other.
fn add_walls(
    layered: &Layered,
    axis: &[usize],
    x: &mut Vec<i64>,
    constraints: &mut Vec<Constraint>,
) {
    let (left, right) = (x.len(), x.len() + 1);
    let (mut least, mut most) = (0, 0);
    for row in &layered.rows {
        let (Some(&a), Some(&b)) = (row.first(), row.last()) else {
            continue;
        };
        let room = [
            layered.items[a].left.ceil() as i64,
            layered.items[b].right.ceil() as i64,
        ];
        least = least.min(x[axis[a]] - room[0]);
        most = most.max(x[axis[b]] + room[1]);
        let wall = |tail, head, length| Constraint {
            tail,
            head,
            length,
            weight: 0,
        };
        constraints.push(wall(left, axis[a], room[0]));
        constraints.push(wall(axis[b], right, room[1]));
    }
    x.extend([least, most]);
    constraints.push(Constraint {
        tail: left,
        head: right,
        length: 0,
        weight: WALLS,
    });
}
