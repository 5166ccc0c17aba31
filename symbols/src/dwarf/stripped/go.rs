//! Names of Go's functions, from the table that its runtime unwinds by (`.gopclntab`). Programs
//! have it even if they were stripped.
//!
//! Formats of Go 1.16, 1.18 and 1.20; the last is current. Offsets in the table are not trusted.

use std::collections::HashMap;
use std::rc::Rc;

use super::super::image::{Image, Section, number};

/// Sections that may hold the table: in position-dependent programs, in position-independent ones,
/// and in those linked by another linker than Go's (programs with C), where the table is only a
/// part of the section.
const SECTIONS: [&str; 3] = [".gopclntab", ".data.rel.ro.gopclntab", ".data.rel.ro"];
/// Sections that may hold the description of the module (`runtime.moduledata`), newer programs'
/// first.
const MODULES: [&str; 4] = [".go.module", ".noptrdata", ".data", ".data.rel.ro"];
/// Alignment of the table and of the module's description, in bytes.
const ALIGNMENT: usize = 8;
/// Offset of the address of the code in the module's description.
const MODULE_TEXT: u64 = 176;
/// Magic number from Go 1.16 on.
const GO_1_16: u64 = 0xffff_fffa;
/// Magic number from Go 1.18 on.
const GO_1_18: u64 = 0xffff_fff0;
/// Magic number from Go 1.20 on.
const GO_1_20: u64 = 0xffff_fff1;
/// Offset of the first word in the table's header.
const HEAD: usize = 8;
/// Size of a word, in bytes.
const WORD: usize = 8;
/// Maximum length of a name, in bytes.
const MAX_NAME: usize = 4096;
/// `R_X86_64_RELATIVE` and `R_AARCH64_RELATIVE`.
const RELATIVE: [u64; 2] = [8, 1027];
/// Size of a relocation with an addend, in bytes.
const RELOCATION: usize = 24;

/// A program's table.
struct Table<'i> {
    bytes: &'i [u8],
    /// Address of the code; the functions' addresses are relative to it.
    text: u64,
    /// Size of an address in the table, in bytes.
    width: usize,
    /// Number of functions.
    count: usize,
    /// Offset of the names.
    names_offset: usize,
    /// Offset of the functions.
    functions_offset: usize,
}

/// Returns the names of the addresses that Go's functions cover. `wanted` is sorted.
pub fn names(image: &Image, wanted: &[u64]) -> HashMap<u64, Rc<str>> {
    let mut names = HashMap::new();
    let section = SECTIONS.iter().find_map(|name| image.section(name));
    let Some(section) = section else {
        return names;
    };
    let Some(bytes) = image.data(section) else {
        return names;
    };
    let Some(table) = Table::find(image, section, &bytes) else {
        return names;
    };
    for &address in wanted {
        if let Some(name) = table.name(address) {
            names.insert(address, name.into());
        }
    }
    names
}

/// Returns true if bytes begin like a table: magic number, two zeros, size of the shortest
/// instruction, size of an address.
fn is_table(bytes: &[u8]) -> bool {
    let magic = number(bytes, 0, 4);
    let is_known = [GO_1_16, GO_1_18, GO_1_20].map(Some).contains(&magic);
    is_known && matches!(bytes.get(4..HEAD), Some([0, 0, 1 | 2 | 4, 8]))
}

impl<'i> Table<'i> {
    /// Parses the first table in a section.
    fn find(image: &Image, section: &Section, bytes: &'i [u8]) -> Option<Self> {
        let at = (0..bytes.len())
            .step_by(ALIGNMENT)
            .find(|at| is_table(&bytes[*at..]))?;
        Self::parse(image, section.address.checked_add(at as u64)?, &bytes[at..])
    }

