//! Hash tables keyed by addresses and other integers, with a multiplication as the hash.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Hasher that multiplies, which is good enough for addresses and small numbers.
#[derive(Clone, Copy, Default)]
pub struct Mixer(u64);

impl Hasher for Mixer {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(u64::from(byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        let mixed = (self.0.rotate_left(5) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = mixed ^ (mixed >> 32);
    }
}

/// Hash table keyed by integers.
pub type IntMap<K, V> = HashMap<K, V, BuildHasherDefault<Mixer>>;
