//! Orders the items of each row with few crossings.
//!
//! Rows of boxes alternate with rows of wires. In a row of wires, every wire has exactly one item,
//! which can be placed wherever the wire passes. So only the rows of boxes (with the wires that
//! pass through them) are ordered; the rows between them follow without adding a crossing.
//!
//! An order is improved in sweeps by medians and means, each followed by exchanges of neighbours.
//! The result depends a lot on the initial order, so many starts are made: first from the orders of
//! two depth-first searches, then from random ones as long as the budget lasts. Finally tries every
//! item at every position of its row.
//!
//! Neighbours are next to each other in a row; linked items are in adjacent rows, on the sides
//! [`ABOVE`] and [`BELOW`].
//!
//! Reproducible: the random numbers have a fixed seed, and no clock is read.

use crate::box_rows::{ABOVE, BELOW, BoxRows, Rows};
use crate::layers::Layered;

/// Sweeps without improvement after which a start is abandoned.
const MAX_IDLE_SWEEPS: usize = 5;
/// Maximum number of sweeps of one start.
const MAX_SWEEPS: usize = 40;
/// Number of sweeps after which a start must be about as good as the best one.
const TRIAL_SWEEPS: usize = 4;
/// Maximum number of passes that move single items at the end.
const MAX_SIFT_PASSES: usize = 10;
/// Minimum number of starts, whatever they cost.
const MIN_STARTS: usize = 2;
/// Maximum number of starts.
const MAX_STARTS: usize = 60;
/// Factor of the budget: the number of links that may be examined is `BUDGET_FACTOR` × `wires` ×
/// min(`wires`, 2 × `crossings` + 20). Graphviz's time grows about as fast.
const BUDGET_FACTOR: usize = 24;
/// Minimum budget, in links.
const MIN_BUDGET: usize = 100_000;
/// Maximum budget, in links.
const MAX_BUDGET: usize = 20_000_000;
/// Ratio to the best result so far above which a start is abandoned after [`TRIAL_SWEEPS`].
const HOPELESS_RATIO: f64 = 1.25;

/// Reorders the rows with `1 / shares` of the full budget. Returns the number of crossings.
pub fn arrange(layered: &mut Layered, shares: usize) -> usize {
    let graph = BoxRows::new(layered);
    let mut best: Option<Best> = None;
    let wires = layered.chains.len();
    let budget = |crossings: usize| {
        let gain = wires.min(2 * crossings + 20);
        (BUDGET_FACTOR * wires * gain).clamp(MIN_BUDGET, MAX_BUDGET) / shares
    };
    let mut work = 0;
    let mut seed = 1;
    for start in 0..MAX_STARTS {
        let done = |best: &Best| best.crossings == 0 || work > budget(best.crossings);
        if start >= MIN_STARTS && best.as_ref().is_some_and(done) {
            break;
        }
        let rows = match start {
            0 => graph.depth_first(false),
            1 => graph.depth_first(true),
            _ => graph.shuffled(&mut seed),
        };
        let mut ordering = Ordering::new(&graph, rows);
        ordering.sweep(best.as_ref().map(|b| b.crossings));
        work += ordering.work;
        let crossings = ordering.crossings();
        if best.as_ref().is_none_or(|b| crossings < b.crossings) {
            let rows = ordering.rows;
            best = Some(Best { crossings, rows });
        }
    }
    let Some(best) = best else { return 0 };
    let mut ordering = Ordering::new(&graph, best.rows);
    ordering.sift();
    let crossings = ordering.crossings();
    let rows = ordering.rows;
    graph.store(layered, &rows);
    crossings
}

/// The best order so far.
struct Best {
    crossings: usize,
    rows: Rows,
}

/// An order of the rows under improvement.
struct Ordering<'a> {
    graph: &'a BoxRows,
    rows: Rows,
    /// Position of each item in its row.
    position: Vec<usize>,
    /// Sorted positions of the items linked to each item, arranged like [`BoxRows::links`].
    linked: [Vec<usize>; 2],
    /// For each row, set if its part of `linked` is up to date.
    up_to_date: [Vec<bool>; 2],
    /// Number of crossings above each row, if known.
    known_crossings: Vec<Option<usize>>,
    /// Scratch: sort keys of a row's items.
    keyed: Vec<(f64, usize)>,
    /// Scratch: for each item, the index in `linked` to write next.
    next: Vec<usize>,
    /// Scratch: binary indexed tree.
    tree: Vec<usize>,
    /// Number of links examined, counting those that were up to date.
    work: usize,
}

impl<'a> Ordering<'a> {
    fn new(graph: &'a BoxRows, rows: Rows) -> Self {
        let count = rows.len();
        let mut ordering = Ordering {
            graph,
            rows,
            position: vec![0; graph.item.len()],
            linked: [ABOVE, BELOW].map(|side| vec![0; graph.links[side].list.len()]),
            up_to_date: [ABOVE, BELOW].map(|_| vec![false; count]),
            known_crossings: vec![None; count],
            keyed: Vec::new(),
            next: vec![0; graph.item.len()],
            tree: Vec::new(),
            work: 0,
        };
        (0..count).for_each(|row| ordering.row_changed(row));
        ordering
    }

