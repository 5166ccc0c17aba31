//! The order of the items in each row, with few crossings.
//!
//! Sweeps by weighted medians and by barycentres, each followed by exchanges of neighbours, from
//! several starts; then every item is tried in every place of its row. Deterministic.

use super::layers::{Kind, Layered};

/// Sweeps without a better result after which a start is given up.
const PATIENCE: usize = 6;
/// Sweeps of one start at most.
const SWEEPS: usize = 40;

/// Reorders the rows.
pub fn arrange(layered: &mut Layered) {
    let mut best: Option<(usize, Vec<Vec<usize>>)> = None;
    let starts = [Start::Downwards, Start::Upwards];
    for start in starts {
        let mut ordering = Ordering::new(layered, start);
        ordering.sweep();
        let crossings = ordering.crossings();
        if best.as_ref().is_none_or(|b| crossings < b.0) {
            best = Some((crossings, ordering.rows));
        }
    }
    if let Some((_, rows)) = best {
        let mut ordering = Ordering::with_rows(layered, rows);
        ordering.sift();
        layered.rows = ordering.rows;
    }
}

/// The number of crossings of a finished order.
#[cfg(test)]
pub fn count(layered: &Layered) -> usize {
    Ordering::with_rows(layered, layered.rows.clone()).crossings()
}

#[derive(Clone, Copy)]
enum Start {
    Downwards,
    Upwards,
}

struct Ordering<'a> {
    layered: &'a Layered,
    rows: Vec<Vec<usize>>,
    /// Place of each item in its row.
    place: Vec<usize>,
}

impl<'a> Ordering<'a> {
    fn new(layered: &'a Layered, start: Start) -> Self {
        let mut rows = vec![Vec::new(); layered.rows.len()];
        let mut seen = vec![false; layered.items.len()];
        let from: Vec<usize> = match start {
            Start::Downwards => layered.rows.concat(),
            Start::Upwards => layered.rows.iter().rev().flatten().copied().collect(),
        };
        // Depth first in one direction, then in the other, so that a subtree stays together.
        for root in from {
            let mut stack = vec![root];
            while let Some(v) = stack.pop() {
                if std::mem::replace(&mut seen[v], true) {
                    continue;
                }
                let item = &layered.items[v];
                rows[item.row].push(v);
                let (last, first) = match start {
                    Start::Downwards => (&item.above, &item.below),
                    Start::Upwards => (&item.below, &item.above),
                };
                stack.extend(last.iter().rev().filter(|&&w| !seen[w]));
                stack.extend(first.iter().rev().filter(|&&w| !seen[w]));
            }
        }
        Self::with_rows(layered, rows)
    }

    fn with_rows(layered: &'a Layered, rows: Vec<Vec<usize>>) -> Self {
        let mut ordering = Ordering {
            layered,
            rows,
            place: vec![0; layered.items.len()],
        };
        (0..ordering.rows.len()).for_each(|row| ordering.renumber(row));
        ordering
    }

    fn renumber(&mut self, row: usize) {
        for (place, &v) in self.rows[row].iter().enumerate() {
            self.place[v] = place;
        }
    }

    /// Sweeps until nothing gets better for a while, and keeps the best.
    fn sweep(&mut self) {
        let mut best = (self.crossings(), self.rows.clone());
        let mut idle = 0;
        for round in 0..SWEEPS {
            if best.0 == 0 || idle == PATIENCE {
                break;
            }
            let median = round % 4 < 2;
            if round % 2 == 0 {
                (1..self.rows.len()).for_each(|row| self.sort_row(row, true, median));
            } else {
                (0..self.rows.len().saturating_sub(1))
                    .rev()
                    .for_each(|row| self.sort_row(row, false, median));
            }
            self.transpose(round % 4 > 1);
            let crossings = self.crossings();
            idle += 1;
            if crossings < best.0 {
                best = (crossings, self.rows.clone());
                idle = 0;
            }
        }
        self.rows = best.1;
        (0..self.rows.len()).for_each(|row| self.renumber(row));
    }

    /// Sorts a row by where its neighbours above (or below) stand; items without any stay.
    fn sort_row(&mut self, row: usize, above: bool, median: bool) {
        let mut keyed: Vec<(f64, usize)> = Vec::new();
        let mut free = Vec::new();
        for (place, &v) in self.rows[row].iter().enumerate() {
            let places = self.places(v, above);
            if places.is_empty() {
                free.push((place, v));
            } else {
                let key = if median {
                    median_of(&places)
                } else {
                    mean_of(&places)
                };
                keyed.push((key, v));
            }
        }
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut sorted: Vec<usize> = keyed.into_iter().map(|k| k.1).collect();
        for (place, v) in free {
            sorted.insert(place.min(sorted.len()), v);
        }
        self.rows[row] = sorted;
        self.renumber(row);
    }

    /// Sorted places of the neighbours on one side.
    fn places(&self, v: usize, above: bool) -> Vec<usize> {
        let item = &self.layered.items[v];
        let near = if above { &item.above } else { &item.below };
        let mut places: Vec<usize> = near.iter().map(|&w| self.place[w]).collect();
        places.sort_unstable();
        places
    }

