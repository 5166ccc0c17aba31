//! What a walker needs from outside: where stacks are interned, and the rules of the walked code.

// Decision 30: a node's slot follows from its path's hash.
#[cfg(doc)]
use super::ADDRESS_BITS;
use crate::compile::Scratch;
use crate::elf::Image;
use crate::rule::Rule;
use crate::seen::Key;

/// A node of a [`Tree`], as the tree names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// What the tree wants to be given with it, for example a hash of the node's path.
    pub path: u64,
}

impl From<u32> for Node {
    /// For trees that need the number alone.
    fn from(id: u32) -> Self {
        Self { id, path: 0 }
    }
}

/// Where walked stacks are interned, as return addresses with their module's instance
/// above [`ADDRESS_BITS`].
pub trait Tree {
    /// The node above all complete stacks; the same as long as a walker remembers its last one.
    fn root(&self) -> Node;
    /// The node above all truncated stacks, likewise.
    fn truncated(&self) -> Node;
    /// The node of `address` under `parent`; `None` when there is no room.
    fn child(&self, parent: Node, address: u64) -> Option<Node>;
    /// Told for each frame of a stack, outermost first, before [`child`](Self::child) is requested
    /// them: a tree may prefetch what it will need. The path of the child of `address` under a node
    /// with this path.
    fn expect(&self, path: u64, _address: u64) -> u64 {
        path
    }
    /// The leaf of a stack that was seen before, if that is known. What was interned for its
    /// innermost frame has the lower [`ADDRESS_BITS`] of `address`.
    fn seen(&self, _stack: Key, _address: u64) -> Option<u32> {
        None
    }
    /// Notes a stack's leaf.
    fn see(&self, _stack: Key, _leaf: u32) {}
    /// A number of the tree's own, which all keys depend on.
    fn salt(&self) -> u64 {
        0
    }
}

/// Where the walked code's rules come from.
pub trait Code {
    /// The rule of a return address.
    fn rule(&self, ip: u64, scratch: &mut Scratch) -> Rule;
    /// The image that contains a return address, for the rare frame that takes the slow path;
    /// `None`: such frames end the stack.
    fn image(&self, ip: u64) -> Option<Image>;
    /// Runs code that reads images, which stay mapped meanwhile; `None`: not possible right now.
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
