//! Finds function names, source lines and inlined functions for the addresses of a profile, in the
//! files that its mappings refer to.
//!
//! Each distinct address is looked up once, together with the others of its module. A file that is
//! missing, or whose build id differs from the profiled one, is skipped with a warning; its frames
//! keep their addresses. `files` lists where files are searched for. Symbols are read in a child
//! process (`reader`), so a crafted file loses only its own names. Code outside files is named from
//! the kernel's vdso (`vdso`) or from the map written by its JIT (`perf_map`).
//!
//! Code without a symbol is named after its file and the offset of its function there
//! ([`Profile::is_unnamed`]), so the name is the same in every run of a build.

mod answer;
mod definitions;
pub mod demangle;
mod dwarf;
mod elf;
mod files;
mod frame;
pub mod interpreter;
mod links;
mod module;
mod names;
mod options;
mod perf_map;
mod process;
mod program;
mod reader;
pub mod sandboxed;
pub mod user_code;
mod variables;
mod vdso;

/// Readers of untrusted files, which otherwise run in a child process, for the fuzz targets.
#[cfg(feature = "internals")]
pub mod internals {
    pub use crate::dwarf::read as read_debug_info;
    pub use crate::dwarf::stripped::{complete, lacks_debug_info};
}

use std::collections::{BTreeMap, HashMap, HashSet};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use profile::{BuildId, Mapping, Profile, maps, marker_at};

pub use definitions::{Definition, Definitions, definitions, first_contained_text};
pub use elf::Elf;
use files::{Files, Source};
use frame::Frame;
use module::Module;
use names::Names;
pub use options::Options;
pub use program::{WrongBinary, check_binary, doubt_binary, main_mapping};
use reader::{Reading, Request};
pub use variables::{Variable, distances, variable};

/// Names the locations of `profile` that have no names yet, if names can be found. Returns warnings
/// for the user.
pub fn symbolize(profile: &mut Profile, options: &Options) -> Vec<String> {
    let mut names = Names::new(profile, options.demangle);
    let mut warnings = Vec::new();
    let mut modules: BTreeMap<(PathBuf, BuildId), Module> = BTreeMap::new();
    // JIT code and the vdso.
    let mut without_file: Vec<usize> = Vec::new();
    let main = program::main_mapping(profile);
    for (number, location) in profile.locations.iter().enumerate() {
        let is_named = location.line_count > 0 && !profile.is_unnamed(location);
        if is_named || location.address == 0 {
            continue;
        }
        let mapping = profile.mappings.get(location.mapping as usize);
        let is_main = main == Some(location.mapping as usize);
        if let Some(marker) = marker_at(location.address) {
            names.add_name(number, marker.name);
        } else if let Some(mapping) = mapping.filter(|m| has_file(m, is_main)) {
            let path = maps::strip_deleted(&mapping.path).0.to_path_buf();
            let key = (path, mapping.build_id.clone());
            let module = modules.entry(key).or_insert_with(|| Module::new(mapping));
            module.add(number, location, mapping);
        } else {
            without_file.push(number);
        }
    }
    let files = Files::new(profile, options);
    warnings.extend(vdso::name(profile, &without_file, &mut names));
    warnings.extend(perf_map::name(
        profile,
        &without_file,
        options.perf_map,
        &mut names,
    ));
    look_up(
        modules.into_values().collect(),
        &files,
        &mut names,
        &mut warnings,
    );
    if profile.is_of_go() {
        names.keep_innermost();
    }
    names.apply(profile);
    warnings
}

/// Returns true if a mapping refers to a file. Anonymous memory and the kernel's own mappings do
/// not. A bare name counts, since some formats have no paths. A file in memory counts only if it
/// has a build id or is the program; others contain JIT code.
fn has_file(mapping: &Mapping, is_main: bool) -> bool {
    let path = mapping.path.to_string_lossy();
    let is_elf = is_main || !mapping.build_id.is_empty();
    let special = path.is_empty()
        || path.starts_with('[')
        || path.starts_with("//anon")
        || (is_in_memory(&mapping.path) && !is_elf)
        || path.starts_with("/SYSV");
    !special
}

/// Returns true for a file that a program created in memory (`memfd_create`).
pub fn is_in_memory(path: &Path) -> bool {
    path.as_os_str().as_bytes().starts_with(b"/memfd:")
}

