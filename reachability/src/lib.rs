//! Reachability of heap objects in another process: which objects its roots reach, and how the
//! unreached (lost) objects hold each other.
//!
//! [`heap::Heap`] contains the bounds of all objects, which it reads from jemalloc's radix tree,
//! from outside. Starting from the words and ranges that are given as roots, [`mark::mark`] follows
//! every word that counts as a pointer by [`PointerRules`]: by default, every aligned word that is
//! an address in an object. [`lost::find`] lists the sampled objects that were not reached,
//! [`lost::Unreached::excuse`] treats some of them as roots, and [`causes::classify`] determines
//! which of them are lost only because others are.
//!
//! [`glibc`] reads the heap of glibc's allocator, for the memory of processes without the agent.
//!
//! # Guarantees
//! - All input is untrusted: counts, sizes, addresses and lists are bounded and checked. No input
//!   causes a panic, a hang, or memory use beyond a fixed fraction of the heap that it claims to
//!   describe.
//! - With the default [`PointerRules`], an object is reached if a root or a reached object points
//!   to it, even into its middle.
//! - Nothing is written to the other process.
//!
//! # Callers must
//! - ensure that the memory does not change: it must belong to a stopped process or to a copy.
//!   Otherwise objects may be reported as lost that are not;
//! - pass all roots: objects that only other pointers lead to count as lost.
//!
//! # Limits
//! - jemalloc 5.3.1 with 48-bit addresses, as built into the agent.
//! - Whether an unsampled object is allocated is known only from jemalloc's bitmaps, in which
//!   freed objects in thread caches count as allocated.
//! - Disguised pointers (XORed or compressed, for example) are not recognised.

pub mod bits;
pub mod causes;
pub mod glibc;
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
pub use memory::{InPlace, Memory, ProcessMemory, Runner, Work};
pub use pointers::PointerRules;
