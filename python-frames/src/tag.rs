//! Version tag of a code object, which distinguishes it from one created later at the same address.
//!
//! The code object that a frame runs may be freed between two samples, and another one allocated in
//! its place. So its tag is compared at every frame of every sample. From 3.12 on, most code
//! objects have a version number, which is enough. For others, the tag has a few words each of
//! their name, file, first line and line table.

use super::compare::{Comparison, Pair};
use super::layout::{self, Layout};
use super::memory::{read_u32, read_word};
use super::objects::CodeObject;
use cpython::MAX_NAME;
use cpython::text::{StringLayout, string_layout};
use unwind::probe;

/// Words of a code object, its name and its line table, as first read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct CodeTag {
    /// Addresses of the name and of the line table.
    parts: Pair,
    /// First word: first line, with the version in the upper half (3.12 and later; unique in one
    /// interpreter; 0 if it has none). Second word: address of the file name.
    line_and_file: Pair,
    /// Length of the line table in bytes, and its first word.
    lines: Pair,
    /// Length of the name, and the hash that the interpreter caches in the string. It has none
    /// for names that are never looked up, such as `Class.method`.
    name: Pair,
    /// For a name without a cached hash: its first and last 16 bytes, which cover all of it, or a
    /// hash that we compute.
    text: [Pair; 2],
    /// First word: character width and kind of the name; 0 for ASCII. Second word: offset of the
    /// last 16 bytes, or [`HASHED`], or [`HASHED_BY_US`].
    form: Pair,
}

/// Instead of an offset in `form`: the interpreter has hashed the name.
const HASHED: u64 = u64::MAX;
/// Instead of an offset in `form`: `text` has a hash of the name that we computed.
const HASHED_BY_US: u64 = u64::MAX - 1;

/// Lengths of names, in bytes, whose characters are stored rather than hashed.
const STORED_LENGTHS: core::ops::RangeInclusive<u64> = 8..=32;

/// Value of a string's cached hash before it is computed.
const NO_HASH: u64 = u64::MAX;

/// Odd multiplier near 2^64 divided by the golden ratio, which spreads bits upwards.
const MULTIPLIER: u64 = 0x9E37_79B9_7F4A_7C15;

/// Adds a word to a hash.
#[inline(always)]
pub fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(MULTIPLIER)
}

impl CodeTag {
    /// Size in words.
    pub const WORDS: usize = size_of::<Self>() / 8;

    /// Converts the tag into words.
    #[inline]
    pub fn words(self) -> [u64; Self::WORDS] {
        // SAFETY: a tag consists of this many words, without padding.
        unsafe { core::mem::transmute(self) }
    }

