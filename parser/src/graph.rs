//! The call graph: entries and the calls between them, trimmed to what is worth showing. Numbers
//! and rules are pprof's.

mod mixer;

use std::collections::HashMap;

use profile::variance::SamplingError;

use crate::nodes::Nodes;
use crate::view::{View, ViewStack};
use mixer::Mixer;

/// An entry of the graph with its weights.
#[derive(Clone, Debug, Default)]
pub struct Node {
    /// Index of the entry in [`Nodes`].
    pub id: u32,
    /// Weight of the entry itself.
    pub flat: i64,
    /// Weight of the entry and its callees. Recursion counts once.
    pub cum: i64,
    /// Sampling error of `flat`.
    pub flat_error: SamplingError,
    /// Sampling error of `cum`.
    pub cum_error: SamplingError,
    /// Incoming calls: indices into [`Graph::edges`].
    pub ins: Vec<u32>,
    /// Outgoing calls: indices into [`Graph::edges`].
    pub outs: Vec<u32>,
}

impl Node {
    /// Returns true if the entry is below zero: its own weight, or if that is 0, its cumulative
    /// weight.
    fn is_negative(&self) -> bool {
        self.flat < 0 || (self.flat == 0 && self.cum < 0)
    }
}

/// Calls from one entry to another.
#[derive(Clone, Debug)]
pub struct Edge {
    /// Caller: index into the concatenation of [`Graph::nodes`] and [`Graph::cancelled`].
    pub from: u32,
    /// Callee, encoded like `from`.
    pub to: u32,
    /// Weight of these calls.
    pub weight: i64,
    /// Sampling error of the weight.
    pub error: SamplingError,
    /// Set if entries between the two were dropped.
    pub residual: bool,
    /// Set if the callee is always inlined into the caller.
    pub inline: bool,
}

/// Order in which entries are listed and chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// By flat weight.
    Flat,
    /// By cumulative weight.
    Cum,
    /// By how much an entry contributes to a picture.
    Entropy,
}

/// Limits to which a graph is trimmed.
#[derive(Clone, Copy, Debug)]
pub struct Trim {
    /// Maximum number of entries; 0 for all.
    pub node_count: usize,
    /// Minimum share of the total for an entry.
    pub node_fraction: f64,
    /// Minimum share of the total for a call.
    pub edge_fraction: f64,
    /// Drop entries below zero.
    pub drop_negative: bool,
    /// Order in which entries are sorted and chosen.
    pub order: Order,
}

/// A graph of calls.
#[derive(Debug, Default)]
pub struct Graph {
    /// Entries with weight, ordered by index until they are sorted.
    pub nodes: Vec<Node>,
    /// Indices in [`Nodes`] of entries whose weights cancel out. They are not listed, but their
    /// calls may have weights.
    pub cancelled: Vec<u32>,
    /// Calls between entries of `nodes` and `cancelled`.
    pub edges: Vec<Edge>,
}

/// A trimmed graph, and what was dropped.
pub struct Trimmed {
    /// The remaining graph, sorted.
    pub graph: Graph,
    /// Number of entries before [`Trim::node_count`] was applied.
    pub candidates: usize,
    /// Number of entries below the minimum weight.
    pub dropped_nodes: usize,
    /// Number of calls below the minimum weight.
    pub dropped_edges: usize,
}

impl Graph {
    /// Builds the graph of a view, of all entries or of those in `kept`.
    pub fn new(view: &View, nodes: &Nodes, kept: Option<&[bool]>) -> Self {
        let mut builder = Builder::new(nodes.count());
        for ViewStack {
            index: stack,
            value: weight,
            frames,
        } in view.stacks()
        {
            if weight != 0 {
                let sum = Sum {
                    weight,
                    error: view.error(stack),
                };
                builder.add_stack(view, nodes, kept, sum, frames);
            }
        }
        builder.finish()
    }

