//! Rows of boxes without the rows of labels between them (for `order`). Builds initial orders, and
//! converts an order back into the layered form.

use crate::layers::{Kind, Layered};

/// Items of each row, from left to right.
pub type Rows = Vec<Vec<usize>>;

/// Items of the even rows, renumbered, and their links.
pub struct Bare {
    /// Index of each item in the layered form.
    pub item: Vec<usize>,
    rows: Rows,
    /// Links to the rows above and below.
    pub near: [Links; 2],
    /// Number of links of each row to the rows above and below.
    pub links: [Vec<usize>; 2],
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

impl Bare {
    /// Extracts the rows of boxes from the layered form.
    pub fn new(layered: &Layered) -> Self {
        let mut bare = vec![usize::MAX; layered.items.len()];
        let mut item = Vec::new();
        let mut rows = Vec::new();
        for row in layered.rows.iter().step_by(2) {
            rows.push((item.len()..item.len() + row.len()).collect());
            for &v in row {
                bare[v] = item.len();
                item.push(v);
            }
        }
        let mut lists = [vec![Vec::new(); item.len()], vec![Vec::new(); item.len()]];
        for chain in &layered.chains {
            for pair in chain.windows(3).step_by(2) {
                let upper = bare[pair[0]];
                let lower = bare[pair[2]];
                lists[0][lower].push(upper);
                lists[1][upper].push(lower);
            }
        }
        let count = |side: &[Vec<usize>]| {
            let rows = rows.iter();
            rows.map(|row: &Vec<usize>| row.iter().map(|&v| side[v].len()).sum())
                .collect()
        };
        Bare {
            links: [count(&lists[0]), count(&lists[1])],
            near: lists.map(|l| Links::new(&l)),
            item,
            rows,
        }
    }

    /// Orders the rows by a depth-first search from the first row, or from the last if `upwards`,
    /// which keeps linked items together.
    pub fn walk(&self, upwards: bool) -> Rows {
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
        let (last, first) = if upwards { (1, 0) } else { (0, 1) };
        for root in roots {
            let mut stack = vec![root];
            while let Some(v) = stack.pop() {
                if std::mem::replace(&mut seen[v], true) {
                    continue;
                }
                rows[row_of[v]].push(v);
                stack.extend(
                    self.near[last]
                        .linked_to(v)
                        .iter()
                        .rev()
                        .filter(|&&w| !seen[w]),
                );
                stack.extend(
                    self.near[first]
                        .linked_to(v)
                        .iter()
                        .rev()
                        .filter(|&&w| !seen[w]),
                );
            }
        }
        rows
    }

    /// Shuffles each row. Reproducible: depends only on the seed.
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

    /// Stores the order in the layered form, and orders the rows of labels by the middle of each
    /// wire's ends, which never adds a crossing.
    pub fn fill(&self, layered: &mut Layered, rows: &Rows) {
        let mut x_of = vec![0.0; layered.items.len()];
        for (r, row) in rows.iter().enumerate() {
            let mut x = 0.0;
            layered.rows[2 * r] = row.iter().map(|&v| self.item[v]).collect();
            for &v in &layered.rows[2 * r] {
                let item = &layered.items[v];
                x_of[v] = x + item.left;
                x += item.left + item.right + 12.0;
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
        for item in layered.items.iter_mut().filter(|i| i.kind == Kind::Block) {
            // Wires between the same two boxes have the same order at both.
            item.above.sort_by(|&a, &b| x_of[a].total_cmp(&x_of[b]));
            item.below.sort_by(|&a, &b| x_of[a].total_cmp(&x_of[b]));
        }
    }
}
