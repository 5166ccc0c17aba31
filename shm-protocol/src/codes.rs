//! Code objects of an interpreter: names, files and line tables of the functions that its frames
//! run.
//!
//! Interpreter frames have no machine code address. In the tree, such a frame is represented by the
//! index of its code object and the offset of the current instruction ([`address_of`]). Each code
//! object is written once, to the code area at the end of the bank. The agent commits memory there
//! in steps, so a program without an interpreter uses none. A code object never changes once its
//! first word is set.

use crate::sync::{AtomicU32, Ordering};

/// Lowest address of interpreter frames in the tree. No process has code there.
pub const INTERPRETED: u64 = 1 << 61;
/// Number of bits of the instruction offset.
const OFFSET_BITS: u32 = 28;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
/// Number of bits of the code object's index.
const CODE_BITS: u32 = 28;
/// Granularity in which the code area is committed, in bytes.
pub const CODE_STEP: usize = 64 << 10;
/// Maximum size of the code area in bytes.
pub const MAX_CODE_BYTES: usize = 16 << 20;

/// Index that stands for no code object; the instruction offset is then [`TABLE_FULL`] or
/// [`FRAMES_OMITTED`].
pub const NO_CODE: u32 = 0;
/// Instruction offset, with [`NO_CODE`], of frames whose code objects did not fit.
pub const TABLE_FULL: u32 = 0;
/// Instruction offset, with [`NO_CODE`], that stands for the omitted outer frames of a stack that
/// is too deep.
pub const FRAMES_OMITTED: u32 = 1;

/// Returns the address, in the tree, of the instruction at `offset` of a code object.
#[inline]
#[must_use]
pub const fn address_of(code: u32, offset: u32) -> u64 {
    INTERPRETED | ((code as u64) << OFFSET_BITS) | (offset as u64 & OFFSET_MASK)
}

/// Returns the code object's index and the instruction offset that an address in the tree stands
/// for, or `None` if it is an address of machine code.
#[inline]
#[must_use]
pub const fn frame_of(address: u64) -> Option<(u32, u32)> {
    if address >> (OFFSET_BITS + CODE_BITS) != INTERPRETED >> (OFFSET_BITS + CODE_BITS) {
        return None;
    }
    let code = (address >> OFFSET_BITS) & ((1 << CODE_BITS) - 1);
    Some((code as u32, (address & OFFSET_MASK) as u32))
}

/// Format of a code object's line table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LineTable {
    /// `co_lnotab` of CPython up to 3.9.
    Increments = 1,
    /// `co_linetable` of CPython 3.10 (PEP 626).
    Ranges = 2,
    /// `co_linetable` of CPython 3.11 and later.
    Locations = 3,
}

impl LineTable {
    /// Returns the format with this number, or `None` if there is none.
    #[must_use]
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Increments),
            2 => Some(Self::Ranges),
            3 => Some(Self::Locations),
            _ => None,
        }
    }
}

/// String of an interpreter: one code point for each character, in one, two or four bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Characters<'a> {
    /// Code points, little-endian.
    pub bytes: &'a [u8],
    /// Size of a character in bytes: 1, 2 or 4.
    pub width: u8,
}

/// Code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Qualified name of the function.
    pub name: Characters<'a>,
    /// Path of the source file.
    pub file: Characters<'a>,
    /// Line at which the function begins.
    pub first_line: u32,
    /// Line table: maps instruction offsets to lines.
    pub lines: &'a [u8],
    /// Format of `lines`.
    pub table: LineTable,
}

/// Size of a code object's header, in words.
const HEADER_WORDS: usize = 5;
/// Allocation unit in words. The index of a code object is its position in these units.
const UNIT_WORDS: usize = 2;
/// Maximum size of one code object in words: 4 MiB.
const MAX_CODE_WORDS: usize = 1 << 20;

/// Writer's view of a bank's code area.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    words: &'a [AtomicU32],
    used: &'a AtomicU32,
    reserved: &'a AtomicU32,
}

