//! The stacks that were seen before, shared by all threads: a stack whose frames all have their
//! nodes already is interned by one lookup.
//!
//! Four-way set-associative; a set is one cache line, chosen by 13 bits of one hash of a stack. An
//! entry is its leaf, with 40 more of those bits and 64 of another hash, which begins with a random
//! number of the session and thread: entries of former sessions, and those that a forked child
//! inherits, are not found. The entry's words are stored one by one, the second hash combined with the
//! other word: what two threads have half written is not found.
//!
//! The cache only ever saves work. Of an entry that is found nothing is followed without a check.

use core::sync::atomic::{AtomicU64, Ordering};

const WAYS: usize = 4;
const SETS: usize = 8192;
const LEAF_BITS: u32 = 24;
const LEAF_MASK: u64 = (1 << LEAF_BITS) - 1;

/// What names a stack: two independent hashes of its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Key {
    /// As the tree wants it ([`Node::path`](crate::walk::Node::path)).
    pub path: u64,
    /// Of our own.
    pub check: u64,
}

impl Key {
    /// The second hash of the stack that `address` is called from this one.
    #[inline(always)]
    #[must_use]
    pub fn check_with(self, address: u64) -> u64 {
        const ODD: u64 = 0xD6E8_FEB8_6659_FD93;
        let mixed = (self.check ^ address).wrapping_mul(ODD);
        mixed ^ mixed >> 32
    }

    /// The part of `path` that an entry holds; the bits below choose its set.
    #[inline]
    fn tag(self) -> u64 {
        self.path & !LEAF_MASK
    }

    #[inline]
    fn set(self) -> usize {
        (self.path >> (LEAF_BITS - SETS.ilog2())) as usize % SETS
    }
}

/// `named` is the tag and the leaf; `checked` the second hash, combined with `named`.
#[repr(C)]
struct Entry {
    named: AtomicU64,
    checked: AtomicU64,
}

#[repr(C, align(64))]
struct Set([Entry; WAYS]);

/// 32,768 stacks, 512 KiB; zeroed memory is an empty one.
pub struct Seen {
    sets: [Set; SETS],
}

impl Seen {
    /// The leaf of a stack that was [put](Self::put) here.
    #[inline]
    #[must_use]
    pub fn get(&self, key: Key) -> Option<u32> {
        self.sets[key.set()].0.iter().find_map(|entry| {
            let checked = entry.checked.load(Ordering::Relaxed);
            let named = entry.named.load(Ordering::Relaxed);
            let found = checked ^ named == key.check && named & !LEAF_MASK == key.tag();
            (found && named & LEAF_MASK != 0).then_some((named & LEAF_MASK) as u32)
        })
    }

    /// Remembers a stack's leaf, in place of another if the set is full. Leaves that do not fit are
    /// left out, as is 0.
    pub fn put(&self, key: Key, leaf: u32) {
        let leaf = u64::from(leaf);
        if leaf > LEAF_MASK {
            return;
        }
        let set = &self.sets[key.set()].0;
        let is_free = |entry: &Entry| entry.named.load(Ordering::Relaxed) == 0;
        let victim = set
            .iter()
            .position(is_free)
            .unwrap_or((key.check >> 40) as usize % WAYS);
        let named = key.tag() | leaf;
        set[victim]
            .checked
            .store(key.check ^ named, Ordering::Relaxed);
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
        Key {
            path: number.wrapping_mul(0x9E37_79B9_7F4A_7C15),
            check: Key { path: 0, check: 7 }.check_with(number),
        }
    }

    #[test]
    fn a_stack_is_found_by_both_of_its_hashes_only() {
        let seen = seen();
        let key = key(1);
        assert_eq!(seen.get(key), None);
        seen.put(key, 4711);
        assert_eq!(seen.get(key), Some(4711));
        for bit in 0..64 {
            let check = key.check ^ 1 << bit;
            assert_eq!(seen.get(Key { check, ..key }), None, "{bit}");
        }
        for bit in LEAF_BITS - SETS.ilog2()..64 {
            let path = key.path ^ 1 << bit;
            assert_eq!(seen.get(Key { path, ..key }), None, "{bit}");
        }
    }

    #[test]
    fn an_empty_entry_is_no_stack() {
        let nothing = Key { path: 0, check: 0 };
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
        assert!(kept > 15500, "{kept}");
    }

    #[test]
    fn racing_writers_never_give_a_wrong_leaf() {
        let seen = seen();
        // All in a handful of sets, so that entries are replaced all the time.
        let numbers = (1u64..).filter(|number| key(*number).set() < 4).take(64);
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
