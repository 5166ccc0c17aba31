//! Adjacency of nodes and constraints, and a first feasible solution.

use super::Constraint;

/// Indices of constraints by tail and by head, in flat arrays.
pub struct Adjacency {
    outgoing_start: Vec<usize>,
    outgoing: Vec<usize>,
    incoming_start: Vec<usize>,
    incoming: Vec<usize>,
}

impl Adjacency {
    /// Groups the constraints by their nodes.
    pub fn new(count: usize, constraints: &[Constraint]) -> Self {
        let (outgoing_start, outgoing) = bucket(count, constraints.iter().map(|c| c.tail));
        let (incoming_start, incoming) = bucket(count, constraints.iter().map(|c| c.head));
        Adjacency {
            outgoing_start,
            outgoing,
            incoming_start,
            incoming,
        }
    }

    /// Returns the constraints whose tail is `node`.
    pub fn outgoing(&self, node: usize) -> &[usize] {
        &self.outgoing[self.outgoing_start[node]..self.outgoing_start[node + 1]]
    }

    /// Returns the constraints whose head is `node`.
    pub fn incoming(&self, node: usize) -> &[usize] {
        &self.incoming[self.incoming_start[node]..self.incoming_start[node + 1]]
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
    let mut waiting: Vec<usize> = (0..count).map(|v| adjacency.incoming(v).len()).collect();
    let mut ready: Vec<usize> = (0..count).filter(|&v| waiting[v] == 0).collect();
    while let Some(v) = ready.pop() {
        for &e in adjacency.outgoing(v) {
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
