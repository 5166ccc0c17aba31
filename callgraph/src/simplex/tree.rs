//! The spanning tree of tight edges: construction, postorder numbers and cut values.

use super::{NONE, Simplex};
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Edge between the tree and a node outside it, ordered by slack.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// Slack of the edge, as if the tree had not moved.
    slack: i64,
    edge: usize,
}

impl Simplex<'_> {
    fn add(&mut self, e: usize) {
        self.tree_index[e] = self.tree.len();
        self.tree.push(e);
        self.tree_edges[self.constraints[e].tail].push(e);
        self.tree_edges[self.constraints[e].head].push(e);
    }

    /// Replaces a tree edge by another one. Does not update the postorder numbers.
    pub fn swap(&mut self, leaving: usize, entering: usize) {
        let slot = self.tree_index[leaving];
        self.tree[slot] = entering;
        self.tree_index[entering] = slot;
        self.tree_index[leaving] = NONE;
        for end in [
            self.constraints[leaving].tail,
            self.constraints[leaving].head,
        ] {
            if let Some(i) = self.tree_edges[end].iter().position(|&e| e == leaving) {
                self.tree_edges[end].swap_remove(i);
            }
        }
        for end in [
            self.constraints[entering].tail,
            self.constraints[entering].head,
        ] {
            self.tree_edges[end].push(entering);
        }
    }

    /// Builds a spanning tree of tight edges by Prim's algorithm: the edge with the least slack
    /// joins next, and the tree moves by that slack. The moves are accumulated in one offset.
    pub fn grow_tree(&mut self) {
        let mut outwards: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        let mut inwards: BinaryHeap<Reverse<Candidate>> = BinaryHeap::new();
        let mut inside = vec![false; self.x.len()];
        // Distance by which the tree has moved.
        let mut offset = 0;
        let mut next = 0;
        let mut order = vec![0];
        loop {
            inside[next] = true;
            // Stored without the offset, so that the whole tree moves at once at the end.
            self.x[next] -= offset;
            for &e in self.adjacency.outgoing(next) {
                let c = self.constraints[e];
                if !inside[c.head] {
                    let slack = self.x[c.head] - self.x[next] - c.length;
                    outwards.push(Reverse(Candidate { slack, edge: e }));
                }
            }
            for &e in self.adjacency.incoming(next) {
                let c = self.constraints[e];
                if !inside[c.tail] {
                    let slack = self.x[next] - self.x[c.tail] - c.length;
                    inwards.push(Reverse(Candidate { slack, edge: e }));
                }
            }
            while outwards
                .peek()
                .is_some_and(|first| inside[self.constraints[first.0.edge].head])
            {
                outwards.pop();
            }
            while inwards
                .peek()
                .is_some_and(|first| inside[self.constraints[first.0.edge].tail])
            {
                inwards.pop();
            }
            let outgoing = outwards.peek().map(|first| first.0);
            let incoming = inwards.peek().map(|first| first.0);
            let edge = match (outgoing, incoming) {
                (Some(out), other)
                    if other.is_none_or(|inc| out.slack - offset <= inc.slack + offset) =>
                {
                    // The tree has moved by `offset`, and moves by the rest of the slack.
                    offset = out.slack;
                    next = self.constraints[out.edge].head;
                    out.edge
                }
                (_, Some(inc)) => {
                    offset = -inc.slack;
                    next = self.constraints[inc.edge].tail;
                    inc.edge
                }
                _ => break,
            };
            self.add(edge);
            order.push(next);
        }
        for v in order {
            self.x[v] += offset;
        }
    }

    /// Numbers the tree from node 0, and computes every cut value.
    ///
    /// A cut value is the flow through the tree edge: what the subtree below it sends out minus
    /// what it receives.
    pub fn root_tree(&mut self) {
        self.number(0, NONE, 0);
        let mut surplus = vec![0i64; self.x.len()];
        for c in self.constraints {
            surplus[c.tail] += c.weight;
            surplus[c.head] -= c.weight;
        }
        for i in 0..self.postorder.len() {
            let v = self.postorder[i];
            let e = self.parent[v];
            if e == NONE {
                continue;
            }
            let c = self.constraints[e];
            let (up, sign) = if c.tail == v {
                (c.head, 1)
            } else {
                (c.tail, -1)
            };
            self.cut[e] = sign * surplus[v];
            surplus[up] += surplus[v];
        }
    }

    /// Numbers the subtree of `root` in postorder, starting at `first`. Skips subtrees that keep
    /// their numbers; changed nodes have no `low`.
    pub fn number(&mut self, root: usize, parent: usize, first: usize) {
        let mut next = first;
        self.parent[root] = parent;
        self.low[root] = next;
        let mut stack = std::mem::take(&mut self.stack);
        stack.push((root, 0));
        while let Some((v, i)) = stack.last_mut() {
            let v = *v;
            let Some(&e) = self.tree_edges[v].get(*i) else {
                self.lim[v] = next;
                self.postorder[next] = v;
                next += 1;
                stack.pop();
                continue;
            };
            *i += 1;
            if e == self.parent[v] {
                continue;
            }
            let c = self.constraints[e];
            let child = if c.tail == v { c.head } else { c.tail };
            if self.parent[child] == e && self.low[child] == next {
                next = self.lim[child] + 1;
                continue;
            }
            self.parent[child] = e;
            self.low[child] = next;
            stack.push((child, 0));
        }
        self.stack = stack;
    }

    /// Returns the end of a tree edge that is farther from the root.
    pub fn lower_end(&self, e: usize) -> usize {
        let c = self.constraints[e];
        if self.parent[c.tail] == e {
            c.tail
        } else {
            c.head
        }
    }

    /// Returns true if node `v` is in the subtree of `top`.
    pub fn is_in_subtree(&self, v: usize, top: usize) -> bool {
        self.low[top] <= self.lim[v] && self.lim[v] <= self.lim[top]
    }
}
