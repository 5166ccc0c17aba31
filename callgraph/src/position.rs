//! Assigns horizontal coordinates: keeps long arrows straight, heavy ones first, and everything
//! close together.
//!
//! Minimises the weighted sum of the arrows' horizontal steps, subject to the order and the
//! distances in each row, by network simplex on the usual auxiliary graph: one auxiliary node per
//! link, left of both its ends. The variables are the axes, not the single items.

use crate::axes::{Axes, leftmost_positions};
use crate::layers::{Kind, Layered, Wire};
use crate::simplex::{self, Constraint};
use std::collections::HashMap;

/// Maximum number of pivots.
const MAX_PIVOTS: usize = 30_000;
/// Cost of a horizontal step between two inner items of a wire.
const INNER_COST: i64 = 8;
/// Cost of a horizontal step between a box and an inner item.
const OUTER_COST: i64 = 2;
/// Cost of the picture's width.
const WIDTH_COST: i64 = 60;

/// Gap between two wires at a box, in pixels, if there is room.
const PORT_GAP: f64 = 8.0;

/// Maximum part of the side of a box that its wires are spread over.
const MAX_PORTS_SHARE: f64 = 0.85;

/// Horizontal coordinates of the layered form, in pixels.
pub struct Positions {
    /// Axis of each item.
    pub x: Vec<f64>,
    /// For each wire, offsets from the boxes' axes at which it leaves the upper box and enters the
    /// lower one.
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

/// Spreads the wires over the bottom and top sides of each box, in the order of their other ends.
fn ports(layered: &Layered, wires: &[Wire]) -> Vec<[f64; 2]> {
    let mut ports = vec![[0.0; 2]; wires.len()];
    // Each item that is linked to a box belongs to one wire. It is the wire's first item below its
    // upper box, or its last item above its lower box.
    let mut upper = HashMap::new();
    let mut lower = HashMap::new();
    for (wire, chain) in layered.chains.iter().enumerate() {
        upper.insert(chain[1], wire);
        lower.insert(chain[chain.len() - 2], wire);
    }
    for item in layered.items.iter().filter(|i| i.kind == Kind::Box) {
        let half = item.left;
        for (side, links, wire_at) in [(0, &item.below, &upper), (1, &item.above, &lower)] {
            let side_wires: Vec<usize> = links.iter().map(|v| wire_at[v]).collect();
            for (wire, offset) in side_wires
                .iter()
                .zip(port_offsets(&side_wires, wires, half))
            {
                ports[*wire][side] = offset;
            }
        }
    }
    ports
}

/// Returns offsets of the wires from the centre of a side whose length is twice `half`. Thick wires
/// are farther apart.
fn port_offsets(side_wires: &[usize], wires: &[Wire], half: f64) -> Vec<f64> {
    let gaps: Vec<f64> = side_wires
        .windows(2)
        .map(|w| PORT_GAP + (wires[w[0]].thickness + wires[w[1]].thickness) / 2.0)
        .collect();
    let span: f64 = gaps.iter().sum();
    let shrink = if span > 0.0 {
        (MAX_PORTS_SHARE * 2.0 * half / span).min(1.0)
    } else {
        1.0
    };
    let mut at = -span * shrink / 2.0;
    let mut offsets = vec![at.round()];
    for gap in gaps {
        at += gap * shrink;
        offsets.push(at.round());
    }
    offsets
}

/// Solves for the coordinate of each item's axis.
fn solve(layered: &Layered, wires: &[Wire], ports: &[[f64; 2]]) -> Vec<i64> {
    let axes = Axes::new(layered, wires);
    let axis = &axes.axis_of_item;
    let mut constraints = axes.constraints();
    let mut x = leftmost_positions(axes.count, &constraints);
    for (wire, chain) in layered.chains.iter().enumerate() {
        let last = chain.len() - 2;
        for (i, pair) in chain.windows(2).enumerate() {
            let above = axis[pair[0]];
            let below = axis[pair[1]];
            if above == below {
                continue;
            }
            let upper = if i == 0 { ports[wire][0] as i64 } else { 0 };
            let lower = if i == last { ports[wire][1] as i64 } else { 0 };
            let inner = i > 0 && i < last;
            let weight = wires[wire].weight * if inner { INNER_COST } else { OUTER_COST };
            let auxiliary = x.len();
            x.push((x[above] + upper).min(x[below] + lower));
            for (head, port) in [(above, upper), (below, lower)] {
                constraints.push(Constraint {
                    tail: auxiliary,
                    head,
                    length: -port,
                    weight,
                });
            }
        }
    }
    add_walls(layered, axis, &mut x, &mut constraints);
    let x = simplex::solve(x.len(), &constraints, Some(x), MAX_PIVOTS, true);
    axis.iter().map(|&a| x[a]).collect()
}

/// Adds auxiliary nodes left and right of everything, whose distance costs [`WIDTH_COST`].
fn add_walls(
    layered: &Layered,
    axis: &[usize],
    x: &mut Vec<i64>,
    constraints: &mut Vec<Constraint>,
) {
    let left = x.len();
    let right = x.len() + 1;
    let mut min_x = 0;
    let mut max_x = 0;
    for row in &layered.rows {
        let (Some(&a), Some(&b)) = (row.first(), row.last()) else {
            continue;
        };
        let margins = [
            layered.items[a].left.ceil() as i64,
            layered.items[b].right.ceil() as i64,
        ];
        min_x = min_x.min(x[axis[a]] - margins[0]);
        max_x = max_x.max(x[axis[b]] + margins[1]);
        let wall = |tail, head, length| Constraint {
            tail,
            head,
            length,
            weight: 0,
        };
        constraints.push(wall(left, axis[a], margins[0]));
        constraints.push(wall(axis[b], right, margins[1]));
    }
    x.extend([min_x, max_x]);
    constraints.push(Constraint {
        tail: left,
        head: right,
        length: 0,
        weight: WIDTH_COST,
    });
}