/// A module whose addresses are being looked up.
struct Lookup {
    module: Module,
    /// Prefix of the names of code without a symbol.
    name: String,
    /// Files still to be searched.
    sources: std::vec::IntoIter<Source>,
    /// Set once one of the files has a symbol for any of the addresses.
    is_named: bool,
    /// Locations that have names from a symbol.
    named: HashSet<usize>,
    /// Fallback frames of the other locations: generated names, or names from a file with damaged
    /// debug information.
    fallback: HashMap<usize, Vec<Frame>>,
    /// Error of the last file that could not be read.
    failed: Option<String>,
    /// Reason why line numbers are missing.
    damage: Option<String>,
    /// Reason why inlined functions are missing.
    missing_note: Option<String>,
}

impl Lookup {
    fn new(module: Module, name: String, sources: Vec<Source>) -> Self {
        Self {
            module,
            name,
            sources: sources.into_iter(),
            is_named: false,
            named: HashSet::new(),
            fallback: HashMap::new(),
            failed: None,
            damage: None,
            missing_note: None,
        }
    }

    /// Returns the request to the next file and the locations it covers, or `None` if all
    /// addresses have names or no file is left.
    fn request(&mut self) -> Option<(Request, Vec<usize>)> {
        if self.named.len() == self.module.addresses.len() {
            return None;
        }
        let source = self.sources.next()?;
        let (request, locations) = source.request(&self.module, |l| !self.named.contains(&l));
        let request = Request {
            module: Some(self.name.clone()),
            tables_only: self.is_named,
            ..request
        };
        Some((request, locations))
    }

    /// Adds the answer of one file, for the locations of its request.
    fn add_answer(&mut self, locations: &[usize], reading: Reading, names: &mut Names) {
        let is_damaged = reading.damage.is_some();
        for (&location, frames) in locations.iter().zip(reading.frames) {
            match frames.first() {
                Some(frame) if frame.is_synthetic() => {
                    self.fallback.entry(location).or_insert(frames);
                }
                // Only a fallback: another of the module's files may have lines as well.
                Some(_) if is_damaged => drop(self.fallback.insert(location, frames)),
                Some(_) => {
                    names.add(location, &frames);
                    self.named.insert(location);
                    self.is_named = true;
                }
                None => {}
            }
        }
        self.missing_note = self.missing_note.take().or(reading.missing_note);
        self.damage = reading
            .damage
            .map(|why| why.to_string())
            .or(self.damage.take());
    }

    /// Uses the fallback frames for the locations that no file named. Returns a warning if no
    /// file had any name, or if some names come from a file with damaged debug information.
    fn finish(self, names: &mut Names) -> Option<String> {
        let is_named = self.is_named || !self.fallback.is_empty();
        let is_unnamed = |location: &usize| !self.named.contains(location);
        let unnamed = self
            .fallback
            .iter()
            .filter(|(location, _)| is_unnamed(location));
        // Sorted by location, which makes the order of functions reproducible.
        let unnamed: BTreeMap<_, _> = unnamed.collect();
        let damage = self.damage.filter(|_| {
            let frames = unnamed.values().filter_map(|frames| frames.first());
            frames.into_iter().any(|frame| !frame.is_synthetic())
        });
        unnamed
            .into_iter()
            .for_each(|(&location, frames)| names.add(location, frames));
        damage
            .or(self.failed.filter(|_| !is_named))
            .or(self.missing_note)
    }
}

/// Looks up all modules. The files of a module are searched in order until all of its addresses
/// have names: the first file with a symbol for an address wins.
fn look_up(modules: Vec<Module>, files: &Files, names: &mut Names, warnings: &mut Vec<String>) {
    let mut lookups: Vec<Lookup> = Vec::new();
    for module in modules {
        match files.sources_of(&module.mapping) {
            Ok(sources) => {
                let name = files.name_of(&module.mapping);
                lookups.push(Lookup::new(module, name, sources));
            }
            Err(none) => warnings.push(none.to_string()),
        }
    }
    while !lookups.is_empty() {
        let mut requests = Vec::new();
        let mut requested = Vec::new();
        for mut item in lookups {
            match item.request() {
                Some((request, locations)) => {
                    requests.push(request);
                    requested.push((item, locations));
                }
                None => warnings.extend(item.finish(names)),
            }
        }
        let answers = reader::read(&requests, &files.debug_directories);
        lookups = Vec::new();
        for ((mut item, locations), answer) in requested.into_iter().zip(answers) {
            match answer {
                Ok(reading) => item.add_answer(&locations, reading, names),
                Err(error) => item.failed = Some(error.to_string()),
            }
            lookups.push(item);
        }
    }
}
