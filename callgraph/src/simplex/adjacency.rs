//! Adjacency of nodes and constraints, and a first feasible solution.

use super::Constraint;

/// Indices of constraints by tail and by head, in flat arrays.
pub struct Adjacency {
    out_start: Vec<usize>,
    out: Vec<usize>,
    in_start: Vec<usize>,
    inc: Vec<usize>,
}

impl Adjacency {
    /// Groups the constraints by their nodes.
    pub fn new(count: usize, constraints: &[Constraint]) -> Self {
        let (out_start, out) = bucket(count, constraints.iter().map(|c| c.tail));
        let (in_start, inc) = bucket(count, constraints.iter().map(|c| c.head));
        Adjacency {
            out_start,
            out,
            in_start,
            inc,
        }
    }

    /// Returns the constraints whose tail is a node.
    pub fn out(&self, node: usize) -> &[usize] {
        &self.out[self.out_start[node]..self.out_start[node + 1]]
    }

    /// Returns the constraints whose head is a node.
    pub fn inc(&self, node: usize) -> &[usize] {
        &self.inc[self.in_start[node]..self.in_start[node + 1]]
    }
}

/// Groups the indices of `keys` by key. Returns the start of each group, and the concatenated
/// groups.
fn bucket(count: usize, keys: impl Iterator<Item = usize> + Clone) -> (Vec<usize>, Vec<usize>) {
    let mut start = vec![0; count + 1];
    for key in keys.clone() {
        start[key + 1] += 1;
    }
    for i in 0..count {
        start[i + 1] += start[i];
    }
    let mut next = start.clone();
    let mut items = vec![0; start[count]];
    for (index, key) in keys.enumerate() {
        items[next[key]] = index;
        next[key] += 1;
    }
    (start, items)
}

/// Returns the smallest feasible `x`, by longest paths.
pub fn longest_path(count: usize, constraints: &[Constraint], adjacency: &Adjacency) -> Vec<i64> {
    let mut x = vec![0; count];
    let mut waiting: Vec<usize> = (0..count).map(|v| adjacency.inc(v).len()).collect();
    let mut ready: Vec<usize> = (0..count).filter(|&v| waiting[v] == 0).collect();
    while let Some(v) = ready.pop() {
        for &e in adjacency.out(v) {
            let c = constraints[e];
            x[c.head] = x[c.head].max(x[v] + c.length);
            waiting[c.head] -= 1;
            if waiting[c.head] == 0 {
                ready.push(c.head);
            }
        }
    }
    x
}
