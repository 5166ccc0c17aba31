//! Determines which lost objects are lost only because others are.
//!
//! A lost object that no other lost object points to is lost *directly*. One that other lost
//! objects point to is lost *indirectly*, through the object at the start of the chain. Objects
//! that point to each other in a ring, to which no other lost object points, are lost as a *cycle*.
//! Such a strongly connected component (Tarjan 1972, without recursion) is represented by one of
//! its members.

use std::ops::Range;

use crate::heap::Heap;
use crate::lost::Unreached;
use crate::memory::{self, Memory};
use crate::pointers::PointerRules;

/// Maximum number of objects, and of pointers between them, that are processed. They take up to 2
/// GiB.
const MAX_OBJECTS: usize = 1 << 25;
const READ_BYTES: usize = 1 << 20;
const NONE: u32 = u32::MAX;

/// Way in which an object is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossKind {
    /// Directly: no other lost object points to it.
    Directly,
    /// In a ring that no other lost object points to. Index of the member that represents the ring,
    /// which may be this one.
    InCycle(u32),
    /// Indirectly: the lost object with this index leads to it.
    Indirectly(u32),
    /// Through memory that was not sampled, which is lost itself, or free and not reused.
    ThroughUnknown,
}

/// Returns how each lost object is lost, by index. Returns `None` if there are too many.
#[must_use]
pub fn classify(
    memory: &dyn Memory,
    heap: &Heap,
    pointers: &PointerRules,
    found: &Unreached,
) -> Option<Vec<LossKind>> {
    let graph = Graph::of(memory, heap, pointers, found)?;
    let components = Components::of(&graph);
    Some(graph.classify(&components, found.lost.len()))
}

/// Graph of unreached regions and the pointers between them.
struct Graph {
    /// Regions, ascending, and the index of the lost object in each; [`NONE`] for unknown memory.
    nodes: Vec<(u32, u32)>,
    /// Index of each node's first target.
    starts: Vec<u32>,
    targets: Vec<u32>,
}

impl Graph {
    fn of(
        memory: &dyn Memory,
        heap: &Heap,
        pointers: &PointerRules,
        found: &Unreached,
    ) -> Option<Self> {
        if found.lost.len() + found.unknown.len() > MAX_OBJECTS {
            return None;
        }
        let lost = found
            .lost
            .iter()
            .zip(0..)
            .map(|(l, index)| (l.region, index));
        let unknown = found.unknown.iter().map(|region| (*region, NONE));
        let mut nodes: Vec<(u32, u32)> = lost.chain(unknown).collect();
        nodes.sort_unstable();
        let mut graph = Self {
            starts: Vec::with_capacity(nodes.len() + 1),
            targets: Vec::new(),
            nodes,
        };
        let mut buffer = vec![0; READ_BYTES];
        let mut next = 0;
        while next < graph.nodes.len() {
            let (count, range) = graph.adjacent_nodes(heap, next)?;
            if count == 1 {
                graph.starts.push(graph.targets.len() as u32);
                let alignment = pointers.alignment();
                memory::scan_while(memory, range, alignment, &mut buffer, |_, bytes| {
                    pointers.each(heap, bytes, |_, _, region| graph.add(next, region));
                    graph.targets.len() <= MAX_OBJECTS
                });
            } else {
                let bytes = &mut buffer[..(range.end - range.start) as usize];
                memory.gather(&[(range.start, bytes.len())], bytes);
                for node in next..next + count {
                    graph.starts.push(graph.targets.len() as u32);
                    let (base, size) = heap.region(graph.nodes[node].0)?;
                    let contents = &bytes[(base - range.start) as usize..][..size as usize];
                    pointers.each(heap, contents, |_, _, region| graph.add(node, region));
                }
            }
            if graph.targets.len() > MAX_OBJECTS {
                return None;
            }
            next += count;
        }
        graph.starts.push(graph.targets.len() as u32);
        Some(graph)
    }

    /// Returns the number of nodes, starting at `first`, that are close enough together to be read
    /// with one call, and their range.
    fn adjacent_nodes(&self, heap: &Heap, first: usize) -> Option<(usize, Range<u64>)> {
        /// Number of bytes that are read in the time that an additional piece takes.
        const MAX_GAP_BYTES: u64 = 4096;
        let (start, size) = heap.region(self.nodes[first].0)?;
        let mut count = 1;
        let mut end = start + size;
        for (region, _) in &self.nodes[first + 1..] {
            let (base, size) = heap.region(*region)?;
            if base.saturating_sub(end) > MAX_GAP_BYTES || base + size - start > READ_BYTES as u64 {
                break;
            }
            count += 1;
            end = base + size;
        }
        Some((count, start..end))
    }

    /// Adds a pointer from a node to a region, if that is a node too.
    fn add(&mut self, node: usize, region: u32) {
        let target = self
            .nodes
            .binary_search_by_key(&region, |(region, _)| *region);
        if let Ok(target) = target
            && target != node
        {
            self.targets.push(target as u32);
        }
    }

    fn targets(&self, node: u32) -> &[u32] {
        let start = self.starts[node as usize];
        let end = self.starts[node as usize + 1];
        &self.targets[start as usize..end as usize]
    }

