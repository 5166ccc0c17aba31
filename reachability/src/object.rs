//! Reads the headers of sampled objects, which the agent writes before each object or to a table
//! (`agent/src/object.rs`, `agent/src/headers.rs`).

use std::ops::Range;

use shm_protocol::header;

use crate::memory::word_of;

/// Size of a header in bytes.
pub const HEADER: u64 = header::HEADER as u64;
/// Distance from the start of an extension to its object.
const EXTENSION_DISTANCE: u64 = header::EXTENSION_DISTANCE as u64;
/// Maximum offset in bytes of an object in its region.
const MAX_OFFSET_BYTES: u64 = 1 << 30;

/// Returns true if an object that fills memory of this size may have its header in the table.
#[must_use]
pub fn may_be_in_table(room: u64) -> bool {
    header::is_table_class(room as usize)
}

/// Returns the address of the header table's entry for an object at `at` in the range of sampled
/// objects.
#[must_use]
pub fn entry(range: &Range<u64>, at: u64) -> u64 {
    let offset = header::entry_offset(at.wrapping_sub(range.start) as usize);
    range.start.wrapping_add(offset as u64)
}

/// Returns the header table, which is at the start of the range of sampled objects.
#[must_use]
pub fn table(range: &Range<u64>) -> Range<u64> {
    range.start..entry(range, range.end)
}

/// Returns the object that fills `room` bytes at `base` and has this header in the table, or `None`
/// if there is none or it has been freed.
#[must_use]
pub fn in_table(base: u64, room: u64, entry: [u8; 16]) -> Option<Sampled> {
    let words = [word_of(&entry[..8]), word_of(&entry[8..])];
    intact(words, base, 0, room)
}

/// Sampled object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampled {
    /// Address.
    pub at: u64,
    /// Requested bytes.
    pub bytes: u64,
    /// Record in which it was counted.
    pub record: u32,
    /// Lowest 8 bits of its session's number.
    pub session: u8,
    /// Number of objects that it stands for; 0 if unknown because its header was overwritten.
    pub weight: f32,
    /// Tick at which it was allocated; 0 if the weight is 0.
    pub born: u32,
    /// True if the program declared that the object is not a leak.
    pub ignored: bool,
}

/// Returns the object in memory of `room` bytes at `base`, or `None` if there is none or it has
/// been freed. `peek` reads 16 bytes at an offset in the memory.
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
    .object()
}

/// Returns the content of memory of `room` bytes at `base`. `peek` reads 16 bytes at an offset in
/// the memory.
#[must_use]
pub fn content(base: u64, room: u64, mut peek: impl FnMut(u64) -> Option<[u8; 16]>) -> Content {
    find_by_words(base, room, |offset| {
        let bytes = peek(offset)?;
        Some([word_of(&bytes[..8]), word_of(&bytes[8..])])
    })
}

/// Content of memory that may have a sampled object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Content {
    /// An object, whose header may have been overwritten in part.
    Object(Sampled),
    /// No object: it has been freed, or there never was one.
    Nothing,
    /// No valid header: it was overwritten, or there is no object yet and the memory has earlier
    /// contents.
    Unknown,
}

impl Content {
    /// Returns the object, if there is one.
    #[must_use]
    pub fn object(self) -> Option<Sampled> {
        match self {
            Self::Object(object) => Some(object),
            Self::Nothing | Self::Unknown => None,
        }
    }
}

/// Like [`content`], but `peek` reads two words. Also runs in a copy of the process, without this
/// program's libraries (see [`crate::memory::Work`]). So it calls no functions, and uses no slices,
/// whose bounds checks call the panic handler.
#[inline(always)]
pub(crate) fn find_by_words(
    base: u64,
    room: u64,
    mut peek: impl FnMut(u64) -> Option<header::Words>,
) -> Content {
    let Some(words) = peek(0) else {
        return Content::Nothing;
    };
    let at = base.wrapping_add(HEADER);
    if let Some(object) = intact(words, at, HEADER, room) {
        return Content::Object(object);
    }
    let is_nothing = words[1] == 0 || header::is_freed(words[1], at);
    // An object with an extension starts at an offset of 32 bytes, or of its alignment if that is
    // larger.
    let mut offset = EXTENSION_DISTANCE;
    while offset < room && offset <= MAX_OFFSET_BYTES {
        let at = base.wrapping_add(offset);
        let Some(extension) = peek(offset.wrapping_sub(EXTENSION_DISTANCE)) else {
            break;
        };
        let Some(words_before) = peek(offset.wrapping_sub(HEADER)) else {
            break;
        };
        if header::is_freed(words_before[1], at) {
            return Content::Nothing;
        }
        if let Some((bytes, align)) = header::read_extension(extension, at)
            && offset == header::extended_offset(align as usize) as u64
            && let Some(object) = extended(words_before, bytes, at, offset, room)
        {
            return Content::Object(object);
        }
        offset = offset.wrapping_mul(2);
    }
    if is_nothing {
        return Content::Nothing;
    }
    match half_overwritten(words, at, room) {
        Some(object) => Content::Object(object),
        None => Content::Unknown,
    }
}

/// Returns the object at `at`, `offset` bytes after the start of its region, if its header is
/// intact and has no extension.
#[inline(always)]
fn intact(words: header::Words, at: u64, offset: u64, room: u64) -> Option<Sampled> {
    let first = header::read_first_word(words[0], at)?;
    let second = header::read_second_word(words[1], at)?;
    let is_here = !first.extended && has_room(first.bytes, offset, room);
    is_here.then_some(sampled(&first, first.bytes, second, at))
}

/// Returns the object at `at` if its extension is intact.
#[inline(always)]
fn extended(words: header::Words, bytes: u64, at: u64, offset: u64, room: u64) -> Option<Sampled> {
    let first = header::read_first_word(words[0], at)?;
    let second = header::read_second_word(words[1], at).unwrap_or(UNKNOWN);
    let is_here = first.extended && has_room(bytes, offset, room);
    is_here.then_some(sampled(&first, bytes, second, at))
}

/// Returns the object at `at` if at least the first word of its header is intact.
#[inline(always)]
fn half_overwritten(words: header::Words, at: u64, room: u64) -> Option<Sampled> {
    let first = header::read_first_word(words[0], at)?;
    let is_here = !first.extended && has_room(first.bytes, HEADER, room);
    is_here.then_some(sampled(&first, first.bytes, UNKNOWN, at))
}

/// Weight and birth of an object whose header was overwritten.
const UNKNOWN: header::SecondWord = header::SecondWord {
    weight: 0.0,
    born: 0,
};

/// Returns true if memory of `room` bytes has room for an object of this size at this offset. Much
/// of the memory may be unused, because objects shrink in place.
#[inline(always)]
fn has_room(bytes: u64, offset: u64, room: u64) -> bool {
    bytes
        .checked_add(offset)
        .is_some_and(|needed| needed <= room)
}

#[inline(always)]
fn sampled(first: &header::FirstWord, bytes: u64, second: header::SecondWord, at: u64) -> Sampled {
    Sampled {
        at,
        bytes,
        record: first.record,
        session: first.session,
        weight: second.weight,
        born: second.born,
        ignored: first.ignored,
    }
}

#[cfg(test)]
mod tests;