    /// Builds the graph of a view and trims it. Chooses and sorts entries in the given order.
    pub fn trimmed(view: &View, nodes: &Nodes, trim: &Trim) -> Trimmed {
        let mut graph = Self::new(view, nodes, None);
        if trim.drop_negative {
            let positive = graph.nodes.iter().filter(|n| !n.is_negative());
            let kept = ids_of(positive, nodes.count());
            graph = Self::new(view, nodes, Some(&kept));
        }
        let flats = graph.nodes.iter().map(|n| n.flat);
        let total = flats.fold(0, i64::saturating_add);
        let cutoff = |fraction: f64| ((total as f64 * fraction) as i64).saturating_abs();
        let node_cutoff = cutoff(trim.node_fraction);
        let edge_cutoff = cutoff(trim.edge_fraction);
        let all = graph.nodes.len();
        let is_heavy = |n: &&Node| n.cum.saturating_abs() >= node_cutoff;
        if !graph.nodes.iter().all(|n| is_heavy(&n)) {
            let kept = ids_of(graph.nodes.iter().filter(is_heavy), nodes.count());
            graph = Self::new(view, nodes, Some(&kept));
        }
        let candidates = graph.nodes.len();
        if trim.node_count > 0 {
            // Light edges must not influence which entries are chosen.
            graph.drop_light_edges(edge_cutoff);
        }
        graph.sort(nodes, trim.order);
        if trim.node_count > 0 && graph.nodes.len() > trim.node_count {
            let kept = ids_of(graph.nodes.iter().take(trim.node_count), nodes.count());
            graph = Self::new(view, nodes, Some(&kept));
            graph.sort(nodes, trim.order);
        }
        let dropped_edges = graph.drop_light_edges(edge_cutoff);
        if trim.order == Order::Entropy {
            graph.drop_redundant_edges(nodes);
        }
        Trimmed {
            graph,
            candidates,
            dropped_nodes: all - candidates,
            dropped_edges,
        }
    }

    /// Sorts entries, heaviest first.
    fn sort(&mut self, nodes: &Nodes, order: Order) {
        let score = |n: &Node| match order {
            Order::Flat => n.flat,
            Order::Cum => n.cum,
            Order::Entropy => self.entropy_score(n),
        };
        let scores: Vec<i64> = self
            .nodes
            .iter()
            .map(|n| score(n).saturating_abs())
            .collect();
        let mut sorted: Vec<usize> = (0..self.nodes.len()).collect();
        sorted.sort_by(|&a, &b| {
            let x = &self.nodes[a];
            let y = &self.nodes[b];
            let second = |n: &Node| if order == Order::Flat { n.cum } else { n.flat };
            scores[b]
                .cmp(&scores[a])
                .then_with(|| nodes.name(x.id).cmp(nodes.name(y.id)))
                .then_with(|| second(y).saturating_abs().cmp(&second(x).saturating_abs()))
                .then_with(|| x.id.cmp(&y.id))
        });
        let mut position = vec![0u32; sorted.len()];
        for (new, &old) in sorted.iter().enumerate() {
            position[old] = new as u32;
        }
        let mut unsorted: Vec<Option<Node>> = std::mem::take(&mut self.nodes)
            .into_iter()
            .map(Some)
            .collect();
        self.nodes = sorted
            .iter()
            .filter_map(|&old| unsorted[old].take())
            .collect();
        for edge in &mut self.edges {
            for end in [&mut edge.from, &mut edge.to] {
                *end = position.get(*end as usize).copied().unwrap_or(*end);
            }
        }
    }

    /// Returns how much an entry contributes to a picture. Entries that only pass weight on from
    /// one caller to one callee contribute little.
    fn entropy_score(&self, node: &Node) -> i64 {
        let mut score = 0.0;
        score += if node.ins.is_empty() {
            1.0
        } else {
            self.entropy(&node.ins, 0)
        };
        score += if node.outs.is_empty() {
            1.0
        } else {
            self.entropy(&node.outs, node.flat)
        };
        ((score * node.cum as f64) as i64).saturating_add(node.flat)
    }

    fn entropy(&self, edges: &[u32], flat: i64) -> f64 {
        let weights = || edges.iter().map(|&e| self.edges[e as usize].weight);
        let total = weights().filter(|&w| w > 0).fold(flat, i64::saturating_add);
        if total == 0 {
            return 0.0;
        }
        let part = |weight: i64| {
            let share = weight.saturating_abs() as f64 / total as f64;
            -share * share.log2()
        };
        weights().map(part).sum::<f64>() + if flat > 0 { part(flat) } else { 0.0 }
    }

    /// Returns the index in [`Nodes`] of the entry at an end of an edge.
    pub fn id(&self, end: u32) -> u32 {
        let end = end as usize;
        match self.nodes.get(end) {
            Some(node) => node.id,
            None => self.cancelled[end - self.nodes.len()],
        }
    }

