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
//! A hash leads anywhere in a table, so all of a table takes memory, however few nodes there are.
//! There are two: the early one is small, and serves until more nodes are backed by memory than it
//! has room for. From then on a node that is missing in the late one is looked for in the early
//! one, and entered in the late one, too. A thread that has not heard of this yet may enter a node
//! in the early one that another has just not found there: then one stack has two nodes, which
//! readers add up.
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
/// Maximum number of nodes that a slot can name.
pub const MAX_NODES: u32 = INDEX_MASK;
/// Probes after which the table counts as full; at half load a miss takes two or three.
const MAX_PROBES: u32 = 256;

/// The tree of one bank.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    early: &'a [AtomicU32],
    late: &'a [AtomicU32],
    nodes: &'a [Node],
    count: &'a AtomicU32,
}

impl<'a> Tree<'a> {
    /// A tree over zeroed or already used memory, with its early and its late slots.
    ///
    /// The number of late slots must be a power of two, that of the early ones, too, if there are
    /// any, and `nodes.len()` at most [`MAX_NODES`]; otherwise [`child`](Self::child) finds no
    /// room.
    #[must_use]
    pub fn new(slots: [&'a [AtomicU32]; 2], nodes: &'a [Node], count: &'a AtomicU32) -> Self {
        let [early, late] = slots.map(|slots| {
            let usable = slots.len().is_power_of_two() && nodes.len() <= MAX_NODES as usize;
            if usable { slots } else { &[] }
        });
        Self {
            early,
            late,
            nodes,
            count,
        }
    }

    /// The node of `address` called from `parent`, made if it is new.
    ///
    /// `limit` is the number of nodes with memory behind them; the late slots have some if it is
    /// more than half the number of early ones. `None` when there is no room: the caller counts the
    /// sample under `[table full]`.
    #[inline]
    pub fn child(&self, parent: Place, address: u64, limit: u32) -> Option<Place> {
        let path = path_to(parent.path, address);
        let node = self.child_at(path, parent.node, address, limit)?;
        Some(Place { node, path })
    }

    #[inline]
    fn child_at(&self, hash: u64, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let first = self.slot(hash, limit)?;
        let seen = first.load(Ordering::Acquire);
        if seen >> INDEX_BITS == tag(hash) && self.is(seen & INDEX_MASK, parent, address) {
            return Some(seen & INDEX_MASK);
        }
        self.probe(hash, parent, address, limit)
    }

    /// [`child`](Self::child) where the first slot is not its.
    #[inline(never)]
    fn probe(&self, hash: u64, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let slots = self.slots(limit);
        let tag = tag(hash);
        let mut node = 0;
        for slot in probed(slots, hash) {
            let mut seen = slot.load(Ordering::Acquire);
            if seen == 0 {
                if node == 0 {
                    let early = self
                        .is_late(limit)
                        .then(|| self.early(hash, parent, address));
                    node = match early.flatten() {
                        Some(early) => early,
                        None => self.claim(parent, address, limit)?,
                    };
                }
                let mine = tag << INDEX_BITS | node;
                match slot.compare_exchange(0, mine, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => return Some(node),
                    Err(other) => seen = other,
                }
            }
            if seen >> INDEX_BITS == tag && self.is(seen & INDEX_MASK, parent, address) {
                return Some(seen & INDEX_MASK);
            }
        }
        None
    }

    /// A node that was entered in the early slots.
    #[cold]
    fn early(&self, hash: u64, parent: NodeId, address: u64) -> Option<NodeId> {
        let slots = probed(self.early, hash).map(|slot| slot.load(Ordering::Acquire));
        let mut taken = slots.take_while(|slot| *slot != 0);
        let found = taken.find(|slot| {
            slot >> INDEX_BITS == tag(hash) && self.is(slot & INDEX_MASK, parent, address)
        });
        found.map(|slot| slot & INDEX_MASK)
    }

    /// The slots in which new nodes are entered while this many nodes are backed by memory.
    #[inline(always)]
    fn slots(&self, limit: u32) -> &'a [AtomicU32] {
        match self.is_late(limit) {
            true => self.late,
            false => self.early,
        }
    }

