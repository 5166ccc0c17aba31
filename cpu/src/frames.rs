//! Unwind tables of a file: `.eh_frame`, and its search table `.eh_frame_hdr` (LSB core, 10.6).
//! Programs that gcc links statically have no search table; one is built. Only these sections are
//! read, not the rest of their segment.

use unwind::compile::entries;
use unwind::elf::{self, PT_GNU_EH_FRAME, PT_LOAD, Section, Segment};

use crate::source::{Source, bytes};

/// Maximum size of a search table. Programs of several gigabytes have tens of megabytes.
const MAX_INDEX_BYTES: u64 = 32 << 20;
/// Maximum size of `.eh_frame`.
const MAX_ENTRIES_BYTES: u64 = 128 << 20;
/// Maximum number of sections of a file.
const MAX_SECTIONS: u64 = 1 << 14;
/// Maximum size of all section names.
const MAX_NAMES_BYTES: u64 = 1 << 20;
/// Size of a section header (`Elf64_Shdr`) in bytes.
const SECTION_BYTES: u64 = 64;
/// Offsets of its fields.
const SH_ADDR: usize = 16;
const SH_OFFSET: usize = 24;
const SH_SIZE: usize = 32;
/// Size of a search table's header.
const INDEX_HEADER_BYTES: usize = 12;
/// Size of a row of a search table.
const ROW_BYTES: usize = 8;
/// First bytes of a search table, as all linkers write them: version 1; a 4-byte pc-relative
/// pointer, a 4-byte count, and rows of two 4-byte values relative to the section.
const USUAL_START: [u8; 4] = [1, 0x1b, 0x03, 0x3b];

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
        let rows = self
            .index
            .bytes
            .get(INDEX_HEADER_BYTES..)
            .unwrap_or_default();
        let (rows, _) = rows.as_chunks::<ROW_BYTES>();
        let start = |row: &[u8; ROW_BYTES]| {
            let distance = i32::from_le_bytes([row[0], row[1], row[2], row[3]]);
            self.index.address.wrapping_add_signed(i64::from(distance))
        };
        let next = rows.partition_point(|row| start(row) < first);
        rows.get(next).is_some_and(|row| start(row) <= last)
    }
}

/// Reads the tables of a file. `page` holds its first bytes, and `headers` its program headers.
pub fn read(source: &(impl Source + ?Sized), page: &[u8], headers: &[u8]) -> Option<Frames> {
    let header = elf::segments(headers).find(|s| s.kind == PT_GNU_EH_FRAME);
    match header {
        Some(header) => read_indexed(source, page, headers, &header),
        None => build(source, page),
    }
}

/// Returns the segments that are loaded.
fn loaded(headers: &[u8]) -> impl Iterator<Item = Segment> {
    elf::segments(headers).filter(|s| s.kind == PT_LOAD)
}

/// Returns true if a segment's file contents include `len` bytes at an address.
fn holds(segment: &Segment, address: u64, len: u64) -> bool {
    let from = address.checked_sub(segment.address);
    let end = from.and_then(|from| from.checked_add(len));
    end.is_some_and(|end| end <= segment.file_size)
}

/// Reads `len` bytes at an address before relocation, if they are at most `max_bytes`.
fn read_at(
    source: &(impl Source + ?Sized),
    headers: &[u8],
    address: u64,
    len: u64,
    max_bytes: u64,
) -> Option<Vec<u8>> {
    let segment = loaded(headers).find(|s| holds(s, address, len))?;
    let offset = segment.offset.checked_add(address - segment.address)?;
    bytes(source, offset, len, max_bytes).filter(|bytes| bytes.len() as u64 == len)
}

