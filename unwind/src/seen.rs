//! The stacks that were seen before, shared by all threads: a stack whose frames all have their
//! nodes already is interned with one lookup.
//!
//! Four-way set-associative; a set is one cache line, chosen by 13 bits of a stack's hash. If it is
//! full, a stack may be in another set, chosen by 13 other bits. An entry is two words: the leaf
//! with 40 bits of the hash, and the whole hash combined with that. The hash depends on a random
//! number of the session and thread: entries of former sessions, and those that a forked child
//! inherits, are not found. The words are stored one by one; an entry that two threads have each
//! half written is not found.
//!
//! The cache only ever saves work. Nothing in an entry that is found is followed without a check.

// Decision 48: known stacks are found by a hash of all addresses.
use core::sync::atomic::{AtomicU64, Ordering};

const WAYS: usize = 4;
const SETS: usize = 8192;
const LEAF_BITS: u32 = 24;
const LEAF_MASK: u64 = (1 << LEAF_BITS) - 1;

/// What names a stack: a hash of its addresses and of where on the stack they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(transparent)]
pub struct Key(pub u64);

impl Key {
    /// What an entry holds beside its leaf; the bits below choose its set.
    #[inline]
    fn tag(self) -> u64 {
        self.0 & !LEAF_MASK
    }

    /// Its set, and the one that it is in if that was full.
    #[inline]
    fn sets(self) -> [usize; 2] {
        [LEAF_BITS - SETS.ilog2(), 40].map(|bit| (self.0 >> bit) as usize % SETS)
    }
}

/// `named` is the tag and the leaf; `checked` the hash, combined with `named`.
#[repr(C)]
struct Entry {
    named: AtomicU64,
    checked: AtomicU64,
}

#[repr(C, align(64))]
struct Set([Entry; WAYS]);

impl Set {
    #[inline]
    fn get(&self, key: Key) -> Option<u32> {
        self.0.iter().find_map(|entry| {
            let checked = entry.checked.load(Ordering::Relaxed);
            let named = entry.named.load(Ordering::Relaxed);
            let found = checked ^ named == key.0 && named & !LEAF_MASK == key.tag();
            (found && named & LEAF_MASK != 0).then_some((named & LEAF_MASK) as u32)
        })
    }

    /// An entry that was never used. They are taken in turn.
    fn free(&self) -> Option<usize> {
        let is_free = |entry: &Entry| entry.named.load(Ordering::Relaxed) == 0;
        self.0.iter().position(is_free)
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.0[WAYS - 1].named.load(Ordering::Relaxed) != 0
    }
}

/// 32,768 stacks, 512 KiB; zeroed memory is an empty one.
pub struct Seen {
    sets: [Set; SETS],
}

impl Seen {
    /// The leaf of a stack that was [put](Self::put) here.
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

    /// Remembers a stack's leaf, in place of another if both sets are full. Leaves that do not fit are
    /// left out, as is 0.
    pub fn put(&self, key: Key, leaf: u32) {
        let leaf = u64::from(leaf);
        if leaf > LEAF_MASK {
            return;
        }
        let [first, second] = key.sets().map(|set| &self.sets[set]);
        let is_second = first.is_full() && !second.is_full();
        let set = if is_second { second } else { first };
        let victim = set.free().unwrap_or((key.0 >> 60) as usize % WAYS);
        let set = &set.0;
        let named = key.tag() | leaf;
        set[victim].checked.store(key.0 ^ named, Ordering::Relaxed);
        set[victim].named.store(named, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn seen() -> Arc<Seen> {
        // SAFETY: all zero is a valid, empty cache.
        unsafe { Arc::<Seen>::new_zeroed().assume_init() }
    }

    fn key(number: u64) -> Key {
        let mixed = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        Key((mixed ^ mixed >> 32).wrapping_mul(0xD6E8_FEB8_6659_FD93))
    }

    #[test]
    fn a_stack_is_found_by_all_of_its_hash_only() {
        let seen = seen();
        let key = key(1);
        assert_eq!(seen.get(key), None);
        seen.put(key, 4711);
        assert_eq!(seen.get(key), Some(4711));
        for bit in 0..64 {
            assert_eq!(seen.get(Key(key.0 ^ 1 << bit)), None, "{bit}");
        }
    }

    #[test]
    fn an_empty_entry_is_no_stack() {
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
        // All in a handful of sets, so that entries are replaced all the time.
        let numbers = (1u64..)
            .filter(|number| key(*number).sets()[0] < 4)
            .take(64);
        let numbers: std::vec::Vec<u64> = numbers.collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (seen, numbers) = (&seen, &numbers);
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