    #[inline(always)]
    fn is_late(&self, limit: u32) -> bool {
        limit as usize > self.early.len() / 2
    }

    /// The slot in which the node with this path is looked up first.
    #[inline]
    #[must_use]
    pub fn slot(&self, path: u64, limit: u32) -> Option<&'a AtomicU32> {
        let slots = self.slots(limit);
        slots.get(first_slot(slots, path))
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

/// The slots in which a node may be, the likeliest one first.
#[inline]
fn probed(slots: &[AtomicU32], hash: u64) -> impl Iterator<Item = &AtomicU32> {
    let mask = slots.len().wrapping_sub(1);
    let first = first_slot(slots, hash);
    let at = (0..MAX_PROBES as usize).map(move |further| (first + further) & mask);
    at.map_while(|at| slots.get(at))
}

#[inline]
fn first_slot(slots: &[AtomicU32], hash: u64) -> usize {
    (hash >> 32) as usize & slots.len().wrapping_sub(1)
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
        let tree = Tree::new([&[], &slots], &nodes, &count);
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
        let tree = Tree::new([&[], &slots], &nodes, &count);
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
        let tree = Tree::new([&[], &slots], &nodes, &count);
        assert!(tree.child(Place::root(ROOT), 1, 3).is_some());
        assert_eq!(tree.child(Place::root(ROOT), 2, 3), None);
        assert!(tree.child(Place::root(ROOT), 2, 4).is_some());
    }

    #[test]
    fn early_nodes_are_found_when_the_late_slots_serve() {
        let (early, nodes, count) = memory(16, 64);
        let (late, _, _) = memory(128, 0);
        let tree = Tree::new([&early, &late], &nodes, &count);
        let child = |address, limit| tree.child(Place::root(ROOT), address, limit);
        let first: Vec<_> = (1..=6).map(|i| child(i, 8).unwrap()).collect();
        assert_eq!(child(7, 8), None);
        assert!(late.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));

        let later: Vec<_> = (7..=40).map(|i| child(i, 64).unwrap()).collect();
        for round in 0..2 {
            for (i, place) in first.iter().chain(&later).enumerate() {
                assert_eq!(
                    child(i as u64 + 1, 64),
                    Some(*place),
                    "{i} in round {round}"
                );
            }
        }
        assert_eq!(count.load(Ordering::Relaxed), 40);
    }

    #[test]
    fn four_threads_agree_on_every_node() {
        let (slots, nodes, count) = memory(1 << 14, 1 << 13);
        let tree = Tree::new([&[], &slots], &nodes, &count);
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

    /// One thread enters a path in the early slots, another, for which more nodes are backed by
    /// memory already, in the late ones: what either has entered is found by all later on, and
    /// every node that is found is the right one.
    #[test]
    fn late_slots_serve_while_a_thread_still_uses_the_early_ones() {
        loom::model(|| {
            let node = |_| Node {
                address: AtomicU64::new(0),
                parent: AtomicU32::new(0),
                records: AtomicU32::new(0),
            };
            let slots = |count: usize| (0..count).map(|_| AtomicU32::new(0)).collect();
            let slots: [Vec<AtomicU32>; 2] = [slots(8), slots(8)];
            let nodes: Vec<Node> = (0..8).map(node).collect();
            let memory = Arc::new((slots, nodes, AtomicU32::new(0)));
            let run = |memory: &(_, Vec<Node>, _), limit: u32| {
                let ([early, late], nodes, count): (&[Vec<AtomicU32>; 2], _, _) =
                    (&memory.0, &memory.1, &memory.2);
                let tree = Tree::new([early, late], nodes, count);
                let place = tree.child(Place::root(ROOT), 7, limit).unwrap();
                assert!(tree.is(place.node, ROOT, 7));
                place
            };
            let other = memory.clone();
            let thread = loom::thread::spawn(move || run(&other, 4));
            let late = run(&memory, 8);
            let early = thread.join().unwrap();
            assert_eq!(run(&memory, 8), late);
            assert_eq!(run(&memory, 4), early);
        });
    }

    /// Two threads insert the same path and each a path of its own: they agree on the
    /// shared node, and a thread that reads a node's index reads the node filled in.
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
                let tree = Tree::new([&[], &memory.0], &memory.1, &memory.2);
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