    /// Returns true if the entry at an end of an edge is listed.
    pub fn is_listed(&self, end: u32) -> bool {
        (end as usize) < self.nodes.len()
    }

    /// Removes edges below a weight, except those to cancelled entries, like pprof. Returns the
    /// number of removed edges.
    fn drop_light_edges(&mut self, cutoff: i64) -> usize {
        let light: Vec<bool> = self
            .edges
            .iter()
            .map(|e| e.weight.saturating_abs() < cutoff && self.is_listed(e.to))
            .collect();
        let connected: usize = self.nodes.iter().map(|n| n.ins.len()).sum();
        self.retain_edges(|e| !light[e as usize]);
        connected - self.nodes.iter().map(|n| n.ins.len()).sum::<usize>()
    }

    fn retain_edges(&mut self, keep: impl Fn(u32) -> bool) {
        for node in &mut self.nodes {
            node.ins.retain(|&e| keep(e));
            node.outs.retain(|&e| keep(e));
        }
    }

    /// Removes residual edges whose ends are also connected by other paths, lightest entries and
    /// edges first.
    fn drop_redundant_edges(&mut self, nodes: &Nodes) {
        for i in (0..self.nodes.len()).rev() {
            for edge in self
                .sorted_edges(&self.nodes[i].ins, nodes)
                .into_iter()
                .rev()
            {
                // Residual edges heavier than a real edge stay: removing them would mislead.
                if !self.edges[edge as usize].residual {
                    break;
                }
                if self.is_redundant(edge) {
                    let Edge { from, to, .. } = self.edges[edge as usize];
                    if let Some(caller) = self.nodes.get_mut(from as usize) {
                        caller.outs.retain(|&e| e != edge);
                    }
                    self.nodes[to as usize].ins.retain(|&e| e != edge);
                }
            }
        }
    }

    fn is_redundant(&self, edge: u32) -> bool {
        let Edge { from, to, .. } = self.edges[edge as usize];
        let mut seen = vec![false; self.nodes.len()];
        seen[to as usize] = true;
        let mut queue = vec![to];
        while let Some(node) = queue.pop() {
            for &e in &self.nodes[node as usize].ins {
                let caller = self.edges[e as usize].from;
                if e == edge || !self.is_listed(caller) || seen[caller as usize] {
                    continue;
                }
                if caller == from {
                    return true;
                }
                seen[caller as usize] = true;
                queue.push(caller);
            }
        }
        false
    }

    /// Sorts edges by weight, heaviest first, then by name.
    pub fn sorted_edges(&self, edges: &[u32], nodes: &Nodes) -> Vec<u32> {
        let name = |end: u32| nodes.name(self.id(end));
        let mut sorted = edges.to_vec();
        sorted.sort_by(|&a, &b| {
            let x = &self.edges[a as usize];
            let y = &self.edges[b as usize];
            let weight = |e: &Edge| e.weight.saturating_abs();
            weight(y)
                .cmp(&weight(x))
                .then_with(|| name(x.from).cmp(name(y.from)))
                .then_with(|| name(x.to).cmp(name(y.to)))
        });
        sorted
    }

    /// Returns the edges between listed entries that have not been removed.
    pub fn connected_edges(&self) -> impl Iterator<Item = u32> + '_ {
        let all = self.nodes.iter().flat_map(|n| n.outs.iter().copied());
        all.filter(|&e| self.is_listed(self.edges[e as usize].to))
    }
}

/// Returns the set of the nodes' ids, as one flag for each of `count` ids.
fn ids_of<'a>(nodes: impl Iterator<Item = &'a Node>, count: usize) -> Vec<bool> {
    let mut set = vec![false; count];
    nodes.for_each(|n| set[n.id as usize] = true);
    set
}

/// Index of no entry.
const NONE: u32 = u32::MAX;

/// A weight and its sampling error, kept together because they are added together.
#[derive(Clone, Copy, Default)]
struct Sum {
    weight: i64,
    error: SamplingError,
}

impl Sum {
    fn add(&mut self, other: Sum) {
        self.weight = self.weight.saturating_add(other.weight);
        self.error += other.error;
    }
}

