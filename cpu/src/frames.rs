//! Unwind tables of a file: `.eh_frame`, and its search table `.eh_frame_hdr` (LSB core, 10.6).
//! Programs that gcc links statically have no search table; one is built.
//!
//! Only the tables are read, not the rest of their segment.

use unwind::compile::entries;
use unwind::elf::{self, PT_GNU_EH_FRAME, PT_LOAD, Section, Segment};

use crate::source::{Source, bytes};

/// Maximum size in bytes of a search table and of entries. Programs of gigabytes have some tens of
/// megabytes.
const MAX_INDEX: u64 = 32 << 20;
const MAX_ENTRIES: u64 = 128 << 20;
/// Maximum number of sections of a file, and maximum size of their names in bytes.
const MAX_SECTIONS: u64 = 1 << 14;
const MAX_NAMES: u64 = 1 << 20;
/// Size of a section header in bytes.
const SECTION_BYTES: u64 = 64;
/// Size in bytes of a search table before its rows, and of a row.
const HEAD_BYTES: usize = 12;
const ROW_BYTES: usize = 8;
/// First bytes of a search table as all linkers write it: version 1; a 4-byte pc-relative pointer,
/// a 4-byte count, and rows of two 4-byte values relative to the section.
const USUAL: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

/// Part of a file, with its address before relocation.
#[derive(Default)]
pub struct Part {
    /// Address of the first byte.
    pub address: u64,
    /// Contents.
    pub bytes: Vec<u8>,
}

/// Unwind tables of a file.
#[derive(Default)]
pub struct Frames {
    /// `.eh_frame_hdr`.
    pub index: Part,
    /// `.eh_frame`, and other sections that the search table refers to: a program rewritten by BOLT
    /// keeps its old section for functions that were not moved.
    pub entries: Vec<Part>,
}

impl Frames {
    /// Returns the size of the tables in bytes.
    pub fn size(&self) -> usize {
        let entries: usize = self.entries.iter().map(|part| part.bytes.len()).sum();
        self.index.bytes.len() + entries
    }

    /// Returns true if a function starts in `first..=last`.
    pub fn has_function(&self, first: u64, last: u64) -> bool {
        let rows = self.index.bytes.get(HEAD_BYTES..).unwrap_or_default();
        let (rows, _) = rows.as_chunks::<ROW_BYTES>();
        let start = |row: &[u8; ROW_BYTES]| {
            let distance = i32::from_le_bytes([row[0], row[1], row[2], row[3]]);
            self.index.address.wrapping_add_signed(i64::from(distance))
        };
        let next = rows.partition_point(|row| start(row) < first);
        rows.get(next).is_some_and(|row| start(row) <= last)
    }
}

/// Reads the tables of a file. `page`: its first bytes; `headers`: its program headers.
pub fn read(source: &(impl Source + ?Sized), page: &[u8], headers: &[u8]) -> Option<Frames> {
    let header = elf::segments(headers).find(|s| s.kind == PT_GNU_EH_FRAME);
    match header {
        Some(header) => indexed(source, page, headers, &header),
        None => made(source, page),
    }
}

fn loaded(headers: &[u8]) -> impl Iterator<Item = Segment> {
    elf::segments(headers).filter(|s| s.kind == PT_LOAD)
}

/// Returns true if a segment's file contents include `len` bytes at an address.
fn holds(segment: &Segment, address: u64, len: u64) -> bool {
    let from = address.checked_sub(segment.address);
    let end = from.and_then(|from| from.checked_add(len));
    end.is_some_and(|end| end <= segment.file_size)
}

/// Reads the bytes at an address.
fn at(
    source: &(impl Source + ?Sized),
    headers: &[u8],
    address: u64,
    len: u64,
    most: u64,
) -> Option<Vec<u8>> {
    let segment = loaded(headers).find(|s| holds(s, address, len))?;
    let offset = segment.offset.checked_add(address - segment.address)?;
    bytes(source, offset, len, most).filter(|bytes| bytes.len() as u64 == len)
}

