//! Calling-context tree: stores every stack once, outermost frame first, sharing common outer
//! frames.
//!
//! A node is its caller's node plus a return address, so the index of a node identifies a whole
//! stack. Nodes are found through an open-addressing hash table of `tag | index` slots. All
//! operations are lock-free: a node is filled in while private, then published by one
//! compare-and-swap of its slot. If two threads race, the loser uses the winner's node, and its own
//! remains unused. A node's index is claimed after its parent's, so parents always have smaller
//! indices, and readers cannot run into a cycle.
//!
//! The slot is chosen by a hash of the node's whole path, which is passed along with the node
//! ([`PathNode`]). So the slots of all frames of a stack can be prefetched before any of the nodes
//! is known.
//!
//! A hash may select any slot of a table, so all of a table becomes resident however few nodes
//! there are. Therefore there are several tables ([`Levels`]), each four times as large as the one
//! before. When more nodes are committed than a table has room for, the next table is used. A node
//! that is missing there is looked up in the earlier tables, and inserted into the new one if it is
//! found. A thread that has not noticed the change of tables may insert a node into an earlier one
//! after another thread has searched it. That stack then has two nodes, whose counters readers add
//! up.
//!
//! Cost: a lookup is one hash, one slot and one node (two cache lines), 30 instructions.

// Decision 27: threads and sizes are part of the keys.
use crate::layout::Node;
use crate::sync::{AtomicU32, Ordering};

/// Index of a node, which identifies the stack that ends in it.
pub type NodeId = u32;

/// Node with the hash of its path, from which its children's slots are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathNode {
    /// The node.
    pub node: NodeId,
    /// Hash of the addresses from the root to the node.
    pub path: u64,
}

impl PathNode {
    /// Returns [`ROOT`] or [`TRUNCATED`] with its path hash.
    #[must_use]
    pub const fn root(node: NodeId) -> Self {
        Self {
            node,
            path: (node as u64).wrapping_mul(PATH_FACTOR),
        }
    }
}

/// Returns the hash of the path to a child. Its middle bits choose the slot; the upper ones are the
/// tag.
#[inline(always)]
#[must_use]
pub fn path_to(parent: u64, address: u64) -> u64 {
    (address ^ PATH_FACTOR)
        .wrapping_mul(ADDRESS_FACTOR)
        .wrapping_add(parent.wrapping_mul(PATH_FACTOR))
}

/// Factor of an address in the path hash of its node.
const ADDRESS_FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
/// Factor of the caller's path hash in that of a node.
const PATH_FACTOR: u64 = 0xBF58_476D_1CE4_E5B9;
/// Inverse of `PATH_FACTOR` modulo 2^64. Each step of Newton's method doubles the number of correct
/// bits.
const PATH_FACTOR_INVERSE: u64 = {
    let mut inverse = PATH_FACTOR;
    let mut step = 0;
    while step < 5 {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(PATH_FACTOR.wrapping_mul(inverse)));
        step += 1;
    }
    inverse
};

/// Returns the path hash of the parent of a child with this path hash and `address`: the inverse
/// of [`path_to`].
fn path_from(path: u64, address: u64) -> u64 {
    path.wrapping_sub((address ^ PATH_FACTOR).wrapping_mul(ADDRESS_FACTOR))
        .wrapping_mul(PATH_FACTOR_INVERSE)
}

/// Node above all complete stacks.
pub const ROOT: NodeId = 0;
/// Node above all truncated stacks.
pub const TRUNCATED: NodeId = 1;
/// Index of the first node that is allocated.
pub const FIRST_NODE: NodeId = 2;

const INDEX_BITS: u32 = 24;
const INDEX_MASK: u32 = (1 << INDEX_BITS) - 1;
/// Maximum number of nodes, which is what a slot's index bits can hold.
pub const MAX_NODES: u32 = INDEX_MASK;
/// Maximum number of probes, after which the table counts as full. At half load, a miss takes two
/// or three probes.
const MAX_PROBES: u32 = 256;

/// Sizes of a tree's hash tables, each of which is four times as large as the one before and
/// follows it in memory. The first has room for the nodes of one unit, the granularity in which
/// memory is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    unit_nodes_log2: u32,
    first_slots_log2: u32,
    /// Logarithm of the number of units, which bounds the size of the last table.
    units_log2: u32,
}

