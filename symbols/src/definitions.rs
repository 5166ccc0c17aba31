//! Finds which functions a program defines, by its symbol tables, and which strings its file
//! contains.
//!
//! Programs are hostile input: a bounded part of each table is read, piece by piece. Offsets and
//! sizes in the file are not trusted, and only what was requested is kept.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use memchr::memmem::Finder;
use profile::opening;

use super::elf::{read_existing, read_up_to};

pub(crate) const SHT_SYMTAB: u32 = 2;
pub(crate) const SHT_DYNSYM: u32 = 11;
const STT_FUNC: u8 = 2;
const STT_GNU_IFUNC: u8 = 10;
/// Size of a section header of a 64-bit file, in bytes.
const SECTION_SIZE: usize = 64;
/// Size of a symbol of a 64-bit file, in bytes.
pub(crate) const SYMBOL_SIZE: usize = 24;
/// Number of bytes per read.
const PIECE_SIZE: usize = 1 << 18;
/// Maximum number of bytes read of a symbol table.
const MAX_SYMBOL_BYTES: u64 = 64 << 20;
/// Maximum number of bytes read of a string table.
const MAX_STRING_BYTES: u64 = 256 << 20;
/// Maximum number of bytes searched of a file's contents.
const MAX_CONTENT_BYTES: u64 = 128 << 20;
/// Maximum number of matches of the names in a string table.
const MAX_NAME_OFFSETS: usize = 1 << 16;

/// Requested function that a file defines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Name of the function.
    pub name: &'static str,
    /// Set if the symbol is in the dynamic symbol table, so that other modules may call it.
    pub is_exported: bool,
}

/// Result for one file.
#[derive(Clone, Debug, Default)]
pub struct Definitions {
    /// Defined functions. An exported one may occur twice.
    pub found: Vec<Definition>,
    /// Set if the file has a full symbol table, so it is not stripped.
    pub has_symbols: bool,
}

