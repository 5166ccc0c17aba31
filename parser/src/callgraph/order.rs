//! The order of the items in each row, with few crossings.
//!
//! Between two rows of boxes every wire has exactly one item, which may stand wherever its wire
//! passes. So only the rows of boxes (with the wires that pass through them) are ordered, and
//! the rows between follow without adding a crossing.
//!
//! Sweeps by medians and means, each followed by exchanges of neighbours, from many starts: two
//! walks through the graph and then random orders, as many as a budget of steps allows, since
//! results of different starts differ a lot. At last every item is tried at every place of its
//! row. Deterministic: the random numbers are the same each time, and no clock is read.

use super::layers::{Kind, Layered};

/// Sweeps without a better result after which a start is given up.
const PATIENCE: usize = 5;
/// Sweeps of one start at most.
const SWEEPS: usize = 40;
/// Starts at least and at most.
const STARTS: (usize, usize) = (2, 60);
/// Links that may be looked at before the last start, times the number of wires, times that
/// number again or what the crossings so far suggest; graphviz's time grows about as fast.
const BUDGET: usize = 24;
const BUDGET_ENDS: (usize, usize) = (100_000, 20_000_000);
/// A start that is so much worse than the best after its first sweeps is given up.
const HOPELESS: f64 = 1.25;

/// Reorders the rows with a part (one of `parts`) of the usual effort; returns the number of
/// crossings.
pub fn arrange(layered: &mut Layered, parts: usize) -> usize {
    let graph = Bare::new(layered);
    let mut best: Option<(usize, Rows)> = None;
    let wires = layered.chains.len();
    let budget = |crossings: usize| {
        let worth = wires.min(2 * crossings + 20);
        (BUDGET * wires * worth).clamp(BUDGET_ENDS.0, BUDGET_ENDS.1) / parts
    };
    let mut work = 0;
    let mut seed = 1;
    for start in 0..STARTS.1 {
        let done = |best: &(usize, Rows)| best.0 == 0 || work > budget(best.0);
        if start >= STARTS.0 && best.as_ref().is_some_and(done) {
            break;
        }
        let rows = match start {
            0 => graph.walk(false),
            1 => graph.walk(true),
            _ => graph.shuffled(&mut seed),
        };
        let mut ordering = Ordering::new(&graph, rows);
        ordering.sweep(best.as_ref().map(|b| b.0));
        work += ordering.work;
        let crossings = ordering.crossings();
        if best.as_ref().is_none_or(|b| crossings < b.0) {
            best = Some((crossings, ordering.rows));
        }
    }
    let Some((_, rows)) = best else { return 0 };
    let mut ordering = Ordering::new(&graph, rows);
    ordering.sift();
    let crossings = ordering.crossings();
    let rows = ordering.rows;
    graph.fill(layered, &rows);
    crossings
}

type Rows = Vec<Vec<usize>>;

/// The rows of boxes alone: items of even rows, numbered anew, and their links.
struct Bare {
    /// The item of the layered form.
    item: Vec<usize>,
    rows: Rows,
    /// Links upwards and downwards, in flat arrays.
    near: [Links; 2],
}

struct Links {
    start: Vec<usize>,
    list: Vec<usize>,
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

    fn of(&self, v: usize) -> &[usize] {
        &self.list[self.start[v]..self.start[v + 1]]
    }
}

