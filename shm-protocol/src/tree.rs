//! The calling-context tree: every stack once, outermost frame first, sharing
//! what it shares with others.
//!
//! A node is a caller's node plus a return address; its index names the whole
//! stack up to it. Nodes are found through an open-addressing table of
//! `tag | index` slots. All operations are lock-free: a node is filled in
//! private, then published by one compare-and-swap of its slot; the loser of a
//! race uses the winner's node and its own stays unused. A node's index is
//! claimed after its parent's, so parents are always smaller: no reader can be
//! led in circles.
//!
//! A node's slot is chosen by a hash of its whole path, which is kept beside it ([`Place`]): the
//! slots of a stack's frames can be read before any of its nodes is known.
//!
//! Cost: a lookup is one hash, one slot and one node (two cache lines), 30 instructions.

use crate::layout::Node;
use crate::sync::{AtomicU32, Ordering};

/// Index of a node; also the name of the stack that ends in it.
pub type NodeId = u32;

/// A node with the hash of its path, which leads to its children's slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The node.
    pub node: NodeId,
    /// Hash of the addresses from the root to it.
    pub path: u64,
}

impl Place {
    /// The place of [`ROOT`] or of [`TRUNCATED`].
    #[must_use]
    pub const fn root(node: NodeId) -> Self {
        Self {
            node,
            path: (node as u64).wrapping_mul(B),
        }
    }
}

/// The hash of the path to a child. Its middle bits choose the slot, the upper ones are the tag.
#[inline(always)]
#[must_use]
pub fn path_to(parent: u64, address: u64) -> u64 {
    (address ^ B)
        .wrapping_mul(A)
        .wrapping_add(parent.wrapping_mul(B))
}

const A: u64 = 0x9E37_79B9_7F4A_7C15;
const B: u64 = 0xBF58_476D_1CE4_E5B9;

/// Above every complete stack.
pub const ROOT: NodeId = 0;
/// Above every stack that could not be followed to its end.
pub const TRUNCATED: NodeId = 1;
/// First index that is handed out.
pub const FIRST_NODE: NodeId = 2;

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// Most nodes that a slot can name.
pub const MAX_NODES: u32 = INDEX_MASK;
/// Probes after which the table counts as full; at half load a miss takes two or three.
const MAX_PROBES: u32 = 256;

/// The tree of one bank.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    slots: &'a [AtomicU32],
    nodes: &'a [Node],
    count: &'a AtomicU32,
}

impl<'a> Tree<'a> {
    /// A tree over zeroed or already used memory.
    ///
    /// `slots.len()` must be a power of two and `nodes.len()` at most [`MAX_NODES`];
    /// otherwise [`child`](Self::child) finds no room.
    #[must_use]
    pub fn new(slots: &'a [AtomicU32], nodes: &'a [Node], count: &'a AtomicU32) -> Self {
        let usable = slots.len().is_power_of_two() && nodes.len() <= MAX_NODES as usize;
        Self {
            slots: if usable { slots } else { &[] },
            nodes,
            count,
        }
    }

    /// The node of `address` called from `parent`, made if it is new.
    ///
    /// `limit` is the number of nodes with memory behind them. `None` when there is
    /// no room: the caller counts the sample under `[table full]`.
    #[inline]
    pub fn child(&self, parent: Place, address: u64, limit: u32) -> Option<Place> {
        let path = path_to(parent.path, address);
        let node = self.child_at(path, parent.node, address, limit)?;
        Some(Place { node, path })
    }

    #[inline]
    fn child_at(&self, hash: u64, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let first = self.slots.get(self.first_slot(hash))?;
        let seen = first.load(Ordering::Acquire);
        if seen >> INDEX_BITS == tag(hash) && self.is(seen & INDEX_MASK, parent, address) {
            return Some(seen & INDEX_MASK);
        }
        self.probe(hash, parent, address, limit)
    }

    /// [`child`](Self::child) where the first slot is not its.
    #[inline(never)]
    fn probe(&self, hash: u64, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let tag = tag(hash);
        let mask = self.slots.len().wrapping_sub(1);
        let mut at = self.first_slot(hash);
        let mut made = 0;
        for _ in 0..MAX_PROBES {
            let slot = self.slots.get(at)?;
            let mut seen = slot.load(Ordering::Acquire);
            if seen == 0 {
                if made == 0 {
                    made = self.claim(parent, address, limit)?;
                }
                let mine = tag << INDEX_BITS | made;
                match slot.compare_exchange(0, mine, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => return Some(made),
                    Err(other) => seen = other,
                }
            }
            if seen >> INDEX_BITS == tag && self.is(seen & INDEX_MASK, parent, address) {
                return Some(seen & INDEX_MASK);
            }
            at = (at + 1) & mask;
        }
        None
    }

    #[inline]
    fn first_slot(&self, hash: u64) -> usize {
        (hash >> 32) as usize & self.slots.len().wrapping_sub(1)
    }

