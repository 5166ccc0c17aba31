//! Network simplex: integers `x` that keep every `x[head] - x[tail] >= length` and make the
//! weighted sum of these differences as small as possible.
//!
//! Serves both the layers (length 1 or more) and the horizontal coordinates. The caller gives a
//! connected graph without directed cycles; without a start, a longest-path one is made. Steps
//! are bounded: a graph that would need more keeps the best answer so far, which is feasible.

mod adjacency;
#[cfg(test)]
mod tests;
mod tree;

use adjacency::{Adjacency, longest_path};

/// `x[head] - x[tail] >= length`, and each unit of the difference costs `weight`.
#[derive(Clone, Copy, Debug)]
pub struct Constraint {
    /// The one before.
    pub tail: usize,
    /// The one after.
    pub head: usize,
    /// The least difference.
    pub length: i64,
    /// The cost of a unit of difference, 0 or more.
    pub weight: i64,
}

const NONE: usize = usize::MAX;
/// How many violating tree edges are compared before one leaves.
const SEARCH: usize = 30;

/// Solves for `x`, from `start` if given (it must be feasible), in at most `steps` pivots.
///
/// With `balance`, coordinates that may move freely without cost stop half way.
pub fn solve(
    count: usize,
    constraints: &[Constraint],
    start: Option<Vec<i64>>,
    steps: usize,
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
    let mut left = steps;
    while left > 0
        && let Some(leaving) = simplex.leaving()
    {
        let Some(entering) = simplex.entering(leaving) else {
            break;
        };
        simplex.pivot(leaving, entering);
        left -= 1;
    }
    if balance {
        simplex.balance();
    }
    simplex.x
}

struct Simplex<'a> {
    constraints: &'a [Constraint],
    adjacency: Adjacency,
    x: Vec<i64>,
    /// Tree edges, and where each constraint is among them.
    tree: Vec<usize>,
    tree_at: Vec<usize>,
    /// Tree edges at each node.
    links: Vec<Vec<usize>>,
    /// The tree edge towards the root.
    parent: Vec<usize>,
    /// Postorder number, the least one in the node's subtree, and the nodes in postorder.
    lim: Vec<usize>,
    low: Vec<usize>,
    at: Vec<usize>,
    /// Cut value of each tree edge, by constraint.
    cut: Vec<i64>,
    /// Where the search for a leaving edge continues.
    cursor: usize,
    /// Nodes whose subtrees a pivot changes, and those being numbered.
    changed: Vec<usize>,
    stack: Vec<(usize, usize)>,
}

impl<'a> Simplex<'a> {
    fn new(count: usize, constraints: &'a [Constraint], adjacency: Adjacency, x: Vec<i64>) -> Self {
        Simplex {
            constraints,
            adjacency,
            x,
            tree: Vec::with_capacity(count),
            tree_at: vec![NONE; constraints.len()],
            links: vec![Vec::new(); count],
            parent: vec![NONE; count],
            lim: vec![0; count],
            low: vec![NONE; count],
            at: vec![0; count],
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

    /// A tree edge whose removal pays: the worst of the next few.
    fn leaving(&mut self) -> Option<usize> {
        let (mut best, mut found) = (None, 0);
        for _ in 0..self.tree.len() {
            self.cursor = (self.cursor + 1) % self.tree.len();
            let e = self.tree[self.cursor];
            if self.cut[e] < 0 {
                if best.is_none_or(|b: usize| self.cut[e] < self.cut[b]) {
                    best = Some(e);
                }
                found += 1;
                if found == SEARCH {
                    break;
                }
            }
        }
        best
    }

    /// The edge of least slack that reconnects the tree in the opposite direction.
    fn entering(&self, leaving: usize) -> Option<usize> {
        let top = self.below(leaving);
        let tail_below = self.constraints[leaving].tail == top;
        let mut best: Option<(i64, usize)> = None;
        for i in self.low[top]..=self.lim[top] {
            let v = self.at[i];
            let edges = if tail_below {
                self.adjacency.inc(v)
            } else {
                self.adjacency.out(v)
            };
            for &e in edges {
                let c = self.constraints[e];
                let other = if tail_below { c.tail } else { c.head };
                if e != leaving && !self.under(other, top) {
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

    fn pivot(&mut self, leaving: usize, entering: usize) {
        self.shift(leaving, self.slack(entering));
        let (flow, c) = (self.cut[leaving], self.constraints[entering]);
        let meet = self.spread_flow(c.tail, c.head, flow);
        let other = self.spread_flow_back(c.head, meet, flow);
        debug_assert_eq!(meet, other);
        self.cut[leaving] = 0;
        self.cut[entering] = -flow;
        self.swap(leaving, entering);
        for v in self.changed.drain(..) {
            self.low[v] = NONE;
        }
        let (parent, first) = (self.parent[meet], self.low[meet]);
        self.number(meet, parent, first);
    }

    /// Moves the subtree below the leaving edge so that the edge grows by `by`.
    fn shift(&mut self, leaving: usize, by: i64) {
        if by == 0 {
            return;
        }
        let top = self.below(leaving);
        let by = if self.constraints[leaving].tail == top {
            -by
        } else {
            by
        };
        for i in self.low[top]..=self.lim[top] {
            self.x[self.at[i]] += by;
        }
    }

    /// Walks from `v` up to where `w` is below, adding the flow; returns that node.
    fn spread_flow(&mut self, mut v: usize, w: usize, flow: i64) -> usize {
        while !self.under(w, v) {
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

    fn spread_flow_back(&mut self, mut v: usize, meet: usize, flow: i64) -> usize {
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

    /// Centres what can move without cost: tree edges that carry no flow.
    fn balance(&mut self) {
        for i in 0..self.tree.len() {
            let e = self.tree[i];
            if self.cut[e] != 0 {
                continue;
            }
            let Some(entering) = self.entering(e) else {
                continue;
            };
            let slack = self.slack(entering);
            if slack > 1 {
                self.shift(e, slack / 2);
            }
        }
    }
}