impl Levels {
    /// Returns the sizes of tables for `units` times 2^`unit_nodes_log2` nodes, with two slots for
    /// each node.
    #[must_use]
    pub const fn new(unit_nodes_log2: u32, units: u32) -> Self {
        Self {
            unit_nodes_log2,
            first_slots_log2: unit_nodes_log2 + 1,
            units_log2: units.next_power_of_two().ilog2(),
        }
    }

    /// Returns sizes with a smaller first table, for the model checker.
    #[cfg(all(test, loom))]
    pub(crate) fn with_first_slots(self, log2: u32) -> Self {
        Self {
            first_slots_log2: log2,
            ..self
        }
    }

    /// Returns the index of the table that is in use while this many units are committed.
    #[inline(always)]
    #[must_use]
    pub const fn level_for(units: u32) -> u32 {
        match units {
            0 | 1 => 0,
            _ => (units - 1).ilog2() / 2 + 1,
        }
    }

    /// Returns the index of a table's first slot.
    #[inline(always)]
    #[must_use]
    pub const fn start(&self, level: u32) -> usize {
        (((1 << (2 * level)) - 1) / 3) << self.first_slots_log2
    }

    /// Returns the number of slots of a table, a power of two.
    #[inline(always)]
    #[must_use]
    pub const fn slots(&self, level: u32) -> usize {
        let log2 = if 2 * level < self.units_log2 {
            2 * level
        } else {
            self.units_log2
        };
        1 << (log2 + self.first_slots_log2)
    }

    /// Returns the number of slots of all tables.
    #[must_use]
    pub const fn slot_count(&self) -> usize {
        let last = Self::level_for(1 << self.units_log2);
        self.start(last) + self.slots(last)
    }

    /// Returns the number of slots to commit together with this many units: all slots of the tables
    /// in use, and a proportional part of the next one, so that no step is large.
    #[must_use]
    pub const fn committed_slots(&self, units: u32) -> usize {
        let level = Self::level_for(units);
        let served = self.start(level) + self.slots(level);
        if level == 0 || served >= self.slot_count() {
            return served;
        }
        // The table in use serves the units from `first_units` up to four times as many.
        let first_units = 1 << (2 * (level - 1));
        let next = self.slots(level + 1);
        served
            + next / (3 * first_units) * (units as usize - first_units)
            + next % (3 * first_units)
    }

    /// Returns the index of the table that is in use while this many nodes are committed.
    #[inline(always)]
    const fn level_of(&self, nodes: u32) -> u32 {
        Self::level_for((nodes.saturating_sub(1) >> self.unit_nodes_log2) + 1)
    }
}

/// Calling-context tree of one bank.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    slots: &'a [AtomicU32],
    levels: Levels,
    nodes: &'a [Node],
    count: &'a AtomicU32,
}

impl<'a> Tree<'a> {
    /// Returns a tree in memory that is zeroed or already in use. There must be at least
    /// [`Levels::slot_count`] slots, and at most [`MAX_NODES`] nodes; otherwise
    /// [`child`](Self::child) finds no room.
    #[must_use]
    pub fn new(
        slots: &'a [AtomicU32],
        levels: Levels,
        nodes: &'a [Node],
        count: &'a AtomicU32,
    ) -> Self {
        let usable = slots.len() >= levels.slot_count() && nodes.len() <= MAX_NODES as usize;
        Self {
            slots: if usable { slots } else { &[] },
            levels,
            nodes,
            count,
        }
    }

    /// Finds or creates the node of `address` called from `parent`. Returns `None` if there is no
    /// room.
    ///
    /// `limit` is the number of committed nodes; the slots for them must be committed too
    /// ([`Levels::committed_slots`]).
    #[inline]
    pub fn child(&self, parent: PathNode, address: u64, limit: u32) -> Option<PathNode> {
        let path = path_to(parent.path, address);
        let node = self.child_at(path, parent.node, address, limit)?;
        Some(PathNode { node, path })
    }

    /// Returns the node of `address` called from `parent`, or `None` if it does not exist.
    #[must_use]
    pub fn find(&self, parent: PathNode, address: u64, limit: u32) -> Option<PathNode> {
        let path = path_to(parent.path, address);
        let level = self.levels.level_of(limit);
        let node = self.find_before_level(level + 1, path, parent.node, address)?;
        Some(PathNode { node, path })
    }

    /// Returns the number of unused nodes, or `None` if there are none.
    #[must_use]
    pub fn free_nodes(&self, limit: u32) -> Option<u32> {
        let used = self.count.load(Ordering::Relaxed);
        let limit = limit.min(self.nodes.len() as u32);
        let free = limit.checked_sub(used.saturating_add(FIRST_NODE));
        free.filter(|free| *free > 0)
    }