    /// Updates the positions after a row was reordered, and marks what depends on them as out of
    /// date.
    fn row_changed(&mut self, row: usize) {
        for (position, &v) in self.rows[row].iter().enumerate() {
            self.position[v] = position;
        }
        self.known_crossings[row] = None;
        if row > 0 {
            self.up_to_date[BELOW][row - 1] = false;
        }
        if row + 1 < self.rows.len() {
            self.up_to_date[ABOVE][row + 1] = false;
            self.known_crossings[row + 1] = None;
        }
    }

    /// Returns the sorted positions of the items linked to item `v`, which must be up to date.
    fn linked(&self, side: usize, v: usize) -> &[usize] {
        let start = &self.graph.links[side].start;
        &self.linked[side][start[v]..start[v + 1]]
    }

    /// Sweeps down and up until nothing improves for a while, or the start cannot compete with
    /// `rival`, the lowest number of crossings of earlier starts. Keeps the best order.
    fn sweep(&mut self, rival: Option<usize>) {
        let mut fewest = self.crossings();
        let mut best_rows = self.rows.clone();
        let mut idle = 0;
        let max_trial_crossings = rival.map_or(f64::INFINITY, |r| r as f64 * HOPELESS_RATIO + 2.0);
        for round in 0..MAX_SWEEPS {
            let is_hopeless = round == TRIAL_SWEEPS && fewest as f64 > max_trial_crossings;
            if fewest == 0 || idle == MAX_IDLE_SWEEPS || is_hopeless {
                break;
            }
            // Two sweeps by medians, then two by means.
            let median = round % 4 < 2;
            if round % 2 == 0 {
                (1..self.rows.len()).for_each(|row| self.sort_row(row, ABOVE, median));
            } else {
                let upper = 0..self.rows.len().saturating_sub(1);
                upper
                    .rev()
                    .for_each(|row| self.sort_row(row, BELOW, median));
            }
            self.transpose(round % 4 > 1);
            let crossings = self.crossings();
            idle += 1;
            if crossings < fewest {
                fewest = crossings;
                best_rows.clone_from(&self.rows);
                idle = 0;
            }
        }
        self.rows = best_rows;
        (0..self.rows.len()).for_each(|row| self.row_changed(row));
    }

    /// Sorts a row by the positions of the items linked to it on one side. Items without links
    /// stay.
    fn sort_row(&mut self, row: usize, side: usize, median: bool) {
        self.update_linked(row, side);
        let mut keyed = std::mem::take(&mut self.keyed);
        keyed.clear();
        let mut unlinked = Vec::new();
        for (i, &v) in self.rows[row].iter().enumerate() {
            let positions = self.linked(side, v);
            if positions.is_empty() {
                unlinked.push((i, v));
            } else if median {
                keyed.push((median_of(positions), v));
            } else {
                keyed.push((mean_of(positions), v));
            }
        }
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sorted = &mut self.rows[row];
        sorted.clear();
        sorted.extend(keyed.iter().map(|k| k.1));
        for (i, v) in unlinked {
            sorted.insert(i.min(sorted.len()), v);
        }
        self.keyed = keyed;
        let mut positions = self.rows[row].iter().enumerate();
        if positions.any(|(position, &v)| self.position[v] != position) {
            self.row_changed(row);
        }
    }

    /// Updates the sorted positions of the items linked to a row's items on one side.
    fn update_linked(&mut self, row: usize, side: usize) {
        self.work += self.graph.link_counts[side][row] + self.rows[row].len() + 1;
        if std::mem::replace(&mut self.up_to_date[side][row], true) {
            return;
        }
        let other = if side == ABOVE {
            row.wrapping_sub(1)
        } else {
            row + 1
        };
        let Some(other_row) = self.rows.get(other) else {
            return;
        };
        for &v in &self.rows[row] {
            self.next[v] = self.graph.links[side].start[v];
        }
        // Visits items in ascending order of position, so that every list is sorted.
        for (position, &w) in other_row.iter().enumerate() {
            for &v in self.graph.links[1 - side].linked_to(w) {
                self.linked[side][self.next[v]] = position;
                self.next[v] += 1;
            }
        }
    }

    /// Exchanges neighbours in a row as long as that removes crossings. If `allow_ties`, the first
    /// round also makes exchanges that change nothing, to leave local optima.
    fn transpose(&mut self, allow_ties: bool) {
        let mut dirty = vec![true; self.rows.len()];
        let mut allow_ties = allow_ties;
        while dirty.contains(&true) {
            for row in 0..self.rows.len() {
                if std::mem::replace(&mut dirty[row], false) && self.transpose_row(row, allow_ties)
                {
                    dirty[row] = true;
                    if row > 0 {
                        dirty[row - 1] = true;
                    }
                    if row + 1 < dirty.len() {
                        dirty[row + 1] = true;
                    }
                }
            }
            allow_ties = false;
        }
    }

