//! Finds variables by a file's symbol tables: by address or by name.
//!
//! Files are hostile input: a bounded part of each table is read, piece by piece.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;

use profile::opening;

use super::definitions::{
    SHT_DYNSYM, SHT_SYMTAB, SYMBOL_SIZE, Section, header, name_offsets, read_pieces, sections, word,
};
use super::elf::{read_existing, read_up_to};

const STT_OBJECT: u8 = 1;
const PT_LOAD: u32 = 1;
/// Size of a program header (`Elf64_Phdr`), in bytes.
const SEGMENT_SIZE: usize = 56;
/// Offsets of fields of `Elf64_Ehdr`, `Elf64_Phdr` and `Elf64_Sym`.
const E_PHOFF: usize = 32;
const E_PHNUM: usize = 56;
const P_VADDR: usize = 16;
const ST_VALUE: usize = 8;
const ST_SIZE: usize = 16;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 4096;

/// Variable at an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Name in the symbol table.
    pub name: String,
    /// Distance of the address from the variable's start, in bytes.
    pub offset: u64,
    /// Size of the variable, in bytes.
    pub size: u64,
}

/// Returns the variable at `distance` bytes from the address at which a 64-bit ELF file is mapped.
/// Returns `None` if no symbol covers it, as in a stripped file.
///
/// # Errors
/// The file cannot be read, or is not a regular file.
pub fn variable(path: &Path, distance: u64) -> io::Result<Option<Variable>> {
    let file = opening::regular(path)?;
    let Some(header) = header(&file)? else {
        return Ok(None);
    };
    let Some(first) = first_address(&file, &header)? else {
        return Ok(None);
    };
    let address = first.wrapping_add(distance);
    let sections = sections(&file, &header)?;
    for kind in [SHT_SYMTAB, SHT_DYNSYM] {
        let table = sections.iter().find(|section| section.kind == kind);
        let Some(table) = table else { continue };
        let Some(strings) = sections.get(table.link) else {
            continue;
        };
        if let Some(found) = symbol(&file, table, address)? {
            return Ok(Some(Variable {
                name: text(&file, strings, u64::from(found.name))?,
                offset: found.offset,
                size: found.size,
            }));
        }
    }
    Ok(None)
}

/// Returns where the variables with these names are, as distances in bytes from the address at
/// which a 64-bit ELF file is mapped. Variables that have no symbol, as in a stripped file, are
/// missing.
///
/// # Errors
/// The file cannot be read, or is not a regular file.
pub fn distances(path: &Path, names: &[&'static str]) -> io::Result<HashMap<&'static str, u64>> {
    let file = opening::regular(path)?;
    let mut found = HashMap::new();
    let Some(header) = header(&file)? else {
        return Ok(found);
    };
    let Some(first) = first_address(&file, &header)? else {
        return Ok(found);
    };
    let sections = sections(&file, &header)?;
    let Some(table) = sections.iter().find(|section| section.kind == SHT_SYMTAB) else {
        return Ok(found);
    };
    let Some(strings) = sections.get(table.link) else {
        return Ok(found);
    };
    let offsets = name_offsets(&file, strings, names)?;
    if offsets.is_empty() {
        return Ok(found);
    }
    read_pieces(&file, table.symbols(), 0, |_, piece| {
        for symbol in piece.chunks_exact(SYMBOL_SIZE) {
            let entry = word(symbol, 0);
            let kind = (entry >> 32) as u8 & 0xf;
            let section = (entry >> 48) as u16;
            if kind == STT_OBJECT
                && section != 0
                && let Some(name) = offsets.get(&(entry as u32))
            {
                found.insert(*name, word(symbol, ST_VALUE).wrapping_sub(first));
            }
        }
        found.len() < names.len()
    })?;
    Ok(found)
}

/// Returns the link-time address of the file's first segment, rounded down to its page.
fn first_address(file: &File, header: &[u8; 64]) -> io::Result<Option<u64>> {
    let count = usize::from(u16::from_le_bytes([header[E_PHNUM], header[E_PHNUM + 1]]));
    let segments = read_existing(file, word(header, E_PHOFF), (count * SEGMENT_SIZE) as u64)?;
    let segments = segments.chunks_exact(SEGMENT_SIZE);
    let loaded = segments.filter(|segment| word(segment, 0) as u32 == PT_LOAD);
    Ok(loaded.map(|segment| word(segment, P_VADDR) & !4095).min())
}

/// Symbol of a variable at an address.
struct Symbol {
    /// Offset of the name in the string table, in bytes.
    name: u32,
    /// Distance of the address from the variable's start, in bytes.
    offset: u64,
    /// Size of the variable, in bytes.
    size: u64,
}

/// Finds the symbol of the variable at an address.
fn symbol(file: &File, table: &Section, address: u64) -> io::Result<Option<Symbol>> {
    let mut found = None;
    read_pieces(file, table.symbols(), 0, |_, piece| {
        found = piece.chunks_exact(SYMBOL_SIZE).find_map(|symbol| {
            // st_name (4 bytes), st_info (1), st_other (1), st_shndx (2).
            let first = word(symbol, 0);
            let name = first as u32;
            let kind = (first >> 32) as u8 & 0xf;
            let section = (first >> 48) as u16;
            let offset = address.checked_sub(word(symbol, ST_VALUE))?;
            let size = word(symbol, ST_SIZE);
            let holds = kind == STT_OBJECT && section != 0 && offset < size;
            holds.then_some(Symbol { name, offset, size })
        });
        found.is_none()
    })?;
    Ok(found)
}

/// Reads the string at offset `at` of a string table.
fn text(file: &File, strings: &Section, at: u64) -> io::Result<String> {
    let mut name = vec![0; MAX_NAME];
    let read = read_up_to(file, &mut name, strings.offset.saturating_add(at))?;
    let name = name[..read].split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[unsafe(no_mangle)]
    static VARIABLE_OF_THE_TEST: [u64; 16] = [7; 16];

    #[test]
    fn a_variable_is_found_by_an_address_inside() {
        let exe = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.ends_with(exe.to_str().unwrap()));
        let start = line.unwrap().split('-').next().unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let at = (&raw const VARIABLE_OF_THE_TEST[3]).addr() as u64;
        let found = variable(&exe, at - start).unwrap();
        let expected = Variable {
            name: "VARIABLE_OF_THE_TEST".to_owned(),
            offset: 24,
            size: 128,
        };
        assert_eq!(found, Some(expected));
        let names = ["VARIABLE_OF_THE_TEST", "main", "no_such_variable"];
        let by_name = distances(&exe, &names).unwrap();
        let expected = HashMap::from([("VARIABLE_OF_THE_TEST", at - start - 24)]);
        assert_eq!(by_name, expected, "main is a function");
        assert_eq!(variable(&exe, 0).unwrap(), None);
        assert_eq!(variable(Path::new("/etc/passwd"), 0).unwrap(), None);
    }
}