    /// Converts words back into a tag.
    #[inline]
    pub fn from_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: a tag is this many words, and any value of them is valid.
        unsafe { core::mem::transmute(words) }
    }

    /// Returns the tag of a code object that was read.
    ///
    /// # Safety
    /// `read` was read from address `at`, and the code object stays alive during the call
    /// (`objects::read_code`).
    pub unsafe fn of(layout: &Layout, at: u64, read: &CodeObject) -> Self {
        let name = read.name.at;
        let length = read.name.length;
        let state = non_ascii_state(layout, read.name.state);
        // SAFETY: the code object and its parts stay alive, and were found readable when they were
        // read.
        unsafe {
            let hash = read_word(name + layout.extra_header_bytes + layout::STRING_HASH_OFFSET);
            let (text, last) = match hash {
                NO_HASH if state == 0 && is_storable(layout, name, length) => {
                    let last = length.saturating_sub(16);
                    (first_and_last(name + layout.ascii_header_bytes, last), last)
                }
                NO_HASH => {
                    let hash = hash_characters(layout, name, length, state);
                    ([Pair(hash, 0), Pair(0, 0)], HASHED_BY_US)
                }
                _ => (Default::default(), HASHED),
            };
            Self {
                parts: Pair(name, read.lines),
                line_and_file: Pair(line_and_version(layout, at), read.file),
                lines: Pair(
                    u64::from(read.size as u32),
                    read_word(
                        read.lines + layout.extra_header_bytes + layout::BYTES_CONTENT_OFFSET,
                    ),
                ),
                name: Pair(length, hash),
                text,
                form: Pair(state, last),
            }
        }
    }

    /// Returns the address of the name, and the code object's own version (0: none).
    #[inline]
    pub fn version(&self) -> (u64, u32) {
        (self.parts.0, (self.line_and_file.0 >> 32) as u32)
    }

    /// Returns true if the code object at an address still has this tag. Its pointers are followed
    /// only after they were found unchanged.
    ///
    /// # Safety
    /// A code object with this tag was at the address before, and a frame of the running thread
    /// keeps alive what is there now.
    #[inline(always)]
    pub unsafe fn matches(&self, layout: &Layout, at: u64) -> bool {
        // SAFETY: the code object had this tag, and is kept alive by a frame of the running thread.
        unsafe { self.matches_and(layout, at, Comparison::new()) }
    }

    /// Like [`matches`](Self::matches), but also requires that an earlier comparison was equal.
    ///
    /// # Safety
    /// See [`matches`](Self::matches).
    #[inline(always)]
    pub unsafe fn matches_and(&self, layout: &Layout, at: u64, same: Comparison) -> bool {
        // SAFETY: the code object is alive. Its name and line table are read only after their
        // addresses were found unchanged; then it keeps them alive, too.
        unsafe {
            let (name, version) = self.version();
            // Known at compile time to be false for layouts without versions.
            if layout.version != 0 && version != 0 {
                // Versions are unique in one interpreter; the name tells interpreters apart.
                return read_u32(at + layout.version) == version
                    && read_word(at + layout.name) == name
                    && same.is_equal();
            }
            let same = same
                .and_both(at + layout.name, at + layout.lines, &self.parts)
                .and(
                    line_and_version(layout, at),
                    read_word(at + layout.file),
                    &self.line_and_file,
                );
            if !same.is_equal() {
                return false;
            }
            let lines = self.parts.1 + layout.extra_header_bytes;
            let size = read_u32(lines + layout::BYTES_SIZE_OFFSET);
            let first = read_word(lines + layout::BYTES_CONTENT_OFFSET);
            let same = Comparison::new()
                .and(u64::from(size), first, &self.lines)
                .and_at(
                    name + layout.extra_header_bytes + layout::STRING_LENGTH_OFFSET,
                    &self.name,
                );
            let last = self.form.1;
            let text = name + layout.ascii_header_bytes;
            if last < HASHED_BY_US {
                // Both pairs are compared without a branch in between: they lie in the page where
                // the name begins, whatever its length is now.
                let same = same.and_at(text, &self.text[0]);
                return same.and_at(text + last, &self.text[1]).is_equal();
            }
            same.is_equal() && (last == HASHED || self.matches_characters(layout))
        }
    }

    /// Compares our hash of a name whose characters are not stored.
    ///
    /// # Safety
    /// See [`matches`](Self::matches). In addition, the name's address and length are unchanged.
    #[inline(never)]
    unsafe fn matches_characters(&self, layout: &Layout) -> bool {
        let name = self.parts.0;
        let length = self.name.0;
        let state = self.form.0;
        // SAFETY: the code object keeps the name alive. A string of this length has at least as
        // many bytes as if it were ASCII; wider characters are read only if its kind is unchanged.
        unsafe {
            let is_same_kind = state == 0
                || non_ascii_state(
                    layout,
                    read_word(name + layout.extra_header_bytes + layout::STRING_STATE_OFFSET),
                ) == state;
            is_same_kind && hash_characters(layout, name, length, state) == self.text[0].0
        }
    }
}

