//! Network simplex: integers `x` that keep every `x[head] - x[tail] >= length` and make the
//! weighted sum of these differences as small as possible.
//!
//! Serves both the layers (length 1 or more) and the horizontal coordinates. The caller gives a
//! connected graph without directed cycles; without a start, a longest-path one is made. Steps
//! are bounded: a graph that would need more keeps the best answer so far, which is feasible.

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

/// Constraint indices by tail and by head, in flat arrays.
struct Adjacency {
    out_start: Vec<usize>,
    out: Vec<usize>,
    in_start: Vec<usize>,
    inc: Vec<usize>,
}

impl Adjacency {
    fn new(count: usize, constraints: &[Constraint]) -> Self {
        let (out_start, out) = bucket(count, constraints.iter().map(|c| c.tail));
        let (in_start, inc) = bucket(count, constraints.iter().map(|c| c.head));
        Adjacency {
            out_start,
            out,
            in_start,
            inc,
        }
    }

    fn out(&self, node: usize) -> &[usize] {
        &self.out[self.out_start[node]..self.out_start[node + 1]]
    }

    fn inc(&self, node: usize) -> &[usize] {
        &self.inc[self.in_start[node]..self.in_start[node + 1]]
    }
}

/// Groups the indices of `keys` by key: the start of each group, and the groups in a row.
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