/// Builder that adds stacks one by one.
struct Builder {
    flat: Vec<Sum>,
    cum: Vec<Sum>,
    /// For each entry, number of the last stack that was counted for it.
    seen: Vec<u32>,
    edges: Vec<Edge>,
    /// For each edge, number of the last stack that was counted for it.
    edge_seen: Vec<u32>,
    /// Edges by caller (upper half of the key) and callee.
    index: HashMap<u64, u32, Mixer>,
    /// For each callee, its last caller and their edge. A fast path, because consecutive stacks are
    /// mostly similar.
    last: Vec<(u32, u32)>,
    /// Number of the current stack, counted from 1.
    stack: u32,
}

impl Builder {
    fn new(nodes: usize) -> Self {
        Self {
            flat: vec![Sum::default(); nodes],
            cum: vec![Sum::default(); nodes],
            seen: vec![0; nodes],
            edges: Vec::new(),
            edge_seen: Vec::new(),
            index: HashMap::default(),
            last: vec![(NONE, NONE); nodes],
            stack: 0,
        }
    }

    fn add_stack(
        &mut self,
        view: &View,
        nodes: &Nodes,
        kept: Option<&[bool]>,
        sum: Sum,
        frames: &[u32],
    ) {
        self.stack += 1;
        let mut parent = NONE;
        let mut residual = false;
        for &location in frames.iter().rev() {
            if view.is_hidden(location) {
                continue;
            }
            let ids = nodes.of_location(location);
            for (depth, &id) in ids.iter().rev().enumerate() {
                if kept.is_some_and(|kept| !kept[id as usize]) {
                    residual = true;
                    continue;
                }
                let node = id as usize;
                if self.seen[node] != self.stack {
                    self.seen[node] = self.stack;
                    self.cum[node].add(sum);
                }
                if parent != NONE && parent != id {
                    self.add_call(parent, id, sum, residual, depth > 0);
                }
                parent = id;
                residual = false;
            }
        }
        if parent != NONE && !residual {
            self.flat[parent as usize].add(sum);
        }
    }

    fn add_call(&mut self, from: u32, to: u32, sum: Sum, residual: bool, inline: bool) {
        let (caller, edge) = self.last[to as usize];
        let edge = if caller == from {
            edge
        } else {
            self.edge_between(from, to, inline)
        };
        self.last[to as usize] = (from, edge);
        let e = &mut self.edges[edge as usize];
        if self.edge_seen[edge as usize] != self.stack {
            self.edge_seen[edge as usize] = self.stack;
            e.inline &= inline;
            e.weight = e.weight.saturating_add(sum.weight);
            e.error += sum.error;
            e.residual |= residual;
        }
    }

    /// Returns the edge between two entries; creates it if it does not exist.
    fn edge_between(&mut self, from: u32, to: u32, inline: bool) -> u32 {
        let next = self.edges.len() as u32;
        let edge = *self
            .index
            .entry((u64::from(from) << 32) | u64::from(to))
            .or_insert(next);
        if edge == next {
            self.edges.push(Edge {
                from,
                to,
                weight: 0,
                error: SamplingError::default(),
                residual: false,
                inline,
            });
            self.edge_seen.push(0);
        }
        edge
    }

    fn finish(self) -> Graph {
        let mut position = vec![NONE; self.flat.len()];
        let mut graph = Graph::default();
        for (id, (&flat, &cum)) in self.flat.iter().zip(&self.cum).enumerate() {
            if flat.weight != 0 || cum.weight != 0 {
                position[id] = graph.nodes.len() as u32;
                graph.nodes.push(Node {
                    id: id as u32,
                    flat: flat.weight,
                    cum: cum.weight,
                    flat_error: flat.error,
                    cum_error: cum.error,
                    ins: vec![],
                    outs: vec![],
                });
            }
        }
        let listed = graph.nodes.len();
        for mut edge in self.edges {
            for end in [&mut edge.from, &mut edge.to] {
                let new_position = &mut position[*end as usize];
                if *new_position == NONE {
                    *new_position = (listed + graph.cancelled.len()) as u32;
                    graph.cancelled.push(*end);
                }
                *end = *new_position;
            }
            let number = graph.edges.len() as u32;
            if let Some(caller) = graph.nodes.get_mut(edge.from as usize) {
                caller.outs.push(number);
            }
            if let Some(callee) = graph.nodes.get_mut(edge.to as usize) {
                callee.ins.push(number);
            }
            graph.edges.push(edge);
        }
        graph
    }
}