    /// Returns a node with its path hash, or `None` if it is more than `depth` levels below the
    /// root.
    #[must_use]
    pub fn path_node(&self, node: NodeId, depth: usize) -> Option<PathNode> {
        let mut ancestor = node;
        let mut path = 0u64;
        let mut factor = 1u64;
        for _ in 0..=depth {
            if ancestor < FIRST_NODE {
                let root = PathNode::root(ancestor).path;
                let path = path.wrapping_add(root.wrapping_mul(factor));
                return Some(PathNode { node, path });
            }
            let frame = self.node(ancestor)?;
            let address_part =
                (frame.address.load(Ordering::Relaxed) ^ PATH_FACTOR).wrapping_mul(ADDRESS_FACTOR);
            path = path.wrapping_add(address_part.wrapping_mul(factor));
            factor = factor.wrapping_mul(PATH_FACTOR);
            ancestor = frame.parent.load(Ordering::Relaxed);
        }
        None
    }

    /// Returns the parent, or `None` if there is none.
    #[must_use]
    pub fn caller(&self, path_node: PathNode) -> Option<PathNode> {
        let frame = self
            .node(path_node.node)
            .filter(|_| path_node.node >= FIRST_NODE)?;
        Some(PathNode {
            node: frame.parent.load(Ordering::Relaxed),
            path: path_from(path_node.path, frame.address.load(Ordering::Relaxed)),
        })
    }

    #[inline]
    fn child_at(&self, hash: u64, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let first = self.slot(hash, limit)?;
        let entry = first.load(Ordering::Acquire);
        if entry >> INDEX_BITS == tag(hash) && self.matches(entry & INDEX_MASK, parent, address) {
            return Some(entry & INDEX_MASK);
        }
        self.probe(hash, parent, address, limit)
    }

    /// Finds or creates a node that is not in its first slot.
    #[inline(never)]
    fn probe(&self, hash: u64, parent: NodeId, address: u64, limit: u32) -> Option<NodeId> {
        let level = self.levels.level_of(limit);
        let tag = tag(hash);
        let mut node = 0;
        for slot in probe_sequence(self.table(level), hash) {
            let mut entry = slot.load(Ordering::Acquire);
            if entry == 0 {
                if node == 0 {
                    node = match self.find_before_level(level, hash, parent, address) {
                        Some(earlier) => earlier,
                        None => self.claim(parent, address, limit)?,
                    };
                }
                let new = (tag << INDEX_BITS) | node;
                match slot.compare_exchange(0, new, Ordering::Release, Ordering::Acquire) {
                    Ok(_) => return Some(node),
                    Err(other) => entry = other,
                }
            }
            if entry >> INDEX_BITS == tag && self.matches(entry & INDEX_MASK, parent, address) {
                return Some(entry & INDEX_MASK);
            }
        }
        None
    }

    /// Looks a node up in the tables before `level`.
    #[cold]
    fn find_before_level(
        &self,
        level: u32,
        hash: u64,
        parent: NodeId,
        address: u64,
    ) -> Option<NodeId> {
        (0..level).rev().find_map(|level| {
            let slots =
                probe_sequence(self.table(level), hash).map(|slot| slot.load(Ordering::Acquire));
            let mut used_slots = slots.take_while(|slot| *slot != 0);
            let found = used_slots.find(|slot| {
                slot >> INDEX_BITS == tag(hash) && self.matches(slot & INDEX_MASK, parent, address)
            });
            found.map(|slot| slot & INDEX_MASK)
        })
    }

    /// Returns the slots of a table.
    #[inline(always)]
    fn table(&self, level: u32) -> &'a [AtomicU32] {
        let start = self.levels.start(level);
        let table = self.slots.get(start..start + self.levels.slots(level));
        table.unwrap_or_default()
    }

    /// Returns the first slot to be probed for the node with this path.
    #[inline]
    #[must_use]
    pub fn slot(&self, path: u64, limit: u32) -> Option<&'a AtomicU32> {
        let slots = self.table(self.levels.level_of(limit));
        slots.get(first_slot(slots, path))
    }

    /// Returns the node with this index.
    #[inline]
    #[must_use]
    pub fn node(&self, id: NodeId) -> Option<&'a Node> {
        self.nodes.get(id as usize)
    }

    /// Returns true if node `id` stands for `address` called from `parent`.
    #[inline]
    fn matches(&self, id: NodeId, parent: NodeId, address: u64) -> bool {
        self.node(id).is_some_and(|node| {
            node.address.load(Ordering::Relaxed) == address
                && node.parent.load(Ordering::Relaxed) == parent
        })
    }

    /// Allocates a node and fills it in, without publishing it.
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