    /// Parses the table at an address.
    fn parse(image: &Image, address: u64, bytes: &'i [u8]) -> Option<Self> {
        // The header's words: number of functions, number of files, since Go 1.18 the address of
        // the code, then the offsets of the table's parts.
        let word = |index: usize| number(bytes, HEAD + index * WORD, WORD);
        let offset = |index: usize| usize::try_from(word(index)?).ok();
        let (extra_words, width) = match number(bytes, 0, 4)? {
            GO_1_16 => (0, WORD),
            GO_1_18 | GO_1_20 => (1, 4),
            _ => return None,
        };
        let text = match (extra_words, word(2)?) {
            (0, _) => 0,
            // Relocated, or left out since Go 1.26.
            (_, 0) => {
                let location = address + (HEAD + 2 * WORD) as u64;
                let names = address.checked_add(word(2 + extra_words)?)?;
                relocated_value(image, location)
                    .or_else(|| text_of_module(image, address, names))?
            }
            (_, text) => text,
        };
        Some(Self {
            bytes,
            text,
            width,
            count: offset(0)?,
            names_offset: offset(2 + extra_words)?,
            functions_offset: offset(6 + extra_words)?,
        })
    }

    /// Returns a field of entry `index` in the list of functions: 0 is the function's address, 1
    /// the offset of its record. The last entry has only an address, the end of the code.
    fn field(&self, index: usize, field: usize) -> Option<u64> {
        let at = index.checked_mul(2)?.checked_add(field)?;
        let at = self
            .functions_offset
            .checked_add(at.checked_mul(self.width)?)?;
        number(self.bytes, at, self.width)
    }

    fn name(&self, address: u64) -> Option<&'i str> {
        let distance = address.checked_sub(self.text)?;
        // The number of functions that begin at or before the address.
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low + (high - low) / 2;
            if self.field(middle, 0)? <= distance {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        let index = low.checked_sub(1)?;
        if distance >= self.field(index + 1, 0)? {
            return None;
        }
        let record = usize::try_from(self.field(index, 1)?).ok()?;
        let record = self
            .functions_offset
            .checked_add(record)?
            .checked_add(self.width)?;
        let name = usize::try_from(number(self.bytes, record, 4)?).ok()?;
        let name = self.bytes.get(self.names_offset.checked_add(name)?..)?;
        let name = &name[..name.len().min(MAX_NAME)];
        let name = name.split(|&byte| byte == 0).next()?;
        std::str::from_utf8(name)
            .ok()
            .filter(|name| !name.is_empty())
    }
}

/// Returns the address that the loader writes at `location`.
fn relocated_value(image: &Image, location: u64) -> Option<u64> {
    let relocations = image.data(image.section(".rela.dyn")?)?;
    addend(&relocations, location)
}

fn addend(relocations: &[u8], location: u64) -> Option<u64> {
    let mut relocations = relocations.chunks_exact(RELOCATION);
    let relocation = relocations.find(|relocation| number(relocation, 0, 8) == Some(location))?;
    let is_relative = RELATIVE.contains(&number(relocation, 8, 4)?);
    number(relocation, 16, 8).filter(|_| is_relative)
}

/// Returns the address of the code from the description of the module. The description is found by
/// its first two words: the addresses of the table and of the names in it.
fn text_of_module(image: &Image, table: u64, names: u64) -> Option<u64> {
    let relocations = image
        .section(".rela.dyn")
        .and_then(|section| image.data(section));
    if let Some(relocations) = relocations {
        let mut tables = relocations
            .chunks_exact(RELOCATION)
            .filter(|relocation| number(relocation, 16, 8) == Some(table));
        let text = tables.find_map(|relocation| {
            let module = number(relocation, 0, 8)?;
            let is_module = addend(&relocations, module.checked_add(WORD as u64)?) == Some(names);
            let location = module.checked_add(MODULE_TEXT)?;
            is_module.then(|| addend(&relocations, location))?
        });
        if text.is_some() {
            return text;
        }
    }
    MODULES.iter().find_map(|name| {
        let bytes = image.data(image.section(name)?)?;
        let word = |at: usize| number(&bytes, at, WORD);
        let module = (0..bytes.len())
            .step_by(ALIGNMENT)
            .find(|at| word(*at) == Some(table) && word(at + WORD) == Some(names))?;
        word(module + MODULE_TEXT as usize)
    })
}
