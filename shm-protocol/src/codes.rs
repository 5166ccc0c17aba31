//! Code objects of an interpreter: what the frames are called that it runs, which have no address
//! of machine code.
//!
//! A node of the tree stands for such a frame by the number of its code object and the place of
//! the instruction in it ([`address_of`]). Each code object is written once, in the part of the
//! bank behind the records, which takes memory only where there is an interpreter: the agent puts
//! it there step by step. A code object never changes once its first word is set.

use crate::sync::{AtomicU32, Ordering};

/// Addresses of interpreted frames in the tree begin here: no process has code there.
pub const INTERPRETED: u64 = 1 << 61;
/// Bits of the instruction's place.
const PLACE_BITS: u32 = 28;
const PLACE_MASK: u64 = (1 << PLACE_BITS) - 1;
/// Bits of a code object's number.
const CODE_BITS: u32 = 28;
/// Bytes in which the part takes memory.
pub const CODE_STEP: usize = 64 << 10;
/// Largest part for code objects.
pub const MAX_CODE_BYTES: usize = 16 << 20;

/// The number that is not a code object's: see [`TABLE_FULL`] and [`LEFT_OUT`].
pub const NO_CODE: u32 = 0;
/// Place, in [`NO_CODE`], that stands for frames whose code objects found no room.
pub const TABLE_FULL: u32 = 0;
/// Place, in [`NO_CODE`], that stands for the outer frames of a stack that is too deep.
pub const LEFT_OUT: u32 = 1;

/// The address of a node that stands for the instruction at `place` of a code object.
#[inline]
#[must_use]
pub const fn address_of(code: u32, place: u32) -> u64 {
    INTERPRETED | (code as u64) << PLACE_BITS | (place as u64 & PLACE_MASK)
}

/// The code object and the place that a node's address stands for; `None` for machine code.
#[inline]
#[must_use]
pub const fn frame_of(address: u64) -> Option<(u32, u32)> {
    if address >> (PLACE_BITS + CODE_BITS) != INTERPRETED >> (PLACE_BITS + CODE_BITS) {
        return None;
    }
    let code = address >> PLACE_BITS & ((1 << CODE_BITS) - 1);
    Some((code as u32, (address & PLACE_MASK) as u32))
}

/// How the lines of a code object are written down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum LineTable {
    /// `co_lnotab` of CPython to 3.9.
    Increments = 1,
    /// `co_linetable` of CPython 3.10 (PEP 626).
    Ranges = 2,
    /// `co_linetable` of CPython from 3.11 on.
    Locations = 3,
}

impl LineTable {
    /// The format of this number.
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

/// A string of an interpreter: characters of one, two or four bytes, by their code points.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Characters<'a> {
    /// The bytes, little-endian.
    pub bytes: &'a [u8],
    /// Bytes of each character.
    pub width: u8,
}

/// A code object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code<'a> {
    /// Qualified name of the function.
    pub name: Characters<'a>,
    /// Its file.
    pub file: Characters<'a>,
    /// The line it begins at.
    pub first_line: u32,
    /// Where the lines of its instructions are.
    pub lines: &'a [u8],
    /// How they are written down.
    pub table: LineTable,
}

/// Words before the bytes.
const HEAD: usize = 5;
/// Words that a number counts.
const UNIT: usize = 2;
const MOST: usize = 1 << 20;

/// The code objects of a bank, for the writer.
#[derive(Clone, Copy)]
pub struct Codes<'a> {
    words: &'a [AtomicU32],
    used: &'a AtomicU32,
    reserved: &'a AtomicU32,
}

impl<'a> Codes<'a> {
    /// Over zeroed or already used memory.
    #[must_use]
    pub fn new(words: &'a [AtomicU32], used: &'a AtomicU32, reserved: &'a AtomicU32) -> Self {
        Self {
            words,
            used,
            reserved,
        }
    }

    /// Bytes that are backed by memory.
    #[must_use]
    pub fn reserved(&self) -> usize {
        (self.reserved.load(Ordering::Acquire) as usize).min(self.words.len() * 4)
    }

    /// Notes that `bytes` are backed by memory.
    pub fn reserve(&self, bytes: usize) {
        self.reserved.fetch_max(bytes as u32, Ordering::Release);
    }

    /// Bytes that are reserved once there is room for `code` as well.
    #[must_use]
    pub fn needed(&self, code: &Code<'_>) -> usize {
        let used = self.used.load(Ordering::Relaxed) as usize;
        ((UNIT + used + words_of(code)) * 4).next_multiple_of(CODE_STEP)
    }

