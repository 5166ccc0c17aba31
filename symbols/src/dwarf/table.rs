//! Names of addresses from tables of symbols.

use std::collections::HashMap;
use std::rc::Rc;

use super::image::{Image, number};
use super::residency::Residency;

const ENTRY: usize = 24;
/// Kinds of symbols that stand for code or data; others name sections, files
/// and thread-local variables.
const KINDS: [u64; 4] = [0, 1, 2, 10];

/// Symbols of one address of which the right one is looked for.
const MOST_ALIKE: usize = 64;

/// A symbol that may hold an address.
#[derive(Clone, Copy)]
struct Symbol {
    value: u64,
    size: u64,
    name: usize,
    undefined: bool,
}

/// Names of those of the addresses, which are sorted, that a symbol holds.
/// `None` where a table is damaged.
pub fn names(
    image: &Image,
    wanted: &[u64],
    residency: &Residency,
) -> Option<HashMap<u64, Rc<str>>> {
    names_that(image, wanted, residency, |_, _| true)
}

/// The same, of symbols whose name is the right one of an address.
pub fn names_that(
    image: &Image,
    wanted: &[u64],
    residency: &Residency,
    is_right: impl Fn(u64, &str) -> bool,
) -> Option<HashMap<u64, Rc<str>>> {
    let mut names = HashMap::new();
    let mut rest = wanted.to_vec();
    // What is packed in a program are the functions that its other tables do not have.
    let is_packed = image.map().is_none();
    for (table, sparse) in [(".symtab", is_packed), (".dynsym", true)] {
        if !rest.is_empty() && image.section(table).is_some() {
            in_table(
                (image, table, sparse),
                &rest,
                &mut names,
                residency,
                &is_right,
            )?;
            rest.retain(|address| !names.contains_key(address));
        }
    }
    Some(names)
}

/// Looks in one table. In a `sparse` one, symbols without a size hold nothing
/// but their own address.
fn in_table(
    (image, table, sparse): (&Image, &str, bool),
    wanted: &[u64],
    names: &mut HashMap<u64, Rc<str>>,
    residency: &Residency,
    is_right: &impl Fn(u64, &str) -> bool,
) -> Option<()> {
    let section = image.section(table)?;
    let Some(symbols) = image.data(section) else {
        // A debug file has the header alone.
        return Some(());
    };
    let strings = image.data(image.numbered(section.link)?)?;
    let nearest = nearest(&symbols, wanted, residency)?;
    let mut symbols: &[Symbol] = &[];
    for (&address, own) in wanted.iter().zip(&nearest) {
        if !own.is_empty() {
            symbols = own;
        }
        let holds = |s: &&Symbol| match s.size {
            0 => !sparse || address == s.value,
            size => address < s.value.saturating_add(size),
        };
        let holding = symbols.iter().filter(|s| !s.undefined).filter(holds);
        for symbol in holding.take(MOST_ALIKE) {
            let name = strings.get(symbol.name..)?.split(|&b| b == 0).next()?;
            let name = std::str::from_utf8(name).ok()?;
            if is_right(address, name) {
                names.insert(address, name.into());
                break;
            }
        }
    }
    Some(())
}

/// For each address the symbols of a table that start last of those between the address
/// before and it, largest first.
fn nearest(symbols: &[u8], wanted: &[u64], residency: &Residency) -> Option<Vec<Vec<Symbol>>> {
    let mut nearest: Vec<Vec<Symbol>> = vec![Vec::new(); wanted.len()];
    for entry in symbols.chunks_exact(ENTRY) {
        residency.pass();
        let value = number(entry, 8, 8)?;
        let first = wanted.partition_point(|&a| a < value);
        let known = nearest.get(first).map(|own| own.first().map(|s| s.value));
        let Some(known) = known.filter(|_| KINDS.contains(&(u64::from(entry[4]) & 15))) else {
            continue;
        };
        if known.is_none_or(|known| known <= value) {
            if known != Some(value) {
                nearest[first].clear();
            }
            nearest[first].push(Symbol {
                value,
                size: number(entry, 16, 8)?,
                name: number(entry, 0, 4)? as usize,
                undefined: number(entry, 6, 2)? == 0,
            });
        }
    }
    for own in &mut nearest {
        own.sort_by_key(|symbol| std::cmp::Reverse(symbol.size));
    }
    Some(nearest)
}
