//! Looks up many addresses of one file at once in its DWARF debug information.
//!
//! All addresses of a file are known beforehand, often thousands. So no index is built: each part
//! of the debug information that may cover one of them is scanned once, and subtrees that state
//! their end are skipped.
//!
//! Guarantee: [`read`] gives blazesym's answers, or `None` for files that are left to blazesym: no
//! debug information, not a 64-bit little-endian program, debug information split over several
//! files, damage.
//!
//! Limits: of several functions that cover an address, the one with the greatest start address is
//! taken. May panic or be killed on a crafted file, so it should be called in a child process.

// Decision 17: all addresses of a file are looked up at once.
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

/// Returns the frames of each address, or `None` if another reader has to be used.
pub fn read(path: &Path, addresses: &[u64], debug_directories: &[PathBuf]) -> Option<Frames> {
    let image = Image::open(path)?;
    if image.has_debug_info() {
        return look_up(&image, addresses);
    }
    let image = companions::with_debug_info(&image, debug_directories)?;
    look_up(&image, addresses)
}

/// Looks the addresses up: first in a part of the units if that suffices, otherwise in all.
fn look_up(image: &Image, addresses: &[u64]) -> Option<Frames> {
    let mut wanted = addresses.to_vec();
    wanted.sort_unstable();
    wanted.dedup();
    let part = part::covering(image, &wanted);
    // Fails if the part refers to other units.
    let found = part.and_then(|part| look_up_in(image, Some(part), &wanted, addresses));
    found.or_else(|| look_up_in(image, None, &wanted, addresses))
}

/// Looks the addresses up in all units, or in `part` of `.debug_info`. `wanted` has the addresses,
/// sorted and without duplicates.
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

/// Results for all addresses of a file.
struct Lookup<'a> {
    units: Units<'a>,
    /// Addresses, sorted, without duplicates.
    wanted: Vec<u64>,
    /// Function of each wanted address.
    functions: Vec<Option<Function>>,
    /// Line-table row of each wanted address.
    rows: Vec<Option<Row>>,
    /// Names from the symbol table, of addresses that no function covers.
    symbols: HashMap<u64, Rc<str>>,
    /// Linkage names from the symbol table, of functions whose debug information has only an
    /// unqualified name.
    linked: HashMap<u64, Rc<str>>,
    /// Qualified names of the other functions, and of inlined ones.
    scoped: foldhash::HashMap<Die, Rc<str>>,
    /// Paths of source files, by unit and file number.
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
        let functions = candidates.in_turn(&wanted, |query, found| {
            let result = functions::find(&units, query, found);
            units.forget_abbreviations(query.unit);
            result
        });
        let functions = functions.ok()?;
        let rows = candidates.in_turn(&wanted, |query, found| lines::find(&units, query, found));
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
        found.collect_paths().ok()?;
        found.linked = linked::names(image, &found.units, &found.wanted, &found.functions)?;
        found.scoped = found.scoped_names().ok()?;
        Some(found)
    }

    /// Finds the qualified names of all functions that need one.
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

    /// Finds the paths of all source files that rows and call sites refer to.
    fn collect_paths(&mut self) -> gimli::Result<()> {
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

    /// Returns the frames of an address, innermost first.
    fn frames(&self, address: u64) -> Option<Vec<Frame>> {
        let at = self.wanted.binary_search(&address).ok()?;
        let function = self.functions[at].as_ref();
        let from_symbol = |name: &Rc<str>| Name {
            text: Rc::clone(name),
            origin: Origin::Symbol,
        };
        let name = match function {
            Some(function) => match self.linked.get(&address) {
                Some(name) => from_symbol(name),
                None => self.name(function.unit, function.entry)?,
            },
            None => match self.symbols.get(&address) {
                Some(name) => from_symbol(name),
                None => return Some(Vec::new()),
            },
        };
        let Some(row) = &self.rows[at] else {
            return Some(vec![frame(name, None)]);
        };
        let source = self.source_location(row.unit, row.file, row.line, row.column);
        let mut chain = vec![(name, Some(source))];
        // Outermost first. The location of each frame is its call site of the next one; the
        // last frame gets the location of the address.
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
        Some(frames.map(|(name, source)| frame(name, source)).collect())
    }

    /// Returns the name of an entry.
    fn name(&self, unit: usize, entry: UnitOffset) -> Option<Name> {
        let name = self.units.name(unit, entry).ok()?;
        let Some(die) = name.scoped else {
            return Some(Name {
                text: name.text,
                origin: Origin::Symbol,
            });
        };
        let qualified = self.scoped.get(&die).map(Rc::clone);
        Some(Name {
            text: qualified.unwrap_or(name.text),
            origin: Origin::Source,
        })
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

/// A function's name and its origin.
struct Name {
    text: Rc<str>,
    origin: Origin,
}

/// A position in a source file.
struct SourceLocation {
    file: Rc<str>,
    line: u32,
    column: u32,
}

fn frame(name: Name, source: Option<SourceLocation>) -> Frame {
    let Name { text, origin } = name;
    let Some(SourceLocation { file, line, column }) = source else {
        return Frame {
            origin,
            ..Frame::named(text)
        };
    };
    Frame {
        origin,
        file,
        line,
        column,
        ..Frame::named(text)
    }
}
