//! The layered form of a connected component: boxes on even rows, labels on odd rows, and for every
//! arrow a chain of placeholders in the rows between its ends.

use crate::geometry::Size;

/// An arrow between two different boxes of a component.
#[derive(Clone, Debug)]
pub struct Wire {
    /// Index of the box it leaves.
    pub from: usize,
    /// Index of the box it enters.
    pub to: usize,
    /// Cost of bends and detours, at least 1.
    pub weight: i64,
    /// Size of its label; zero if there is none.
    pub label: Size,
    /// Line width, in pixels.
    pub thickness: f64,
}

/// A box without coordinates, which the layout determines.
#[derive(Clone, Copy, Debug)]
pub struct Block {
    /// Size of the box.
    pub size: Size,
    /// Space reserved at the right side for self-loops and their labels, in pixels.
    pub loop_width: f64,
}

/// Kind of an item of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Box with the same index as the item.
    Box,
    /// Label of this wire, with the wire at its left.
    Label(usize),
    /// Placeholder of this wire, which passes through the row.
    Bend(usize),
}

/// An item of a row. Its vertical axis is the centre line of a box, or the wire of a label or bend.
#[derive(Clone, Debug)]
pub struct Item {
    /// Kind of the item.
    pub kind: Kind,
    /// Number of the row.
    pub row: usize,
    /// Space left of the axis, in pixels.
    pub left: f64,
    /// Space right of the axis, in pixels.
    pub right: f64,
    /// Linked items in the row above.
    pub above: Vec<usize>,
    /// Linked items in the row below.
    pub below: Vec<usize>,
}

/// A connected component in rows. The first items are the boxes, in the order given.
#[derive(Clone, Debug)]
pub struct Layered {
    /// All items.
    pub items: Vec<Item>,
    /// Item indices, row by row, left to right.
    pub rows: Vec<Vec<usize>>,
    /// Items of each wire, from the upper box to the lower one.
    pub chains: Vec<Vec<usize>>,
}

/// Horizontal gap between a wire and its label, in pixels.
pub const LABEL_GAP: f64 = 3.0;

/// Builds the rows from the rank of each box. The ends of every wire must differ in rank.
pub fn build(blocks: &[Block], wires: &[Wire], ranks: &[usize]) -> Layered {
    let depth = ranks.iter().max().map_or(0, |r| 2 * r + 1);
    let mut rows = vec![Vec::new(); depth];
    let mut items: Vec<Item> = Vec::new();
    for (block, &rank) in blocks.iter().zip(ranks) {
        let half = block.size.w / 2.0;
        rows[2 * rank].push(items.len());
        items.push(item(Kind::Box, 2 * rank, half, half + block.loop_width));
    }
    let label_rows = choose_label_rows(depth, wires, ranks);
    let mut chains = Vec::with_capacity(wires.len());
    for (index, wire) in wires.iter().enumerate() {
        let (upper, lower) = ends(wire, ranks);
        let mut chain = vec![upper];
        let between = 2 * ranks[upper] + 1..2 * ranks[lower];
        for (row, members) in rows
            .iter_mut()
            .enumerate()
            .take(between.end)
            .skip(between.start)
        {
            let half = wire.thickness / 2.0;
            let (kind, right) = if label_rows[index] == Some(row) {
                (Kind::Label(index), half + LABEL_GAP + wire.label.w)
            } else {
                (Kind::Bend(index), half)
            };
            members.push(items.len());
            chain.push(items.len());
            items.push(item(kind, row, half, right));
        }
        chain.push(lower);
        for pair in chain.windows(2) {
            items[pair[0]].below.push(pair[1]);
            items[pair[1]].above.push(pair[0]);
        }
        chains.push(chain);
    }
    Layered {
        items,
        rows,
        chains,
    }
}

/// Returns the upper and the lower box of a wire, in whichever direction it points.
pub fn ends(wire: &Wire, ranks: &[usize]) -> (usize, usize) {
    if ranks[wire.from] < ranks[wire.to] {
        (wire.from, wire.to)
    } else {
        (wire.to, wire.from)
    }
}

fn item(kind: Kind, row: usize, left: f64, right: f64) -> Item {
    Item {
        kind,
        row,
        left,
        right,
        above: Vec::new(),
        below: Vec::new(),
    }
}

/// Chooses an odd row for every label. Wires between neighbouring ranks have no choice; the others
/// use the row that is least full so far.
fn choose_label_rows(depth: usize, wires: &[Wire], ranks: &[usize]) -> Vec<Option<usize>> {
    // Width of the labels in each row.
    let mut widths = vec![0.0; depth];
    let mut by_length: Vec<usize> = (0..wires.len())
        .filter(|&w| wires[w].label.w > 0.0)
        .collect();
    let span = |w: usize| ranks[wires[w].from].abs_diff(ranks[wires[w].to]);
    by_length.sort_by_key(|&w| span(w));
    let mut chosen = vec![None; wires.len()];
    for w in by_length {
        let (upper, lower) = ends(&wires[w], ranks);
        let candidates = (2 * ranks[upper] + 1..2 * ranks[lower]).step_by(2);
        let row = candidates.min_by(|&a, &b| f64::total_cmp(&widths[a], &widths[b]));
        if let Some(row) = row {
            widths[row] += wires[w].label.w + LABEL_GAP;
            chosen[w] = Some(row);
        }
    }
    chosen
}
