//! Names for addresses: from files that the profile's mappings refer to, with
//! inlined functions.
//!
//! Each distinct address is looked up once, all of a module together. A file
//! that is missing, or whose build id differs from the profiled one, is left
//! out and named in a warning; its frames keep their addresses. Where files are
//! searched: [`files`]. Symbols are read in a process of their own
//! ([`reader`]), so that a file that lies costs its own names and nothing else.
//! Code without a file has its names from the kernel ([`vdso`]) or from the
//! list that its maker wrote ([`perf_map`]).

pub mod apart;
pub mod demangle;
mod dwarf;
mod elf;
mod files;
mod links;
mod names;
mod perf_map;
mod program;
mod reader;
mod vdso;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use heap_format::{BuildId, Location, Mapping, Profile, maps, marker_at};

use demangle::Style;
use files::{Files, Source};
use names::Names;
pub use program::{check_binary, doubt_binary, main_mapping};

/// Files and services that symbols are looked up in.
pub struct Options<'a> {
    /// The program that was profiled, wherever it is now.
    pub binary: Option<&'a Path>,
    /// Use files although their build ids differ.
    pub force: bool,
    /// Style of C++ and Rust names.
    pub demangle: Style,
    /// Directories with the files of another machine, or with debug files.
    pub directories: &'a [PathBuf],
    /// Ask `debuginfod-find` for what is not here.
    pub debuginfod: bool,
    /// Names of JIT code.
    pub perf_map: Option<&'a Path>,
}

/// Gives every location of `profile` that has no names yet those that can be
/// found. Returns warnings for people.
pub fn symbolize(profile: &mut Profile, options: &Options) -> Vec<String> {
    let mut names = Names::new(profile, options.demangle);
    let mut warnings = Vec::new();
    let mut modules: BTreeMap<(PathBuf, BuildId), Module> = BTreeMap::new();
    // JIT code and what the kernel provides.
    let mut without_file: Vec<usize> = Vec::new();
    for (number, location) in profile.locations.iter().enumerate() {
        if location.line_count > 0 || location.address == 0 {
            continue;
        }
        let mapping = profile.mappings.get(location.mapping as usize);
        if let Some(marker) = marker_at(location.address) {
            names.add_name(number, marker.name);
        } else if let Some(mapping) = mapping.filter(|m| has_file(m)) {
            let path = maps::strip_deleted(&mapping.path).0.to_path_buf();
            let key = (path, mapping.build_id.clone());
            let module = modules.entry(key).or_insert_with(|| Module::new(mapping));
            module.note(number, location, mapping);
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
    names.apply(profile);
    warnings
}

/// Whether a mapping is of a file. Anonymous memory and what the kernel
/// provides are not; formats that know no paths may have a bare name.
fn has_file(mapping: &Mapping) -> bool {
    let path = mapping.path.to_string_lossy();
    let special = path.is_empty()
        || path.starts_with('[')
        || path.starts_with("//anon")
        || path.starts_with("/memfd:")
        || path.starts_with("/SYSV");
    !special
}

/// Addresses of one file.
pub struct Module {
    /// A mapping of it.
    mapping: Mapping,
    /// Locations in it.
    addresses: Vec<FileAddress>,
}

/// A location in a file.
struct FileAddress {
    /// Number of the location.
    location: usize,
    /// Offset in the file.
    offset: u64,
    /// Distance from the start of its mapping.
    distance: u64,
}

impl Module {
    fn new(mapping: &Mapping) -> Self {
        Self {
            mapping: mapping.clone(),
            addresses: Vec::new(),
        }
    }

    fn note(&mut self, number: usize, location: &Location, mapping: &Mapping) {
        let distance = location.address.wrapping_sub(mapping.start);
        self.addresses.push(FileAddress {
            location: number,
            offset: distance.wrapping_add(mapping.file_offset),
            distance,
        });
    }
}

/// Looks all modules up, each in the first of its files that names anything.
fn look_up(modules: Vec<Module>, files: &Files, names: &mut Names, warnings: &mut Vec<String>) {
    struct Open {
        module: Module,
        sources: std::vec::IntoIter<Source>,
        failed: Option<String>,
    }
    let mut open: Vec<Open> = Vec::new();
    for module in modules {
        match files.sources_of(&module.mapping) {
            Ok(sources) => open.push(Open {
                module,
                sources: sources.into_iter(),
                failed: None,
            }),
            Err(warning) => warnings.push(warning),
        }
    }
    while !open.is_empty() {
        let mut requests = Vec::new();
        let mut asked = Vec::new();
        for mut item in open {
            let Some(source) = item.sources.next() else {
                warnings.extend(item.failed);
                continue;
            };
            let (request, locations) = source.request(&item.module);
            requests.push(request);
            asked.push((item, locations));
        }
        let answers = reader::read(&requests, &files.debug_directories);
        open = Vec::new();
        for ((mut item, locations), answer) in asked.into_iter().zip(answers) {
            match answer {
                Ok(frames) if frames.iter().any(|f| !f.is_empty()) => {
                    let found = locations.iter().zip(&frames).filter(|(_, f)| !f.is_empty());
                    found.for_each(|(&location, frames)| names.add(location, frames));
                    continue;
                }
                Ok(_) => {}
                Err(error) => item.failed = Some(error),
            }
            open.push(item);
        }
    }
}

fn shown_id(id: &BuildId) -> String {
    if id.is_empty() {
        "none".into()
    } else {
        id.to_string()
    }
}

/// Whether the profile was taken on this machine since it was started.
fn is_of_this_machine(profile: &Profile) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    let recorded = profile.facts.boot_id.as_deref().map(str::trim);
    recorded.is_some_and(|recorded| own.is_ok_and(|own| own.trim() == recorded))
}
