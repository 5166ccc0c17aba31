//! Names for addresses: from files that the profile's mappings refer to, with
//! inlined functions, through blazesym.
//!
//! Each distinct address is looked up once, all of a module together. A file
//! that is missing, or whose build id differs from the profiled one, is left
//! out and named in a warning; its frames keep their addresses.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use blazesym::symbolize::source::{Elf as ElfSource, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};
use heap_format::{
    BuildId, Function, Line, Location, Mapping, NO_MAPPING, Profile, maps, marker_at,
};

use crate::demangle::{Style, demangle};
use crate::elf::Elf;

/// How symbols are found.
pub struct Options<'a> {
    /// The program that was profiled, wherever it is now.
    pub binary: Option<&'a Path>,
    /// Use files although their build ids differ.
    pub force: bool,
    /// How names are shown.
    pub demangle: Style,
}

/// Gives every location of `profile` that has no names yet those that can be
/// found. Returns warnings for people.
pub fn symbolize(profile: &mut Profile, options: &Options) -> Vec<String> {
    let main = main_mapping(profile);
    let mut names = Names::new(profile, options.demangle);
    let mut warnings = Vec::new();
    let mut modules: HashMap<PathBuf, Module> = HashMap::new();
    for (number, location) in profile.locations.iter().enumerate() {
        if location.line_count > 0 {
            continue;
        }
        if let Some(marker) = marker_at(location.address) {
            names.add_marker(number, marker.name);
        } else if location.mapping != NO_MAPPING {
            let mapping = &profile.mappings[location.mapping as usize];
            let path = file_of(profile, mapping, main, options.binary);
            let module = modules.entry(path).or_default();
            module.note(mapping);
            module.places.push((number, file_offset(mapping, location)));
        }
    }
    let symbolizer = Symbolizer::builder().enable_demangling(false).build();
    let mut modules: Vec<(PathBuf, Module)> = modules.into_iter().collect();
    modules.sort_by(|a, b| a.0.cmp(&b.0));
    for (path, module) in &modules {
        // Anonymous memory and what the kernel provides have no file.
        if !path.is_absolute() && options.binary != Some(path) {
            continue;
        }
        if let Err(warning) = look_up(&symbolizer, path, module, options.force, &mut names) {
            warnings.push(warning);
        }
    }
    names.apply(profile);
    warnings
}

/// Index of the mapping of the program itself: the one that the dump names,
/// otherwise the first that is neither a library nor special.
pub fn main_mapping(profile: &Profile) -> Option<usize> {
    let named = profile.facts.exe.as_deref().and_then(|exe| {
        let exe = maps::strip_deleted(exe).0;
        profile
            .mappings
            .iter()
            .position(|m| maps::strip_deleted(&m.path).0 == exe && !m.past)
    });
    named.or_else(|| profile.mappings.iter().position(may_be_program))
}

fn may_be_program(mapping: &Mapping) -> bool {
    let path = mapping.path.to_string_lossy();
    let name = path.trim();
    let library = name.ends_with(".so")
        || name.match_indices(".so").any(|(at, _)| {
            let rest = &name.as_bytes()[at + 3..];
            matches!(rest, [b'.' | b'_', b'0'..=b'9', ..])
        });
    !name.is_empty() && !name.starts_with('[') && !name.starts_with("//anon") && !library
}

/// The file to look a mapping's addresses up in.
fn file_of(
    profile: &Profile,
    mapping: &Mapping,
    main: Option<usize>,
    binary: Option<&Path>,
) -> PathBuf {
    let plain = |m: &Mapping| maps::strip_deleted(&m.path).0.to_path_buf();
    match (binary, main) {
        (Some(binary), Some(main)) if plain(&profile.mappings[main]) == plain(mapping) => {
            binary.to_path_buf()
        }
        _ => plain(mapping),
    }
}

fn file_offset(mapping: &Mapping, location: &Location) -> u64 {
    location
        .address
        .wrapping_sub(mapping.start)
        .wrapping_add(mapping.file_offset)
}

/// Addresses of one file.
#[derive(Default)]
struct Module {
    build_id: BuildId,
    deleted: bool,
    /// Locations by number, and their offsets in the file.
    places: Vec<(usize, u64)>,
}

impl Module {
    fn note(&mut self, mapping: &Mapping) {
        if self.build_id.is_empty() {
            self.build_id = mapping.build_id.clone();
        }
        self.deleted |= maps::strip_deleted(&mapping.path).1;
    }
}