impl Bare {
    fn new(layered: &Layered) -> Self {
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
                let (upper, lower) = (bare[pair[0]], bare[pair[2]]);
                lists[0][lower].push(upper);
                lists[1][upper].push(lower);
            }
        }
        Bare {
            item,
            rows,
            near: lists.map(|l| Links::new(&l)),
        }
    }

    /// Depth first from the first row (or the last), so that what belongs together stays so.
    fn walk(&self, upwards: bool) -> Rows {
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
                stack.extend(self.near[last].of(v).iter().rev().filter(|&&w| !seen[w]));
                stack.extend(self.near[first].of(v).iter().rev().filter(|&&w| !seen[w]));
            }
        }
        rows
    }

    fn shuffled(&self, seed: &mut u64) -> Rows {
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

    /// Writes the order back, and orders the rows between: by the middle of where a wire comes
    /// from and goes to, which never adds a crossing.
    fn fill(&self, layered: &mut Layered, rows: &Rows) {
        let mut place = vec![0.0; layered.items.len()];
        for (r, row) in rows.iter().enumerate() {
            let mut x = 0.0;
            layered.rows[2 * r] = row.iter().map(|&v| self.item[v]).collect();
            for &v in &layered.rows[2 * r] {
                let item = &layered.items[v];
                place[v] = x + item.left;
                x += item.left + item.right + 12.0;
            }
            layered.rows[2 * r]
                .iter()
                .for_each(|&v| place[v] -= x / 2.0);
        }
        for r in (1..layered.rows.len()).step_by(2) {
            for &v in &layered.rows[r] {
                let item = &layered.items[v];
                place[v] = (place[item.above[0]] + place[item.below[0]]) / 2.0;
            }
            layered.rows[r].sort_by(|&a, &b| place[a].total_cmp(&place[b]));
        }
        for item in layered.items.iter_mut().filter(|i| i.kind == Kind::Block) {
            // Wires between the same two boxes keep one order at both.
            item.above.sort_by(|&a, &b| place[a].total_cmp(&place[b]));
            item.below.sort_by(|&a, &b| place[a].total_cmp(&place[b]));
        }
    }
}

/// An order of the rows that is being improved.
struct Ordering<'a> {
    graph: &'a Bare,
    rows: Rows,
    /// Place of each item in its row.
    place: Vec<usize>,
    /// Scratch: for each item of a row its sorted neighbours' places, above and below.
    near: [Links; 2],
    keyed: Vec<(f64, usize)>,
    tree: Vec<usize>,
    /// Links looked at so far.
    work: usize,
}

impl<'a> Ordering<'a> {
    fn new(graph: &'a Bare, rows: Rows) -> Self {
        let place = vec![0; graph.item.len()];
        let near = [Links::new(&[]), Links::new(&[])];
        let (keyed, tree) = (Vec::new(), Vec::new());
        let mut ordering = Ordering {
            graph,
            rows,
            place,
            near,
            keyed,
            tree,
            work: 0,
        };
        (0..ordering.rows.len()).for_each(|row| ordering.renumber(row));
        ordering
    }

    fn renumber(&mut self, row: usize) {
        for (place, &v) in self.rows[row].iter().enumerate() {
            self.place[v] = place;
        }
    }

    /// Sweeps until nothing gets better for a while or the start cannot compete with the
    /// `rival`, and keeps the best.
    fn sweep(&mut self, rival: Option<usize>) {
        let mut best = (self.crossings(), self.rows.clone());
        let mut idle = 0;
        let hopeless = rival.map_or(f64::INFINITY, |r| r as f64 * HOPELESS + 2.0);
        for round in 0..SWEEPS {
            if best.0 == 0 || idle == PATIENCE || (round == 4 && best.0 as f64 > hopeless) {
                break;
            }
            let median = round % 4 < 2;
            if round % 2 == 0 {
                (1..self.rows.len()).for_each(|row| self.sort_row(row, 0, median));
            } else {
                let upper = 0..self.rows.len().saturating_sub(1);
                upper.rev().for_each(|row| self.sort_row(row, 1, median));
            }
            self.transpose(round % 4 > 1);
            let crossings = self.crossings();
            idle += 1;
            if crossings < best.0 {
                best.0 = crossings;
                best.1.clone_from(&self.rows);
                idle = 0;
            }
        }
        self.rows = best.1;
        (0..self.rows.len()).for_each(|row| self.renumber(row));
    }

    /// Sorts a row by where its neighbours on one side stand; items without any stay.
    fn sort_row(&mut self, row: usize, side: usize, median: bool) {
        self.collect(row, side);
        let mut keyed = std::mem::take(&mut self.keyed);
        keyed.clear();
        let mut free = Vec::new();
        for (i, &v) in self.rows[row].iter().enumerate() {
            let places = self.near[side].of(i);
            if places.is_empty() {
                free.push((i, v));
            } else {
                keyed.push((
                    if median {
                        median_of(places)
                    } else {
                        mean_of(places)
                    },
                    v,
                ));
            }
        }
        keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sorted = &mut self.rows[row];
        sorted.clear();
        sorted.extend(keyed.iter().map(|k| k.1));
        for (i, v) in free {
            sorted.insert(i.min(sorted.len()), v);
        }
        self.keyed = keyed;
        self.renumber(row);
    }

