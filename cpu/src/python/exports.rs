//! Symbols of an interpreter in an untrusted file.

use crate::source::{Source, bytes};

/// Maximum number of sections of a file.
const MAX_SECTIONS: u64 = 1 << 14;
/// Maximum size of a symbol table.
const MAX_SYMBOLS_BYTES: u64 = 32 << 20;
/// Maximum size of a string table.
const MAX_NAMES_BYTES: u64 = 64 << 20;
/// Sizes of the ELF header, of a section header, and of a symbol.
const HEADER_BYTES: u64 = 64;
const SECTION_BYTES: u64 = 64;
const SYMBOL_BYTES: usize = 24;
/// Types of sections with symbols: `SHT_SYMTAB` (all symbols) and `SHT_DYNSYM` (those for dynamic
/// linking).
const SHT_SYMTAB: u32 = 2;
const SHT_DYNSYM: u32 = 11;

/// Names of the symbols that are searched, with their terminating zeros.
const WANTED: [&[u8]; 6] = [
    b"_PyRuntime\0",
    b"Py_Version\0",
    b"_PyEval_EvalFrameDefault\0",
    b"PyIter_Send\0",
    b"PyFrame_GetCode\0",
    b"PyVectorcall_Call\0",
];

/// Addresses of symbols before relocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterpreterSymbols {
    /// Address of `_PyRuntime`.
    pub runtime: u64,
    /// Address of `Py_Version` (3.11 and later).
    pub version: Option<u64>,
    /// Start and end of the evaluation loop.
    pub evaluate: Option<(u64, u64)>,
    /// For 3.10, 3.9 and 3.8: true if a function that this version introduced exists.
    pub first_in: [bool; 3],
}

/// Reads the symbols of a file. If `all`, searches `.symtab` too, not only the symbols for dynamic
/// linking.
pub fn read(source: &(impl Source + ?Sized), all: bool) -> Option<InterpreterSymbols> {
    let sections = sections(source)?;
    let tables: &[u32] = if all {
        &[SHT_DYNSYM, SHT_SYMTAB]
    } else {
        &[SHT_DYNSYM]
    };
    tables
        .iter()
        .find_map(|kind| symbols_of_table(source, &sections, *kind))
}

fn sections(source: &(impl Source + ?Sized)) -> Option<Vec<u8>> {
    let header = bytes(source, 0, HEADER_BYTES, HEADER_BYTES)?;
    if !header.starts_with(b"\x7fELF\x02\x01") || header.len() < HEADER_BYTES as usize {
        return None;
    }
    let count = word_zero_padded(&header, 60)? & 0xffff;
    bytes(
        source,
        word_at(&header, 40)?,
        count * SECTION_BYTES,
        MAX_SECTIONS * SECTION_BYTES,
    )
}

/// Returns the word at an offset, with zeros for missing bytes.
fn word_zero_padded(bytes: &[u8], at: usize) -> Option<u64> {
    let mut word = [0; 8];
    let present = bytes.get(at..)?;
    let count = present.len().min(8);
    word[..count].copy_from_slice(&present[..count]);
    Some(u64::from_le_bytes(word))
}

