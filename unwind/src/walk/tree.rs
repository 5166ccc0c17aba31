//! Interfaces that a walker needs: the tree that interns stacks, and the rules of the walked code.

// Decision 30: a node's slot follows from its path's hash.
#[cfg(doc)]
use super::ADDRESS_BITS;
use crate::compile::Scratch;
use crate::elf::Image;
use crate::rule::Rule;
use crate::seen::Key;

/// Node of a [`Tree`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// Number of the node.
    pub id: u32,
    /// Value that the tree passes along with the node, for example a hash of the node's path.
    pub path: u64,
}

impl From<u32> for Node {
    /// Makes a node for a tree that does not use `path`.
    fn from(id: u32) -> Self {
        Self { id, path: 0 }
    }
}

/// Calling-context tree in which walked stacks are interned. Addresses are return addresses, with
/// their module's instance above [`ADDRESS_BITS`].
pub trait Tree {
    /// Returns the node above all complete stacks. Must not change while a walker caches a stack.
    fn root(&self) -> Node;
    /// Returns the node above all truncated stacks. Must not change while a walker caches a stack.
    fn truncated(&self) -> Node;
    /// Finds or creates the node of `address` under `parent`. Returns `None` if the tree is full.
    fn child(&self, parent: Node, address: u64) -> Option<Node>;
    /// Prefetches the child of `address` under a node with this path, and returns the child's path.
    /// Called for all new frames of a stack, outermost first, before [`child`](Self::child) is
    /// called for any of them.
    fn prefetch(&self, path: u64, _address: u64) -> u64 {
        path
    }
    /// Returns the leaf of a stack that was seen before, or `None` if it is not known. The address
    /// interned for the innermost frame has the same lower [`ADDRESS_BITS`] bits as `address`.
    fn find_leaf(&self, _stack: Key, _address: u64) -> Option<u32> {
        None
    }
    /// Records the leaf of a stack.
    fn insert_leaf(&self, _stack: Key, _leaf: u32) {}
    /// Returns a random number of this tree, which enters all keys.
    fn salt(&self) -> u64 {
        0
    }
}

/// Source of the walked code's rules.
pub trait Code {
    /// Returns the rule of a return address.
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule;
    /// Returns the image that contains a return address, for a rare frame that takes the slow path.
    /// `None` ends the stack there.
    fn image(&self, ip: u64) -> Option<Image>;
    /// Runs `work`, which reads images, and keeps them mapped until it returns. Returns `None` if
    /// that is not possible now.
    fn reading<R>(&self, work: impl FnOnce() -> R) -> Option<R> {
        Some(work())
    }
}

impl<F: Fn(u64, &mut Scratch) -> Rule> Code for F {
    #[inline]
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule {
        self(ip, scratch)
    }

    fn image(&self, _: u64) -> Option<Image> {
        None
    }
}
