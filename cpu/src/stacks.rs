//! Tree of stacks with counts, for each thread. Its size depends on the code that ran, not on how
//! long it ran.

use crate::mixer::IntMap;

/// Maximum number of nodes (64 MiB). A stack that does not fit is counted at the innermost of its
/// frames that does.
const MAX_NODES: usize = 1 << 20;

/// Counts of a stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Number of samples.
    pub samples: u64,
    /// Time that they stand for, in nanoseconds.
    pub ns: u64,
}

/// Tree of stacks. The root's children are the threads; below them are the outermost frames.
pub struct Stacks {
    nodes: Vec<Node>,
    children: IntMap<(u32, u64), u32>,
}

struct Node {
    parent: u32,
    frame: u64,
    count: Count,
}

impl Default for Stacks {
    fn default() -> Self {
        let root = Node {
            parent: 0,
            frame: 0,
            count: Count::default(),
        };
        Self {
            nodes: vec![root],
            children: IntMap::default(),
        }
    }
}

impl Stacks {
    /// Counts a stack of a thread, outermost frame first. Returns its node, and true if all of it
    /// fits.
    pub fn add(
        &mut self,
        thread: u32,
        frames: impl Iterator<Item = u64>,
        count: Count,
    ) -> (u32, bool) {
        let mut node = 0;
        let mut fits = true;
        for frame in std::iter::once(u64::from(thread)).chain(frames) {
            let known = self.children.get(&(node, frame)).copied();
            let Some(next) = known.or_else(|| self.add_node(node, frame)) else {
                fits = false;
                break;
            };
            node = next;
        }
        self.add_to(node, count);
        (node, fits)
    }

    /// Adds to the counts of a stack, given its node from [`add`](Self::add).
    pub fn add_to(&mut self, node: u32, count: Count) {
        let sum = &mut self.nodes[node as usize].count;
        sum.samples += count.samples;
        sum.ns += count.ns;
    }

    fn add_node(&mut self, parent: u32, frame: u64) -> Option<u32> {
        if self.nodes.len() >= MAX_NODES {
            return None;
        }
        let index = self.nodes.len() as u32;
        let count = Count::default();
        self.nodes.push(Node {
            parent,
            frame,
            count,
        });
        self.children.insert((parent, frame), index);
        Some(index)
    }

    /// Calls `visit` for the time of each stack.
    pub(crate) fn each_ns(&mut self, mut visit: impl FnMut(&mut u64)) {
        let nodes = self.nodes.iter_mut();
        nodes.for_each(|node| visit(&mut node.count.ns));
    }

    /// Returns the sum of all times.
    pub(crate) fn ns(&self) -> u64 {
        self.nodes.iter().map(|node| node.count.ns).sum()
    }

    /// Calls `visit` with the thread, the stack (innermost frame first) and the counts of each
    /// counted stack.
    pub fn each(&self, mut visit: impl FnMut(u32, &[u64], Count)) {
        let mut frames = Vec::new();
        for (index, node) in self.nodes.iter().enumerate() {
            if node.count.samples > 0 {
                let thread = self.frames(index as u32, &mut frames);
                visit(thread, &frames, node.count);
            }
        }
    }

    /// Replaces `frames` by the stack of a node, innermost frame first. Returns its thread.
    pub fn frames(&self, node: u32, frames: &mut Vec<u64>) -> u32 {
        frames.clear();
        let mut ancestor = &self.nodes[node as usize];
        // Parents have smaller indices than their children, so this ends.
        while !std::ptr::eq(ancestor, &raw const self.nodes[0]) {
            frames.push(ancestor.frame);
            ancestor = &self.nodes[ancestor.parent as usize];
        }
        frames.pop().unwrap_or(0) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_add_up() {
        let mut stacks = Stacks::default();
        let count = Count { samples: 1, ns: 10 };
        for (thread, frames) in [
            (5, &[1u64, 2, 3][..]),
            (5, &[1, 2]),
            (5, &[1, 2, 3]),
            (6, &[]),
        ] {
            assert!(stacks.add(thread, frames.iter().copied(), count).1);
        }
        let mut seen = Vec::new();
        let see = |thread, frames: &[u64], count: Count| {
            seen.push((thread, frames.to_vec(), count.samples, count.ns));
        };
        stacks.each(see);
        seen.sort();
        let expected = [
            (5, vec![2, 1], 1, 10),
            (5, vec![3, 2, 1], 2, 20),
            (6, vec![], 1, 10),
        ];
        assert_eq!(seen, expected);
    }
}