    /// Makes one pass over a row. Returns true if crossings were removed.
    fn transpose_row(&mut self, row: usize, allow_ties: bool) -> bool {
        if self.rows[row].len() < 2 {
            return false;
        }
        self.update_linked(row, ABOVE);
        self.update_linked(row, BELOW);
        let mut improved = false;
        // The current item moves right as long as that is better than staying.
        let mut current = self.rows[row][0];
        let mut moved = false;
        for i in 1..self.rows[row].len() {
            let next = self.rows[row][i];
            let gain = self.gain(current, next);
            if gain > 0 || (allow_ties && gain == 0) {
                improved |= gain > 0;
                moved = true;
                self.rows[row].swap(i - 1, i);
            } else {
                current = next;
            }
        }
        if moved {
            self.row_changed(row);
        }
        improved
    }

    /// Returns the number of crossings that are removed if item `v` moves to the right of item `w`.
    /// The positions of the items linked to the row must be up to date.
    fn gain(&self, v: usize, w: usize) -> i64 {
        let gain = |side: usize| removed_crossings(self.linked(side, v), self.linked(side, w));
        gain(ABOVE) + gain(BELOW)
    }

    /// Moves single items to their best position in the row as long as that removes crossings.
    fn sift(&mut self) {
        for _ in 0..MAX_SIFT_PASSES {
            let mut improved = false;
            for row in 0..self.rows.len() {
                for v in self.rows[row].clone() {
                    improved |= self.sift_item(row, v);
                }
            }
            self.transpose(false);
            if !improved {
                break;
            }
        }
    }

    fn sift_item(&mut self, row: usize, v: usize) -> bool {
        self.update_linked(row, ABOVE);
        self.update_linked(row, BELOW);
        let from = self.position[v];
        let mut best = 0;
        let mut to = from;
        let mut sum = 0;
        for i in (0..from).rev() {
            sum += self.gain(self.rows[row][i], v);
            if sum > best {
                best = sum;
                to = i;
            }
        }
        sum = 0;
        for i in from + 1..self.rows[row].len() {
            sum += self.gain(v, self.rows[row][i]);
            if sum > best {
                best = sum;
                to = i;
            }
        }
        if to != from {
            let item = self.rows[row].remove(from);
            self.rows[row].insert(to, item);
            self.row_changed(row);
        }
        to != from
    }

    fn crossings(&mut self) -> usize {
        (1..self.rows.len())
            .map(|row| self.crossings_above(row))
            .sum()
    }

    /// Counts the crossings between a row and the one above with a binary indexed tree.
    fn crossings_above(&mut self, row: usize) -> usize {
        self.update_linked(row, ABOVE);
        if let Some(crossings) = self.known_crossings[row] {
            return crossings;
        }
        let mut tree = std::mem::take(&mut self.tree);
        tree.clear();
        tree.resize(self.rows[row - 1].len() + 1, 0);
        let mut crossings = 0;
        let mut total = 0;
        for &v in &self.rows[row] {
            let positions = self.linked(ABOVE, v);
            for &position in positions {
                let mut i = position + 1;
                let mut before = 0;
                while i > 0 {
                    before += tree[i];
                    i &= i - 1;
                }
                crossings += total - before;
            }
            for &position in positions {
                let mut i = position + 1;
                while i < tree.len() {
                    tree[i] += 1;
                    i += i & i.wrapping_neg();
                }
            }
            total += positions.len();
        }
        self.tree = tree;
        self.known_crossings[row] = Some(crossings);
        crossings
    }
}

/// Returns the number of crossings that are removed if `left` moves to the right of `right`: pairs
/// (p of `left`, q of `right`) with p > q, minus those with p < q. Both are sorted.
fn removed_crossings(left: &[usize], right: &[usize]) -> i64 {
    if let ([p], [q]) = (left, right) {
        return i64::from(p > q) - i64::from(p < q);
    }
    let mut sum = 0;
    // Numbers of positions of `right` that are less than p, and that are at most p.
    let mut less = 0;
    let mut at_most = 0;
    for &p in left {
        while less < right.len() && right[less] < p {
            less += 1;
        }
        at_most = less.max(at_most);
        while at_most < right.len() && right[at_most] == p {
            at_most += 1;
        }
        let greater = right.len() - at_most;
        sum += less as i64 - greater as i64;
    }
    sum
}

/// Returns the median. If there are two, returns their mean, weighted towards the denser side
/// (Gansner and others).
fn median_of(positions: &[usize]) -> f64 {
    let at = |i: usize| positions[i] as f64;
    let m = positions.len() / 2;
    if positions.len() % 2 == 1 {
        return at(m);
    }
    if positions.len() == 2 {
        return (at(0) + at(1)) / 2.0;
    }
    let left = at(m - 1) - at(0);
    let right = at(positions.len() - 1) - at(m);
    if left + right == 0.0 {
        return (at(m - 1) + at(m)) / 2.0;
    }
    (at(m - 1) * right + at(m) * left) / (left + right)
}

fn mean_of(positions: &[usize]) -> f64 {
    positions.iter().sum::<usize>() as f64 / positions.len() as f64
}
