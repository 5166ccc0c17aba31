//! The list of buckets: their sizes and stacks, which never change once a bucket is in the list.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use crate::{Error, Memory, hash, word, words};

/// Maximum number of buckets.
pub const MAX_BUCKETS: usize = 1 << 20;
/// Maximum number of words of all stacks together.
pub const MAX_STACK_WORDS: usize = 1 << 24;

/// Maximum number of words of a stack: Go's limit for `profstackdepth`.
const MAX_STACK_DEPTH: u64 = 1024;
/// Size of a bucket's header in bytes. It consists of the next bucket in the hash table, the next
/// in the list, type, hash, size of an object, and number of words of the stack. The stack follows.
const HEADER_BYTES: usize = 48;
/// Type of the buckets of the heap profile.
const MEMORY: u64 = 1;
/// Maximum size of an object: the size of the address space.
const MAX_OBJECT_BYTES: u64 = 1 << 48;

/// Bucket in the list.
#[derive(Debug)]
pub struct ListedBucket {
    /// Address.
    pub at: u64,
    /// Size of an object in bytes.
    pub size: u64,
    /// Index range of the stack in [`BucketList::stacks`].
    pub stack: Range<usize>,
}

impl ListedBucket {
    /// Returns the address of the counts, which follow the stack.
    pub fn counts(&self) -> u64 {
        self.at + HEADER_BYTES as u64 + 8 * self.stack.len() as u64
    }
}

/// All buckets.
#[derive(Debug, Default)]
pub struct BucketList {
    /// Buckets, the newest first.
    pub buckets: Vec<ListedBucket>,
    /// Return addresses of all stacks.
    pub stacks: Vec<u64>,
}

impl BucketList {
    /// Reads the list. `head` is the address of the variable that points to the first bucket.
    pub fn read(memory: &impl Memory, head: u64) -> Result<Self, Error> {
        let memory = Blocks::of(memory);
        let mut list = Self::default();
        let mut seen = HashSet::new();
        let mut at = word(&memory, head)?;
        let mut bytes = vec![0; 8 * MAX_STACK_DEPTH as usize];
        while at != 0 {
            let damaged = |why| Error::Damaged { at, why };
            if list.buckets.len() == MAX_BUCKETS {
                return Err(Error::TooLarge);
            }
            if !at.is_multiple_of(8) {
                return Err(damaged("its address is not aligned"));
            }
            if !seen.insert(at) {
                return Err(damaged("the list leads back to it"));
            }
            let mut header = [0; HEADER_BYTES];
            read_all(&memory, at, &mut header)?;
            let mut header = words(&header).skip(1);
            let mut field = || header.next().unwrap_or_default();
            let [next, kind, hash, size, depth] = std::array::from_fn(|_| field());
            if kind != MEMORY {
                return Err(damaged("it has another type"));
            }
            if depth > MAX_STACK_DEPTH || size > MAX_OBJECT_BYTES {
                return Err(damaged("its stack or its size is too large"));
            }
            let first = list.stacks.len();
            let end = first + depth as usize;
            if end > MAX_STACK_WORDS {
                return Err(Error::TooLarge);
            }
            let stack = &mut bytes[..8 * depth as usize];
            read_all(&memory, at.wrapping_add(HEADER_BYTES as u64), stack)?;
            list.stacks.extend(words(stack));
            if hash::of(&list.stacks[first..end], size) != hash {
                return Err(damaged("its hash is not that of its stack"));
            }
            list.buckets.push(ListedBucket {
                at,
                size,
                stack: first..end,
            });
            at = next;
        }
        Ok(list)
    }
}

/// Reads all of `bytes`.
fn read_all(memory: &impl Memory, at: u64, bytes: &mut [u8]) -> Result<(), Error> {
    if memory.read(at, bytes) == bytes.len() {
        Ok(())
    } else {
        Err(Error::Unreadable(at))
    }
}

