//! Groups frames into the entries of a report: functions, lines, files or addresses.

use std::collections::HashMap;

use std::os::unix::ffi::OsStrExt;

use profile::{
    Format, Function, Line, Location, Mapping, NO_MAPPING, Profile, UNNAMED, marker_at, script_name,
};

use crate::view::View;

/// Suffix of the names of kernel functions, as flame-graph tools use it. Distinguishes them from
/// functions of the program with the same name.
pub const KERNEL_MARK: &str = "_[k]";

/// Grouping of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// By function name; Python frames by line.
    #[default]
    Usual,
    /// By function name.
    Functions,
    /// By function, file and line.
    Lines,
    /// By file.
    Files,
    /// By address.
    Addresses,
}

/// Origin of the code of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Origin {
    /// File of the program.
    #[default]
    Program,
    /// Kernel.
    Kernel,
    /// JIT compiler.
    Jit,
    /// Python.
    Python,
}

/// Prefix of the names of Python functions in perf maps.
const TRAMPOLINE: &str = "py::";

/// Returns the origin of a location's code.
pub fn origin_of(profile: &Profile, location: &Location) -> Origin {
    if profile.is_kernel_location(location) {
        return Origin::Kernel;
    }
    if profile.is_python(location) {
        return Origin::Python;
    }
    if location.address == 0 || marker_at(location.address).is_some() {
        return Origin::Program;
    }
    // Heap dumps do not list anonymous mappings. Profiles in other formats may have no mappings at
    // all.
    let Some(mapping) = profile.mappings.get(location.mapping as usize) else {
        let mut lines = profile.lines_of(location).iter();
        let is_python =
            |line: &Line| is_python_trampoline(&profile.functions[line.function as usize]);
        return if lines.any(is_python) {
            Origin::Python
        } else if !profile.mappings.is_empty() {
            // The format lists files, and this address is in none of them.
            Origin::Jit
        } else {
            Origin::Program
        };
    };
    let path = mapping.path.as_os_str().as_bytes();
    let anonymous = ["//anon", "[anon", "/memfd:"];
    let is_anonymous = match path {
        // Some writers of pprof's format name no file at all: Go's, if the system lists no
        // mappings.
        b"" => {
            let names_files =
                profile.format != Format::Pprof || profile.mappings.iter().any(has_file);
            mapping.contains(location.address) && names_files
        }
        path => anonymous
            .iter()
            .any(|start| path.starts_with(start.as_bytes())),
    };
    if !is_anonymous {
        return Origin::Program;
    }
    let mut lines = profile.lines_of(location).iter();
    let is_trampoline = |line: &Line| {
        let function = &profile.functions[line.function as usize];
        function.system_name.starts_with(TRAMPOLINE)
    };
    if lines.any(is_trampoline) {
        Origin::Python
    } else {
        Origin::Jit
    }
}

fn has_file(mapping: &Mapping) -> bool {
    !mapping.path.as_os_str().is_empty()
}

/// Returns true if a function has the name of a Python trampoline: `py::work:/srv/app.py`.
fn is_python_trampoline(function: &Function) -> bool {
    let file = (function.system_name.strip_prefix(TRAMPOLINE))
        .and_then(|rest| rest.strip_prefix(function.name.as_str()))
        .and_then(|rest| rest.strip_prefix(':'));
    file.is_some_and(|file| !file.is_empty() && file == function.file)
}

/// An entry of a report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Entry {
    /// Function name; empty if unknown or merged.
    pub name: String,
    /// Lookup address; 0 if merged.
    pub address: u64,
    /// Source file; empty if unknown or merged.
    pub file: String,
    /// Line; 0 if unknown or merged.
    pub line: u32,
    /// Object file, for frames without a name; otherwise empty unless requested.
    pub object: String,
    /// Origin of the code.
    pub origin: Origin,
}

impl Entry {
    /// Returns true for functions of scripts, whose names mean little without their file.
    pub fn is_script(&self) -> bool {
        matches!(self.origin, Origin::Python | Origin::Jit)
            && !self.name.is_empty()
            && !self.file.is_empty()
    }

