//! Looks up many addresses of one file at once in its DWARF debug information.
//!
//! All addresses of a file are known beforehand, often thousands. So no index is built: each part
//! of the debug information that may cover one of them is scanned once, and subtrees with
//! a sibling reference are skipped.
//!
//! Debug information may be in other files: a debug file, one that several programs share
//! (`companions`), or one for each source file (`split`). What is missing is reported.
//!
//! Guarantee: [`read`] gives blazesym's answers, or `None` for files that are left to blazesym: no
//! debug information, not a 64-bit little-endian program, damage.
//!
//! Limits: of several functions that cover an address, the one with the greatest start address is
//! taken. May panic or be killed on a crafted file, so it should be called in a child process.

// Decision 17: all addresses of a file are looked up at once.
mod candidates;
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
mod split;
pub mod stripped;
mod table;
mod units;
mod unpacking;
mod walk;

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use gimli::AbbreviationsCacheStrategy;
use profile::printable;

use super::frame::{Frame, Frames, Origin};
use candidates::Candidates;
use companions::SharedFile;
use functions::Function;
pub use image::Image;
use lines::Row;
use residency::Residency;
use split::{SearchPaths, Skeleton};
use units::{Die, Slice, Units};
use unpacking::Content;

/// Returns the frames of each address, or `None` if another reader has to be used.
pub fn read(path: &Path, addresses: &[u64], debug_directories: &[PathBuf]) -> Option<Resolved> {
    let mut image = Image::open(path)?;
    if !image.has_debug_info() {
        image = companions::with_debug_info(&image, debug_directories)?;
    }
    let search_paths = SearchPaths {
        program: path,
        directories: debug_directories,
    };
    let shared = SharedFile::of(&image, debug_directories);
    let search = Search {
        image: &image,
        shared: &shared,
        search_paths,
    };
    search.look_up(addresses)
}

/// Answers of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Frames of each address.
    pub frames: Frames,
    /// Description of what the answers lack because a file with debug information is missing.
    pub missing_note: Option<String>,
}

impl From<Frames> for Resolved {
    /// Returns complete answers.
    fn from(frames: Frames) -> Self {
        Self {
            frames,
            missing_note: None,
        }
    }
}

/// The search in one file.
struct Search<'s> {
    /// The program, or its debug file.
    image: &'s Image,
    shared: &'s SharedFile,
    search_paths: SearchPaths<'s>,
}

impl Search<'_> {
    /// Looks the addresses up: first in a part of the units if that suffices, otherwise in all.
    fn look_up(&self, addresses: &[u64]) -> Option<Resolved> {
        let mut wanted = addresses.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        let part = part::covering(self.image, &wanted);
        // Fails if the part refers to other units.
        let found = part.and_then(|part| self.look_up_in(Some(part), &wanted, addresses));
        found.or_else(|| self.look_up_in(None, &wanted, addresses))
    }

    /// Looks the addresses up in all units, or in `part` of `.debug_info`. `wanted` has the
    /// addresses, sorted and without duplicates.
    fn look_up_in<'i>(
        &'i self,
        part: Option<Content<'i>>,
        wanted: &[u64],
        addresses: &[u64],
    ) -> Option<Resolved> {
        let sections = self.image.sections(part)?;
        let shared = self.shared.image();
        let shared = shared.and_then(|image| image.sections(None));
        let mut dwarf = sections.borrow_with_sup(shared.as_ref(), |bytes| {
            Slice::new(bytes, gimli::LittleEndian)
        });
        dwarf.populate_abbreviations_cache(AbbreviationsCacheStrategy::Duplicates);
        let files;
        let split;
        let mut units = Units::new(&dwarf, Residency::of(self.image.map())).ok()?;
        let candidates = units.candidates(wanted).ok()?;
        let skeletons = split::skeletons(&units, &candidates).ok()?;
        if !skeletons.is_empty() {
            files = split::Files::find(&skeletons, self.image, self.search_paths);
            split = files.sections();
            units.add_split(split.units(&skeletons, &dwarf));
        }
        let lookup = Lookup::new(units, &candidates, self.image, wanted.to_vec())?;
        let frames = addresses.iter().map(|&a| lookup.frames(a));
        Some(Resolved {
            frames: frames.collect::<Option<Frames>>()?,
            missing_note: self.missing_note(&lookup.units, &skeletons),
        })
    }

    /// Describes which files are missing, and what the answers lack because of that.
    fn missing_note(&self, units: &Units, skeletons: &[Skeleton]) -> Option<String> {
        let path = printable::path(self.search_paths.program);
        if let SharedFile::Missing(name) = self.shared
            && units.lacks_shared()
        {
            return Some(format!(
                "{path}: a part of its debug information is in {}, which is missing: inlined \
                 functions are not named (--symbol-path DIRECTORY)",
                printable::path(name)
            ));
        }
        let missing = skeletons
            .iter()
            .filter(|skeleton| !skeleton.has_functions && !units.has_split(skeleton.unit));
        let missing: Vec<&Skeleton> = missing.collect();
        let first = missing.first()?;
        let name = Path::new(OsStr::from_bytes(&first.directory));
        let name = printable::path(&name.join(OsStr::from_bytes(&first.name)));
        let others = match missing.len() {
            1 => String::new(),
            count => format!(" and {} other files", count - 1),
        };
        Some(format!(
            "{path}: debug information in {name}{others} is missing or of another build: inlined \
             functions are not shown (--symbol-path DIRECTORY)"
        ))
    }
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
    /// Names from the symbol table, for addresses that no function covers.
    symbols: HashMap<u64, Rc<str>>,
    /// Linkage names from the symbol table, for functions whose debug information has only an
    /// unqualified name.
    linked: HashMap<u64, Rc<str>>,
    /// Qualified names, for the other functions and for inlined ones.
    scoped: foldhash::HashMap<Die, Rc<str>>,
    /// Paths of source files, by unit and file number.
    paths: foldhash::HashMap<(usize, u64), Rc<str>>,
}