    /// Returns how each of the `lost` objects is lost.
    fn classify(&self, components: &Components, lost: usize) -> Vec<LossKind> {
        // Of each component: whether no other one points to it, its size, and its first known lost
        // object.
        let mut is_source = vec![true; components.count as usize];
        let mut sizes = vec![0u32; components.count as usize];
        let mut first = vec![NONE; components.count as usize];
        for node in 0..self.nodes.len() as u32 {
            let component = components.by_node[node as usize] as usize;
            sizes[component] += 1;
            let object = self.nodes[node as usize].1;
            first[component] = first[component].min(object);
            for target in self.targets(node) {
                let other = components.by_node[*target as usize] as usize;
                if other != component {
                    is_source[other] = false;
                }
            }
        }
        let mut how = vec![LossKind::ThroughUnknown; lost];
        let mut seen = vec![false; self.nodes.len()];
        // Known lost objects come first, so that objects that they and unknown memory both lead to
        // get a known cause.
        for known in [true, false] {
            for node in 0..self.nodes.len() as u32 {
                let component = components.by_node[node as usize] as usize;
                let is_known = first[component] != NONE;
                if is_source[component] && is_known == known && !seen[node as usize] {
                    let source = Source {
                        components,
                        number: component as u32,
                        cause: first[component],
                        is_cycle: sizes[component] > 1,
                    };
                    self.spread(node, &source, &mut seen, &mut how);
                }
            }
        }
        how
    }

    /// Assigns all unseen objects reachable from `start` to the cause of the source.
    fn spread(&self, start: u32, source: &Source<'_>, seen: &mut [bool], how: &mut [LossKind]) {
        let cause = source.cause;
        let mut stack = vec![start];
        seen[start as usize] = true;
        while let Some(node) = stack.pop() {
            let object = self.nodes[node as usize].1;
            if let Some(how) = how.get_mut(object as usize) {
                *how = match (
                    source.components.by_node[node as usize] == source.number,
                    cause,
                ) {
                    (_, NONE) => LossKind::ThroughUnknown,
                    (true, _) if source.is_cycle => LossKind::InCycle(cause),
                    (true, _) => LossKind::Directly,
                    (false, _) => LossKind::Indirectly(cause),
                };
            }
            for &target in self.targets(node) {
                if !std::mem::replace(&mut seen[target as usize], true) {
                    stack.push(target);
                }
            }
        }
    }
}

/// Component that no other component points to.
struct Source<'a> {
    components: &'a Components,
    /// Number of the component.
    number: u32,
    /// First known lost object of the component; `NONE` if all its objects are unknown.
    cause: u32,
    /// True if the component has more than one object.
    is_cycle: bool,
}

/// Strongly connected components of a graph.
struct Components {
    /// Component of each node.
    by_node: Vec<u32>,
    count: u32,
}

impl Components {
    fn of(graph: &Graph) -> Self {
        let mut search = Search {
            graph,
            order: vec![NONE; graph.nodes.len()],
            low: vec![0; graph.nodes.len()],
            by_node: vec![NONE; graph.nodes.len()],
            incomplete: Vec::new(),
            next: 0,
            count: 0,
        };
        for node in 0..graph.nodes.len() as u32 {
            if search.order[node as usize] == NONE {
                search.visit(node);
            }
        }
        Self {
            by_node: search.by_node,
            count: search.count,
        }
    }
}

/// Tarjan's algorithm in progress.
struct Search<'a> {
    graph: &'a Graph,
    /// Order in which each node was visited.
    order: Vec<u32>,
    /// Earliest node in its component that each node is known to lead to.
    low: Vec<u32>,
    /// Component of each node; [`NONE`] while it is not complete.
    by_node: Vec<u32>,
    /// Stack of the nodes whose component is not complete.
    incomplete: Vec<u32>,
    /// Number of nodes visited so far.
    next: u32,
    /// Number of complete components.
    count: u32,
}

impl Search<'_> {
    fn visit(&mut self, start: u32) {
        let mut path = vec![(start, 0)];
        self.enter(start);
        while let Some((node, at)) = path.last_mut() {
            let node = *node;
            if let Some(&target) = self.graph.targets(node).get(*at) {
                *at += 1;
                if self.order[target as usize] == NONE {
                    self.enter(target);
                    path.push((target, 0));
                } else if self.by_node[target as usize] == NONE {
                    let order = self.order[target as usize];
                    let low = &mut self.low[node as usize];
                    *low = order.min(*low);
                }
            } else {
                path.pop();
                if let Some((parent, _)) = path.last() {
                    let low = self.low[node as usize].min(self.low[*parent as usize]);
                    self.low[*parent as usize] = low;
                }
                self.leave(node);
            }
        }
    }

    fn enter(&mut self, node: u32) {
        self.order[node as usize] = self.next;
        self.low[node as usize] = self.next;
        self.next += 1;
        self.incomplete.push(node);
    }

    /// Completes the component that starts at `node`, if one does.
    fn leave(&mut self, node: u32) {
        if self.low[node as usize] != self.order[node as usize] {
            return;
        }
        while let Some(member) = self.incomplete.pop() {
            self.by_node[member as usize] = self.count;
            if member == node {
                break;
            }
        }
        self.count += 1;
    }
}

#[cfg(test)]
mod tests;