/// Returns the slots in which a node may be, in the order in which they are probed.
#[inline]
fn probe_sequence(slots: &[AtomicU32], hash: u64) -> impl Iterator<Item = &AtomicU32> {
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

    /// Returns the size of one table for all nodes.
    fn whole(nodes: &[Node]) -> Levels {
        Levels::new(nodes.len().ilog2(), 1)
    }

    #[test]
    fn tables_are_adjacent_and_large_enough_for_the_committed_nodes() {
        for units in [1, 2, 3, 4, 5, 16, 17, 63, 64, 100, 1024, 2047] {
            let levels = Levels::new(6, units);
            let mut end = 0;
            let mut backed = 0;
            for level in 0..=Levels::level_for(units) {
                assert_eq!(levels.start(level), end);
                end += levels.slots(level);
            }
            assert!(end <= levels.slot_count(), "{units}");
            for committed in 1..=units {
                let level = Levels::level_for(committed);
                assert!(
                    levels.slots(level) >= 2 * committed as usize * 64,
                    "{committed}"
                );
                let now = levels.committed_slots(committed);
                assert!(
                    now >= levels.start(level) + levels.slots(level),
                    "{committed}"
                );
                assert!(
                    (backed..=levels.slot_count()).contains(&now),
                    "{committed} of {units}"
                );
                let step = now - backed;
                assert!(
                    committed <= 2 || step <= 12 * 128,
                    "{committed} of {units}: {step}"
                );
                backed = now;
            }
        }
    }

    #[test]
    fn each_path_has_one_node() {
        let (slots, nodes, count) = memory(64, 32);
        let tree = Tree::new(&slots, whole(&nodes), &nodes, &count);
        let a = tree.child(PathNode::root(ROOT), 0x1000, 32).unwrap();
        let b = tree.child(a, 0x2000, 32).unwrap();
        assert_eq!(tree.child(PathNode::root(ROOT), 0x1000, 32), Some(a));
        assert_eq!(tree.child(a, 0x2000, 32), Some(b));
        assert_ne!(tree.child(PathNode::root(ROOT), 0x2000, 32), Some(b));
        assert_ne!(tree.child(PathNode::root(TRUNCATED), 0x1000, 32), Some(a));
        assert!(b.node > a.node);
    }

    #[test]
    fn places_and_callers_are_computed_from_nodes() {
        let (slots, nodes, count) = memory(64, 32);
        let tree = Tree::new(&slots, whole(&nodes), &nodes, &count);
        for root in [ROOT, TRUNCATED].map(PathNode::root) {
            let mut places = std::vec![root];
            for address in [0x1000, 0x501, u64::MAX] {
                let caller = places[places.len() - 1];
                assert_eq!(tree.find(caller, address, 32), None);
                places.push(tree.child(caller, address, 32).unwrap());
                assert_eq!(tree.find(caller, address, 32), places.last().copied());
            }
            for (depth, place) in places.iter().enumerate() {
                assert_eq!(tree.path_node(place.node, depth), Some(*place));
                let caller = depth.checked_sub(1).map(|above| places[above]);
                assert_eq!(tree.caller(*place), caller);
            }
            assert_eq!(tree.path_node(places[3].node, 2), None);
        }
    }

    #[test]
    fn a_full_tree_still_finds_its_nodes() {
        let (slots, nodes, count) = memory(64, 8);
        let tree = Tree::new(&slots, whole(&nodes), &nodes, &count);
        let made: Vec<_> = (1..=6)
            .map(|i| tree.child(PathNode::root(ROOT), i, 8).unwrap())
            .collect();
        assert_eq!(tree.child(PathNode::root(ROOT), 99, 8), None);
        for (i, id) in made.iter().enumerate() {
            assert_eq!(tree.child(PathNode::root(ROOT), i as u64 + 1, 8), Some(*id));
        }
    }

    #[test]
    fn unreserved_nodes_are_not_touched() {
        let (slots, nodes, count) = memory(64, 32);
        let tree = Tree::new(&slots, whole(&nodes), &nodes, &count);
        assert!(tree.child(PathNode::root(ROOT), 1, 3).is_some());
        assert_eq!(tree.child(PathNode::root(ROOT), 2, 3), None);
        assert!(tree.child(PathNode::root(ROOT), 2, 4).is_some());
    }

    #[test]
    fn nodes_of_earlier_tables_are_found_when_later_ones_are_in_use() {
        const UNIT: u32 = 8;
        let levels = Levels::new(3, 8);
        let (slots, nodes, count) = memory(levels.slot_count(), 64);
        let tree = Tree::new(&slots, levels, &nodes, &count);
        let child = |address, limit| tree.child(PathNode::root(ROOT), address, limit);
        let mut made: Vec<_> = (1..=6).map(|i| child(i, UNIT).unwrap()).collect();
        assert_eq!(child(7, UNIT), None);
        let later = &slots[levels.start(1)..];
        assert!(later.iter().all(|slot| slot.load(Ordering::Relaxed) == 0));

        made.extend((7..=20).map(|i| child(i, 4 * UNIT).unwrap()));
        made.extend((21..=40).map(|i| child(i, 8 * UNIT).unwrap()));
        for round in 0..2 {
            for (i, place) in made.iter().enumerate() {
                let found = child(i as u64 + 1, 8 * UNIT);
                assert_eq!(found, Some(*place), "{i} in round {round}");
            }
        }
        assert_eq!(count.load(Ordering::Relaxed), 40);
    }

    #[test]
    fn four_threads_agree_on_every_node() {
        let (slots, nodes, count) = memory(1 << 14, 1 << 13);
        let tree = Tree::new(&slots, whole(&nodes), &nodes, &count);
        let ids: Vec<Vec<PathNode>> = std::thread::scope(|scope| {
            let walk = || {
                let path = |i: u64| {
                    let outer = tree
                        .child(PathNode::root(ROOT), i % 7 + 1, 1 << 13)
                        .unwrap();
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

    /// One thread inserts a path into an earlier table while another one, which has seen more nodes
    /// committed, inserts it into a later table. Each later lookup finds the node that the same
    /// table gave before, and it is the right one.
    #[test]
    fn threads_may_use_different_tables_at_the_same_time() {
        loom::model(|| {
            let node = |_| Node {
                address: AtomicU64::new(0),
                parent: AtomicU32::new(0),
                records: AtomicU32::new(0),
            };
            let levels = Levels::new(2, 2);
            let slots: Vec<AtomicU32> = (0..levels.slot_count())
                .map(|_| AtomicU32::new(0))
                .collect();
            let nodes: Vec<Node> = (0..8).map(node).collect();
            let memory = Arc::new((slots, nodes, AtomicU32::new(0)));
            let run = move |memory: &(Vec<AtomicU32>, Vec<Node>, AtomicU32), limit: u32| {
                let tree = Tree::new(&memory.0, levels, &memory.1, &memory.2);
                let path_node = tree.child(PathNode::root(ROOT), 7, limit).unwrap();
                assert!(tree.matches(path_node.node, ROOT, 7));
                path_node
            };
            let other = memory.clone();
            let thread = loom::thread::spawn(move || run(&other, 4));
            let late = run(&memory, 8);
            let early = thread.join().unwrap();
            assert_eq!(run(&memory, 8), late);
            assert_eq!(run(&memory, 4), early);
        });
    }

    /// Two threads insert the same path, and each another path below it. They agree on the shared
    /// node, and a thread that reads a node's index sees a complete node.
    #[test]
    fn racing_inserts_agree() {
        loom::model(|| {
            let node = |_| Node {
                address: AtomicU64::new(0),
                parent: AtomicU32::new(0),
                records: AtomicU32::new(0),
            };
            let slots: Vec<AtomicU32> = (0..4).map(|_| AtomicU32::new(0)).collect();
            let levels = Levels::new(3, 1).with_first_slots(2);
            let nodes: Vec<Node> = (0..8).map(node).collect();
            let memory = Arc::new((slots, nodes, AtomicU32::new(0)));
            let run = move |memory: Arc<(Vec<AtomicU32>, Vec<Node>, AtomicU32)>, own: u64| {
                let tree = Tree::new(&memory.0, levels, &memory.1, &memory.2);
                let shared = tree.child(PathNode::root(ROOT), 7, 8).unwrap();
                let mine = tree.child(shared, own, 8).unwrap();
                assert!(tree.matches(mine.node, shared.node, own));
                shared
            };
            let other = memory.clone();
            let thread = loom::thread::spawn(move || run(other, 11));
            let here = run(memory, 12);
            assert_eq!(here, thread.join().unwrap());
        });
    }
}
