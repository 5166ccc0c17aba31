//! Looks addresses up in symbol tables.

use std::collections::HashMap;
use std::rc::Rc;

use super::image::{Image, Section, number};
use super::residency::Residency;

/// Size of a symbol, in bytes.
const SYMBOL_SIZE: usize = 24;
/// Types of symbols for code or data: `STT_NOTYPE`, `STT_OBJECT`, `STT_FUNC`, `STT_GNU_IFUNC`.
const TYPES: [u64; 4] = [0, 1, 2, 10];

/// Maximum number of symbols at one address whose names are compared.
const MAX_ALIASES: usize = 64;

/// A symbol that may cover an address.
#[derive(Clone, Copy)]
struct Symbol {
    value: u64,
    size: u64,
    name: usize,
    undefined: bool,
}

/// Returns the names of the addresses that a symbol covers. `wanted` is sorted. Returns `None` if a
/// table is damaged.
pub fn names(
    image: &Image,
    wanted: &[u64],
    residency: &Residency,
) -> Option<HashMap<u64, Rc<str>>> {
    matching_names(image, wanted, residency, |_, _| true)
}

/// Like [`names`], but only uses symbols whose name `matches` the address.
pub fn matching_names(
    image: &Image,
    wanted: &[u64],
    residency: &Residency,
    matches: impl Fn(u64, &str) -> bool,
) -> Option<HashMap<u64, Rc<str>>> {
    let mut names = HashMap::new();
    let mut rest = wanted.to_vec();
    // A decompressed symbol table contains only the functions that the program's own tables
    // lack.
    let is_unpacked = image.map().is_none();
    for (name, is_sparse) in [(".symtab", is_unpacked), (".dynsym", true)] {
        if rest.is_empty() {
            continue;
        }
        if let Some(section) = image.section(name) {
            let search = Search {
                image,
                is_sparse,
                residency,
                matches: &matches,
            };
            search.add_names(section, &rest, &mut names)?;
            rest.retain(|address| !names.contains_key(address));
        }
    }
    Some(names)
}

/// A search in one symbol table.
struct Search<'a, F> {
    image: &'a Image,
    /// Set if the table lacks some functions. Then a symbol of size 0 covers only its own address,
    /// otherwise everything up to the next symbol.
    is_sparse: bool,
    residency: &'a Residency<'a>,
    matches: &'a F,
}

impl<F: Fn(u64, &str) -> bool> Search<'_, F> {
    /// Adds the names of the addresses that symbols of the table cover.
    fn add_names(
        &self,
        section: &Section,
        wanted: &[u64],
        names: &mut HashMap<u64, Rc<str>>,
    ) -> Option<()> {
        let Self {
            image, is_sparse, ..
        } = *self;
        let Some(symbols) = image.data(section) else {
            // A debug file has only the section's header.
            return Some(());
        };
        let strings = image.data(image.section_by_index(section.link)?)?;
        let nearest = nearest(&symbols, wanted, self.residency)?;
        let mut symbols: &[Symbol] = &[];
        for (&address, candidates) in wanted.iter().zip(&nearest) {
            if !candidates.is_empty() {
                symbols = candidates;
            }
            let covers = |s: &&Symbol| match s.size {
                0 => !is_sparse || address == s.value,
                size => address < s.value.saturating_add(size),
            };
            let covering = symbols.iter().filter(|s| !s.undefined).filter(covers);
            for symbol in covering.take(MAX_ALIASES) {
                let name = strings.get(symbol.name..)?.split(|&b| b == 0).next()?;
                let name = std::str::from_utf8(name).ok()?;
                if (self.matches)(address, name) {
                    names.insert(address, name.into());
                    break;
                }
            }
        }
        Some(())
    }
}

/// Returns the symbols with the greatest value up to each address, largest symbol first. The list
/// of an address is empty if the preceding address in `wanted` has the same symbols.
fn nearest(symbols: &[u8], wanted: &[u64], residency: &Residency) -> Option<Vec<Vec<Symbol>>> {
    let mut nearest: Vec<Vec<Symbol>> = vec![Vec::new(); wanted.len()];
    for entry in symbols.chunks_exact(SYMBOL_SIZE) {
        residency.count_item();
        let value = number(entry, 8, 8)?;
        let first = wanted.partition_point(|&a| a < value);
        let Some(candidates) = nearest.get_mut(first) else {
            continue;
        };
        if !TYPES.contains(&(u64::from(entry[4]) & 15)) {
            continue;
        }
        let nearest_value = candidates.first().map(|s| s.value);
        if nearest_value.is_none_or(|nearest| nearest <= value) {
            if nearest_value != Some(value) {
                candidates.clear();
            }
            candidates.push(Symbol {
                value,
                size: number(entry, 16, 8)?,
                name: number(entry, 0, 4)? as usize,
                undefined: number(entry, 6, 2)? == 0,
            });
        }
    }
    for symbols in &mut nearest {
        symbols.sort_by_key(|symbol| std::cmp::Reverse(symbol.size));
    }
    Some(nearest)
}
