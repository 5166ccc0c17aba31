//! Where a search starts, and what it follows.

use reachability::{Heap, Memory, Pointers, lost};

/// Options of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Whether stacks of threads are roots.
    pub stacks: bool,
    /// Whether thread-local variables are roots.
    pub thread_variables: bool,
    /// Whether registers of threads are roots.
    pub registers: bool,
    /// Whether all other roots are: variables, mappings, what the kernel keeps.
    pub globals: bool,
    /// Multiples of bytes at which pointers lie: 1, 2, 4 or 8.
    pub alignment: usize,
    /// How far into an object a pointer may lead; `None`: to its end.
    pub most_offset: Option<u64>,
    /// Bits of a word, the uppermost ones, that are not of its address.
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
            most_offset: None,
            tag_bits: 0,
        }
    }
}

impl Options {
    /// What counts as a pointer, in a heap.
    pub fn pointers(&self, memory: &dyn Memory, heap: &Heap) -> Pointers {
        let pointers = Pointers::default()
            .aligned(self.alignment)
            .tagged(self.tag_bits);
        match self.most_offset {
            Some(most) => pointers.within(most, lost::starts(memory, heap)),
            None => pointers,
        }
    }
}
