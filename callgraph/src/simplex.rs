//! Network simplex: finds integers `x` that satisfy `x[head] - x[tail] >= length` for all
//! constraints and minimise the weighted sum of these differences.
//!
//! Used for the ranks (lengths of 1) and for the horizontal coordinates. The graph must be
//! connected and without directed cycles. Without a start, a longest-path solution is used. The
//! number of pivots is limited: if that is not enough, the best solution so far is returned, which
//! is feasible.

mod adjacency;
#[cfg(test)]
mod tests;
mod tree;

use adjacency::{Adjacency, longest_path};

/// The constraint `x[head] - x[tail] >= length`. Each unit of the difference costs `weight`.
#[derive(Clone, Copy, Debug)]
pub struct Constraint {
    /// Index of the smaller variable.
    pub tail: usize,
    /// Index of the greater variable.
    pub head: usize,
    /// Minimum difference.
    pub length: i64,
    /// Cost per unit of the difference, at least 0.
    pub weight: i64,
}

const NONE: usize = usize::MAX;
/// Number of negative cut values that are compared; the edge with the lowest one leaves the tree.
const SEARCH_SIZE: usize = 30;

/// Solves for `x` in at most `max_pivots` pivots. Starts from `start`, which must be feasible.
///
/// With `balance`, variables that can move without cost are centred.
pub fn solve(
    count: usize,
    constraints: &[Constraint],
    start: Option<Vec<i64>>,
    max_pivots: usize,
    balance: bool,
) -> Vec<i64> {
    if count == 0 {
        return Vec::new();
    }
    let adjacency = Adjacency::new(count, constraints);
    let x = start.unwrap_or_else(|| longest_path(count, constraints, &adjacency));
    let mut simplex = Simplex::new(count, constraints, adjacency, x);
    simplex.grow_tree();
    simplex.root_tree();
    let mut pivots_left = max_pivots;
    while pivots_left > 0
        && let Some(leaving) = simplex.find_leaving()
    {
        let Some(entering) = simplex.find_entering(leaving) else {
            break;
        };
        simplex.pivot(leaving, entering);
        pivots_left -= 1;
    }
    if balance {
        simplex.balance();
    }
    simplex.x
}

/// State of the solver. Edges are constraints; nodes are variables.
struct Simplex<'a> {
    constraints: &'a [Constraint],
    adjacency: Adjacency,
    x: Vec<i64>,
    /// Edges of the spanning tree.
    tree: Vec<usize>,
    /// Index of each edge in `tree`, or `NONE`.
    tree_index: Vec<usize>,
    /// Tree edges at each node.
    tree_edges: Vec<Vec<usize>>,
    /// Tree edge of each node towards the root.
    parent: Vec<usize>,
    /// Postorder number of each node, which is the highest in its subtree.
    lim: Vec<usize>,
    /// Lowest postorder number in each node's subtree.
    low: Vec<usize>,
    /// Nodes in postorder.
    postorder: Vec<usize>,
    /// Cut value of each tree edge.
    cut: Vec<i64>,
    /// Index in `tree` at which the search for a leaving edge continues.
    cursor: usize,
    /// Nodes whose subtrees the present pivot changes.
    changed: Vec<usize>,
    /// Scratch: nodes being numbered, and for each the index of its next tree edge.
    stack: Vec<(usize, usize)>,
}

impl<'a> Simplex<'a> {
    fn new(count: usize, constraints: &'a [Constraint], adjacency: Adjacency, x: Vec<i64>) -> Self {
        Simplex {
            constraints,
            adjacency,
            x,
            tree: Vec::with_capacity(count),
            tree_index: vec![NONE; constraints.len()],
            tree_edges: vec![Vec::new(); count],
            parent: vec![NONE; count],
            lim: vec![0; count],
            low: vec![NONE; count],
            postorder: vec![0; count],
            cut: vec![0; constraints.len()],
            cursor: 0,
            changed: Vec::new(),
            stack: Vec::new(),
        }
    }

    fn slack(&self, e: usize) -> i64 {
        let c = self.constraints[e];
        self.x[c.head] - self.x[c.tail] - c.length
    }

