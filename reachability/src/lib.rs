//! Reachability of heap objects in another process: which objects its roots reach, and which of the
//! others, the lost ones, hold which.
//!
//! [`heap::Heap`] knows all objects: it reads their bounds from jemalloc's radix tree, from
//! outside. Starting from the words and ranges that are given as roots, [`mark::mark`] follows
//! every aligned word that is an address in an object, or whatever else counts as a pointer for
//! [`Pointers`]. [`lost::find`] lists the sampled objects that were not reached,
//! [`lost::Found::excuse`] treats some of them as held, and [`causes::order`] says which of them
//! hold which others.
//!
//! # Guarantees
//! - All input is untrusted: counts, sizes, addresses and lists are bounded and checked. No input
//!   causes a panic, a hang, or memory use beyond a fixed fraction of the heap that it claims to
//!   describe.
//! - With the default [`Pointers`], an object is reached if a root or a reached object points to
//!   it, even into its middle.
//! - Nothing is written to the other process.
//!
//! # Callers must
//! - ensure that the memory does not change: it must be that of a stopped process, or of a copy.
//!   Otherwise an object that is reported as lost may not be;
//! - give all roots: what only other pointers lead to counts as lost.
//!
//! # Limits
//! - jemalloc 5.3.1 with 48-bit addresses, as built into the agent.
//! - Whether an unsampled object is allocated is known only from jemalloc's bitmaps, in which
//!   objects in thread caches count as allocated.
//! - Disguised pointers are not seen.

pub mod bits;
pub mod causes;
pub mod heap;
mod inside;
pub mod jemalloc;
pub mod lost;
pub mod mark;
pub mod memory;
pub mod object;
pub mod pages;
pub mod path;
pub mod pointers;
pub mod size;
#[cfg(test)]
mod synthetic;

pub use heap::Heap;
pub use memory::{Here, Memory, Place, ProcessMemory, Work};
pub use pointers::Pointers;