/// Reads the tables of a file with a search table.
fn read_indexed(
    source: &(impl Source + ?Sized),
    page: &[u8],
    headers: &[u8],
    header: &Segment,
) -> Option<Frames> {
    let index = Part {
        address: header.address,
        bytes: read_at(
            source,
            headers,
            header.address,
            header.file_size,
            MAX_INDEX_BYTES,
        )?,
    };
    let relative = |at: usize, base: u64| {
        let word = index.bytes.get(at..at + 4)?.try_into().ok()?;
        base.checked_add_signed(i64::from(i32::from_le_bytes(word)))
    };
    if !index.bytes.starts_with(&USUAL_START) {
        return None;
    }
    let eh_frame_start = relative(4, index.address.checked_add(4)?)?;
    let rows = index.bytes.get(INDEX_HEADER_BYTES..)?.len() / ROW_BYTES;
    let count = u32::from_le_bytes(index.bytes.get(8..12)?.try_into().ok()?);
    let count = rows.min(usize::try_from(count).ok()?);
    let row = |n: usize| relative(INDEX_HEADER_BYTES + n * ROW_BYTES + 4, index.address);
    // Addresses of the first and the last entry in each segment.
    let mut entry_ranges: Vec<(Segment, u64, u64)> = Vec::new();
    for entry in (0..count).filter_map(row) {
        let known = entry_ranges.iter_mut().find(|(s, ..)| holds(s, entry, 4));
        if let Some((_, first, last)) = known {
            *first = (*first).min(entry);
            *last = (*last).max(entry);
        } else if let Some(s) = loaded(headers).find(|s| holds(s, entry, 4)) {
            entry_ranges.push((s, entry, entry));
        }
    }
    let part = |(segment, first, last): (Segment, u64, u64)| {
        let begin = if holds(&segment, eh_frame_start, 4) && eh_frame_start <= first {
            eh_frame_start
        } else {
            // CIEs may precede the first entry.
            section_start(source, page, first).unwrap_or(first)
        };
        // The section is read up to the end of its last entry.
        let len = u32::from_le_bytes(read_at(source, headers, last, 4, 4)?.try_into().ok()?);
        let end = last.checked_add(4)?.checked_add(u64::from(len))?;
        let size = end.checked_sub(begin)?;
        Some(Part {
            address: begin,
            bytes: read_at(source, headers, begin, size, MAX_ENTRIES_BYTES)?,
        })
    };
    let entries: Vec<Part> = entry_ranges.into_iter().filter_map(part).collect();
    (!entries.is_empty()).then_some(Frames { index, entries })
}

/// Returns the start of the section that contains this address.
fn section_start(source: &(impl Source + ?Sized), page: &[u8], address: u64) -> Option<u64> {
    let (headers, _) = sections(source, page)?;
    let (headers, _) = headers.as_chunks::<{ SECTION_BYTES as usize }>();
    let starts = headers.iter().filter_map(|header| {
        let start = word(header, SH_ADDR)?;
        let len = word(header, SH_SIZE)?;
        let offset = address.checked_sub(start)?;
        (start != 0 && offset < len).then_some(start)
    });
    starts.max()
}

/// Returns the 8-byte value at an offset.
fn word(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// Returns the 4-byte value at an offset.
fn word32(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(4)?)?;
    Some(u64::from(u32::from_le_bytes(word.try_into().ok()?)))
}

/// Reads the section `.eh_frame` of a file without a search table, and builds one.
fn build(source: &(impl Source + ?Sized), page: &[u8]) -> Option<Frames> {
    let header = section(source, page, b".eh_frame\0")?;
    let bytes = bytes(source, header.offset, header.size, MAX_ENTRIES_BYTES)?;
    let entries = Part {
        address: header.address,
        bytes,
    };
    let index = build_index(&entries)?;
    let entries = vec![entries];
    Some(Frames { index, entries })
}

/// Returns the section headers, and the index of the section with their names.
fn sections(source: &(impl Source + ?Sized), page: &[u8]) -> Option<(Vec<u8>, u64)> {
    // Offsets in `Elf64_Ehdr`.
    const E_SHOFF: usize = 40;
    const E_SHENTSIZE: usize = 58;
    let fields = word(page, E_SHENTSIZE)?.to_le_bytes();
    let field = |at: usize| u64::from(u16::from_le_bytes([fields[at], fields[at + 1]]));
    let size = field(0); // e_shentsize
    let count = field(2); // e_shnum
    let names = field(4); // e_shstrndx
    if size != SECTION_BYTES || count > MAX_SECTIONS {
        return None;
    }
    let max_bytes = MAX_SECTIONS * SECTION_BYTES;
    let headers = bytes(
        source,
        word(page, E_SHOFF)?,
        count * SECTION_BYTES,
        max_bytes,
    )?;
    Some((headers, names))
}

