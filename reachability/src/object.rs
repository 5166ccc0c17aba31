//! The header before each sampled object, as the agent writes it (`agent/src/object.rs`).

use crate::memory::word_of;

/// Bytes of a header.
pub const HEADER: u64 = 16;
/// Bytes of the header's extension, which lies before it.
const EXTENSION: u64 = 16;
const EXTENDED: u32 = 1 << 31;
const IGNORED: u32 = 1 << 30;
/// The farthest that an object begins behind its memory's start.
const MOST_OFFSET: u64 = 1 << 30;

/// A sampled object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Its address.
    pub at: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Record in which it was counted.
    pub record: u32,
    /// Lowest 8 bits of its session's number.
    pub session: u8,
    /// Objects that it stands for.
    pub weight: f32,
    /// Birth: the clock's tick.
    pub born: u32,
    /// Whether the program said that it is no leak.
    pub ignored: bool,
}

/// The object in memory of `room` bytes at `base`; `peek` gives 16 bytes at an offset in it.
/// `None`: there is none, or it has been freed.
#[must_use]
pub fn find(
    base: u64,
    room: u64,
    mut peek: impl FnMut(u64) -> Option<[u8; 16]>,
) -> Option<Sampled> {
    let plain = header(&peek(0)?);
    let bytes = u64::from(plain.size & !IGNORED);
    if plain.size & EXTENDED == 0 && plain.fits(bytes, HEADER, room) {
        return plain.object(base + HEADER, bytes);
    }
    // Behind an extension: 32 bytes from the start, or as far as it is aligned.
    let mut offset = HEADER + EXTENSION;
    while offset < room && offset <= MOST_OFFSET {
        let (extension, header) = (peek(offset - 32)?, header(&peek(offset - 16)?));
        let (bytes, align) = (word_of(&extension[..8]), word_of(&extension[8..]));
        let is_here = header.size & !IGNORED == EXTENDED
            && align.is_power_of_two()
            && offset == align.max(HEADER + EXTENSION)
            && header.fits(bytes, offset, room);
        if is_here {
            return header.object(base + offset, bytes);
        }
        offset *= 2;
    }
    None
}

struct Header {
    size: u32,
    counted: u32,
    born: u32,
    weight: f32,
}

impl Header {
    /// Whether an object of so many bytes at this offset has memory of this size.
    fn fits(&self, bytes: u64, offset: u64, room: u64) -> bool {
        if !self.weight.is_finite() || self.weight < 1.0 {
            return false;
        }
        // Much of it may be left: objects shrink in place.
        bytes
            .checked_add(offset)
            .is_some_and(|needed| needed <= room)
    }

    fn object(&self, at: u64, bytes: u64) -> Option<Sampled> {
        Some(Sampled {
            at,
            bytes,
            record: self.counted >> 8,
            session: self.counted as u8,
            weight: self.weight,
            born: self.born,
            ignored: self.size & IGNORED != 0,
        })
    }
}

fn header(bytes: &[u8; 16]) -> Header {
    let half = |at: usize| (word_of(&bytes[at / 8 * 8..]) >> (at % 8 * 8)) as u32;
    Header {
        size: half(0),
        counted: half(4),
        born: half(8),
        weight: f32::from_bits(half(12)),
    }
}

#[cfg(test)]
mod tests;