impl<'a> Codes<'a> {
    /// Returns a view of a code area, which is zeroed or already in use.
    #[must_use]
    pub fn new(words: &'a [AtomicU32], used: &'a AtomicU32, reserved: &'a AtomicU32) -> Self {
        Self {
            words,
            used,
            reserved,
        }
    }

    /// Returns the number of committed bytes.
    #[must_use]
    pub fn reserved(&self) -> usize {
        (self.reserved.load(Ordering::Acquire) as usize).min(self.words.len() * 4)
    }

    /// Records that the first `bytes` bytes are committed.
    pub fn reserve(&self, bytes: usize) {
        self.reserved.fetch_max(bytes as u32, Ordering::Release);
    }

    /// Returns the number of bytes that must be committed so that `code` fits, too.
    #[must_use]
    pub fn bytes_to_commit(&self, code: &Code<'_>) -> usize {
        let used = self.used.load(Ordering::Relaxed) as usize;
        ((UNIT_WORDS + used + size_in_words(code)) * 4).next_multiple_of(CODE_STEP)
    }

    /// Appends a code object and returns its index, or `None` if the committed part is full.
    #[must_use]
    pub fn add(&self, code: &Code<'_>) -> Option<u32> {
        let len = size_in_words(code);
        let room = (self.reserved() / 4).checked_sub(UNIT_WORDS)?;
        let claim = |used: u32| {
            let end = (used as usize).checked_add(len)?;
            (end <= room && len <= MAX_CODE_WORDS).then_some(end as u32)
        };
        let at = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .ok()? as usize
            + UNIT_WORDS;
        let words = self.words.get(at..at + len)?;
        let width = (u32::from(code.name.width) << 8) | (u32::from(code.file.width) << 16);
        let head = [
            code.first_line,
            code.table as u32 | width,
            code.name.bytes.len() as u32 | ((code.file.bytes.len() as u32) << 16),
            code.lines.len() as u32,
        ];
        for (word, value) in words[1..].iter().zip(head) {
            word.store(value, Ordering::Relaxed);
        }
        let mut rest = words[HEADER_WORDS..].iter();
        for bytes in [code.name.bytes, code.file.bytes, code.lines] {
            for (chunk, word) in bytes.chunks(4).zip(&mut rest) {
                let mut value = [0; 4];
                value[..chunk.len()].copy_from_slice(chunk);
                word.store(u32::from_le_bytes(value), Ordering::Relaxed);
            }
        }
        words[0].store(len as u32, Ordering::Release);
        u32::try_from(at / UNIT_WORDS).ok()
    }
}

fn size_in_words(code: &Code<'_>) -> usize {
    let parts = [code.name.bytes, code.file.bytes, code.lines];
    let bytes: usize = parts.iter().map(|part| part.len().div_ceil(4)).sum();
    (HEADER_WORDS + bytes).next_multiple_of(UNIT_WORDS)
}

/// Maximum length in bytes of a name and of a file path: the header has 16 bits for each.
pub const MAX_STRING_BYTES: usize = u16::MAX as usize;

/// Reader's view of a bank's code objects, in a private copy. Corrupt bytes give no code object or
/// a wrong one.
#[derive(Clone, Debug, Default)]
pub struct CodeTable<'a> {
    bytes: &'a [u8],
}