    /// Returns the tree edge with the lowest of the next [`SEARCH_SIZE`] negative cut values.
    fn find_leaving(&mut self) -> Option<usize> {
        let mut best = None;
        let mut found = 0;
        for _ in 0..self.tree.len() {
            self.cursor = (self.cursor + 1) % self.tree.len();
            let e = self.tree[self.cursor];
            if self.cut[e] < 0 {
                if best.is_none_or(|b: usize| self.cut[e] < self.cut[b]) {
                    best = Some(e);
                }
                found += 1;
                if found == SEARCH_SIZE {
                    break;
                }
            }
        }
        best
    }

    /// Returns the edge that replaces the leaving one: of those that connect the same two parts of
    /// the tree in the opposite direction, the edge with the least slack.
    fn find_entering(&self, leaving: usize) -> Option<usize> {
        let top = self.lower_end(leaving);
        let tail_below = self.constraints[leaving].tail == top;
        let mut best: Option<(i64, usize)> = None;
        for i in self.low[top]..=self.lim[top] {
            let v = self.postorder[i];
            let edges = if tail_below {
                self.adjacency.incoming(v)
            } else {
                self.adjacency.outgoing(v)
            };
            for &e in edges {
                let c = self.constraints[e];
                let other = if tail_below { c.tail } else { c.head };
                if e != leaving && !self.is_in_subtree(other, top) {
                    let slack = self.slack(e);
                    if best.is_none_or(|b| slack < b.0) {
                        best = Some((slack, e));
                    }
                }
            }
            if best.is_some_and(|b| b.0 == 0) {
                break;
            }
        }
        best.map(|b| b.1)
    }

    /// Replaces a tree edge by another one.
    fn pivot(&mut self, leaving: usize, entering: usize) {
        self.shift(leaving, self.slack(entering));
        let flow = self.cut[leaving];
        let c = self.constraints[entering];
        let meet = self.add_flow(c.tail, c.head, flow);
        let other = self.subtract_flow(c.head, meet, flow);
        debug_assert_eq!(meet, other);
        self.cut[leaving] = 0;
        self.cut[entering] = -flow;
        self.swap(leaving, entering);
        for v in self.changed.drain(..) {
            self.low[v] = NONE;
        }
        let parent = self.parent[meet];
        let first = self.low[meet];
        self.number(meet, parent, first);
    }

    /// Moves the subtree below the leaving edge so that the edge becomes longer by `by`.
    fn shift(&mut self, leaving: usize, by: i64) {
        if by == 0 {
            return;
        }
        let top = self.lower_end(leaving);
        let by = if self.constraints[leaving].tail == top {
            -by
        } else {
            by
        };
        for i in self.low[top]..=self.lim[top] {
            self.x[self.postorder[i]] += by;
        }
    }

    /// Adds the flow on the path from `v` up to the first ancestor of `w`. Returns that node.
    fn add_flow(&mut self, mut v: usize, w: usize, flow: i64) -> usize {
        while !self.is_in_subtree(w, v) {
            let e = self.parent[v];
            self.changed.push(v);
            let c = self.constraints[e];
            if c.tail == v {
                self.cut[e] += flow;
                v = c.head;
            } else {
                self.cut[e] -= flow;
                v = c.tail;
            }
        }
        v
    }

    /// Subtracts the flow on the path from `v` up to `meet`. Returns `meet`.
    fn subtract_flow(&mut self, mut v: usize, meet: usize, flow: i64) -> usize {
        while v != meet {
            let e = self.parent[v];
            self.changed.push(v);
            let c = self.constraints[e];
            if c.tail == v {
                self.cut[e] -= flow;
                v = c.head;
            } else {
                self.cut[e] += flow;
                v = c.tail;
            }
        }
        v
    }

    /// Centres the subtrees that can move without cost, below tree edges with cut value 0.
    fn balance(&mut self) {
        for i in 0..self.tree.len() {
            let e = self.tree[i];
            if self.cut[e] != 0 {
                continue;
            }
            let Some(entering) = self.find_entering(e) else {
                continue;
            };
            let slack = self.slack(entering);
            if slack > 1 {
                self.shift(e, slack / 2);
            }
        }
    }
}
