//! Synthetic memory with buckets, for tests.

use std::cell::Cell;

use crate::{Memory, Variables, hash};

/// First readable address.
pub const BASE: u64 = 0xc0_0000_0000;
/// Address of `runtime.mbuckets`.
pub const HEAD: u64 = BASE;
/// Addresses of the variables.
pub const VARIABLES: Variables = Variables {
    buckets: HEAD,
    rate: BASE + 8,
    cycle: BASE + 16,
    lock: BASE + 24,
};

/// Words from [`BASE`] on.
pub struct Synthetic {
    words: Vec<u64>,
    /// Number of words that the counts of a bucket take.
    pub record_words: usize,
    reads: Cell<usize>,
}

impl Synthetic {
    /// Returns memory without buckets.
    pub fn new() -> Self {
        Self {
            words: vec![0; 4],
            record_words: 16,
            reads: Cell::new(0),
        }
    }

    /// Adds a bucket, whose counts are zero, and returns its address.
    pub fn add(&mut self, size: u64, stack: &[u64]) -> u64 {
        let at = BASE + 8 * self.words.len() as u64;
        let next = self.words[0];
        let hash = hash::of(stack, size);
        let header = [7, next, 1, hash, size, stack.len() as u64];
        self.words.extend(header.iter().chain(stack));
        self.words.resize(self.words.len() + self.record_words, 0);
        self.words[0] = at;
        at
    }

    /// Sets the counts of a bucket.
    pub fn count(&mut self, bucket: u64, counts: &[u64]) {
        let depth = self.words[((bucket - BASE) / 8) as usize + 5];
        for (index, &value) in (0..).zip(counts) {
            self.set(bucket + 48 + 8 * (depth + index), value);
        }
    }

    /// Sets a word.
    pub fn set(&mut self, at: u64, value: u64) {
        self.words[((at - BASE) / 8) as usize] = value;
    }

    /// Makes the last words unreadable.
    pub fn cut(&mut self, words: usize) {
        self.words.truncate(self.words.len() - words);
    }

    /// Returns how many times memory was read.
    pub fn reads(&self) -> usize {
        self.reads.get()
    }
}

impl Memory for Synthetic {
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        self.reads.set(self.reads.get() + 1);
        let all: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let Some(offset) = address.checked_sub(BASE) else {
            return 0;
        };
        let found = usize::try_from(offset)
            .ok()
            .and_then(|offset| all.get(offset..));
        let found = found.unwrap_or_default();
        let len = found.len().min(bytes.len());
        bytes[..len].copy_from_slice(&found[..len]);
        len
    }
}
