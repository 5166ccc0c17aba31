//! Which objects of another process's heap can be reached from its roots, and what the rest, the
//! lost ones, hold.
//!
//! [`heap::Heap`] knows all objects: their bounds are read from jemalloc's radix tree, from
//! outside. [`mark::mark`] follows every aligned word that is an address in an object, or what else
//! [`Pointers`] take for one, from the words and ranges that are given as roots; [`lost::find`]
//! lists the sampled objects that it did not come to, [`lost::Found::excuse`] takes some of them
//! for kept, and [`causes::order`] says which of them keep which others.
//!
//! # Promises
//! - Everything read is hostile: counts, sizes, addresses and lists are bounded and checked. No
//!   input makes it panic, hang, or take more memory than a fixed part of the heap that it claims
//!   to describe.
//! - An object that a root or a reached object points to, into its middle too, is reached, if the
//!   [`Pointers`] are the default ones.
//! - Nothing is written to the other process.
//!
//! # Caller's duties
//! - The memory does not change meanwhile: it is that of a stopped process, or of a copy.
//!   Otherwise what is said to be lost may not be.
//! - All roots are given: a pointer that is kept where nobody looks makes what it leads to lost.
//!
//! # Limits
//! - jemalloc 5.3.1 with 48-bit addresses, as the agent has it inside.
//! - Whether an object that was not sampled is allocated is known only as far as jemalloc's
//!   bitmap tells, in which what lies in a thread's cache counts as allocated.
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
