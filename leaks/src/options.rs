//! Options of a search: its roots, and what counts as a pointer.

use reachability::{Heap, Memory, PointerRules, lost};

/// Options of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// True if thread stacks are roots.
    pub stacks: bool,
    /// True if thread-local variables are roots.
    pub thread_variables: bool,
    /// True if registers are roots.
    pub registers: bool,
    /// True if all other memory is a root: variables, mappings, words stored in the kernel.
    pub globals: bool,
    /// Alignment of pointers, in bytes: 1, 2, 4 or 8.
    pub alignment: usize,
    /// Maximum offset of a pointer into its object, in bytes; `None` if there is no limit.
    pub max_offset: Option<u64>,
    /// Number of upper bits of a word that are not part of the address.
    pub tag_bits: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            stacks: true,
            thread_variables: true,
            registers: true,
            globals: true,
            alignment: 8,
            max_offset: None,
            tag_bits: 0,
        }
    }
}

impl Options {
    /// Converts to the pointer options of a heap.
    pub fn pointers(&self, memory: &dyn Memory, heap: &Heap) -> PointerRules {
        let pointers = PointerRules::default()
            .aligned(self.alignment)
            .tagged(self.tag_bits);
        match self.max_offset {
            Some(max) => pointers.within(max, lost::starts(memory, heap)),
            None => pointers,
        }
    }
}
