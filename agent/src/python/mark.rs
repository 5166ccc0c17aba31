//! What distinguishes a code object from another one created at its address.

use super::layout::{self, Layout};
use super::memory::{half, word};
use super::objects::Read;
use super::pair::{Pair, Same};
use cpython::MOST_NAME;
use cpython::text::form;
use unwind::probe;

/// Words of a code object, of its name and of its table of lines, as they were when it was read.
///
/// They are compared with what is there now, at every frame of every sample, since a code object
/// may die and another one take its place between two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mark {
    /// Where its name and its table of lines are.
    parts: Pair,
    /// The first line, and the version above: no two code objects of an interpreter have the same
    /// version, if it is not 0 (from 3.12 on). Where its file is.
    own: Pair,
    /// Length of the table of lines, and how it begins.
    lines: Pair,
    /// The name's length, and its hash by the interpreter, which may have made none (as of
    /// `Class.method`, which is never looked up).
    name: Pair,
    /// For a name without a hash, how it begins and how it ends, which is all of it; or a hash of
    /// ours.
    text: [Pair; 2],
    /// What the characters of the name are, if they are not ASCII; else 0. Where the end begins, or
    /// one of the two below.
    form: Pair,
}

/// Where the end of a name begins: it has a hash, or ours is compared.
const HASHED: u64 = u64::MAX;
const OTHERS: u64 = u64::MAX - 1;

/// Lengths of names whose characters are kept.
const KEPT: core::ops::RangeInclusive<u64> = 8..=32;

/// What a string has in place of its hash before that is computed.
const NO_HASH: u64 = u64::MAX;

const SPREAD: u64 = 0x9E37_79B9_7F4A_7C15;

#[inline(always)]
pub fn mix(hash: u64, word: u64) -> u64 {
    (hash.rotate_left(23) ^ word).wrapping_mul(SPREAD)
}

impl Mark {
    /// Number of its words.
    pub const WORDS: usize = size_of::<Self>() / 8;

    /// Its words.
    #[inline]
    pub fn words(self) -> [u64; Self::WORDS] {
        // SAFETY: this many words, without padding.
        unsafe { core::mem::transmute(self) }
    }

    /// Of its words.
    #[inline]
    pub fn from_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: this many words, all of whose values are valid.
        unsafe { core::mem::transmute(words) }
    }

    /// The mark of what was read at an address.
    ///
    /// # Safety
    /// It was read there, and stays meanwhile ([`objects::code`]).
    pub unsafe fn of(layout: &Layout, at: u64, read: &Read) -> Self {
        let (name, length) = (read.name.at, read.name.length);
        let state = other_state(layout, read.name.state);
        // SAFETY: the caller's; what was read before was found readable.
        unsafe {
            let hash = word(name + layout.more + layout::HASH);
            let (text, end) = match hash {
                NO_HASH if state == 0 && is_kept(layout, name, length) => {
                    let end = length.saturating_sub(16);
                    (characters(name + layout.ascii, end), end)
                }
                NO_HASH => {
                    let hash = all_characters(layout, name, length, state);
                    ([Pair(hash, 0), Pair(0, 0)], OTHERS)
                }
                _ => (Default::default(), HASHED),
            };
            Self {
                parts: Pair(name, read.lines),
                own: Pair(own(layout, at), read.file),
                lines: Pair(
                    u64::from(read.size as u32),
                    word(read.lines + layout.more + layout::BYTES),
                ),
                name: Pair(length, hash),
                text,
                form: Pair(state, end),
            }
        }
    }

    /// The version that the code object has itself, and where its name is.
    #[inline]
    pub fn version(&self) -> (u64, u32) {
        (self.parts.0, (self.own.0 >> 32) as u32)
    }

    /// Whether what is at an address is still the code object that this is the mark of. What its
    /// words lead to is followed only if they are the same.
    ///
    /// # Safety
    /// The code object with this mark was at the address, and a frame of the running thread holds
    /// what is there now.
    #[inline(always)]
    pub unsafe fn holds(&self, layout: &Layout, at: u64) -> bool {
        // SAFETY: the caller's.
        unsafe { self.holds_with(layout, at, Same::so_far()) }
    }

    /// The same, and whether what was compared before is what it was.
    ///
    /// # Safety
    /// As of [`holds`](Self::holds).
    #[inline(always)]
    pub unsafe fn holds_with(&self, layout: &Layout, at: u64, same: Same) -> bool {
        // SAFETY: the caller's.
        unsafe {
            let (name, version) = self.version();
            // The layout is a constant where it has none.
            if layout.version != 0 && version != 0 {
                // No other one of its interpreter has it; the name distinguishes interpreters.
                return half(at + layout.version) == version
                    && word(at + layout.name) == name
                    && same.holds();
            }
            let same = same
                .and_both(at + layout.name, at + layout.lines, &self.parts)
                .and(own(layout, at), word(at + layout.file), &self.own);
            if !same.holds() {
                return false;
            }
            let lines = self.parts.1 + layout.more;
            let (size, first) = (half(lines + layout::SIZE), word(lines + layout::BYTES));
            let same = Same::so_far()
                .and(u64::from(size), first, &self.lines)
                .and_at(name + layout.more + layout::LENGTH, &self.name);
            let (end, text) = (self.form.1, name + layout.ascii);
            if end < OTHERS {
                // At a time: they are in the page where the name begins, however long it is now.
                let same = same.and_at(text, &self.text[0]);
                return same.and_at(text + end, &self.text[1]).holds();
            }
            same.holds() && (end == HASHED || self.holds_characters(layout))
        }
    }

    /// The same for names whose characters are not kept.
    ///
    /// # Safety
    /// As [`holds`](Self::holds): the name's address and length are the same.
    #[inline(never)]
    unsafe fn holds_characters(&self, layout: &Layout) -> bool {
        let (name, length, state) = (self.parts.0, self.name.0, self.form.0);
        // SAFETY: the caller's. This many characters take no fewer bytes than if they are ASCII; as
        // others they are read only if they are of the same kind.
        unsafe {
            (state == 0 || other_state(layout, word(name + layout.more + layout::KIND)) == state)
                && all_characters(layout, name, length, state) == self.text[0].0
        }
    }
}

