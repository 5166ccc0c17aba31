//! Finds the records of a snapshot that belong to the same stack: one per size class, and one per
//! thread if threads are recorded separately.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hasher, RandomState};

use shm_protocol::snapshot::{RecordView, Table, thread_of};
use shm_protocol::tree::{FIRST_NODE, NodeId};

/// Makes the records of each stack adjacent. Stacks keep the order of their first records. Returns
/// the number of records of each stack.
pub fn arrange(nodes: &Table<'_>, records: &mut Vec<RecordView>) -> Vec<u32> {
    let stacks = Stacks::of(nodes);
    let mut numbers: HashMap<NodeId, u32, Seed> = HashMap::with_hasher(Seed::new());
    let mut counts: Vec<u32> = Vec::new();
    let number_of: Vec<u32> = records
        .iter()
        .map(|record| {
            let next = counts.len() as u32;
            let number = *numbers
                .entry(stacks.representative(record.node))
                .or_insert(next);
            if number == next {
                counts.push(0);
            }
            counts[number as usize] += 1;
            number
        })
        .collect();
    if counts.len() < records.len() {
        let mut order: Vec<usize> = (0..records.len()).collect();
        order.sort_by_key(|&index| number_of[index]);
        *records = order.into_iter().map(|index| records[index]).collect();
    }
    counts
}

/// Maps a leaf node to the stack's representative: the leaf in the first thread that has the stack.
enum Stacks {
    /// Threads are not recorded separately, so every leaf represents itself.
    EachLeaf,
    /// Representatives by node.
    ByNode(Vec<NodeId>),
}

impl Stacks {
    fn of(table: &Table<'_>) -> Self {
        let count = table.node_count() as NodeId;
        let node = |id| table.node(id).ok().flatten();
        let is_thread = |id: &NodeId| node(*id).is_some_and(|(_, a)| thread_of(a).is_some());
        // A thread has two nodes: one above its complete stacks, one above its truncated ones.
        if (FIRST_NODE..count).filter(is_thread).nth(2).is_none() {
            return Self::EachLeaf;
        }
        let mut representatives: Vec<NodeId> = (0..count).collect();
        let mut first_leaves: HashMap<(NodeId, u64), NodeId, Seed> =
            HashMap::with_hasher(Seed::new());
        for id in FIRST_NODE..count {
            // A damaged node is treated as a separate stack.
            let Some((parent, address)) = node(id) else {
                continue;
            };
            let parent = representatives[parent as usize];
            representatives[id as usize] = match thread_of(address) {
                Some(_) => parent,
                None => *first_leaves.entry((parent, address)).or_insert(id),
            };
        }
        Self::ByNode(representatives)
    }

    fn representative(&self, leaf: NodeId) -> NodeId {
        match self {
            Self::EachLeaf => leaf,
            Self::ByNode(representatives) => {
                representatives.get(leaf as usize).copied().unwrap_or(leaf)
            }
        }
    }
}

/// Seed of a hasher for keys of one or two words. Random, so that a hostile target cannot construct
/// collisions.
struct Seed(u64);

impl Seed {
    fn new() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }
}

impl BuildHasher for Seed {
    type Hasher = Mixer;

    fn build_hasher(&self) -> Mixer {
        Mixer(self.0)
    }
}

struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(value.into());
    }

    fn write_u64(&mut self, value: u64) {
        let mixed = (self.0.rotate_left(29) ^ value).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shm_protocol::layout::{Node, THREAD_ADDRESS};
    use shm_protocol::tree::{ROOT, TRUNCATED};

    /// Nodes of a tree, each with its caller's node and its address.
    fn tree(nodes: &[(NodeId, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; FIRST_NODE as usize * size_of::<Node>()];
        for (parent, address) in nodes {
            bytes.extend(address.to_le_bytes());
            bytes.extend(parent.to_le_bytes());
            bytes.extend([0; 4]);
        }
        bytes
    }

    fn record(node: NodeId, size_class: u32) -> RecordView {
        let mut record = RecordView::default();
        record.node = node;
        record.size_class = size_class;
        record
    }

    fn arranged(nodes: &[(NodeId, u64)], records: &[(NodeId, u32)]) -> (Vec<NodeId>, Vec<u32>) {
        let bytes = tree(nodes);
        let mut records: Vec<_> = records.iter().map(|&(n, class)| record(n, class)).collect();
        let counts = arrange(&Table::new(&bytes, &[]), &mut records);
        (records.iter().map(|record| record.node).collect(), counts)
    }

    #[test]
    fn size_classes_of_a_stack_become_adjacent() {
        let nodes = [(ROOT, 0x1000), (2, 0x2000)];
        let (order, counts) = arranged(&nodes, &[(2, 4), (3, 4), (2, 5), (3, 9), (2, 6)]);
        assert_eq!(order, [2, 2, 2, 3, 3]);
        assert_eq!(counts, [3, 2]);
    }

    #[test]
    fn equal_stacks_of_threads_become_adjacent() {
        let nodes = [
            (ROOT, THREAD_ADDRESS),
            (TRUNCATED, THREAD_ADDRESS),
            (ROOT, THREAD_ADDRESS + 1),
            (TRUNCATED, THREAD_ADDRESS + 1),
            (2, 0x1000),
            (6, 0x2000),
            (4, 0x1000),
            (8, 0x2000),
            (5, 0x1000),
            (ROOT, 0x1000),
        ];
        let leaves = [(7, 1), (10, 1), (9, 1), (8, 1), (11, 1), (7, 2)];
        let (order, counts) = arranged(&nodes, &leaves);
        // Complete and truncated stacks differ. A stack that is not recorded per thread joins equal
        // ones that are.
        assert_eq!(order, [7, 9, 7, 10, 8, 11]);
        assert_eq!(counts, [3, 1, 2]);
    }

    #[test]
    fn damaged_trees_are_arranged_without_panics() {
        let nodes = [
            (ROOT, THREAD_ADDRESS),
            (9, 0x1000),
            (ROOT, THREAD_ADDRESS + 1),
            (u32::MAX, THREAD_ADDRESS + 2),
            (3, 0),
        ];
        let (order, counts) = arranged(&nodes, &[(3, 1), (u32::MAX, 1), (6, 1), (3, 2)]);
        assert_eq!(order, [3, 3, u32::MAX, 6]);
        assert_eq!(counts, [2, 1, 1]);
    }
}
