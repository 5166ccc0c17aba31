//! Removes the agent's own frames from a stack. A sample that is due when a fork ends is taken in
//! the agent's fork handler (`timers::after_fork`), but belongs to the code that called `fork`.

use core::sync::atomic::Ordering;
use shm_protocol::tree::{FIRST_NODE, NodeId, Tree};
use unwind::walk::ADDRESS_BITS;

/// Number of innermost frames that are searched for the agent's.
const MAX_INNER_FRAMES: usize = 16;

unsafe extern "C" {
    // Symbols of the linker: start of the library, and end of its code.
    static __ehdr_start: u8;
    static _etext: u8;
}

fn is_own(address: u64) -> bool {
    let [start, end] = [&raw const __ehdr_start, &raw const _etext].map(|at| at.addr() as u64);
    (start..end).contains(&address)
}

/// Returns the stack that called the agent, or `leaf` itself if no inner frame is the agent's.
pub fn strip(leaf: NodeId, tree: &Tree<'_>) -> NodeId {
    without_inner(leaf, tree, is_own)
}

fn without_inner(leaf: NodeId, tree: &Tree<'_>, is_own: impl Fn(u64) -> bool) -> NodeId {
    let mut current = leaf;
    let mut outer = leaf;
    for _ in 0..MAX_INNER_FRAMES {
        if current < FIRST_NODE {
            break;
        }
        let Some(node) = tree.node(current) else {
            break;
        };
        let parent = node.parent.load(Ordering::Relaxed);
        let address = node.address.load(Ordering::Relaxed) & ((1 << ADDRESS_BITS) - 1);
        if is_own(address) && parent >= FIRST_NODE {
            outer = parent;
        }
        current = parent;
    }
    outer
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::sync::atomic::{AtomicU32, AtomicU64};
    use shm_protocol::layout::Node;
    use shm_protocol::tree::{Levels, PathNode, ROOT};
    use std::vec::Vec;

    #[test]
    fn frames_up_to_the_outermost_own_one_are_removed() {
        let slots: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        let nodes: Vec<Node> = (0..32)
            .map(|_| Node {
                address: AtomicU64::new(0),
                parent: AtomicU32::new(0),
                records: AtomicU32::new(0),
            })
            .collect();
        let count = FIRST_NODE.into();
        let tree = Tree::new(&slots, Levels::new(5, 1), &nodes, &count);
        let mut at = PathNode::root(ROOT);
        // Stack: main, fork, two frames of ours, the C library's `syscall`.
        let stack = [1, 2, 103, 104, 5].map(|address| {
            at = tree.child(at, address, 32).expect("room");
            at.node
        });
        let own = |address| address > 100;
        assert_eq!(without_inner(stack[4], &tree, own), stack[1]);
        assert_eq!(without_inner(stack[1], &tree, own), stack[1]);
        // A stack that consists of our frames alone stays unchanged.
        let alone = tree.child(PathNode::root(ROOT), 105, 32).expect("room");
        assert_eq!(without_inner(alone.node, &tree, own), alone.node);
        assert!(is_own(strip as *const () as u64) && !is_own(1));
    }
}