    /// The node behind an index.
    #[inline]
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&'a Node> {
        self.nodes.get(id as usize)
    }

    #[inline]
    fn is(&self, id: NodeId, parent: NodeId, address: u64) -> bool {
        self.node(id).is_some_and(|node| {
            node.address.load(Ordering::Relaxed) == address
                && node.parent.load(Ordering::Relaxed) == parent
        })
    }

    /// A fresh node, filled in but not yet published.
    #[cold]
    fn claim(&self, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let limit = limit.min(self.nodes.len() as u32);
        if self
            .count
            .load(Ordering::Relaxed)
            .saturating_add(FIRST_NODE)
            >= limit
        {
            return None;
        }
        let id = self
            .count
            .fetch_add(1, Ordering::Relaxed)
            .saturating_add(FIRST_NODE);
        if id >= limit {
            return None;
        }
        let node = self.node(id)?;
        node.address.store(address, Ordering::Relaxed);
        node.parent.store(parent, Ordering::Relaxed);
        Some(id)
    }
}

#[inline]
fn tag(hash: u64) -> u32 {
    (hash >> 56) as u32
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::sync::AtomicU64;
    use std::vec::Vec;

    fn memory(slots: usize, nodes: usize) -> (Vec<AtomicU32>, Vec<Node>, AtomicU32) {
        let node = || Node {
            address: AtomicU64::new(0),
            parent: AtomicU32::new(0),
            records: AtomicU32::new(0),
        };
        (
            (0..slots).map(|_| AtomicU32::new(0)).collect(),
            (0..nodes).map(|_| node()).collect(),
            AtomicU32::new(0),
        )
    }

    #[test]
    fn same_path_same_node_other_path_other_node() {
        let (slots, nodes, count) = memory(64, 32);
        let tree = Tree::new(&slots, &nodes, &count);
        let a = tree.child(Place::root(ROOT), 0x1000, 32).unwrap();
        let b = tree.child(a, 0x2000, 32).unwrap();
        assert_eq!(tree.child(Place::root(ROOT), 0x1000, 32), Some(a));
        assert_eq!(tree.child(a, 0x2000, 32), Some(b));
        assert_ne!(tree.child(Place::root(ROOT), 0x2000, 32), Some(b));
        assert_ne!(tree.child(Place::root(TRUNCATED), 0x1000, 32), Some(a));
        assert!(b.node > a.node);
    }

    #[test]
    fn full_tree_says_so_and_keeps_what_it_has() {
        let (slots, nodes, count) = memory(64, 8);
        let tree = Tree::new(&slots, &nodes, &count);
        let made: Vec<_> = (1..=6)
            .map(|i| tree.child(Place::root(ROOT), i, 8).unwrap())
            .collect();
        assert_eq!(tree.child(Place::root(ROOT), 99, 8), None);
        for (i, id) in made.iter().enumerate() {
            assert_eq!(tree.child(Place::root(ROOT), i as u64 + 1, 8), Some(*id));
        }
    }

    #[test]
    fn unreserved_nodes_are_not_touched() {
        let (slots, nodes, count) = memory(64, 32);
        let tree = Tree::new(&slots, &nodes, &count);
        assert!(tree.child(Place::root(ROOT), 1, 3).is_some());
        assert_eq!(tree.child(Place::root(ROOT), 2, 3), None);
        assert!(tree.child(Place::root(ROOT), 2, 4).is_some());
    }

    #[test]
    fn four_threads_agree_on_every_node() {
        let (slots, nodes, count) = memory(1 << 14, 1 << 13);
        let tree = Tree::new(&slots, &nodes, &count);
        let ids: Vec<Vec<Place>> = std::thread::scope(|scope| {
            let walk = || {
                let path = |i: u64| {
                    let outer = tree.child(Place::root(ROOT), i % 7 + 1, 1 << 13).unwrap();
                    tree.child(outer, i, 1 << 13).unwrap()
                };
                (0..2000).map(path).collect::<Vec<_>>()
            };
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(walk)).collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert!(ids.windows(2).all(|pair| pair[0] == pair[1]));
    }
}

#[cfg(all(test, loom))]
mod model {
    use super::*;
    use crate::sync::AtomicU64;
    use loom::sync::Arc;
    use std::vec::Vec;

    /// Two threads insert the same path and each a path of its own: they agree on the
    /// shared node, and whoever reads a node's index reads it filled in.
    #[test]
    fn racing_inserts_agree() {
        loom::model(|| {
            let node = |_| Node {
                address: AtomicU64::new(0),
                parent: AtomicU32::new(0),
                records: AtomicU32::new(0),
            };
            let slots: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
            let nodes: Vec<Node> = (0..8).map(node).collect();
            let memory = Arc::new((slots, nodes, AtomicU32::new(0)));
            let run = |memory: Arc<(Vec<AtomicU32>, Vec<Node>, AtomicU32)>, own: u64| {
                let tree = Tree::new(&memory.0, &memory.1, &memory.2);
                let shared = tree.child(Place::root(ROOT), 7, 8).unwrap();
                let mine = tree.child(shared, own, 8).unwrap();
                assert!(tree.is(mine.node, shared.node, own));
                shared
            };
            let other = memory.clone();
            let thread = loom::thread::spawn(move || run(other, 11));
            let here = run(memory, 12);
            assert_eq!(here, thread.join().unwrap());
        });
    }
}
