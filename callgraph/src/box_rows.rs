//! The rows of boxes, without the rows of labels between them, for `order`. Builds initial orders,
//! and converts an order back into the layered form.
//!
//! A row of boxes also has the bends of the wires (arrows) that pass through it. A wire's items,
//! from one box to the other, form a chain; two neighbours in a chain are linked.

use crate::layers::{Kind, Layered};

/// Horizontal gap between two items, in pixels. Used only to estimate positions for sorting.
const GAP: f64 = 12.0;

/// Index of the row above, in pairs of data for the two rows next to a row.
pub const ABOVE: usize = 0;

/// Index of the row below in pairs of data, like [`ABOVE`].
pub const BELOW: usize = 1;

/// Items of each row, from left to right.
pub type Rows = Vec<Vec<usize>>;

/// Items of the rows of boxes (the even rows of the layered form), renumbered, and their links.
pub struct BoxRows {
    /// Index of each item in the layered form.
    pub item: Vec<usize>,
    rows: Rows,
    /// Links to the row above and to the row below, by [`ABOVE`] and [`BELOW`].
    pub links: [Links; 2],
    /// Number of links of each row, to the row above and to the row below.
    pub link_counts: [Vec<usize>; 2],
}

/// Linked items of each item, in flat arrays.
pub struct Links {
    /// Start of each list, and the end of the last one.
    pub start: Vec<usize>,
    /// Concatenated lists.
    pub list: Vec<usize>,
}

impl Links {
    fn new(lists: &[Vec<usize>]) -> Self {
        let mut start = vec![0];
        let mut list = Vec::new();
        for l in lists {
            list.extend_from_slice(l);
            start.push(list.len());
        }
        Links { start, list }
    }

    /// Returns the items linked to an item.
    pub fn linked_to(&self, v: usize) -> &[usize] {
        &self.list[self.start[v]..self.start[v + 1]]
    }
}

impl BoxRows {
    /// Extracts the rows of boxes from the layered form.
    pub fn new(layered: &Layered) -> Self {
        let mut index_of = vec![usize::MAX; layered.items.len()];
        let mut item = Vec::new();
        let mut rows = Vec::new();
        for row in layered.rows.iter().step_by(2) {
            rows.push((item.len()..item.len() + row.len()).collect());
            for &v in row {
                index_of[v] = item.len();
                item.push(v);
            }
        }
        let mut lists = [vec![Vec::new(); item.len()], vec![Vec::new(); item.len()]];
        for chain in &layered.chains {
            for pair in chain.windows(3).step_by(2) {
                let upper = index_of[pair[0]];
                let lower = index_of[pair[2]];
                lists[ABOVE][lower].push(upper);
                lists[BELOW][upper].push(lower);
            }
        }
        let count = |side: &[Vec<usize>]| {
            let rows = rows.iter();
            rows.map(|row: &Vec<usize>| row.iter().map(|&v| side[v].len()).sum())
                .collect()
        };
        BoxRows {
            link_counts: [count(&lists[ABOVE]), count(&lists[BELOW])],
            links: lists.map(|l| Links::new(&l)),
            item,
            rows,
        }
    }

    /// Orders the rows by a depth-first search, which keeps linked items together. It begins at the
    /// first row and prefers links downwards, or, if `upwards`, at the last and prefers links
    /// upwards.
    pub fn depth_first(&self, upwards: bool) -> Rows {
        let mut rows = vec![Vec::new(); self.rows.len()];
        let mut row_of = vec![0; self.item.len()];
        for (r, row) in self.rows.iter().enumerate() {
            row.iter().for_each(|&v| row_of[v] = r);
        }
        let mut seen = vec![false; self.item.len()];
        let mut roots = self.rows.concat();
        if upwards {
            roots.reverse();
        }
        // What is pushed last is visited first.
        let (pushed_first, pushed_last) = if upwards {
            (BELOW, ABOVE)
        } else {
            (ABOVE, BELOW)
        };
        for root in roots {
            let mut stack = vec![root];
            while let Some(v) = stack.pop() {
                if std::mem::replace(&mut seen[v], true) {
                    continue;
                }
                rows[row_of[v]].push(v);
                stack.extend(
                    self.links[pushed_first]
                        .linked_to(v)
                        .iter()
                        .rev()
                        .filter(|&&w| !seen[w]),
                );
                stack.extend(
                    self.links[pushed_last]
                        .linked_to(v)
                        .iter()
                        .rev()
                        .filter(|&&w| !seen[w]),
                );
            }
        }
        rows
    }

    /// Shuffles each row. The result depends only on the seed.
    pub fn shuffled(&self, seed: &mut u64) -> Rows {
        let mut rows = self.rows.clone();
        for row in &mut rows {
            for i in (1..row.len()).rev() {
                *seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                row.swap(i, ((*seed >> 33) % (i as u64 + 1)) as usize);
            }
        }
        rows
    }

    /// Stores an order of the boxes in the layered form. Orders each row of labels by the middle
    /// between the two items that a label's wire links, which never adds a crossing.
    pub fn store(&self, layered: &mut Layered, rows: &Rows) {
        let mut x_of = vec![0.0; layered.items.len()];
        for (r, row) in rows.iter().enumerate() {
            let mut x = 0.0;
            layered.rows[2 * r] = row.iter().map(|&v| self.item[v]).collect();
            for &v in &layered.rows[2 * r] {
                let item = &layered.items[v];
                x_of[v] = x + item.left;
                x += item.left + item.right + GAP;
            }
            layered.rows[2 * r].iter().for_each(|&v| x_of[v] -= x / 2.0);
        }
        for r in (1..layered.rows.len()).step_by(2) {
            for &v in &layered.rows[r] {
                let item = &layered.items[v];
                x_of[v] = (x_of[item.above[0]] + x_of[item.below[0]]) / 2.0;
            }
            layered.rows[r].sort_by(|&a, &b| x_of[a].total_cmp(&x_of[b]));
        }
        for item in layered.items.iter_mut().filter(|i| i.kind == Kind::Box) {
            // Orders wires between the same two boxes alike at both boxes.
            item.above.sort_by(|&a, &b| x_of[a].total_cmp(&x_of[b]));
            item.below.sort_by(|&a, &b| x_of[a].total_cmp(&x_of[b]));
        }
    }
}
