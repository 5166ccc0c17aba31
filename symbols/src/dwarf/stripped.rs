//! Names the code of stripped programs.
//!
//! A program without debug information may still have symbols: in its own tables, in those of its
//! debug file, in a compressed table, or, for Go, in the table that its runtime unwinds by. Stubs
//! that jump into other modules are named after their targets, as disassemblers do: `malloc@plt`. A
//! function without a symbol still has an unwind table entry, and is named after its start address:
//! `cc1plus+0x5a1230`. This name is the same in every run of a build, and the address is the one
//! that disassemblers show.
//!
//! Limits: 64-bit little-endian programs with section headers; stubs of x86-64 and aarch64 only.
//! Like [`super::read`], it may panic on a crafted file.

// Decision 47: names for code without symbols.
mod boundaries;
mod go;
mod stubs;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::super::frame::{Frame, Frames, Origin};
use super::companions;
use super::image::Image;
use super::residency::Residency;
use super::table;

/// Returns true if [`complete`] can read the program.
pub fn can_complete(path: &Path) -> bool {
    Image::open(path).is_some()
}

/// Returns true if neither the program nor its debug files have debug information, so that symbol
/// tables are all there is.
pub fn lacks_debug_info(path: &Path, directories: &[PathBuf]) -> bool {
    let image = Image::open(path);
    image.is_some_and(|image| {
        !image.has_debug_info() && companions::with_debug_info(&image, directories).is_none()
    })
}

/// Adds frames for the addresses that have none but are covered by the program's symbol or unwind
/// tables. Code without a symbol is named after `module`, or not at all if that is `None`.
pub fn complete(
    path: &Path,
    directories: &[PathBuf],
    module: Option<&str>,
    addresses: &[u64],
    frames: &mut Frames,
) {
    let Some(image) = Image::open(path) else {
        return;
    };
    let mut names = Names {
        by_address: stubs::names(&image, &sorted(addresses.iter().copied())),
        wanted: Vec::new(),
    };
    let known = addresses.iter().zip(frames.iter());
    let unnamed = known
        .filter(|(address, found)| found.is_empty() && !names.by_address.contains_key(address));
    names.wanted = sorted(unnamed.map(|(&address, _)| address));
    names.by_symbols(&image);
    if !names.wanted.is_empty() {
        companions::debug_files(&image, directories).for_each(|debug| names.by_symbols(&debug));
        companions::unpack_debugdata(&image)
            .iter()
            .for_each(|packed| names.by_symbols(packed));
        names.by_address.extend(go::names(&image, &names.wanted));
        let by_address = &names.by_address;
        names
            .wanted
            .retain(|address| !by_address.contains_key(address));
    }
    let starts = if module.is_some() {
        boundaries::starts(&image, &names.wanted, &Residency::of(image.map()))
    } else {
        HashMap::new()
    };
    let mut generated = GeneratedNames {
        module: module.unwrap_or_default(),
        names: HashMap::new(),
    };
    for (address, found) in addresses.iter().zip(frames) {
        if let Some(name) = names.by_address.get(address) {
            *found = vec![Frame::named(Rc::clone(name))];
        } else if found.is_empty()
            && let Some(&start) = starts.get(address)
        {
            *found = vec![generated.frame(start)];
        }
    }
}

fn sorted(addresses: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sorted: Vec<u64> = addresses.collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// Names found so far.
struct Names {
    by_address: HashMap<u64, Rc<str>>,
    /// Addresses without a name, sorted.
    wanted: Vec<u64>,
}

impl Names {
    /// Looks the addresses up in the symbol tables of a file.
    fn by_symbols(&mut self, image: &Image) {
        if self.wanted.is_empty() {
            return;
        }
        let residency = Residency::of(image.map());
        // A damaged table only loses its own names.
        let found = table::names(image, &self.wanted, &residency).unwrap_or_default();
        self.wanted.retain(|address| !found.contains_key(address));
        self.by_address.extend(found);
    }
}

/// Generated names of functions without symbols.
struct GeneratedNames<'a> {
    module: &'a str,
    /// Names by the function's start address.
    names: HashMap<u64, Rc<str>>,
}

impl GeneratedNames<'_> {
    fn frame(&mut self, start: u64) -> Frame {
        let name = self.names.entry(start);
        let name = name.or_insert_with(|| format!("{}+{start:#x}", self.module).into());
        Frame {
            origin: Origin::Synthetic,
            ..Frame::named(Rc::clone(name))
        }
    }
}

#[cfg(test)]
mod tests;