/// The least feasible `x`, each as far left as it can be.
fn longest_path(count: usize, constraints: &[Constraint], adjacency: &Adjacency) -> Vec<i64> {
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
    /// Where the search for a leaving edge goes on.
    cursor: usize,
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
            low: vec![0; count],
            at: vec![0; count],
            cut: vec![0; constraints.len()],
            cursor: 0,
        }
    }

    fn slack(&self, e: usize) -> i64 {
        let c = self.constraints[e];
        self.x[c.head] - self.x[c.tail] - c.length
    }

    fn add(&mut self, e: usize) {
        self.tree_at[e] = self.tree.len();
        self.tree.push(e);
        self.links[self.constraints[e].tail].push(e);
        self.links[self.constraints[e].head].push(e);
    }

    /// Spans the graph with tight edges, as Prim does: the edge of least slack joins next, and
    /// the tree so far moves by that slack. The moves are kept as one offset of the tree.
    fn grow_tree(&mut self) {
        use std::cmp::Reverse;
        use std::collections::BinaryHeap;
        // Keys are slacks as if the tree had not moved; `offset` is how far it did.
        let mut outwards: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
        let mut inwards: BinaryHeap<Reverse<(i64, usize)>> = BinaryHeap::new();
        let mut inside = vec![false; self.x.len()];
        let mut offset = 0;
        let mut next = 0;
        let mut order = vec![0];
        loop {
            inside[next] = true;
            // Stored without the offset, so that the whole tree moves at once at the end.
            self.x[next] -= offset;
            for &e in self.adjacency.out(next) {
                let c = self.constraints[e];
                if !inside[c.head] {
                    outwards.push(Reverse((self.x[c.head] - self.x[next] - c.length, e)));
                }
            }
            for &e in self.adjacency.inc(next) {
                let c = self.constraints[e];
                if !inside[c.tail] {
                    inwards.push(Reverse((self.x[next] - self.x[c.tail] - c.length, e)));
                }
            }
            while outwards
                .peek()
                .is_some_and(|r| inside[self.constraints[r.0.1].head])
            {
                outwards.pop();
            }
            while inwards
                .peek()
                .is_some_and(|r| inside[self.constraints[r.0.1].tail])
            {
                inwards.pop();
            }
            let out = outwards.peek().map(|r| (r.0.0 - offset, r.0.1));
            let inc = inwards.peek().map(|r| (r.0.0 + offset, r.0.1));
            let (edge, by, to) = match (out, inc) {
                (Some(o), i) if i.is_none_or(|i| o.0 <= i.0) => {
                    (o.1, o.0, self.constraints[o.1].head)
                }
                (_, Some(i)) => (i.1, -i.0, self.constraints[i.1].tail),
                _ => break,
            };
            offset += by;
            self.add(edge);
            order.push(to);
            next = to;
        }
        for v in order {
            self.x[v] += offset;
        }
    }

    /// Numbers the tree from node 0 and computes every cut value.
    ///
    /// A cut value is the flow through the tree edge: what the subtree below it sends out minus
    /// what it receives.
    fn root_tree(&mut self) {
        self.number(0, NONE, 0);
        let mut surplus = vec![0i64; self.x.len()];
        for c in self.constraints {
            surplus[c.tail] += c.weight;
            surplus[c.head] -= c.weight;
        }
        for i in 0..self.at.len() {
            let v = self.at[i];
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

    /// Postorder numbers of the subtree of `root` from `first` on.
    fn number(&mut self, root: usize, parent: usize, first: usize) {
        let mut next = first;
        self.parent[root] = parent;
        self.low[root] = next;
        let mut stack = vec![(root, 0)];
        while let Some((v, i)) = stack.pop() {
            if let Some(&e) = self.links[v].get(i) {
                stack.push((v, i + 1));
                if e != self.parent[v] {
                    let c = self.constraints[e];
                    let child = if c.tail == v { c.head } else { c.tail };
                    self.parent[child] = e;
                    self.low[child] = next;
                    stack.push((child, 0));
                }
            } else {
                self.lim[v] = next;
                self.at[next] = v;
                next += 1;
            }
        }
    }

    /// The end of a tree edge that is farther from the root.
    fn below(&self, e: usize) -> usize {
        let c = self.constraints[e];
        if self.parent[c.tail] == e {
            c.tail
        } else {
            c.head
        }
    }

    fn under(&self, v: usize, top: usize) -> bool {
        self.low[top] <= self.lim[v] && self.lim[v] <= self.lim[top]
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

    fn swap(&mut self, leaving: usize, entering: usize) {
        let slot = self.tree_at[leaving];
        self.tree[slot] = entering;
        self.tree_at[entering] = slot;
        self.tree_at[leaving] = NONE;
        for end in [
            self.constraints[leaving].tail,
            self.constraints[leaving].head,
        ] {
            if let Some(i) = self.links[end].iter().position(|&e| e == leaving) {
                self.links[end].swap_remove(i);
            }
        }
        for end in [
            self.constraints[entering].tail,
            self.constraints[entering].head,
        ] {
            self.links[end].push(entering);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn c(tail: usize, head: usize, length: i64, weight: i64) -> Constraint {
        Constraint {
            tail,
            head,
            length,
            weight,
        }
    }

    fn cost(x: &[i64], constraints: &[Constraint]) -> i64 {
        constraints
            .iter()
            .map(|c| {
                assert!(x[c.head] - x[c.tail] >= c.length, "broken constraint");
                (x[c.head] - x[c.tail]) * c.weight
            })
            .sum()
    }

    #[test]
    fn a_node_with_one_heavy_parent_moves_down_to_it() {
        // 0 -> 1 -> 2 -> 3 and 4 -> 3: 4 belongs right above 3, not at the top.
        let constraints = [c(0, 1, 1, 1), c(1, 2, 1, 1), c(2, 3, 1, 1), c(4, 3, 1, 1)];
        let x = solve(5, &constraints, None, usize::MAX, false);
        assert_eq!(x[3] - x[4], 1);
        assert_eq!(cost(&x, &constraints), 4);
    }

    #[test]
    fn random_graphs_reach_the_optimum_of_exhaustive_search() {
        let mut seed = 7u64;
        let mut random = move |n: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for _ in 0..200 {
            let mut constraints = Vec::new();
            for head in 1..6usize {
                for _ in 0..1 + random(2) {
                    let tail = random(head as u64) as usize;
                    constraints.push(c(tail, head, random(3) as i64, random(4) as i64));
                }
            }
            let x = solve(6, &constraints, None, usize::MAX, false);
            assert_eq!(cost(&x, &constraints), exhaustive(&constraints));
            let balanced = solve(6, &constraints, Some(x), usize::MAX, true);
            assert_eq!(cost(&balanced, &constraints), exhaustive(&constraints));
        }
    }

    /// The least cost over all placements of six nodes in 0..11 with node 0 at 0... or right of
    /// others: lengths are not negative, so node 0 is leftmost or tied in some optimum.
    fn exhaustive(constraints: &[Constraint]) -> i64 {
        fn go(x: &mut Vec<i64>, constraints: &[Constraint], best: &mut i64) {
            if x.len() == 6 {
                let feasible = constraints
                    .iter()
                    .all(|c| x[c.head] - x[c.tail] >= c.length);
                if feasible {
                    let sum = constraints
                        .iter()
                        .map(|c| (x[c.head] - x[c.tail]) * c.weight)
                        .sum();
                    *best = (*best).min(sum);
                }
                return;
            }
            let least = constraints
                .iter()
                .filter(|c| c.head == x.len())
                .map(|c| x[c.tail] + c.length)
                .max()
                .unwrap_or(0);
            for value in least..=10 {
                x.push(value);
                go(x, constraints, best);
                x.pop();
            }
        }
        let mut best = i64::MAX;
        go(&mut vec![0], constraints, &mut best);
        best
    }
}
