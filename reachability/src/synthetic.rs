//! Synthetic memory for tests.

use shm_protocol::header::{self, FirstWord, SecondWord};

use crate::jemalloc::{Content, Extent, Map};
use crate::memory::Memory;

/// Pseudo-weight for an overwritten header.
pub const OVERWRITTEN: f32 = -1.0;

/// Returns the header words of the object at `object` (see [`Bytes::put_header_of`]).
pub fn header_words(object: u64, bytes: u32, weight: f32) -> [u64; 2] {
    let mut words = Bytes(0, vec![0; 16]);
    words.put_header_of(0, object, bytes, weight);
    [0, 8].map(|at| words.word(at).unwrap_or(0))
}

/// Memory that starts at an address.
pub struct Bytes(pub u64, pub Vec<u8>);

impl Bytes {
    /// Writes a word.
    pub fn put(&mut self, at: u64, word: u64) {
        let at = (at - self.0) as usize;
        self.1[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    /// Writes a header at an address, for a sampled object of this many bytes that follows it.
    pub fn put_header(&mut self, at: u64, bytes: u32, weight: f32) {
        self.put_header_of(at, at + 16, bytes, weight);
    }

    /// Writes the header of the object at `object`. If the weight is 0, the object has been freed;
    /// if it is [`OVERWRITTEN`], the header is invalid.
    pub fn put_header_of(&mut self, at: u64, object: u64, bytes: u32, weight: f32) {
        let counted = FirstWord {
            record: 7,
            session: 1,
            bytes: u64::from(bytes),
            ignored: false,
            exact: false,
            extended: false,
        };
        self.put(at, header::first_word(&counted, object));
        let second = match weight {
            0.0 => header::freed_word(object),
            OVERWRITTEN => {
                self.put(at, 0x7a7a_7a7a_7a7a_7a7a);
                0x7a7a_7a7a_7a7a_7a7a
            }
            _ => header::second_word(SecondWord { weight, born: 99 }, object),
        };
        self.put(at + 8, second);
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

/// Returns a slab of 4 pages whose regions are all allocated.
pub fn slab(at: u64, size: u64) -> Extent {
    Extent {
        pages: at..at + 0x4000,
        content: Content::Slab(size, 0),
    }
}

/// Returns an extent with one object.
pub fn large(at: u64, bytes: u64) -> Extent {
    Extent {
        pages: at & !4095..at + bytes,
        content: Content::Large(at, bytes),
    }
}

/// Returns a map of extents.
pub fn map(extents: Vec<Extent>) -> Map {
    Map {
        extents,
        // All slabs share these words.
        free: vec![0; 8],
        ..Map::default()
    }
}
