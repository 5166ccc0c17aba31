//! The heap profile that Go's runtime keeps of itself, read from the memory of a running process.
//!
//! The runtime samples allocations, one in `MemProfileRate` bytes on average, and counts them by
//! stack and size in *buckets*, a linked list from `runtime.mbuckets`. What it counts becomes the
//! *published* profile at the end of each garbage collection, so that objects that only wait to be
//! collected are not in it. This is what `runtime.MemProfile` returns, and what is read here.
//!
//! # Guarantees
//! - Nothing is written, and memory is read through the caller's [`Memory`] only.
//! - Any contents give a [`Heap`] or an [`Error`]: no panic, no endless list, no allocation beyond
//!   [`MAX_BUCKETS`] and [`MAX_STACK_WORDS`]. A list is accepted only if each bucket has the hash
//!   of its stack and size, so another structure is not mistaken for it.
//! - The counts of all buckets are of one garbage collection, unless [`Heap::is_mixed`].
//!
//! # Callers must
//! - expect that the process may end during the call, which looks like unreadable memory.
//!
//! # Limits
//! 64-bit little-endian programs of Go 1.19 to 1.27, built by Go's own compiler.

mod buckets;
mod hash;
mod published;
#[cfg(test)]
mod synthetic;

pub use buckets::{MAX_BUCKETS, MAX_STACK_WORDS};

use std::ops::Range;

use buckets::BucketList;
use published::Published;

/// Memory of a process.
pub trait Memory {
    /// Reads up to the first unreadable byte. Returns the number of bytes read.
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize;
}

/// Addresses of variables of Go's runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variables {
    /// `runtime.mbuckets`: the first bucket.
    pub buckets: u64,
    /// `runtime.MemProfileRate`: the mean distance of samples, in bytes.
    pub rate: u64,
    /// `runtime.mProfCycle`: the number of the garbage collection.
    pub cycle: u64,
    /// `runtime.profMemActiveLock`, which is held while counts are published.
    pub lock: u64,
}

/// Heap profile of a process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Heap {
    /// `runtime.MemProfileRate`: 0 if nothing is sampled, 1 if everything is.
    pub rate: i64,
    /// Allocations by stack and size; the newest bucket is first.
    pub buckets: Vec<Bucket>,
    /// Return addresses of all stacks.
    stacks: Vec<u64>,
    /// True if no garbage collection has ended yet, so that nothing is published and the counts are
    /// the current ones.
    pub is_first: bool,
    /// True if the runtime was publishing whenever the counts were read, so that those of some
    /// buckets may be of an earlier garbage collection.
    pub is_mixed: bool,
}

impl Heap {
    /// Returns the return addresses of a bucket's stack, innermost first. An inlined function has
    /// an address of its own, in the code of the function that it was inlined into.
    pub fn stack(&self, bucket: &Bucket) -> &[u64] {
        self.stacks.get(bucket.stack.clone()).unwrap_or_default()
    }
}

/// Sampled allocations of one size and stack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bucket {
    /// Size of an object in bytes.
    pub size: u64,
    /// Number of sampled objects that were allocated.
    pub allocated: u64,
    /// Number of these that were freed.
    pub freed: u64,
    /// Index range of the stack in [`Heap::stacks`].
    stack: Range<usize>,
}

/// Reason why there is no heap profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Memory that the list leads to cannot be read.
    #[error("its memory at {0:#x} cannot be read")]
    Unreadable(u64),
    /// The list of buckets is not one.
    #[error("what is at {at:#x} is not a bucket of Go's heap profile: {why}")]
    Damaged {
        /// Address of the supposed bucket.
        at: u64,
        /// Fault of that bucket.
        why: &'static str,
    },
    /// There are more buckets than [`MAX_BUCKETS`], or longer stacks than [`MAX_STACK_WORDS`].
    #[error("Go's heap profile has more than {MAX_BUCKETS} stacks, or {MAX_STACK_WORDS} frames")]
    TooLarge,
}

/// Reads the heap profile of a process.
///
/// # Errors
/// The memory cannot be read, or does not contain the data of a Go runtime.
pub fn read(memory: &impl Memory, variables: &Variables) -> Result<Heap, Error> {
    let rate = word(memory, variables.rate)? as i64;
    let list = BucketList::read(memory, variables.buckets)?;
    let published = Published::read(memory, variables, &list)?;
    let mut heap = Heap {
        rate,
        buckets: Vec::with_capacity(list.buckets.len()),
        stacks: list.stacks,
        is_first: published.is_first,
        is_mixed: published.is_mixed,
    };
    for (bucket, counts) in list.buckets.into_iter().zip(published.counts) {
        // If the runtime published counts while they were read, they may have been added twice.
        let is_torn = heap.is_mixed && counts.freed > counts.allocated;
        if !is_torn && counts.freed > counts.allocated || counts.allocated > i64::MAX as u64 {
            return Err(Error::Damaged {
                at: bucket.at,
                why: "it has freed more objects than it has allocated",
            });
        }
        heap.buckets.push(Bucket {
            size: bucket.size,
            allocated: counts.allocated,
            freed: counts.freed.min(counts.allocated),
            stack: bucket.stack,
        });
    }
    Ok(heap)
}

/// Reads the word at an address.
fn word(memory: &impl Memory, at: u64) -> Result<u64, Error> {
    let mut bytes = [0; 8];
    if memory.read(at, &mut bytes) == bytes.len() {
        Ok(u64::from_le_bytes(bytes))
    } else {
        Err(Error::Unreadable(at))
    }
}

/// Returns the little-endian words of `bytes`.
fn words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes
        .as_chunks()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word))
}
