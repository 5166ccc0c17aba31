//! Synthetic memory for tests.

use crate::jemalloc::{Content, Extent, Map};
use crate::memory::Memory;

/// Bytes from an address on.
pub struct Bytes(pub u64, pub Vec<u8>);

impl Bytes {
    /// Writes a word.
    pub fn put(&mut self, at: u64, word: u64) {
        let at = (at - self.0) as usize;
        self.1[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Writes the header of a sampled object of this many bytes whose memory begins at an address.
    pub fn put_header(&mut self, at: u64, bytes: u32, weight: f32) {
        self.put(at, u64::from(bytes) | (7 << 8 | 1) << 32);
        self.put(at + 8, 99 | u64::from(weight.to_bits()) << 32);
    }
}

impl Memory for Bytes {
    fn read(&self, at: u64, buffer: &mut [u8]) -> usize {
        let offset = at.checked_sub(self.0).map(|offset| offset as usize);
        let Some(rest) = offset.and_then(|offset| self.1.get(offset..)) else {
            return 0;
        };
        let len = rest.len().min(buffer.len());
        buffer[..len].copy_from_slice(&rest[..len]);
        len
    }
}

/// A slab of 4 pages whose regions are all allocated.
pub fn slab(at: u64, size: u64) -> Extent {
    Extent {
        pages: at..at + 0x4000,
        content: Content::Slab(size, 0),
    }
}

/// One object.
pub fn large(at: u64, bytes: u64) -> Extent {
    Extent {
        pages: at & !4095..at + bytes,
        content: Content::Large(at, bytes),
    }
}

/// A map of extents.
pub fn map(extents: Vec<Extent>) -> Map {
    Map {
        extents,
        // The same for all slabs.
        free: vec![0; 8],
        ..Map::default()
    }
}
