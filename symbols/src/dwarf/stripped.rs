//! Names for the code of stripped programs.
//!
//! What has no debug information may still have symbols: in its own tables, in those of its debug
//! file, packed in it. Jumps into other modules are called after their targets, as disassemblers
//! call them: `malloc@plt`. And what has no symbol at all has a beginning, by the tables that
//! exceptions are unwound with, and is called after that: `cc1plus+0x5a1230`. That name is the
//! same in each run of a build, and the number is the address that disassemblers show.
//!
//! Limits: 64-bit little-endian programs that have a table of sections, jumps of x86-64 and
//! aarch64. As [`super::read`], this may panic where a file lies.

mod boundaries;
mod stubs;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::super::frame::{Frame, Frames, Origin};
use super::companions;
use super::image::Image;
use super::residency::Residency;
use super::table;

/// Whether the tables of a program are of the kind that [`complete`] reads.
pub fn is_readable(path: &Path) -> bool {
    Image::open(path).is_some()
}

/// Whether there is no debug information of a program, so that tables of symbols are all there is.
pub fn lacks_debug_info(path: &Path, directories: &[PathBuf]) -> bool {
    let image = Image::open(path);
    image.is_some_and(|image| {
        !image.has_debug_info() && companions::with_debug_info(&image, directories).is_none()
    })
}

/// Adds frames for those of the addresses that have none, as far as the program's tables have them.
/// Code without a symbol is named after `module`, if that is given.
pub fn complete(
    (path, directories): (&Path, &[PathBuf]),
    module: Option<&str>,
    addresses: &[u64],
    frames: &mut Frames,
) {
    let Some(image) = Image::open(path) else {
        return;
    };
    let mut names = Names {
        of: stubs::names(&image, &sorted(addresses.iter().copied())),
        wanted: Vec::new(),
    };
    let known = addresses.iter().zip(frames.iter());
    let left = known.filter(|(address, own)| own.is_empty() && !names.of.contains_key(address));
    names.wanted = sorted(left.map(|(&address, _)| address));
    names.by_symbols(&image);
    if !names.wanted.is_empty() {
        companions::debug_files(&image, directories).for_each(|debug| names.by_symbols(&debug));
        companions::packed(&image)
            .iter()
            .for_each(|packed| names.by_symbols(packed));
    }
    let starts = match module {
        Some(_) => boundaries::starts(&image, &names.wanted, &Residency::of(image.map())),
        None => HashMap::new(),
    };
    let mut made = Made {
        module: module.unwrap_or_default(),
        names: HashMap::new(),
    };
    for (address, own) in addresses.iter().zip(frames) {
        if let Some(name) = names.of.get(address) {
            *own = vec![Frame::named(Rc::clone(name))];
        } else if let Some(&start) = starts.get(address).filter(|_| own.is_empty()) {
            *own = vec![made.frame(start)];
        }
    }
}

fn sorted(addresses: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sorted: Vec<u64> = addresses.collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted
}

/// Names found, and the addresses, sorted, for which there is none yet.
struct Names {
    of: HashMap<u64, Rc<str>>,
    wanted: Vec<u64>,
}

impl Names {
    fn by_symbols(&mut self, image: &Image) {
        if self.wanted.is_empty() {
            return;
        }
        let residency = Residency::of(image.map());
        // A damaged table costs its own names.
        let found = table::names(image, &self.wanted, &residency).unwrap_or_default();
        self.wanted.retain(|address| !found.contains_key(address));
        self.of.extend(found);
    }
}

/// Names of functions without symbols, each once.
struct Made<'a> {
    module: &'a str,
    names: HashMap<u64, Rc<str>>,
}

impl Made<'_> {
    fn frame(&mut self, start: u64) -> Frame {
        let name = self.names.entry(start);
        let name = name.or_insert_with(|| format!("{}+{start:#x}", self.module).into());
        Frame {
            origin: Origin::Made,
            ..Frame::named(Rc::clone(name))
        }
    }
}

#[cfg(test)]
mod tests;
