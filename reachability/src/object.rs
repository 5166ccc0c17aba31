//! The header of each sampled object, before it or in a table, as the agent writes it
//! (`agent/src/object.rs`, `agent/src/headers.rs`).

use std::ops::Range;

use crate::memory::word_of;

/// Bytes of a header.
pub const HEADER: u64 = 16;
/// Bytes of the header's extension, which lies before it.
const EXTENSION: u64 = 16;
const EXTENDED: u32 = 1 << 31;
const IGNORED: u32 = 1 << 30;
const EXACT: u32 = 1 << 29;
/// What is in the size besides it.
const FLAGS: u32 = IGNORED | EXACT;
/// The farthest that an object begins behind its memory's start.
const MOST_OFFSET: u64 = 1 << 30;

/// The table, at the start of the range of sampled objects, has an entry for each this many bytes
/// of the range.
const UNIT: u64 = 1024;
/// Maximum number of bytes of an object whose header is there.
const MOST_FULL: u64 = 14 << 10;

/// Whether an object that fills memory of this size may have its header in the table.
#[must_use]
pub fn may_be_in_table(room: u64) -> bool {
    room <= MOST_FULL && room.is_multiple_of(UNIT)
}

/// Where the table's entry for an address in a range is.
#[must_use]
pub fn entry(range: &Range<u64>, at: u64) -> u64 {
    let index = at.wrapping_sub(range.start) / UNIT;
    range.start.wrapping_add(index.wrapping_mul(HEADER))
}

/// The table of a range.
#[must_use]
pub fn table(range: &Range<u64>) -> Range<u64> {
    range.start..entry(range, range.end)
}

/// The object that fills memory of `room` bytes at `base`, and has this header in the table. `None`:
/// there is none, or it has been freed.
#[must_use]
pub fn in_table(base: u64, room: u64, entry: [u8; 16]) -> Option<Sampled> {
    let header = Header::of([word_of(&entry[..8]), word_of(&entry[8..])]);
    let bytes = u64::from(header.size & !FLAGS);
    let is_here = header.size & EXTENDED == 0 && header.fits(bytes, 0, room);
    is_here.then(|| header.object(base, bytes))?
}

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
    /// Whether the program said that it is not a leak.
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
    find_by_words(base, room, |offset| {
        let bytes = peek(offset)?;
        Some([word_of(&bytes[..8]), word_of(&bytes[8..])])
    })
}

/// The same, where `peek` gives two words. It is part of what runs in a copy of the process, where
/// nothing but its own code is: it has no slices, which know how to panic, and calls nothing.
#[inline(always)]
pub(crate) fn find_by_words(
    base: u64,
    room: u64,
    mut peek: impl FnMut(u64) -> Option<[u64; 2]>,
) -> Option<Sampled> {
    let plain = Header::of(peek(0)?);
    let bytes = u64::from(plain.size & !FLAGS);
    if plain.size & EXTENDED == 0 && plain.fits(bytes, HEADER, room) {
        return plain.object(base.wrapping_add(HEADER), bytes);
    }
    // Behind an extension: 32 bytes from the start, or as far as it is aligned.
    let mut offset = HEADER + EXTENSION;
    while offset < room && offset <= MOST_OFFSET {
        let [bytes, align] = peek(offset.wrapping_sub(HEADER + EXTENSION))?;
        let header = Header::of(peek(offset.wrapping_sub(HEADER))?);
        let is_here = header.size & !FLAGS == EXTENDED
            && align.is_power_of_two()
            && offset == align.max(HEADER + EXTENSION)
            && header.fits(bytes, offset, room);
        if is_here {
            return header.object(base.wrapping_add(offset), bytes);
        }
        offset = offset.wrapping_mul(2);
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
    #[inline(always)]
    fn of([first, second]: [u64; 2]) -> Self {
        Self {
            size: first as u32,
            counted: (first >> 32) as u32,
            born: second as u32,
            weight: f32::from_bits((second >> 32) as u32),
        }
    }

    /// Whether an object of this many bytes at this offset has memory of this size.
    #[inline(always)]
    fn fits(&self, bytes: u64, offset: u64, room: u64) -> bool {
        // Finite, and 1 or more: no arithmetic, since the processor may be set to trap on a NaN
        // where this runs.
        if !(1.0_f32.to_bits()..f32::INFINITY.to_bits()).contains(&self.weight.to_bits()) {
            return false;
        }
        // Much of it may be left: objects shrink in place.
        bytes
            .checked_add(offset)
            .is_some_and(|needed| needed <= room)
    }

    #[inline(always)]
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

#[cfg(test)]
mod tests;
