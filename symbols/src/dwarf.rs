//! Names of many addresses of one file at once, from its debug information.
//!
//! A dump requests thousands of addresses of a file, all known beforehand. So nothing is indexed:
//! each part of the debug information that may matter is passed through once, and only what holds
//! an address that is requested is examined. Where a part says where it ends, it is not even passed
//! through.
//!
//! Promises: [`read`] answers as blazesym does, or says `None` where the file
//! is of a kind that is left to it: no debug information, no 64-bit
//! little-endian program, parts of the information in further files, damage.
//! Limits: of functions with one address the one that starts last is taken.
//! May panic or be killed where a file lies: a child process is where to call
//! it.

mod companions;
mod functions;
mod image;
mod lines;
mod linked;
mod part;
mod plan;
mod residency;
mod rows;
mod scan;
mod scopes;
pub mod stripped;
mod table;
mod units;
mod unpacking;
mod walk;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gimli::{AbbreviationsCacheStrategy, UnitOffset};

use super::frame::{Frame, Frames, Origin};
use functions::Function;
pub use image::Image;
use lines::Row;
use residency::Residency;
use units::{Die, Slice, Units};
use unpacking::Content;

/// The frames of each address; `None` where another reader has to be asked.
pub fn read(path: &Path, addresses: &[u64], debug_directories: &[PathBuf]) -> Option<Frames> {
    let image = Image::open(path)?;
    if image.has_debug_info() {
        return look_up(&image, addresses);
    }
    let image = companions::with_debug_info(&image, debug_directories)?;
    look_up(&image, addresses)
}

fn look_up(image: &Image, addresses: &[u64]) -> Option<Frames> {
    let mut wanted = addresses.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let part = part::of(image, &wanted);
    // Where a part refers to the rest, all is read.
    let found = part.and_then(|part| look_up_in(image, Some(part), &wanted, addresses));
    found.or_else(|| look_up_in(image, None, &wanted, addresses))
}

/// Looks the addresses up, in a part of the units where one is given.
fn look_up_in<'i>(
    image: &'i Image,
    part: Option<Content<'i>>,
    wanted: &[u64],
    addresses: &[u64],
) -> Option<Frames> {
    let sections = image.sections(part)?;
    let mut dwarf = sections.borrow(|bytes| Slice::new(bytes, gimli::LittleEndian));
    dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
    let found = Lookup::make(&dwarf, image, wanted.to_vec())?;
    addresses.iter().map(|&a| found.frames(a)).collect()
}

/// Frames found.
struct Lookup<'a> {
    units: Units<'a>,
    /// The addresses, each once, sorted; the others are parallel to it.
    wanted: Vec<u64>,
    functions: Vec<Option<Function>>,
    rows: Vec<Option<Row>>,
    /// Names from the table of symbols, for what is in no function.
    symbols: HashMap<u64, Rc<str>>,
    /// Names from there for those of the functions that debug information has no whole name of.
    linked: HashMap<u64, Rc<str>>,
    /// Names with their scopes of the others, and of what was inlined.
    scoped: foldhash::HashMap<Die, Rc<str>>,
    /// Paths of source files, of those that rows and calls name.
    paths: foldhash::HashMap<(usize, u64), Rc<str>>,
}

impl<'a> Lookup<'a> {
    fn make(
        dwarf: &'a gimli::Dwarf<Slice<'a>>,
        image: &'a Image,
        wanted: Vec<u64>,
    ) -> Option<Self> {
        let units = Units::new(dwarf, Residency::of(image.map())).ok()?;
        let candidates = units.candidates(&wanted).ok()?;
        let functions = candidates.in_turn(&wanted, |asked, found| {
            let result = functions::find(&units, asked, found);
            units.forget_abbreviations(asked.unit);
            result
        });
        let functions = functions.ok()?;
        let rows = candidates.in_turn(&wanted, |asked, found| lines::find(&units, asked, found));
        let rows = rows.ok()?;
        let unnamed = wanted.iter().zip(&functions).filter(|(_, f)| f.is_none());
        let unnamed: Vec<u64> = unnamed.map(|(&address, _)| address).collect();
        let symbols = table::names(image, &unnamed, &units.residency)?;
        let mut found = Self {
            units,
            wanted,
            functions,
            rows,
            symbols,
            linked: HashMap::new(),
            scoped: foldhash::HashMap::default(),
            paths: foldhash::HashMap::default(),
        };
        found.note_paths().ok()?;
        found.linked = linked::names(image, &found.units, &found.wanted, &found.functions)?;
        found.scoped = found.scoped_names().ok()?;
        Some(found)
    }