/// Returns the first word of [`CodeTag::line_and_file`]: first line and version.
///
/// # Safety
/// `at` is the address of a readable code object.
#[inline(always)]
unsafe fn line_and_version(layout: &Layout, at: u64) -> u64 {
    // SAFETY: the code object is readable.
    unsafe {
        let version = match layout.version {
            0 => 0,
            version => read_u32(at + version),
        };
        u64::from(read_u32(at + layout.first_line)) | (u64::from(version) << 32)
    }
}

/// Returns a string's state word if its characters are not ASCII, and 0 if they are.
#[inline]
fn non_ascii_state(layout: &Layout, state: u64) -> u64 {
    let state = state & 0xffff_ffff;
    let ascii = StringLayout {
        header_bytes: layout.ascii_header_bytes,
        character_bytes: 1,
    };
    if string_layout(layout, state) == Some(ascii) {
        0
    } else {
        state | (1 << 32)
    }
}

/// Returns true if a name is short enough to be stored and lies in the page where it begins.
fn is_storable(layout: &Layout, name: u64, length: u64) -> bool {
    let end = name % probe::PAGE + layout.ascii_header_bytes + length.max(16);
    STORED_LENGTHS.contains(&length) && end <= probe::PAGE
}

/// Returns the first and the last 16 bytes of an ASCII name.
///
/// # Safety
/// The name has at least 8 bytes, and at least `last + 16` if `last`, the offset of the last 16
/// bytes, is not 0.
#[inline]
unsafe fn first_and_last(at: u64, last: u64) -> [Pair; 2] {
    // SAFETY: names of fewer than 16 bytes are read to the end of the word that has their
    // terminating zero.
    let pair = |at: u64| unsafe { Pair(read_word(at), read_word(at + 8)) };
    [pair(at), pair(at + last)]
}

/// Returns a hash of all characters of a name.
///
/// # Safety
/// `name` is the address of a readable string with this length and state.
unsafe fn hash_characters(layout: &Layout, name: u64, length: u64, state: u64) -> u64 {
    // SAFETY: the string is readable, and `state` tells how wide its characters are.
    unsafe {
        match state {
            0 => hash_ascii(name + layout.ascii_header_bytes, length),
            _ => hash_non_ascii(layout, name, length, state),
        }
    }
}

/// Returns a hash of an ASCII name.
///
/// # Safety
/// `length` bytes and the terminating zero are readable.
#[inline(never)]
unsafe fn hash_ascii(at: u64, length: u64) -> u64 {
    // SAFETY: `length` bytes are readable. Names of fewer than 8 bytes are read as one aligned
    // word.
    unsafe {
        match length {
            0..8 => read_word(at) & !(u64::MAX << (8 * length)),
            8..=16 => mix(read_word(at), read_word(at + length - 8)),
            17..=32 => {
                let first = mix(read_word(at), read_word(at + 8));
                mix(
                    mix(first, read_word(at + length - 16)),
                    read_word(at + length - 8),
                )
            }
            _ => hash_bytes(at, length.min(MAX_NAME)),
        }
    }
}

/// Returns a hash of a name that is not ASCII.
///
/// # Safety
/// `name` is the address of a readable string with this length and state.
#[cold]
unsafe fn hash_non_ascii(layout: &Layout, name: u64, length: u64, state: u64) -> u64 {
    let length = length.min(MAX_NAME);
    let Some(string) = string_layout(layout, state & 0xffff_ffff) else {
        return 0;
    };
    let count = length * string.character_bytes;
    // SAFETY: characters of this width follow the head of the string.
    unsafe { hash_bytes(name + string.header_bytes, count) }
}

/// Returns a hash of bytes.
///
/// # Safety
/// `count` bytes at `at` are readable.
#[inline(never)]
unsafe fn hash_bytes(at: u64, count: u64) -> u64 {
    // SAFETY: the bytes are readable and belong to a string, which does not change.
    let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, count as usize) };
    bytes.chunks(8).fold(0, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash, u64::from_le_bytes(word))
    })
}
