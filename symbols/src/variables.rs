//! The variable that an address lies in, by a file's symbol tables.
//!
//! Files are hostile input: of each table a bounded part is read, piece by piece.

use std::fs::File;
use std::io;
use std::path::Path;

use heap_format::opening;

use super::definitions::{
    MOST_SYMBOLS, SHT_DYNSYM, SHT_SYMTAB, SYMBOL, Section, header, pieces, sections, word,
};
use super::elf::{read_existing, read_up_to};

const STT_OBJECT: u8 = 1;
const PT_LOAD: u32 = 1;
/// Bytes of a program header.
const SEGMENT: usize = 56;
/// Longest name.
const MOST_NAME: usize = 4096;

/// A variable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name, as in the file.
    pub name: String,
    /// How far into it the address is, bytes.
    pub offset: u64,
    /// Its size, bytes.
    pub size: u64,
}

/// The variable at `distance` bytes from where a 64-bit ELF file is mapped; `None` if no symbol
/// says, as in a stripped file.
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
        if let Some((name, offset, size)) = symbol(&file, table, address)? {
            let name = text(&file, strings, u64::from(name))?;
            return Ok(Some(Variable { name, offset, size }));
        }
    }
    Ok(None)
}

/// The address that the file's first segment is linked for, to its page.
fn first_address(file: &File, header: &[u8; 64]) -> io::Result<Option<u64>> {
    let count = usize::from(u16::from_le_bytes([header[56], header[57]]));
    let segments = read_existing(file, word(header, 32), (count * SEGMENT) as u64)?;
    let segments = segments.chunks_exact(SEGMENT);
    let loaded = segments.filter(|segment| word(segment, 0) as u32 == PT_LOAD);
    Ok(loaded.map(|segment| word(segment, 16) & !4095).min())
}

/// For the variable that an address lies in, the name's place, the distance from its start, and its
/// size.
fn symbol(file: &File, table: &Section, address: u64) -> io::Result<Option<(u32, u64, u64)>> {
    let mut found = None;
    let range = (table.offset, table.size.min(MOST_SYMBOLS));
    pieces(file, range, 0, |_, piece| {
        found = piece.chunks_exact(SYMBOL).find_map(|symbol| {
            let first = word(symbol, 0);
            let (kind, section) = ((first >> 32) as u8 & 0xf, (first >> 48) as u16);
            let offset = address.checked_sub(word(symbol, 8))?;
            let size = word(symbol, 16);
            let holds = kind == STT_OBJECT && section != 0 && offset < size;
            holds.then_some((first as u32, offset, size))
        });
        found.is_none()
    })?;
    Ok(found)
}

fn text(file: &File, strings: &Section, at: u64) -> io::Result<String> {
    let mut name = vec![0; MOST_NAME];
    let from = strings.offset.saturating_add(at);
    let got = read_up_to(file, &mut name, from)?;
    let name = name[..got].split(|byte| *byte == 0).next();
    Ok(String::from_utf8_lossy(name.unwrap_or_default()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[unsafe(no_mangle)]
    static VARIABLE_OF_THE_TEST: [u64; 16] = [7; 16];

    #[test]
    fn a_variable_is_found_by_an_address_inside() {
        let own = std::env::current_exe().unwrap();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let line = maps
            .lines()
            .find(|line| line.ends_with(own.to_str().unwrap()));
        let start = line.unwrap().split('-').next().unwrap();
        let start = u64::from_str_radix(start, 16).unwrap();
        let at = (&raw const VARIABLE_OF_THE_TEST[3]).addr() as u64;
        let found = variable(&own, at - start).unwrap();
        let expected = Variable {
            name: "VARIABLE_OF_THE_TEST".to_owned(),
            offset: 24,
            size: 128,
        };
        assert_eq!(found, Some(expected));
        assert_eq!(variable(&own, 0).unwrap(), None);
        assert_eq!(variable(Path::new("/etc/passwd"), 0).unwrap(), None);
    }
}