/// # Safety
/// A code object is there.
#[inline(always)]
unsafe fn own(layout: &Layout, at: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        let version = match layout.version {
            0 => 0,
            version => half(at + version),
        };
        u64::from(half(at + layout.first_line)) | u64::from(version) << 32
    }
}

/// What a name says of its characters, unless they are ASCII.
#[inline]
fn other_state(layout: &Layout, state: u64) -> u64 {
    let state = state & 0xffff_ffff;
    match form(layout, state) {
        Some((head, 1)) if head == layout.ascii => 0,
        _ => state | 1 << 32,
    }
}

/// Whether a name's characters are few enough to be kept, and in the page where it begins.
fn is_kept(layout: &Layout, name: u64, length: u64) -> bool {
    KEPT.contains(&length) && name % probe::PAGE + layout.ascii + length.max(16) <= probe::PAGE
}

/// A name's ASCII characters: how it begins, and how it ends.
///
/// # Safety
/// They are eight at least, and sixteen more than `end` if that is not 0.
#[inline]
unsafe fn characters(at: u64, end: u64) -> [Pair; 2] {
    // SAFETY: the caller's; of fewer than sixteen, up to the end of the word that terminates them.
    let pair = |at: u64| unsafe { Pair(word(at), word(at + 8)) };
    [pair(at), pair(at + end)]
}

/// A hash of all characters of a name.
///
/// # Safety
/// A string of this many such characters is there.
unsafe fn all_characters(layout: &Layout, name: u64, length: u64, state: u64) -> u64 {
    // SAFETY: the caller's.
    unsafe {
        match state {
            0 => ascii(name + layout.ascii, length),
            _ => others(layout, name, length, state),
        }
    }
}

/// A hash of a name's ASCII characters.
///
/// # Safety
/// This many bytes, and what terminates them, can be read.
#[inline(never)]
unsafe fn ascii(at: u64, length: u64) -> u64 {
    // SAFETY: the caller's; of fewer than eight bytes, a word at a multiple of eight.
    unsafe {
        match length {
            0..8 => word(at) & !(u64::MAX << (8 * length)),
            8..=16 => mix(word(at), word(at + length - 8)),
            17..=32 => {
                let first = mix(word(at), word(at + 8));
                mix(mix(first, word(at + length - 16)), word(at + length - 8))
            }
            _ => bytes(at, length.min(MOST_NAME)),
        }
    }
}

/// A hash of a name's other characters.
///
/// # Safety
/// A string of such characters is there.
#[cold]
unsafe fn others(layout: &Layout, name: u64, length: u64, state: u64) -> u64 {
    let length = length.min(MOST_NAME);
    match form(layout, state & 0xffff_ffff) {
        // SAFETY: the caller's.
        Some((head, width)) => unsafe { bytes(name + head, length * width) },
        None => 0,
    }
}

/// # Safety
/// This many bytes can be read.
#[inline(never)]
unsafe fn bytes(at: u64, count: u64) -> u64 {
    // SAFETY: the caller's.
    let bytes = unsafe { core::slice::from_raw_parts(at as *const u8, count as usize) };
    bytes.chunks(8).fold(0, |hash, chunk| {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        mix(hash, u64::from_le_bytes(word))
    })
}