    fn scoped_names(&self) -> gimli::Result<foldhash::HashMap<Die, Rc<str>>> {
        let mut wanted = foldhash::HashSet::default();
        for (address, function) in self.wanted.iter().zip(&self.functions) {
            let Some(function) = function else { continue };
            if !self.linked.contains_key(address) {
                wanted.insert((function.unit, function.entry));
            }
            wanted.extend(function.inlined.iter().map(|call| (call.unit, call.entry)));
        }
        let mut scoped = Vec::new();
        for (unit, entry) in wanted {
            scoped.extend(self.units.name(unit, entry)?.scoped);
        }
        scopes::names(&self.units, scoped)
    }

    fn note_paths(&mut self) -> gimli::Result<()> {
        let mut files: Vec<(usize, u64)> = Vec::new();
        files.extend(self.rows.iter().flatten().map(|r| (r.unit, r.file)));
        for function in self.functions.iter().flatten() {
            let calls = function.inlined.iter();
            files.extend(calls.filter_map(|call| Some((call.unit, call.file?))));
        }
        files.sort_unstable();
        files.dedup();
        for (unit, file) in files {
            let path = lines::path(&*self.units.open_for_lines(unit)?, self.units.dwarf, file)?;
            self.paths.insert((unit, file), path.into());
        }
        Ok(())
    }

    /// The frames of an address, innermost first.
    fn frames(&self, address: u64) -> Option<Vec<Frame>> {
        let at = self.wanted.binary_search(&address).ok()?;
        let function = self.functions[at].as_ref();
        let name = match function {
            Some(function) => match self.linked.get(&address) {
                Some(name) => (Rc::clone(name), Origin::Symbol),
                None => self.name(function.unit, function.entry)?,
            },
            None => match self.symbols.get(&address) {
                Some(name) => (Rc::clone(name), Origin::Symbol),
                None => return Some(Vec::new()),
            },
        };
        let Some(row) = &self.rows[at] else {
            return Some(vec![framed(name, None)]);
        };
        let source = self.source_location(row.unit, row.file, row.line, row.column);
        let mut chain = vec![(name, Some(source))];
        // Outermost first: each is where its caller calls it, and the last one
        // is where the address is.
        for call in function.iter().flat_map(|f| &f.inlined) {
            let name = self.name(call.unit, call.entry)?;
            let site = call.file;
            let mut site =
                site.map(|file| self.source_location(call.unit, file, call.line, call.column));
            if (chain.len() > 1 || site.is_some())
                && let Some((_, caller)) = chain.last_mut()
            {
                std::mem::swap(caller, &mut site);
            }
            chain.push((name, site));
        }
        let frames = chain.into_iter().rev();
        Some(frames.map(|(name, source)| framed(name, source)).collect())
    }

    fn name(&self, unit: usize, entry: UnitOffset) -> Option<Named> {
        let name = self.units.name(unit, entry).ok()?;
        let Some(die) = name.scoped else {
            return Some((name.text, Origin::Symbol));
        };
        let whole = self.scoped.get(&die).map(Rc::clone);
        Some((whole.unwrap_or(name.text), Origin::Source))
    }

    fn source_location(&self, unit: usize, file: u64, line: u32, column: u32) -> SourceLocation {
        let path = self.paths.get(&(unit, file)).cloned();
        SourceLocation {
            file: path.unwrap_or_default(),
            line,
            column: column.min(u16::MAX.into()),
        }
    }
}

/// A name and where it is from.
type Named = (Rc<str>, Origin);

/// A location in a source file.
struct SourceLocation {
    file: Rc<str>,
    line: u32,
    column: u32,
}

fn framed((name, origin): Named, source: Option<SourceLocation>) -> Frame {
    let Some(SourceLocation { file, line, column }) = source else {
        return Frame {
            origin,
            ..Frame::named(name)
        };
    };
    Frame {
        origin,
        file,
        line,
        column,
        ..Frame::named(name)
    }
}