/// Size in bytes of the blocks in which memory is read. The runtime allocates buckets from pieces
/// of several blocks.
const BLOCK_BYTES: u64 = 16 << 10;
/// Maximum number of cached blocks. Each thread of the runtime allocates buckets from a piece of
/// its own.
const MAX_BLOCKS: usize = 256;

/// Memory that does not change, read in blocks.
struct Blocks<'m, M> {
    memory: &'m M,
    blocks: RefCell<HashMap<u64, Box<[u8]>>>,
}

impl<'m, M: Memory> Blocks<'m, M> {
    fn of(memory: &'m M) -> Self {
        Self {
            memory,
            blocks: RefCell::default(),
        }
    }
}

impl<M: Memory> Memory for Blocks<'_, M> {
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        let start = address & !(BLOCK_BYTES - 1);
        let offset = (address - start) as usize;
        let mut blocks = self.blocks.borrow_mut();
        if blocks.len() == MAX_BLOCKS && !blocks.contains_key(&start) {
            blocks.clear();
        }
        let block = blocks.entry(start).or_insert_with(|| {
            let mut block = vec![0; BLOCK_BYTES as usize];
            let read = self.memory.read(start, &mut block);
            block.truncate(read);
            block.into()
        });
        match block.get(offset..offset + bytes.len()) {
            Some(found) => {
                bytes.copy_from_slice(found);
                bytes.len()
            }
            // Beyond the block's end, or after an unreadable page of it.
            None => self.memory.read(address, bytes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{BASE, HEAD, Synthetic};

    fn failure(memory: &Synthetic) -> Error {
        BucketList::read(memory, HEAD).expect_err("no list")
    }

    fn why(memory: &Synthetic) -> &'static str {
        match failure(memory) {
            Error::Damaged { why, .. } => why,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn a_list_is_read_from_the_newest_bucket_to_the_oldest() {
        let mut memory = Synthetic::new();
        memory.add(64, &[0x401000, 0x402000]);
        memory.add(1 << 20, &[0x403000; 128]);
        memory.add(8, &[]);
        let list = BucketList::read(&memory, HEAD).expect("a list");
        let sizes: Vec<u64> = list.buckets.iter().map(|bucket| bucket.size).collect();
        assert_eq!(sizes, [8, 1 << 20, 64]);
        assert_eq!(list.stacks[128..], [0x401000, 0x402000]);
        assert_eq!(list.buckets[2].counts(), list.buckets[2].at + 64);
        let none = BucketList::read(&Synthetic::new(), HEAD).expect("an empty list");
        assert!(none.buckets.is_empty());
    }

    #[test]
    fn what_is_no_list_is_refused() {
        let bucket = |memory: &mut Synthetic| memory.add(64, &[0x401000]);
        let mut memory = Synthetic::new();
        let at = bucket(&mut memory);
        memory.set(at + 8, at);
        assert_eq!(why(&memory), "the list leads back to it");
        memory.set(at + 8, at + 1);
        assert_eq!(why(&memory), "its address is not aligned");
        for wild in [8, BASE - 8, u64::MAX - 7, 1 << 63] {
            memory.set(at + 8, wild);
            assert_eq!(failure(&memory), Error::Unreadable(wild));
        }
        for (field, value, reason) in [
            (16, 2, "it has another type"),
            (24, 7, "its hash is not that of its stack"),
            (32, u64::MAX, "its stack or its size is too large"),
            (40, 1025, "its stack or its size is too large"),
            (40, u64::MAX, "its stack or its size is too large"),
            (48, 0x401001, "its hash is not that of its stack"),
        ] {
            let mut memory = Synthetic::new();
            let at = bucket(&mut memory);
            memory.set(at + field, value);
            assert_eq!(why(&memory), reason, "{field}");
        }
    }

    #[test]
    fn buckets_across_blocks_and_beside_unreadable_memory_are_read() {
        let mut memory = Synthetic::new();
        for index in 0..2000 {
            memory.add(index, &[index; 30]);
        }
        let list = BucketList::read(&memory, HEAD).expect("a list");
        assert_eq!(list.buckets.len(), 2000);
        assert!(memory.reads() < 200, "{}", memory.reads());
    }
}