    /// Fills the scratch with the sorted places of a row's neighbours on one side.
    fn collect(&mut self, row: usize, side: usize) {
        let Links { start, list } = &mut self.near[side];
        start.clear();
        list.clear();
        start.push(0);
        for &v in &self.rows[row] {
            let from = list.len();
            list.extend(self.graph.near[side].of(v).iter().map(|&w| self.place[w]));
            list[from..].sort_unstable();
            start.push(list.len());
        }
        self.work += list.len() + start.len();
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
        if self.rows[row].len() < 2 {
            return false;
        }
        self.collect(row, 0);
        self.collect(row, 1);
        let mut better = false;
        // The item in hand moves right as long as that is better than letting it stand.
        let mut hand = 0;
        for i in 1..self.rows[row].len() {
            let gain = self.gain(hand, i);
            if gain > 0 || (even && gain == 0) {
                better |= gain > 0;
                self.rows[row].swap(i - 1, i);
            } else {
                hand = i;
            }
        }
        self.renumber(row);
        better
    }

    /// Crossings that vanish when item `i` of the collected row goes right of item `j`.
    fn gain(&self, i: usize, j: usize) -> i64 {
        let side = |side: usize| {
            let (a, b) = (self.near[side].of(i), self.near[side].of(j));
            inversions(a, b) - inversions(b, a)
        };
        side(0) + side(1)
    }

    /// Moves single items to their best place in the row while that removes crossings.
    fn sift(&mut self) {
        for _ in 0..10 {
            let mut better = false;
            for row in 0..self.rows.len() {
                for v in self.rows[row].clone() {
                    better |= self.sift_item(row, v);
                }
            }
            self.transpose(false);
            if !better {
                break;
            }
        }
    }

    fn sift_item(&mut self, row: usize, v: usize) -> bool {
        self.collect(row, 0);
        self.collect(row, 1);
        let from = self.place[v];
        let (mut best, mut to, mut sum) = (0, from, 0);
        for i in (0..from).rev() {
            sum += self.gain(i, from);
            if sum > best {
                (best, to) = (sum, i);
            }
        }
        sum = 0;
        for i in from + 1..self.rows[row].len() {
            sum += self.gain(from, i);
            if sum > best {
                (best, to) = (sum, i);
            }
        }
        if to != from {
            let item = self.rows[row].remove(from);
            self.rows[row].insert(to, item);
            self.renumber(row);
        }
        to != from
    }

    fn crossings(&mut self) -> usize {
        (1..self.rows.len())
            .map(|row| self.crossings_above(row))
            .sum()
    }

    /// Crossings between a row and the one above, counted with a binary indexed tree.
    fn crossings_above(&mut self, row: usize) -> usize {
        self.collect(row, 0);
        self.tree.clear();
        self.tree.resize(self.rows[row - 1].len() + 1, 0);
        let (mut crossings, mut total) = (0, 0);
        for i in 0..self.rows[row].len() {
            let places = self.near[0].of(i);
            for &place in places {
                let (mut i, mut before) = (place + 1, 0);
                while i > 0 {
                    before += self.tree[i];
                    i &= i - 1;
                }
                crossings += total - before;
            }
            for &place in places {
                let mut i = place + 1;
                while i < self.tree.len() {
                    self.tree[i] += 1;
                    i += i & i.wrapping_neg();
                }
            }
            total += places.len();
        }
        crossings
    }
}

/// Pairs (p of `left`, q of `right`) with p > q: the crossings if `left` stands before `right`.
fn inversions(left: &[usize], right: &[usize]) -> i64 {
    if let ([p], [q]) = (left, right) {
        return i64::from(p > q);
    }
    let (mut count, mut below) = (0, 0);
    for &p in left {
        while below < right.len() && right[below] < p {
            below += 1;
        }
        count += below as i64;
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