/// Returns which of the functions `names` a 64-bit ELF file defines.
///
/// # Errors
/// The file cannot be read, or is not a regular file.
pub fn definitions(path: &Path, names: &[&'static str]) -> io::Result<Definitions> {
    let file = opening::regular(path)?;
    let mut definitions = Definitions::default();
    let Some(header) = header(&file)? else {
        return Ok(definitions);
    };
    let sections = sections(&file, &header)?;
    // A valid file has one table of each kind. Others are ignored: a crafted file may have
    // thousands.
    for (kind, is_exported) in [(SHT_DYNSYM, true), (SHT_SYMTAB, false)] {
        let Some(table) = sections.iter().find(|section| section.kind == kind) else {
            continue;
        };
        let Some(strings) = sections.get(table.link) else {
            continue;
        };
        definitions.has_symbols |= !is_exported;
        let offsets = name_offsets(&file, strings, names)?;
        if !offsets.is_empty() {
            let found = defined_functions(&file, table, &offsets)?;
            let found = found.map(|name| Definition { name, is_exported });
            definitions.found.extend(found);
        }
    }
    Ok(definitions)
}

/// Returns the first of `texts` that a file contains.
///
/// # Errors
/// The file cannot be read, or is not a regular file.
pub fn first_contained_text(
    path: &Path,
    texts: &[&'static str],
) -> io::Result<Option<&'static str>> {
    let file = opening::regular(path)?;
    let finders: Vec<_> = texts
        .iter()
        .map(|text| (*text, Finder::new(text)))
        .collect();
    let mut found = None;
    let overlap = texts.iter().map(|text| text.len()).max().unwrap_or(0);
    let whole = Range {
        offset: 0,
        size: MAX_CONTENT_BYTES,
    };
    read_pieces(&file, whole, overlap, |_, piece| {
        let mut hits = finders.iter().filter(|(_, f)| f.find(piece).is_some());
        found = found.or(hits.next().map(|(text, _)| *text));
        found.is_none()
    })?;
    Ok(found)
}

/// Reads the header of a 64-bit little-endian ELF file. Returns `None` for other files.
pub(crate) fn header(file: &File) -> io::Result<Option<[u8; 64]>> {
    let mut header = [0; 64];
    let bytes_read = read_up_to(file, &mut header, 0)?;
    let is_elf = bytes_read == header.len() && header.starts_with(b"\x7fELF\x02\x01");
    Ok(is_elf.then_some(header))
}

/// Reads the section headers of a file.
pub(crate) fn sections(file: &File, header: &[u8; 64]) -> io::Result<Vec<Section>> {
    let count = usize::from(u16::from_le_bytes([header[60], header[61]]));
    let sections = read_existing(file, word(header, 40), (count * SECTION_SIZE) as u64)?;
    let sections = sections.chunks_exact(SECTION_SIZE);
    Ok(sections.map(Section::new).collect())
}

/// The fields of a section header that are used here.
pub(crate) struct Section {
    pub(crate) kind: u32,
    pub(crate) offset: u64,
    pub(crate) size: u64,
    pub(crate) link: usize,
}

impl Section {
    fn new(bytes: &[u8]) -> Self {
        Self {
            kind: word(bytes, 4) as u32,
            offset: word(bytes, 24),
            size: word(bytes, 32),
            link: word(bytes, 40) as u32 as usize,
        }
    }

    /// Returns the part of a symbol table that is read.
    pub(crate) fn symbols(&self) -> Range {
        Range {
            offset: self.offset,
            size: self.size.min(MAX_SYMBOL_BYTES),
        }
    }
}

/// A range of bytes of a file.
pub(crate) struct Range {
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// Returns the little-endian 64-bit word at `at`.
pub(crate) fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

/// Searches a string table for the names. Returns the offset of each match; a match may also be the
/// end of a longer name.
pub(crate) fn name_offsets(
    file: &File,
    strings: &Section,
    names: &[&'static str],
) -> io::Result<HashMap<u32, &'static str>> {
    let terminated_names: Vec<String> = names.iter().map(|name| format!("{name}\0")).collect();
    let finders: Vec<_> = terminated_names.iter().map(Finder::new).collect();
    let mut offsets = HashMap::new();
    let overlap = terminated_names.iter().map(String::len).max().unwrap_or(0);
    let range = Range {
        offset: strings.offset,
        size: strings.size.min(MAX_STRING_BYTES),
    };
    read_pieces(file, range, overlap, |at, piece| {
        for (name, finder) in names.iter().zip(&finders) {
            let hits = finder.find_iter(piece);
            let hits = hits.filter_map(|hit| u32::try_from(at + hit as u64).ok());
            let room = MAX_NAME_OFFSETS.saturating_sub(offsets.len());
            offsets.extend(hits.take(room).map(|offset| (offset, *name)));
        }
        offsets.len() < MAX_NAME_OFFSETS
    })?;
    Ok(offsets)
}

/// Returns the functions that a symbol table defines under these names, by offset in the string
/// table.
fn defined_functions(
    file: &File,
    table: &Section,
    names: &HashMap<u32, &'static str>,
) -> io::Result<impl Iterator<Item = &'static str>> {
    let mut found = Vec::new();
    read_pieces(file, table.symbols(), 0, |_, piece| {
        for symbol in piece.chunks_exact(SYMBOL_SIZE) {
            let first = word(symbol, 0);
            let kind = (first >> 32) as u8 & 0xf;
            let section = (first >> 48) as u16;
            if matches!(kind, STT_FUNC | STT_GNU_IFUNC) && section != 0 {
                found.extend(names.get(&(first as u32)));
            }
        }
        true
    })?;
    found.sort_unstable();
    found.dedup();
    Ok(found.into_iter())
}

/// Reads a range of a file piece by piece. Each piece begins with the last `overlap` bytes of the
/// one before. `visit` gets each piece with its distance from the start of the range; reading stops
/// when it returns false.
pub(crate) fn read_pieces(
    file: &File,
    range: Range,
    overlap: usize,
    mut visit: impl FnMut(u64, &[u8]) -> bool,
) -> io::Result<()> {
    let Range { offset, size } = range;
    let step = PIECE_SIZE / SYMBOL_SIZE * SYMBOL_SIZE;
    let mut buffer = vec![0; step + overlap];
    let mut at = 0;
    while at < size {
        let Some(from) = offset.checked_add(at) else {
            break;
        };
        let len = buffer
            .len()
            .min(usize::try_from(size - at).unwrap_or(PIECE_SIZE));
        let bytes_read = read_up_to(file, &mut buffer[..len], from)?;
        if bytes_read == 0 || !visit(at, &buffer[..bytes_read]) {
            break;
        }
        at += step as u64;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_functions_are_found_and_others_are_not() {
        let exe = std::env::current_exe().unwrap();
        let names = ["main", "malloc", "no_such_function"];
        let found = definitions(&exe, &names).unwrap();
        assert!(found.has_symbols);
        let main = Definition {
            name: "main",
            is_exported: false,
        };
        assert!(found.found.contains(&main), "{found:?}");
        assert!(found.found.iter().all(|f| f.name == "main"), "{found:?}");
    }

    #[test]
    fn a_text_across_two_chunks_is_found() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let step = PIECE_SIZE / SYMBOL_SIZE * SYMBOL_SIZE;
        let mut bytes = vec![b'.'; 3 * step];
        bytes[2 * step - 3..2 * step + 3].copy_from_slice(b"needle");
        std::fs::write(file.path(), &bytes).unwrap();
        let found = first_contained_text(file.path(), &["thread", "needle"]).unwrap();
        assert_eq!(found, Some("needle"));
        assert_eq!(
            first_contained_text(file.path(), &["thread"]).unwrap(),
            None
        );
    }

    /// Returns an ELF file with only these sections: kind, offset, size, link.
    fn elf(sections: &[(u32, u64, u64, u32)], contents: &[u8]) -> tempfile::NamedTempFile {
        let mut bytes = vec![0; 64];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes[40..48].copy_from_slice(&(64 + contents.len() as u64).to_le_bytes());
        bytes[60..62].copy_from_slice(&(sections.len() as u16).to_le_bytes());
        bytes.extend(contents);
        for &(kind, offset, size, link) in sections {
            let mut section = [0; SECTION_SIZE];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            section[24..32].copy_from_slice(&offset.to_le_bytes());
            section[32..40].copy_from_slice(&size.to_le_bytes());
            section[40..44].copy_from_slice(&link.to_le_bytes());
            bytes.extend(section);
        }
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        file
    }

    #[test]
    fn only_the_needed_table_and_names_are_read() {
        // A symbol for the function `malloc` in section 1; its name is at 64 + 24.
        let mut contents = vec![0; SYMBOL_SIZE];
        contents[4] = STT_FUNC;
        contents[6] = 1;
        contents.extend(b"malloc\0".repeat(100_000));
        let names = (contents.len() - SYMBOL_SIZE) as u64;
        let strings = (3, 64 + SYMBOL_SIZE as u64, names, 0);
        let table = (SHT_DYNSYM, 64, SYMBOL_SIZE as u64, 0);
        let found = definitions(elf(&[strings, table], &contents).path(), &["malloc"]);
        assert_eq!(found.unwrap().found.len(), 1);
        let empty = (SHT_DYNSYM, 64, 0, 0);
        let mut many = vec![strings, empty];
        many.extend([table; 5000]);
        let file = elf(&many, &contents);
        let found = definitions(file.path(), &["malloc"]).unwrap();
        assert_eq!(found.found, []);
        let strings = Section {
            kind: 3,
            offset: strings.1,
            size: strings.2,
            link: 0,
        };
        let file = File::open(file.path()).unwrap();
        let places = name_offsets(&file, &strings, &["malloc"]).unwrap();
        assert_eq!(places.len(), MAX_NAME_OFFSETS);
    }

    #[test]
    fn files_with_wrong_table_sizes_give_no_variable() {
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        let file = tempfile::NamedTempFile::new().unwrap();
        for (at, bytes) in [(40, [0xff; 8]), (40, 64u64.to_le_bytes()), (56, [0xff; 8])] {
            let mut damaged = program[..8192].to_vec();
            damaged[at..at + 8].copy_from_slice(&bytes);
            std::fs::write(file.path(), &damaged).unwrap();
            let found = definitions(file.path(), &["malloc", "main"]);
            assert!(found.is_ok_and(|found| found.found.is_empty()), "{at}");
        }
        assert!(definitions(Path::new("/dev/zero"), &["malloc"]).is_err());
    }
}