    /// Formats the entry like pprof; scripts like their own tools.
    pub fn printable(&self) -> String {
        if self.is_script() {
            let name = script_name(&self.name, &self.file, self.line);
            return match self.address {
                0 => name,
                address => format!("{address:016x} {name}"),
            };
        }
        let mut parts = Vec::new();
        if self.address != 0 {
            parts.push(format!("{:016x}", self.address));
        }
        if !self.name.is_empty() {
            let mark = match self.origin {
                Origin::Kernel if !self.name.starts_with('[') => KERNEL_MARK,
                _ => "",
            };
            parts.push(format!("{}{mark}", self.name));
        }
        if self.line != 0 {
            parts.push(format!("{}:{}", self.file, self.line));
        } else if !self.file.is_empty() {
            parts.push(self.file.clone());
        } else if !self.name.is_empty() {
            // The name is sufficient.
        } else if !self.object.is_empty() {
            let base = self.object.rsplit('/').next().unwrap_or(&self.object);
            parts.push(format!("[{base}]"));
        } else {
            parts.push("<unknown>".to_owned());
        }
        parts.join(" ")
    }
}

/// All entries of a view, which are the nodes of its call graph, and the entries of each location.
pub struct Nodes {
    entries: Vec<Entry>,
    /// Formatted entries, parallel to `entries`.
    names: Vec<String>,
    /// Entries of all locations: indices into `entries`.
    ids: Vec<u32>,
    /// First index in `ids` and count, for each location.
    ranges: Vec<(u32, u32)>,
}

impl Nodes {
    /// Groups the frames of `view`. With `inlines`, inlined functions are separate entries. With
    /// `objects`, equal functions of different object files are different entries.
    pub fn new(view: &View, granularity: Granularity, inlines: bool, objects: bool) -> Self {
        let mut known: HashMap<Entry, u32> = HashMap::new();
        let mut nodes = Self {
            entries: vec![],
            names: vec![],
            ids: vec![],
            ranges: vec![],
        };
        for location in 0..view.profile().locations.len() as u32 {
            let first = nodes.ids.len() as u32;
            for entry in entries(view, location, granularity, inlines, objects) {
                let next = nodes.entries.len() as u32;
                let id = *known.entry(entry).or_insert_with_key(|entry| {
                    nodes.names.push(entry.printable());
                    nodes.entries.push(entry.clone());
                    next
                });
                nodes.ids.push(id);
            }
            nodes.ranges.push((first, nodes.ids.len() as u32 - first));
        }
        nodes
    }

    /// Returns the number of entries.
    pub fn count(&self) -> usize {
        self.entries.len()
    }

    /// Returns the entries of a location, innermost first; at least one.
    pub fn of_location(&self, location: u32) -> &[u32] {
        let (first, count) = self.ranges[location as usize];
        &self.ids[first as usize..(first + count) as usize]
    }

    /// Returns names and address of an entry.
    pub fn entry(&self, id: u32) -> &Entry {
        &self.entries[id as usize]
    }

    /// Returns the formatted entry.
    pub fn name(&self, id: u32) -> &str {
        &self.names[id as usize]
    }
}

/// Returns the entries of one location, innermost first.
fn entries(
    view: &View,
    location: u32,
    granularity: Granularity,
    inlines: bool,
    objects: bool,
) -> Vec<Entry> {
    let profile = view.profile();
    let frame = &profile.locations[location as usize];
    let address = match granularity {
        // A Python frame only has a pseudo-address.
        Granularity::Addresses if !profile.is_python(frame) => frame.address,
        _ => 0,
    };
    let object = || match frame.mapping {
        NO_MAPPING => String::new(),
        i => profile.mappings[i as usize]
            .path
            .to_string_lossy()
            .into_owned(),
    };
    let lines = view.lines(location);
    if lines.is_empty() {
        return vec![Entry {
            address,
            object: object(),
            ..Entry::default()
        }];
    }
    let shown = if inlines {
        lines
    } else {
        &lines[lines.len() - 1..]
    };
    let entry = |line: &Line| {
        let function = &profile.functions[line.function as usize];
        let origin = origin_of(profile, frame);
        let mut entry = line_entry(function, line.line, granularity, origin);
        entry.address = address;
        entry.origin = origin;
        if entry.name.is_empty() || objects {
            entry.object = object();
        }
        entry
    };
    shown.iter().map(entry).collect()
}