fn word_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// Searches the symbol table of type `kind`. Returns `None` if it lacks `_PyRuntime`.
fn symbols_of_table(
    source: &(impl Source + ?Sized),
    sections: &[u8],
    kind: u32,
) -> Option<InterpreterSymbols> {
    let (sections, _) = sections.as_chunks::<{ SECTION_BYTES as usize }>();
    let table = sections
        .iter()
        .find(|section| word_at(*section, 4).is_some_and(|word| word as u32 == kind))?;
    let strings = sections.get(word_at(table, 40)? as u32 as usize)?;
    let part = |section: &[u8], max_bytes| {
        let offset = word_at(section, 24)?;
        let size = word_at(section, 32)?;
        bytes(source, offset, size, max_bytes)
    };
    let symbols = part(table, MAX_SYMBOLS_BYTES)?;
    let strings = part(strings, MAX_NAMES_BYTES)?;
    let (symbols, _) = symbols.as_chunks::<SYMBOL_BYTES>();
    let mut found = [None; WANTED.len()];
    for symbol in symbols {
        // `Elf64_Sym`: st_name (4 bytes), st_info, st_other, st_shndx (2 bytes), st_value, st_size.
        let first = word_at(symbol, 0)?;
        let name = first as u32 as usize;
        let section = (first >> 48) as u16;
        let text = strings.get(name..).unwrap_or_default();
        if section == 0 || !text.starts_with(b"_Py") && !text.starts_with(b"Py") {
            continue;
        }
        if let Some(wanted) = WANTED.iter().position(|wanted| text.starts_with(wanted)) {
            found[wanted] = Some((word_at(symbol, 8)?, word_at(symbol, 16)?));
        }
    }
    let [runtime, version, evaluate, of_3_10, of_3_9, of_3_8] = found;
    Some(InterpreterSymbols {
        runtime: runtime?.0,
        version: version.map(|(address, _)| address),
        evaluate: evaluate.map(|(start, size)| (start, start.saturating_add(size))),
        first_in: [of_3_10, of_3_9, of_3_8].map(|function| function.is_some()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an ELF file with a symbol table of this type, and its names.
    fn file(kind: u32, names: &[u8], symbols: &[(u32, u16, u64, u64)]) -> Vec<u8> {
        let mut bytes = vec![0; HEADER_BYTES as usize];
        bytes[..6].copy_from_slice(b"\x7fELF\x02\x01");
        bytes.extend(names);
        let table = bytes.len() as u64;
        for &(name, section, at, size) in symbols {
            let first = u64::from(name) | (u64::from(section) << 48);
            bytes.extend([first, at, size].map(u64::to_le_bytes).as_flattened());
        }
        let end = bytes.len() as u64;
        bytes[40..48].copy_from_slice(&end.to_le_bytes());
        bytes[60] = 2;
        let section = |kind: u32, from: u64, to: u64, link: u64| {
            let mut section = [0; SECTION_BYTES as usize];
            section[4..8].copy_from_slice(&kind.to_le_bytes());
            for (at, word) in [(24, from), (32, to - from), (40, link)] {
                section[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
            section
        };
        bytes.extend(section(3, HEADER_BYTES, table, 0));
        bytes.extend(section(kind, table, end, 0));
        bytes
    }

    const NAMES: &[u8] = b"\0_PyRuntime\0_PyEval_EvalFrameDefault\0PyFrame_GetCode\0";

    #[test]
    fn names_are_found_in_either_table() {
        let symbols = [(1, 7, 0x5000, 64), (12, 3, 0x100, 0x80), (37, 0, 0, 0)];
        let expected = InterpreterSymbols {
            runtime: 0x5000,
            version: None,
            evaluate: Some((0x100, 0x180)),
            // `PyFrame_GetCode` is undefined: it belongs to another file.
            first_in: [false; 3],
        };
        let dynamic = file(SHT_DYNSYM, NAMES, &symbols);
        assert_eq!(read(&dynamic[..], false), Some(expected));
        let full = file(SHT_SYMTAB, NAMES, &symbols);
        assert_eq!(read(&full[..], false), None);
        assert_eq!(read(&full[..], true), Some(expected));
        assert_eq!(
            read(&file(SHT_DYNSYM, NAMES, &symbols[1..])[..], true),
            None
        );
    }

    #[test]
    fn damaged_files_are_read_without_panic() {
        let symbols = [(1, 7, 0x5000, 64), (u32::MAX, 3, u64::MAX, u64::MAX)];
        let whole = file(SHT_DYNSYM, NAMES, &symbols);
        assert!(read(&whole[..], true).is_some());
        for end in 0..whole.len() {
            assert_eq!(read(&whole[..end], true), None);
        }
        for at in 0..whole.len() {
            let mut damaged = whole.clone();
            damaged[at] = !damaged[at];
            let _ = read(&damaged[..], true);
        }
    }
}