    /// Writes a code object down; its number. `None`: there is no room.
    #[must_use]
    pub fn add(&self, code: &Code<'_>) -> Option<u32> {
        let len = words_of(code);
        let room = (self.reserved() / 4).checked_sub(UNIT)?;
        let claim = |used: u32| {
            let end = (used as usize).checked_add(len)?;
            (end <= room && len <= MOST).then_some(end as u32)
        };
        let at = self
            .used
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, claim)
            .ok()? as usize
            + UNIT;
        let words = self.words.get(at..at + len)?;
        let width = u32::from(code.name.width) << 8 | u32::from(code.file.width) << 16;
        let head = [
            code.first_line,
            code.table as u32 | width,
            code.name.bytes.len() as u32 | (code.file.bytes.len() as u32) << 16,
            code.lines.len() as u32,
        ];
        for (word, value) in words[1..].iter().zip(head) {
            word.store(value, Ordering::Relaxed);
        }
        let mut rest = words[HEAD..].iter();
        for bytes in [code.name.bytes, code.file.bytes, code.lines] {
            for (chunk, word) in bytes.chunks(4).zip(&mut rest) {
                let mut value = [0; 4];
                value[..chunk.len()].copy_from_slice(chunk);
                word.store(u32::from_le_bytes(value), Ordering::Relaxed);
            }
        }
        words[0].store(len as u32, Ordering::Release);
        u32::try_from(at / UNIT).ok()
    }
}

fn words_of(code: &Code<'_>) -> usize {
    let parts = [code.name.bytes, code.file.bytes, code.lines];
    let bytes: usize = parts.iter().map(|part| part.len().div_ceil(4)).sum();
    (HEAD + bytes).next_multiple_of(UNIT)
}

/// Longest name and file, in bytes: what their fields hold.
pub const MAX_TEXT: usize = u16::MAX as usize;

/// The code objects of a bank, from a private copy of them, by number. Wrong bytes give no code
/// object, or a wrong one.
#[derive(Clone, Debug, Default)]
pub struct CodeTable<'a> {
    bytes: &'a [u8],
}

impl<'a> CodeTable<'a> {
    /// Over a copy of what is in use.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The code object of a number.
    #[must_use]
    pub fn get(&self, code: u32) -> Option<Code<'a>> {
        let at = (code as usize).checked_mul(UNIT * 4)?;
        let word = |index: usize| {
            let from = at.checked_add(index * 4)?;
            let bytes = self.bytes.get(from..from.checked_add(4)?)?;
            Some(u32::from_le_bytes(bytes.try_into().ok()?))
        };
        let len = word(0).filter(|len| *len != 0 && code != NO_CODE)? as usize;
        let (first_line, kind, texts, lines) = (word(1)?, word(2)?, word(3)?, word(4)?);
        let mut next = at.checked_add(HEAD * 4)?;
        let end = at.checked_add(len.checked_mul(4)?)?;
        let mut part = |len: usize| {
            let from = next;
            next = next.checked_add(len.checked_next_multiple_of(4)?)?;
            let to = from.checked_add(len).filter(|to| *to <= end)?;
            self.bytes.get(from..to)
        };
        let (name, file) = (texts & 0xffff, texts >> 16);
        let text = |bytes, shift: u32| Characters {
            bytes,
            width: (kind >> shift) as u8,
        };
        Some(Code {
            name: text(part(name as usize)?, 8),
            file: text(part(file as usize)?, 16),
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
    fn addresses_of_interpreted_frames_are_none_of_machine_code() {
        for (code, place) in [(0, 0), (1, 7), ((1 << 28) - 1, (1 << 28) - 1)] {
            assert_eq!(frame_of(address_of(code, place)), Some((code, place)));
        }
        for machine in [0x401, 0x7fff_ffff_ffff, 31 << 48 | 0x1234, 1 << 62, 0x101] {
            assert_eq!(frame_of(machine), None, "{machine:x}");
        }
    }

    #[test]
    fn what_was_written_is_read() {
        let words: Vec<AtomicU32> = (0..CODE_STEP / 4).map(|_| AtomicU32::new(0)).collect();
        let (used, reserved) = (AtomicU32::new(0), AtomicU32::new(0));
        let codes = Codes::new(&words, &used, &reserved);
        let all = [
            code("run", &[1, 2, 3]),
            code("Worker.step", &[]),
            code("", &[9; 5]),
        ];
        assert_eq!(codes.add(&all[0]), None, "no memory yet");
        assert_eq!(codes.needed(&all[0]), CODE_STEP);
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
        assert_eq!(codes.needed(&all[0]), 2 * CODE_STEP);
        assert_eq!(codes.add(&code("more", &[0; 4096])), None);
    }

    #[test]
    fn wrong_bytes_are_no_code_object() {
        let words: Vec<AtomicU32> = (0..64).map(|_| AtomicU32::new(0)).collect();
        let (used, reserved) = (AtomicU32::new(0), AtomicU32::new(256));
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
