//! Interns addresses: each distinct 64-bit key gets the next index.

use std::hash::{BuildHasher, RandomState};

/// Index of an empty slot.
const EMPTY: u32 = u32::MAX;

/// Open-addressing map from 64-bit keys to consecutive indices.
///
/// Hashes with a random seed, so that hostile addresses cannot make lookups slow.
pub(crate) struct Interner {
    /// Keys with their indices. The length is a power of two.
    slots: Vec<(u64, u32)>,
    len: u32,
    seed: u64,
}

impl Interner {
    pub(crate) fn new() -> Self {
        let seed = RandomState::new().hash_one(0x5eed_u64) | 1;
        Self {
            slots: vec![(0, EMPTY); 1024],
            len: 0,
            seed,
        }
    }

    fn slot(&self, key: u64) -> usize {
        let wide = u128::from(key ^ self.seed) * u128::from(self.seed ^ 0x9e37_79b9_7f4a_7c15);
        ((wide >> 64) as u64 ^ wide as u64) as usize & (self.slots.len() - 1)
    }

    /// Returns the index of `key`, and whether it is new. Inlined, so that calls in a tight loop
    /// overlap their cache misses.
    #[inline]
    pub(crate) fn intern(&mut self, key: u64) -> (u32, bool) {
        let mask = self.slots.len() - 1;
        let mut at = self.slot(key);
        loop {
            let (slot_key, number) = self.slots[at];
            if number == EMPTY {
                break;
            }
            if slot_key == key {
                return (number, false);
            }
            at = (at + 1) & mask;
        }
        let number = self.len;
        self.slots[at] = (key, number);
        self.len += 1;
        if self.len as usize * 2 > self.slots.len() {
            self.grow();
        }
        (number, true)
    }

    fn grow(&mut self) {
        let doubled = vec![(0, EMPTY); self.slots.len() * 2];
        let old = std::mem::replace(&mut self.slots, doubled);
        let mask = self.slots.len() - 1;
        for (key, number) in old.into_iter().filter(|&(_, number)| number != EMPTY) {
            let mut at = self.slot(key);
            while self.slots[at].1 != EMPTY {
                at = (at + 1) & mask;
            }
            self.slots[at] = (key, number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_consecutive_and_stable_across_growth() {
        let mut interner = Interner::new();
        for key in 0..100_000u64 {
            assert_eq!(interner.intern(key << 12), (key as u32, true));
        }
        for key in 0..100_000u64 {
            assert_eq!(interner.intern(key << 12), (key as u32, false));
        }
        assert_eq!(interner.intern(u64::MAX), (100_000, true));
    }
}
