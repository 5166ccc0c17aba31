//! Names for addresses: from files that the profile's mappings refer to, with
//! inlined functions.
//!
//! Each distinct address is looked up once, together with the others of its module.
//! A file that is missing, or whose build id differs from the profiled one, is
//! skipped and named in a warning; its frames keep their addresses. [`files`]
//! describes where files are searched. Symbols are read in a child process
//! ([`reader`]): a crafted file costs its own names and nothing else.
//! Code without a file gets its names from the kernel ([`vdso`]) or from the
//! map that its JIT wrote ([`perf_map`]).

mod answer;
pub mod apart;
mod definitions;
pub mod demangle;
mod dwarf;
mod elf;
mod files;
mod frame;
mod links;
mod module;
mod names;
mod options;
mod perf_map;
mod process;
mod program;
mod reader;
mod variables;
mod vdso;

use std::collections::BTreeMap;
use std::path::PathBuf;

use heap_format::{BuildId, Mapping, Profile, maps, marker_at};

pub use definitions::{Definition, Definitions, contained, definitions};
pub use elf::Elf;
use files::{Files, Source};
use module::Module;
use names::Names;
pub use options::Options;
pub use program::{WrongBinary, check_binary, doubt_binary, main_mapping};
pub use variables::{Variable, variable};

/// Names every location of `profile` that has no names yet, as far as names can be
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

/// Whether a mapping is of a file. Anonymous memory and the kernel's own mappings
/// are not; formats without paths may have a bare name.
fn has_file(mapping: &Mapping) -> bool {
    let path = mapping.path.to_string_lossy();
    let special = path.is_empty()
        || path.starts_with('[')
        || path.starts_with("//anon")
        || path.starts_with("/memfd:")
        || path.starts_with("/SYSV");
    !special
}

/// Looks up all modules, each in the first of its files that names anything.
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
            Err(none) => warnings.push(none.to_string()),
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
                Err(error) => item.failed = Some(error.to_string()),
            }
            open.push(item);
        }
    }
}