/// Looks all addresses of a module up. The error is a warning for people.
fn look_up(
    symbolizer: &Symbolizer,
    path: &Path,
    module: &Module,
    force: bool,
    names: &mut Names,
) -> Result<(), String> {
    let shown = path.display();
    let elf = Elf::open(path).map_err(|e| format!("{e:#}; its functions are not named"))?;
    if !force && !module.build_id.is_empty() && elf.build_id != module.build_id {
        return Err(format!(
            "{shown} has the build id {}, the profiled file had {}; its functions are not named \
             (--force uses it anyway)",
            shown_id(&elf.build_id),
            module.build_id,
        ));
    }
    if !force && module.deleted && module.build_id.is_empty() {
        return Err(format!(
            "{shown} was replaced while the program ran; its functions are not named \
             (--force uses the new file)"
        ));
    }
    let placed: Vec<(usize, u64)> = module
        .places
        .iter()
        .filter_map(|&(number, offset)| Some((number, elf.address_of(offset)?)))
        .collect();
    let addresses: Vec<u64> = placed.iter().map(|&(_, address)| address).collect();
    let source = Source::Elf(ElfSource::new(path));
    let found = symbolizer
        .symbolize(&source, Input::VirtOffset(&addresses))
        .map_err(|e| format!("{shown}: symbols cannot be read: {e:#}"))?;
    for ((number, _), symbol) in placed.iter().zip(&found) {
        if let Symbolized::Sym(symbol) = symbol {
            names.add(*number, symbol);
        }
    }
    Ok(())
}

fn shown_id(id: &BuildId) -> String {
    if id.is_empty() {
        "none".into()
    } else {
        id.to_string()
    }
}

/// Functions and lines under construction.
struct Names {
    style: Style,
    functions: Vec<Function>,
    known: HashMap<(String, String), u32>,
    lines: Vec<Line>,
    /// For each location, its range of `lines`.
    ranges: Vec<(u32, u32)>,
}

impl Names {
    fn new(profile: &Profile, style: Style) -> Self {
        Self {
            style,
            functions: profile.functions.clone(),
            known: HashMap::new(),
            lines: profile.lines.clone(),
            ranges: profile
                .locations
                .iter()
                .map(|l| (l.first_line, l.line_count))
                .collect(),
        }
    }

    fn add_marker(&mut self, number: usize, name: &str) {
        let function = self.function(name, String::new());
        self.ranges[number] = (self.lines.len() as u32, 1);
        self.lines.push(Line {
            function,
            ..Line::default()
        });
    }

    fn add(&mut self, number: usize, symbol: &Sym) {
        let first = self.lines.len() as u32;
        for inlined in symbol.inlined.iter().rev() {
            self.frame(&inlined.name, inlined.code_info.as_ref());
        }
        self.frame(&symbol.name, symbol.code_info.as_deref());
        self.ranges[number] = (first, self.lines.len() as u32 - first);
    }

    fn frame(&mut self, name: &str, code: Option<&CodeInfo>) {
        let file = code.map_or_else(String::new, |c| c.to_path().to_string_lossy().into_owned());
        let function = self.function(name, file);
        let line = code.and_then(|c| c.line).unwrap_or(0);
        let column = code.and_then(|c| c.column).unwrap_or(0).into();
        self.lines.push(Line {
            function,
            line,
            column,
        });
    }

    fn function(&mut self, system_name: &str, file: String) -> u32 {
        let key = (system_name.to_owned(), file);
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let number = self.functions.len() as u32;
        self.functions.push(Function {
            name: demangle(system_name, self.style),
            system_name: system_name.to_owned(),
            file: key.1.clone(),
            start_line: 0,
        });
        self.known.insert(key, number);
        number
    }

    fn apply(self, profile: &mut Profile) {
        profile.functions = self.functions;
        profile.lines = self.lines;
        for (location, (first, count)) in profile.locations.iter_mut().zip(self.ranges) {
            (location.first_line, location.line_count) = (first, count);
        }
    }
}

/// Says so when nothing in the dump can tell whether `binary` is the profiled
/// program, and it has another name.
pub fn doubt_binary(profile: &Profile, binary: &Path) -> Option<String> {
    let main = &profile.mappings[main_mapping(profile)?];
    let recorded = maps::strip_deleted(&main.path).0;
    let same_file = |a: &Path, b: &Path| a.canonicalize().ok() == b.canonicalize().ok();
    let known = !profile.facts.exe_build_id.is_empty() || !main.build_id.is_empty();
    if known || recorded.file_name() == binary.file_name() || same_file(recorded, binary) {
        return None;
    }
    Some(format!(
        "the dump has no build id of {}; that {} is the same program cannot be checked",
        recorded.display(),
        binary.display(),
    ))
}

/// Refuses a binary that is not the profiled one. The error shows both ids.
pub fn check_binary(profile: &Profile, binary: &Path, dump: &str) -> Result<(), String> {
    let elf = Elf::open(binary).map_err(|e| format!("{e:#}"))?;
    let main = main_mapping(profile).map(|i| &profile.mappings[i]);
    let recorded = match &profile.facts.exe_build_id {
        id if !id.is_empty() => id,
        _ => match main {
            Some(mapping) => &mapping.build_id,
            None => return Ok(()),
        },
    };
    if recorded.is_empty() || elf.build_id == *recorded {
        return Ok(());
    }
    let exe = profile
        .facts
        .exe
        .as_deref()
        .or(main.map(|m| m.path.as_path()));
    Err(format!(
        "{} is not the program that was profiled:\n  it has the build id        {}\n  \
         {dump} was taken from {} with build id {recorded}\n\
         Pass that program with -p, or --force to use this one anyway.",
        binary.display(),
        shown_id(&elf.build_id),
        exe.unwrap_or(Path::new("a program")).display(),
    ))
}