    /// Exchanges neighbours in a row as long as that removes crossings; with `even`, one round
    /// also exchanges those where it makes no difference, to get out of a corner.
    fn transpose(&mut self, even: bool) {
        let mut dirty = vec![true; self.rows.len()];
        let mut even = even;
        while dirty.contains(&true) {
            for row in 0..self.rows.len() {
                if std::mem::replace(&mut dirty[row], false) && self.transpose_row(row, even) {
                    dirty[row] = true;
                    if row > 0 {
                        dirty[row - 1] = true;
                    }
                    if row + 1 < dirty.len() {
                        dirty[row + 1] = true;
                    }
                }
            }
            even = false;
        }
    }

    /// One pass over a row; whether crossings were removed.
    fn transpose_row(&mut self, row: usize, even: bool) -> bool {
        let near: Vec<[Vec<usize>; 2]> = self.near(row);
        let mut at: Vec<usize> = (0..near.len()).collect();
        let mut better = false;
        for i in 1..at.len() {
            let (a, b) = (&near[at[i - 1]], &near[at[i]]);
            let now = inversions(&a[0], &b[0]) + inversions(&a[1], &b[1]);
            let then = inversions(&b[0], &a[0]) + inversions(&b[1], &a[1]);
            if then < now || (even && then == now) {
                better |= then < now;
                at.swap(i - 1, i);
            }
        }
        self.rows[row] = at.iter().map(|&i| self.rows[row][i]).collect();
        self.renumber(row);
        better
    }

    /// For each item of a row the sorted places of its neighbours above and below.
    fn near(&self, row: usize) -> Vec<[Vec<usize>; 2]> {
        self.rows[row]
            .iter()
            .map(|&v| [self.places(v, true), self.places(v, false)])
            .collect()
    }

    /// Moves single items to their best place in the row while that removes crossings.
    fn sift(&mut self) {
        for _ in 0..10 {
            let mut better = false;
            for row in 0..self.rows.len() {
                better |= self.sift_row(row);
            }
            self.transpose(false);
            if !better {
                break;
            }
        }
    }

    fn sift_row(&mut self, row: usize) -> bool {
        let mut near = self.near(row);
        let mut better = false;
        for v in self.rows[row].clone() {
            let from = self.place[v];
            let gain = |i: usize, j: usize| {
                let (a, b) = (&near[i], &near[j]);
                let now = inversions(&a[0], &b[0]) + inversions(&a[1], &b[1]);
                let then = inversions(&b[0], &a[0]) + inversions(&b[1], &a[1]);
                now as i64 - then as i64
            };
            let (mut best, mut to) = (0, from);
            let mut sum = 0;
            for i in (0..from).rev() {
                sum += gain(i, from);
                if sum > best {
                    (best, to) = (sum, i);
                }
            }
            sum = 0;
            for i in from + 1..near.len() {
                sum += gain(from, i);
                if sum > best {
                    (best, to) = (sum, i);
                }
            }
            if to != from {
                better = true;
                let moved = near.remove(from);
                near.insert(to, moved);
                let item = self.rows[row].remove(from);
                self.rows[row].insert(to, item);
                self.renumber(row);
            }
        }
        better
    }

    fn crossings(&self) -> usize {
        (1..self.rows.len())
            .map(|row| self.crossings_above(row))
            .sum()
    }

    /// Crossings between a row and the one above, counted with a binary indexed tree.
    fn crossings_above(&self, row: usize) -> usize {
        let mut tree = vec![0usize; self.rows[row - 1].len() + 1];
        let (mut crossings, mut total) = (0, 0);
        for &v in &self.rows[row] {
            let places = self.places(v, true);
            for &place in &places {
                let (mut i, mut before) = (place + 1, 0);
                while i > 0 {
                    before += tree[i];
                    i &= i - 1;
                }
                crossings += total - before;
            }
            for place in places {
                let mut i = place + 1;
                while i < tree.len() {
                    tree[i] += 1;
                    i += i & i.wrapping_neg();
                }
                total += 1;
            }
        }
        crossings
    }
}

/// Pairs (p of `left`, q of `right`) with p > q: the crossings if `left` stands before `right`.
fn inversions(left: &[usize], right: &[usize]) -> usize {
    if let ([p], [q]) = (left, right) {
        return usize::from(p > q);
    }
    let (mut count, mut below) = (0, 0);
    for &p in left {
        while below < right.len() && right[below] < p {
            below += 1;
        }
        count += below;
    }
    count
}

/// The median, weighted towards the denser side where there are two (Gansner and others).
fn median_of(places: &[usize]) -> f64 {
    let at = |i: usize| places[i] as f64;
    let m = places.len() / 2;
    if places.len() % 2 == 1 {
        return at(m);
    }
    if places.len() == 2 {
        return (at(0) + at(1)) / 2.0;
    }
    let (left, right) = (at(m - 1) - at(0), at(places.len() - 1) - at(m));
    if left + right == 0.0 {
        return (at(m - 1) + at(m)) / 2.0;
    }
    (at(m - 1) * right + at(m) * left) / (left + right)
}

fn mean_of(places: &[usize]) -> f64 {
    places.iter().sum::<usize>() as f64 / places.len() as f64
}

/// For each item its neighbours below, sorted by their place: the order of its ports.
pub fn sort_links(layered: &mut Layered) {
    let mut place = vec![0; layered.items.len()];
    for row in &layered.rows {
        for (i, &v) in row.iter().enumerate() {
            place[v] = i;
        }
    }
    for item in &mut layered.items {
        if item.kind == Kind::Block {
            item.above.sort_by_key(|&v| place[v]);
            item.below.sort_by_key(|&v| place[v]);
        }
    }
}
