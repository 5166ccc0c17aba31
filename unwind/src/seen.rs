//! Table of stacks that were seen before, shared by all threads: a known stack is interned with one
//! lookup instead of one per frame.
//!
//! Four-way set-associative: 13 bits of a stack's hash choose the set, which is one cache line. If
//! that set is full, 13 other bits choose a second one. An entry is two words: the leaf with 40
//! bits of the hash, and the whole hash XORed with the first word. The hash depends on a random
//! number of the session and thread, so entries of earlier sessions and those inherited by a forked
//! child do not match. The two words are stored separately. If two threads write the same entry,
//! and each writes only one word of the result, the entry does not match either.
//!
//! Entries may be lost or replaced, and a hash can collide: callers check what they find.

// Decision 48: known stacks are found by a hash of all addresses.
use core::sync::atomic::{AtomicU64, Ordering};

const WAYS: usize = 4;
const SETS: usize = 8192;
const LEAF_BITS: u32 = 24;
const LEAF_MASK: u64 = (1 << LEAF_BITS) - 1;

/// Hash of a stack's addresses and of their positions on the stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Key(pub u64);

impl Key {
    /// Returns the bits that an entry stores with its leaf. The bits below them choose the set.
    #[inline]
    fn tag(self) -> u64 {
        self.0 & !LEAF_MASK
    }

    /// Returns the indices of the first set and of the one used when that is full.
    #[inline]
    fn sets(self) -> [usize; 2] {
        [LEAF_BITS - SETS.ilog2(), 40].map(|bit| (self.0 >> bit) as usize % SETS)
    }
}

/// Table entry; zero if free.
#[repr(C)]
struct Entry {
    /// Tag of the key, and the leaf in the lowest [`LEAF_BITS`].
    tagged_leaf: AtomicU64,
    /// Key XOR `tagged_leaf`.
    checked: AtomicU64,
}

#[repr(C, align(64))]
struct Set([Entry; WAYS]);

impl Set {
    #[inline]
    fn get(&self, key: Key) -> Option<u32> {
        self.0.iter().find_map(|entry| {
            let checked = entry.checked.load(Ordering::Relaxed);
            let tagged_leaf = entry.tagged_leaf.load(Ordering::Relaxed);
            let found = checked ^ tagged_leaf == key.0 && tagged_leaf & !LEAF_MASK == key.tag();
            (found && tagged_leaf & LEAF_MASK != 0).then_some((tagged_leaf & LEAF_MASK) as u32)
        })
    }

    /// Returns the first entry that was never used. Entries are used in order.
    fn free(&self) -> Option<usize> {
        let is_free = |entry: &Entry| entry.tagged_leaf.load(Ordering::Relaxed) == 0;
        self.0.iter().position(is_free)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.0[WAYS - 1].tagged_leaf.load(Ordering::Relaxed) != 0
    }
}

/// Table of 32,768 stacks, 512 KiB. Zeroed memory is an empty table.
pub struct SeenStacks {
    sets: [Set; SETS],
}

impl SeenStacks {
    /// Returns the leaf of a stack that was [stored](Self::put).
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key) -> Option<u32> {
        let [first, second] = key.sets();
        self.sets[first].get(key).or_else(|| {
            self.sets[first]
                .is_full()
                .then(|| self.sets[second].get(key))?
        })
    }

    /// Stores a stack's leaf, in place of another if both sets are full. Ignores 0 and leaves of
    /// more than 24 bits.
    pub fn put(&self, key: Key, leaf: u32) {
        let leaf = u64::from(leaf);
        if leaf > LEAF_MASK {
            return;
        }
        let [first, second] = key.sets().map(|set| &self.sets[set]);
        let use_second = first.is_full() && !second.is_full();
        let set = if use_second { second } else { first };
        let victim = set.free().unwrap_or((key.0 >> 60) as usize % WAYS);
        let set = &set.0;
        let tagged_leaf = key.tag() | leaf;
        set[victim]
            .checked
            .store(key.0 ^ tagged_leaf, Ordering::Relaxed);
        set[victim]
            .tagged_leaf
            .store(tagged_leaf, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn seen() -> Arc<SeenStacks> {
        // SAFETY: zeroed memory is a valid, empty table.
        unsafe { Arc::<SeenStacks>::new_zeroed().assume_init() }
    }

    fn key(number: u64) -> Key {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Key((mixed ^ (mixed >> 32)).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    #[test]
    fn a_stack_is_found_only_by_its_complete_hash() {
        let seen = seen();
        let key = key(1);
        assert_eq!(seen.get(key), None);
        seen.put(key, 4711);
        assert_eq!(seen.get(key), Some(4711));
        for bit in 0..64 {
            assert_eq!(seen.get(Key(key.0 ^ (1 << bit))), None, "{bit}");
        }
    }

    #[test]
    fn an_empty_entry_is_not_a_stack() {
        let nothing = Key(0);
        assert_eq!(seen().get(nothing), None);
    }

    #[test]
    fn sixteen_thousand_stacks_fit_with_few_losses() {
        let seen = seen();
        for number in 1..=16384 {
            seen.put(key(number), number as u32);
        }
        let found = |number: &u64| seen.get(key(*number)) == Some(*number as u32);
        let kept = (1..=16384).filter(found).count();
        assert!(kept > 16300, "{kept}");
    }

    #[test]
    fn racing_writers_never_give_a_wrong_leaf() {
        let seen = seen();
        // All keys fall into a few sets, so that entries are replaced all the time.
        let numbers = (1u64..)
            .filter(|number| key(*number).sets()[0] < 4)
            .take(64);
        let numbers: std::vec::Vec<u64> = numbers.collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let seen = &seen;
                let numbers = &numbers;
                scope.spawn(move || {
                    for i in 0..200_000usize {
                        let number = numbers[(i * 7 + thread * 13) % numbers.len()];
                        let leaf = (number % 1_000_003) as u32 + 1;
                        match seen.get(key(number)) {
                            Some(found) => assert_eq!(found, leaf),
                            None => seen.put(key(number), leaf),
                        }
                    }
                });
            }
        });
    }
}