impl<'a> Lookup<'a> {
    fn new(
        units: Units<'a>,
        candidates: &Candidates,
        image: &Image,
        wanted: Vec<u64>,
    ) -> Option<Self> {
        let functions = candidates.look_up_in_turn(&wanted, |query, found| {
            let result = functions::find(&units, query, found);
            units.forget_abbreviations(query.unit);
            result
        });
        let functions = functions.ok()?;
        let rows =
            candidates.look_up_in_turn(&wanted, |query, found| lines::find(&units, query, found));
        let rows = rows.ok()?;
        let mut unnamed = Vec::new();
        for (&address, function) in wanted.iter().zip(&functions) {
            let is_named = match function {
                Some(function) => {
                    let name = units.name(function.die).ok()?;
                    !name.text.is_empty()
                }
                None => false,
            };
            if !is_named {
                unnamed.push(address);
            }
        }
        let symbols = table::names(image, &unnamed, &units.residency)?;
        let mut lookup = Self {
            units,
            wanted,
            functions,
            rows,
            symbols,
            linked: HashMap::new(),
            scoped: foldhash::HashMap::default(),
            paths: foldhash::HashMap::default(),
        };
        lookup.collect_paths().ok()?;
        lookup.linked = linked::names(image, &lookup.units, &lookup.wanted, &lookup.functions)?;
        lookup.scoped = lookup.scoped_names().ok()?;
        Some(lookup)
    }

    /// Finds the qualified names of all functions that need one.
    fn scoped_names(&self) -> gimli::Result<foldhash::HashMap<Die, Rc<str>>> {
        let mut wanted = foldhash::HashSet::default();
        for (address, function) in self.wanted.iter().zip(&self.functions) {
            let Some(function) = function else { continue };
            if !self.linked.contains_key(address) {
                wanted.insert(function.die);
            }
            wanted.extend(function.inlined.iter().map(|call| call.die));
        }
        let mut scoped = Vec::new();
        for die in wanted {
            scoped.extend(self.units.name(die)?.scoped);
        }
        scopes::names(&self.units, scoped)
    }

    /// Finds the paths of all source files that rows and call sites refer to.
    fn collect_paths(&mut self) -> gimli::Result<()> {
        let mut files: Vec<(usize, u64)> = Vec::new();
        files.extend(self.rows.iter().flatten().map(|r| (r.unit, r.file)));
        for function in self.functions.iter().flatten() {
            let calls = function.inlined.iter();
            files.extend(calls.filter_map(|call| Some((call.die.unit, call.file?))));
        }
        files.sort_unstable();
        files.dedup();
        for (unit, file) in files {
            let dwarf = self.units.dwarf_of_lines(unit);
            let path = lines::path(&*self.units.open_for_lines(unit)?, dwarf, file)?;
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
        let symbol = self.linked.get(&address);
        let name = match (symbol.or_else(|| self.symbols.get(&address)), function) {
            (Some(name), _) => from_symbol(name),
            (None, Some(function)) => self.name(function.die)?,
            (None, None) => return Some(Vec::new()),
        };
        let Some(row) = &self.rows[at] else {
            return Some(vec![frame(name, None)]);
        };
        let source = self.source_location(row.unit, row.file, row.line, row.column);
        // Outermost first. A frame's location is the site where it calls the next frame. The last
        // frame has the location of the address, which moves along as frames are added.
        let mut chain = vec![(name, Some(source))];
        for call in function.iter().flat_map(|f| &f.inlined) {
            let name = self.name(call.die)?;
            if name.text.is_empty() {
                // The name is in a file that is missing.
                continue;
            }
            let site = call.file;
            let mut site =
                site.map(|file| self.source_location(call.die.unit, file, call.line, call.column));
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
    fn name(&self, die: Die) -> Option<Name> {
        let name = self.units.name(die).ok()?;
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

#[cfg(test)]
mod elsewhere;