impl<'a> CodeTable<'a> {
    /// Returns a view of a copy of the code area's used part.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns the code object with this index, or `None` if there is none.
    #[must_use]
    pub fn get(&self, code: u32) -> Option<Code<'a>> {
        let at = (code as usize).checked_mul(UNIT_WORDS * 4)?;
        let word = |index: usize| {
            let from = at.checked_add(index * 4)?;
            let bytes = self.bytes.get(from..from.checked_add(4)?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let len = word(0).filter(|len| *len != 0 && code != NO_CODE)? as usize;
        let first_line = word(1)?;
        let kind = word(2)?;
        let lengths = word(3)?;
        let lines = word(4)?;
        let mut next = at.checked_add(HEADER_WORDS * 4)?;
        let end = at.checked_add(len.checked_mul(4)?)?;
        let mut part = |len: usize| {
            let from = next;
            next = next.checked_add(len.checked_next_multiple_of(4)?)?;
            let to = from.checked_add(len).filter(|to| *to <= end)?;
            self.bytes.get(from..to)
        };
        let name = lengths & 0xffff;
        let file = lengths >> 16;
        let string = |bytes, shift: u32| Characters {
            bytes,
            width: (kind >> shift) as u8,
        };
        Some(Code {
            name: string(part(name as usize)?, 8),
            file: string(part(file as usize)?, 16),
            first_line,
            lines: part(lines as usize)?,
            table: LineTable::from_number(kind as u8)?,
        })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::vec::Vec;

    fn code<'a>(name: &'a str, lines: &'a [u8]) -> Code<'a> {
        let text = |text: &'a str| Characters {
            bytes: text.as_bytes(),
            width: 1,
        };
        Code {
            name: text(name),
            file: text("/srv/app.py"),
            first_line: 41,
            lines,
            table: LineTable::Locations,
        }
    }

    fn copy(words: &[AtomicU32]) -> Vec<u8> {
        let bytes = words
            .iter()
            .map(|word| word.load(Ordering::Relaxed).to_le_bytes());
        bytes.flatten().collect()
    }

    #[test]
    fn interpreter_frames_are_distinguished_from_machine_code() {
        for (code, offset) in [(0, 0), (1, 7), ((1 << 28) - 1, (1 << 28) - 1)] {
            assert_eq!(frame_of(address_of(code, offset)), Some((code, offset)));
        }
        for machine in [0x401, 0x7fff_ffff_ffff, (31 << 48) | 0x1234, 1 << 62, 0x101] {
            assert_eq!(frame_of(machine), None, "{machine:x}");
        }
    }

    #[test]
    fn written_code_objects_are_read() {
        let words: Vec<AtomicU32> = (0..CODE_STEP / 4).map(|_| AtomicU32::new(0)).collect();
        let used = AtomicU32::new(0);
        let reserved = AtomicU32::new(0);
        let codes = Codes::new(&words, &used, &reserved);
        let all = [
            code("run", &[1, 2, 3]),
            code("Worker.step", &[]),
            code("", &[9; 5]),
        ];
        assert_eq!(codes.add(&all[0]), None, "no memory yet");
        assert_eq!(codes.bytes_to_commit(&all[0]), CODE_STEP);
        codes.reserve(CODE_STEP);
        let numbers: Vec<u32> = all.iter().map(|code| codes.add(code).unwrap()).collect();
        let bytes = copy(&words);
        let table = CodeTable::new(&bytes);
        for (number, code) in numbers.iter().zip(all) {
            assert_eq!(table.get(*number), Some(code));
            assert_ne!(*number, NO_CODE);
        }
        assert_eq!(table.get(NO_CODE), None);
        while codes.add(&all[0]).is_some() {}
        assert_eq!(codes.bytes_to_commit(&all[0]), 2 * CODE_STEP);
        assert_eq!(codes.add(&code("more", &[0; 4096])), None);
    }

    #[test]
    fn corrupt_bytes_are_read_without_panic() {
        let words: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        let used = AtomicU32::new(0);
        let reserved = AtomicU32::new(256);
        let number = Codes::new(&words, &used, &reserved).add(&code("f", &[1; 40]));
        let good = copy(&words);
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bad = good.clone();
                bad[at] = value;
                let _ = CodeTable::new(&bad).get(number.unwrap());
                let _ = CodeTable::new(&bad[..at]).get(number.unwrap());
            }
        }
        assert_eq!(CodeTable::new(&good[..60]).get(number.unwrap()), None);
        assert_eq!(CodeTable::new(&good).get(u32::MAX), None);
    }
}
