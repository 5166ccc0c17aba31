//! A fast hash of pairs of numbers.

use std::hash::{BuildHasher, Hasher};

/// Hashes a pair of numbers by one multiplication. The numbers are our own
/// consecutive ones, so an attacker cannot choose colliding keys.
#[derive(Clone, Default)]
pub struct Mixer;

impl BuildHasher for Mixer {
    type Hasher = MixerState;

    fn build_hasher(&self) -> MixerState {
        MixerState(0)
    }
}

pub struct MixerState(u64);

impl Hasher for MixerState {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&b| self.write_u64(b.into()));
    }

    fn write_u64(&mut self, value: u64) {
        let wide = u128::from(value ^ self.0) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (wide >> 64) as u64 ^ wide as u64;
    }
}