/// Returns the entry of a line of a function, without address and object file.
fn line_entry(function: &Function, line: u32, granularity: Granularity, origin: Origin) -> Entry {
    let mut entry = Entry::default();
    if granularity != Granularity::Files {
        entry.name = if function.name.is_empty() && origin == Origin::Python {
            UNNAMED.to_owned()
        } else {
            function.name.clone()
        };
    }
    let is_script = matches!(origin, Origin::Python | Origin::Jit);
    let by_name = matches!(granularity, Granularity::Usual | Granularity::Functions);
    if !by_name || is_script {
        entry.file = clean_path(&function.file);
    }
    // JIT code without line numbers gets the first line of its function.
    let line = match line {
        0 if is_script => function.start_line,
        line => line,
    };
    match granularity {
        Granularity::Lines | Granularity::Addresses => entry.line = line,
        Granularity::Usual if is_script => entry.line = line,
        _ => {}
    }
    entry
}

/// Removes `.`, `..` and double slashes from a path.
pub fn clean_path(path: &str) -> String {
    if !path.contains("/.") && !path.contains("//") && !path.starts_with("./") {
        return path.to_owned();
    }
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." if parts.last().is_some_and(|last| *last != "..") => {
                parts.pop();
            }
            ".." if rooted => {}
            part => parts.push(part),
        }
    }
    format!("{}{}", if rooted { "/" } else { "" }, parts.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_named_as_pprof_names_them() {
        let entry = Entry {
            name: "f".into(),
            ..Entry::default()
        };
        assert_eq!(entry.printable(), "f");
        let line = Entry {
            file: "a.c".into(),
            line: 7,
            ..entry.clone()
        };
        assert_eq!(line.printable(), "f a.c:7");
        let address = Entry {
            address: 0x1234,
            object: "/lib/libc.so.6".into(),
            ..Entry::default()
        };
        assert_eq!(address.printable(), "0000000000001234 [libc.so.6]");
        assert_eq!(Entry::default().printable(), "<unknown>");
    }

    #[test]
    fn jit_code_is_recognised_when_anonymous_mappings_are_not_listed() {
        let origin_of = |system_name: &str, mappings: Vec<Mapping>| {
            let profile = Profile {
                mappings,
                functions: vec![Function {
                    name: "work".into(),
                    system_name: system_name.into(),
                    file: "/srv/app.py".into(),
                    start_line: 0,
                }],
                lines: vec![Line::default()],
                ..Profile::default()
            };
            let location = Location {
                address: 0x7f12_3456_7000,
                mapping: NO_MAPPING,
                first_line: 0,
                line_count: 1,
            };
            origin_of(&profile, &location)
        };
        let python = origin_of("py::work:/srv/app.py", Vec::new());
        assert_eq!(python, Origin::Python);
        // Without mappings, the code may be the program's own.
        assert_eq!(origin_of("py::work(int)", Vec::new()), Origin::Program);
        let file_mapping = || vec![Mapping::default()];
        let python = origin_of("py::work:/srv/app.py", file_mapping());
        assert_eq!(python, Origin::Python);
        assert_eq!(origin_of("work a.js:7", file_mapping()), Origin::Jit);
    }

    #[test]
    fn anonymous_mappings_are_jit_code_only_if_files_are_mapped_too() {
        let origin_in = |mappings: Vec<Mapping>| {
            let profile = Profile {
                format: Format::Pprof,
                mappings,
                functions: vec![Function {
                    name: "main.work".into(),
                    file: "/src/main.go".into(),
                    ..Function::default()
                }],
                lines: vec![Line::default()],
                ..Profile::default()
            };
            let location = Location {
                address: 0x1_0000_0010,
                mapping: 0,
                first_line: 0,
                line_count: 1,
            };
            origin_of(&profile, &location)
        };
        let anonymous = |start| Mapping {
            start,
            end: start + 0x1000,
            ..Mapping::default()
        };
        let file = || Mapping {
            path: "/usr/bin/x".into(),
            ..Mapping::default()
        };
        assert_eq!(origin_in(vec![Mapping::default()]), Origin::Program);
        assert_eq!(origin_in(vec![anonymous(0x1_0000_0000)]), Origin::Program);
        assert_eq!(origin_in(vec![Mapping::default(), file()]), Origin::Program);
        let beside = vec![anonymous(0x1_0000_0000), file()];
        assert_eq!(origin_in(beside), Origin::Jit);
    }

    #[test]
    fn paths_are_cleaned() {
        assert_eq!(clean_path("/a/./b/../c//d"), "/a/c/d");
        assert_eq!(clean_path("./x/../../y"), "../y");
        assert_eq!(clean_path("/../y"), "/y");
        assert_eq!(clean_path("/plain/path"), "/plain/path");
    }
}