fn indexed(
    source: &(impl Source + ?Sized),
    page: &[u8],
    headers: &[u8],
    header: &Segment,
) -> Option<Frames> {
    let index = Part {
        address: header.address,
        bytes: at(source, headers, header.address, header.file_size, MAX_INDEX)?,
    };
    let relative = |at: usize, base: u64| {
        let word = index.bytes.get(at..at + 4)?.try_into().ok()?;
        base.checked_add_signed(i64::from(i32::from_le_bytes(word)))
    };
    if !index.bytes.starts_with(&USUAL) {
        return None;
    }
    let start = relative(4, index.address.checked_add(4)?)?;
    let rows = index.bytes.get(HEAD_BYTES..)?.len() / ROW_BYTES;
    let count = u32::from_le_bytes(index.bytes.get(8..12)?.try_into().ok()?);
    let count = rows.min(usize::try_from(count).ok()?);
    let row = |n: usize| relative(HEAD_BYTES + n * ROW_BYTES + 4, index.address);
    // For each segment that contains entries: the first and the last one.
    let mut reach: Vec<(Segment, u64, u64)> = Vec::new();
    for entry in (0..count).filter_map(row) {
        let known = reach.iter_mut().find(|(s, ..)| holds(s, entry, 4));
        if let Some((_, first, last)) = known {
            (*first, *last) = ((*first).min(entry), (*last).max(entry));
        } else if let Some(s) = loaded(headers).find(|s| holds(s, entry, 4)) {
            reach.push((s, entry, entry));
        }
    }
    let part = |(segment, first, last): (Segment, u64, u64)| {
        let begin = if holds(&segment, start, 4) && start <= first {
            start
        } else {
            // CIEs may precede the first entry.
            beginning(source, page, first).unwrap_or(first)
        };
        // The last entry in the file ends what is read.
        let len = u32::from_le_bytes(at(source, headers, last, 4, 4)?.try_into().ok()?);
        let end = last.checked_add(4)?.checked_add(u64::from(len))?;
        let size = end.checked_sub(begin)?;
        Some(Part {
            address: begin,
            bytes: at(source, headers, begin, size, MAX_ENTRIES)?,
        })
    };
    let entries: Vec<Part> = reach.into_iter().filter_map(part).collect();
    (!entries.is_empty()).then_some(Frames { index, entries })
}

/// Returns the start of the section that contains this address.
fn beginning(source: &(impl Source + ?Sized), page: &[u8], address: u64) -> Option<u64> {
    let (headers, _) = sections(source, page)?;
    let (headers, _) = headers.as_chunks::<{ SECTION_BYTES as usize }>();
    let starts = headers.iter().filter_map(|header| {
        let (start, len) = (word(header, 16)?, word(header, 32)?);
        let inside = address.checked_sub(start)?;
        (start != 0 && inside < len).then_some(start)
    });
    starts.max()
}

fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<u64> {
    let half = bytes.get(at..at.checked_add(4)?)?;
    Some(u64::from(u32::from_le_bytes(half.try_into().ok()?)))
}

/// Builds the tables of a file without a search table, from its section `.eh_frame`.
fn made(source: &(impl Source + ?Sized), page: &[u8]) -> Option<Frames> {
    let (address, offset, len) = section(source, page, b".eh_frame\0")?;
    let bytes = bytes(source, offset, len, MAX_ENTRIES)?;
    let entries = Part { address, bytes };
    let index = index_of(&entries)?;
    let entries = vec![entries];
    Some(Frames { index, entries })
}

/// Returns the section headers, and the index of the section with their names.
fn sections(source: &(impl Source + ?Sized), page: &[u8]) -> Option<(Vec<u8>, u64)> {
    let numbers = word(page, 58)?.to_le_bytes();
    let [size, count, names] =
        [0, 2, 4].map(|at| u64::from(u16::from_le_bytes([numbers[at], numbers[at + 1]])));
    if size != SECTION_BYTES || count > MAX_SECTIONS {
        return None;
    }
    let most = MAX_SECTIONS * SECTION_BYTES;
    let headers = bytes(source, word(page, 40)?, count * SECTION_BYTES, most)?;
    Some((headers, names))
}