/// Position of a section.
struct SectionHeader {
    address: u64,
    /// Offset in the file.
    offset: u64,
    /// Size in bytes.
    size: u64,
}

/// Finds a section by its name, which includes the terminating zero.
fn section(source: &(impl Source + ?Sized), page: &[u8], wanted: &[u8]) -> Option<SectionHeader> {
    let (headers, names) = sections(source, page)?;
    let headers: Vec<&[u8]> = headers.chunks_exact(SECTION_BYTES as usize).collect();
    let table = headers.get(usize::try_from(names).ok()?)?;
    let table = bytes(
        source,
        word(table, SH_OFFSET)?,
        word(table, SH_SIZE)?,
        MAX_NAMES_BYTES,
    )?;
    let has_name = |header: &&&[u8]| {
        let sh_name = word32(header, 0);
        let name = sh_name.and_then(|offset| table.get(usize::try_from(offset).ok()?..));
        name.is_some_and(|name| name.starts_with(wanted))
    };
    let header = headers.iter().find(has_name)?;
    Some(SectionHeader {
        address: word(header, SH_ADDR)?,
        offset: word(header, SH_OFFSET)?,
        size: word(header, SH_SIZE)?,
    })
}

/// Builds a search table for entries as a linker would, at the address directly after them.
fn build_index(frames: &Part) -> Option<Part> {
    let address = frames
        .address
        .checked_add(frames.bytes.len() as u64)?
        .checked_next_multiple_of(4)?;
    let section = Section {
        bytes: &frames.bytes,
        address: frames.address,
    };
    let mut rows: Vec<(i32, i32)> = Vec::new();
    let distance = |to: u64| i32::try_from(to.wrapping_sub(address).cast_signed()).ok();
    entries(&section, |start, entry| {
        rows.extend(distance(start).zip(distance(entry)));
    });
    rows.sort_unstable();
    let begin = frames.address.wrapping_sub(address + 4).cast_signed();
    let mut bytes = USUAL_START.to_vec();
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

    /// Returns this program's own file, which has a search table from the linker, and its first
    /// page.
    fn own_file() -> (File, Vec<u8>) {
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
        let rows = index.bytes[INDEX_HEADER_BYTES..].chunks_exact(ROW_BYTES);
        rows.map(|row| (part(row, 0), part(row, 4))).collect()
    }

    #[test]
    fn a_built_search_table_equals_the_linkers() {
        let (file, page) = own_file();
        let headers = elf::program_headers(&page).unwrap();
        let linked = read(&file, &page, headers).unwrap();
        let built = build(&file, &page).unwrap();
        let [[linked_part], [built_part]] = [&linked.entries[..], &built.entries[..]] else {
            panic!("one section each");
        };
        assert_eq!(linked_part.address, built_part.address);
        assert!(built_part.bytes.starts_with(&linked_part.bytes));
        let linked = rows(&linked.index);
        let built = rows(&built.index);
        assert!(linked.len() > 1000);
        // Linkers leave out functions that begin at the same address as another one.
        let missing: Vec<_> = linked
            .iter()
            .filter(|row| !built.contains(row))
            .take(3)
            .collect();
        assert!(missing.is_empty(), "{missing:x?}");
        assert!(built.is_sorted() && built.len() - linked.len() < 16 + built.len() / 100);
    }

    #[test]
    fn damaged_headers_give_no_tables() {
        let (file, page) = own_file();
        let headers = elf::program_headers(&page).unwrap();
        let header = elf::segments(headers).find(|s| s.kind == PT_GNU_EH_FRAME);
        let header = header.unwrap();
        for wild in [0, 1, 1 << 31, 1 << 47, u64::MAX - 3, u64::MAX] {
            let mut moved = header;
            let mut longer = header;
            moved.address = wild;
            longer.file_size = wild.max(1 << 31);
            for damaged in [moved, longer] {
                assert!(
                    read_indexed(&file, &page, headers, &damaged).is_none(),
                    "{wild:x}"
                );
            }
        }
        for at in [40, 58, 60, 62] {
            let mut page = page.clone();
            page[at..at + 2].fill(0xff);
            // Must neither panic nor allocate without a limit.
            let _ = build(&file, &page);
        }
        assert!(build(&file, &page[..60]).is_none());
    }
}
