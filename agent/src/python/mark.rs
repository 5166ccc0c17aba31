//! What tells a code object from another one that is made at its address.

use super::layout::{self, Layout};
use super::memory::{half, word};
use super::objects::{self, Read};

/// Words of a code object, of its name and of its table of lines, as they were when it was read.
///
/// They are compared with what is there now, at every frame of every sample, since a code object
/// may die and another one take its place between two of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Mark {
    name: u64,
    lines: u64,
    file: u64,
    /// The first line, and the version above: no two code objects of an interpreter have the same
    /// version, if it is not 0 (from 3.12 on).
    own: u64,
    /// The name's hash by the interpreter; where that made none (as of `Class.method`, which nobody
    /// looks up), our own of its characters.
    hash: u64,
    /// How the table of lines begins.
    first: u64,
    /// Length of that table, and of the name.
    size: u32,
    length: u32,
    /// What the characters of the name are, if they are not ASCII; else 0.
    state: u64,
    /// Of an ASCII name that the interpreter has no hash of: its characters, where they fit.
    text: [u64; 4],
}

/// Lengths of names whose characters are kept.
const KEPT: core::ops::RangeInclusive<u32> = 8..=32;

/// What a string has in the place of its hash before it is asked for.
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
        // SAFETY: so many words, without padding.
        unsafe { core::mem::transmute(self) }
    }

    /// Of its words.
    #[inline]
    pub fn from_words(words: [u64; Self::WORDS]) -> Self {
        // SAFETY: so many words, all of whose values are valid.
        unsafe { core::mem::transmute(words) }
    }

    /// The mark of what was read at an address.
    ///
    /// # Safety
    /// It was read there, and stays meanwhile ([`objects::code`]).
    pub unsafe fn of(layout: &Layout, at: u64, read: &Read) -> Self {
        let (name, length) = (read.name.at, read.name.length as u32);
        let state = other_state(layout, read.name.state);
        let mut text = [0; 4];
        // SAFETY: the caller's; what was read before was found readable.
        unsafe {
            let hash = word(name + layout.more + layout::HASH);
            if hash == NO_HASH && state == 0 && KEPT.contains(&length) {
                text = characters(name + layout.ascii, length);
            }
            Self {
                name,
                lines: read.lines,
                file: read.file,
                own: own(layout, at),
                hash: match hash {
                    NO_HASH if state == 0 => ascii(name + layout.ascii, length),
                    NO_HASH => others(layout, name, length, state),
                    hash => hash,
                },
                first: word(read.lines + layout.more + layout::BYTES),
                size: read.size as u32,
                length,
                state,
                text,
            }
        }
    }

    /// The version that the code object has itself, and where its name is.
    #[inline]
    pub fn version(&self) -> (u64, u32) {
        (self.name, (self.own >> 32) as u32)
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
        unsafe {
            let (name, version) = self.version();
            // The layout is a constant where it has none.
            if layout.version != 0 && version != 0 {
                // Of its interpreter's, no other one has it; the name tells interpreters apart.
                return half(at + layout.version) == version && word(at + layout.name) == name;
            }
            let same = own(layout, at) == self.own
                && word(at + layout.name) == self.name
                && word(at + layout.lines) == self.lines
                && word(at + layout.file) == self.file;
            if !same {
                return false;
            }
            let same = half(self.lines + layout.more + layout::SIZE) == self.size
                && word(self.lines + layout.more + layout::BYTES) == self.first;
            if self.text[0] != 0 {
                return same && self.holds_text(layout);
            }
            let hash = word(self.name + layout.more + layout::HASH);
            same && (hash == self.hash || hash == NO_HASH && self.holds_characters(layout))
        }
    }

    /// The same where the name's characters are kept: ASCII, of such a length.
    ///
    /// # Safety
    /// As [`holds`](Self::holds): the name's address is the same.
    #[inline(always)]
    unsafe fn holds_text(&self, layout: &Layout) -> bool {
        let (name, length) = (self.name, self.length);
        // SAFETY: the caller's. So many characters take no fewer bytes than if they are ASCII.
        unsafe {
            if half(name + layout.more + layout::LENGTH) != length {
                return false;
            }
            let at = name + layout.ascii;
            let end = at + u64::from(length);
            let [first, second, third, last] = self.text;
            let outer = (word(at) ^ first) | (word(end - 8) ^ last);
            match length {
                16.. => outer | (word(at + 8) ^ second) | (word(end - 16) ^ third) == 0,
                _ => outer == 0,
            }
        }
    }

    /// The same of other names.
    ///
    /// # Safety
    /// As [`holds`](Self::holds): the name's address is the same.
    #[inline(never)]
    unsafe fn holds_characters(&self, layout: &Layout) -> bool {
        let (name, length) = (self.name, self.length);
        // SAFETY: the caller's. So many characters take no fewer bytes than if they are ASCII; as
        // others they are read only if they are of the same kind.
        unsafe {
            if half(name + layout.more + layout::LENGTH) != length {
                return false;
            }
            if self.state == 0 {
                return ascii(name + layout.ascii, length) == self.hash;
            }
            other_state(layout, word(name + layout.more + layout::KIND)) == self.state
                && others(layout, name, length, self.state) == self.hash
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
    match objects::form(layout, state) {
        Some((head, 1)) if head == layout.ascii => 0,
        _ => state | 1 << 32,
    }
}

/// A name's ASCII characters: how it begins and how it ends, which is all of it.
///
/// # Safety
/// So many bytes can be read, eight at least.
#[inline(always)]
unsafe fn characters(at: u64, length: u32) -> [u64; 4] {
    let end = at + u64::from(length);
    // SAFETY: the caller's.
    unsafe {
        match length {
            16.. => [word(at), word(at + 8), word(end - 16), word(end - 8)],
            _ => [word(at), 0, 0, word(end - 8)],
        }
    }
}

/// A hash of a name's ASCII characters.
///
/// # Safety
/// So many bytes, and what terminates them, can be read.
#[inline(never)]
unsafe fn ascii(at: u64, length: u32) -> u64 {
    let length = u64::from(length);
    // SAFETY: the caller's; of fewer than eight bytes, a word at a multiple of eight.
    unsafe {
        match length {
            0..8 => word(at) & !(u64::MAX << (8 * length)),
            8..=16 => mix(word(at), word(at + length - 8)),
            17..=32 => {
                let first = mix(word(at), word(at + 8));
                mix(mix(first, word(at + length - 16)), word(at + length - 8))
            }
            _ => bytes(at, length.min(objects::MAX_NAME)),
        }
    }
}

/// A hash of a name's other characters.
///
/// # Safety
/// A string of such characters is there.
#[cold]
unsafe fn others(layout: &Layout, name: u64, length: u32, state: u64) -> u64 {
    let length = u64::from(length).min(objects::MAX_NAME);
    match objects::form(layout, state & 0xffff_ffff) {
        // SAFETY: the caller's.
        Some((head, width)) => unsafe { bytes(name + head, length * width) },
        None => 0,
    }
}

/// # Safety
/// So many bytes can be read.
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