/// Returns the address, offset and size of a section.
fn section(source: &(impl Source + ?Sized), page: &[u8], wanted: &[u8]) -> Option<(u64, u64, u64)> {
    let (headers, names) = sections(source, page)?;
    let headers: Vec<&[u8]> = headers.chunks_exact(SECTION_BYTES as usize).collect();
    let table = headers.get(usize::try_from(names).ok()?)?;
    let table = bytes(source, word(table, 24)?, word(table, 32)?, MAX_NAMES)?;
    let is_it = |header: &&&[u8]| {
        let name = half(header, 0).and_then(|name| table.get(usize::try_from(name).ok()?..));
        name.is_some_and(|name| name.starts_with(wanted))
    };
    let header = headers.iter().find(is_it)?;
    Some((word(header, 16)?, word(header, 24)?, word(header, 32)?))
}

/// Builds the search table of entries, as a linker would write it, placed directly after them.
fn index_of(frames: &Part) -> Option<Part> {
    let address = frames
        .address
        .checked_add(frames.bytes.len() as u64)?
        .checked_next_multiple_of(4)?;
    let section = Section {
        bytes: &frames.bytes,
        address: frames.address,
    };
    let mut rows: Vec<(i32, i32)> = Vec::new();
    let from_index = |to: u64| i32::try_from(to.wrapping_sub(address).cast_signed()).ok();
    entries(&section, |start, entry| {
        rows.extend(from_index(start).zip(from_index(entry)));
    });
    rows.sort_unstable();
    let begin = frames.address.wrapping_sub(address + 4).cast_signed();
    let mut bytes = USUAL.to_vec();
    bytes.extend(i32::try_from(begin).ok()?.to_le_bytes());
    bytes.extend(u32::try_from(rows.len()).ok()?.to_le_bytes());
    for (start, entry) in rows {
        bytes.extend(start.to_le_bytes());
        bytes.extend(entry.to_le_bytes());
    }
    Some(Part { address, bytes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    /// This program's own file, which a linker gave an index.
    fn own() -> (File, Vec<u8>) {
        let file = File::open(std::env::current_exe().unwrap()).unwrap();
        let page = bytes(&file, 0, 4096, 4096).unwrap();
        (file, page)
    }

    /// Returns the addresses of functions and of their entries.
    fn rows(index: &Part) -> Vec<(u64, u64)> {
        let part = |row: &[u8], at: usize| {
            let distance = i32::from_le_bytes(row[at..at + 4].try_into().unwrap());
            index.address.wrapping_add_signed(i64::from(distance))
        };
        let rows = index.bytes[HEAD_BYTES..].chunks_exact(ROW_BYTES);
        rows.map(|row| (part(row, 0), part(row, 4))).collect()
    }

    #[test]
    fn a_made_index_is_the_linkers() {
        let (file, page) = own();
        let headers = elf::program_headers(&page).unwrap();
        let linked = read(&file, &page, headers).unwrap();
        let made = made(&file, &page).unwrap();
        let [[linked_part], [made_part]] = [&linked.entries[..], &made.entries[..]] else {
            panic!("one section each");
        };
        assert_eq!(linked_part.address, made_part.address);
        assert!(made_part.bytes.starts_with(&linked_part.bytes));
        let (linked, made) = (rows(&linked.index), rows(&made.index));
        assert!(linked.len() > 1000);
        // Linkers leave out what begins where another one does.
        let missing: Vec<_> = linked
            .iter()
            .filter(|row| !made.contains(row))
            .take(3)
            .collect();
        assert!(missing.is_empty(), "{missing:x?}");
        assert!(made.is_sorted() && made.len() - linked.len() < 16 + made.len() / 100);
    }

    #[test]
    fn damage_gives_no_tables() {
        let (file, page) = own();
        let headers = elf::program_headers(&page).unwrap();
        let header = elf::segments(headers).find(|s| s.kind == PT_GNU_EH_FRAME);
        let header = header.unwrap();
        for wild in [0, 1, 1 << 31, 1 << 47, u64::MAX - 3, u64::MAX] {
            let (mut moved, mut longer) = (header, header);
            moved.address = wild;
            longer.file_size = wild.max(1 << 31);
            for damaged in [moved, longer] {
                assert!(
                    indexed(&file, &page, headers, &damaged).is_none(),
                    "{wild:x}"
                );
            }
        }
        for at in [40, 58, 60, 62] {
            let mut page = page.clone();
            page[at..at + 2].fill(0xff);
            // Whatever is found there is bounded.
            let _ = made(&file, &page);
        }
        assert!(made(&file, &page[..60]).is_none());
    }
}
