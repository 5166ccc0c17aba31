//! Finds which objects of another process's heap can be reached from its roots, and what the
//! others, the lost ones, hold.
//!
//! [`heap::Heap`] knows all objects: their bounds are read from jemalloc's radix tree, from
//! outside. From the words and ranges that are given as roots, [`mark::mark`] follows every aligned
//! word that is an address in an object, or whatever else counts as one for [`Pointers`];
//! [`lost::find`] lists the sampled objects that it did not reach, [`lost::Found::excuse`] treats
//! some of them as kept, and [`causes::order`] says which of them keep which others.
//!
//! # Promises
//! - Everything read is treated as hostile: counts, sizes, addresses and lists are bounded and
//!   checked. No input makes it panic, hang, or take more memory than a fixed fraction of the heap
//!   that it claims to describe.
//! - With the default [`Pointers`], an object that a root or a reached object points to, even into
//!   its middle, is reached.
//! - Nothing is written to the other process.
//!
//! # Caller's duties
//! - The memory does not change meanwhile: it is that of a stopped process, or of a copy. Otherwise
//!   an object that is reported as lost may not be.
//! - All roots are given: what only a pointer outside them leads to counts as lost.
//!
//! # Limits
//! - jemalloc 5.3.1 with 48-bit addresses, as built into the agent.
//! - Whether an unsampled object is allocated is known only from jemalloc's bitmap, in which
//!   objects in a thread's cache count as allocated.
//! - Pointers that a program disguises are not seen.

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
