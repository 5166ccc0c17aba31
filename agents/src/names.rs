//! Finds and caches the names of a process's functions.
//!
//! Names are found by the code that `mem_parser` uses for dumps, and the same functions are omitted
//! from stacks. The files of the target are untrusted, so a separate, sandboxed process reads them.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use profile::{Location, NO_MAPPING, Profile, marker_at};
use regex_lite::Regex;
use symbols::interpreter::{self, FrameSelection, Role};
use symbols::{Options, sandboxed, user_code};

use crate::text;
use crate::waiting;

/// Maximum number of addresses that one refresh looks up.
const BATCH: usize = 200_000;
/// Maximum time of one lookup.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(60);
/// Pause between two lookups, as a multiple of the time that the last one took.
const PAUSE_FACTOR: u32 = 5;

/// Index of a function's name.
pub type FunctionId = u32;

/// Function names of one process, by address.
pub struct Symbols {
    pid: i32,
    names: Vec<Rc<str>>,
    /// By function: true if it belongs to the allocator. Such functions are omitted from stacks.
    is_allocator: Vec<bool>,
    /// By function: true if all its code that was found belongs to system libraries.
    is_system: Vec<bool>,
    /// Functions by name.
    ids: HashMap<Rc<str>, FunctionId>,
    /// Results by address.
    resolved: HashMap<u64, Resolved>,
    /// Addresses without a name.
    unnamed: HashSet<u64>,
    /// Files that contain an interpreter's loop: code in them called a Python frame in some stack.
    interpreters: HashSet<Rc<Path>>,
    allocator: Option<Allocator>,
    /// Selection of the frames that [`frames`](Self::frames) returns.
    shown: FrameSelection,
    /// True once an address was a Python line.
    has_python: bool,
    /// Earliest time of the next lookup.
    next_lookup: Instant,
    /// Last error, until it is reported.
    error: Option<String>,
}

/// A function at an address, and the source line there.
#[derive(Clone, Debug)]
pub struct Frame {
    /// The function.
    pub function: FunctionId,
    /// Source file; empty if unknown, and for Python, whose names contain it.
    pub file: Rc<str>,
    /// Line in the file; 0 if unknown.
    pub line: u32,
}

/// Result of looking up an address.
struct Resolved {
    /// Functions at the address, innermost (inlined) first.
    functions: Rc<[Frame]>,
    /// True for a Python line.
    is_python: bool,
    /// File that contains the code; `None` if unknown.
    file: Option<Rc<Path>>,
}

/// Patterns for the allocator's frames, from a profile's `drop_frames` and `keep_frames`.
struct Allocator {
    drop: Regex,
    /// Functions of an interpreter's allocator; `None` until an interpreter is found.
    interpreters: Option<Regex>,
    keep: Option<Regex>,
}

impl Allocator {
    fn from_profile(profile: &Profile) -> Option<Self> {
        let drop = Some(&profile.drop_frames).filter(|p| !p.is_empty())?;
        let keep = Some(&profile.keep_frames).filter(|p| !p.is_empty());
        Some(Self {
            drop: anchored(drop)?,
            interpreters: None,
            keep: keep.and_then(|keep| anchored(keep)),
        })
    }

    fn matches(&self, name: &str) -> bool {
        let is_in = |pattern: &Option<Regex>| pattern.as_ref().is_some_and(|p| p.is_match(name));
        (self.drop.is_match(name) || is_in(&self.interpreters)) && !is_in(&self.keep)
    }
}

/// Compiles a pattern that must match a whole name.
fn anchored(pattern: &str) -> Option<Regex> {
    Regex::new(&format!("^({pattern})$")).ok()
}

impl Symbols {
    /// Creates an empty cache for a running process.
    pub fn new(pid: i32) -> Self {
        Self {
            pid,
            names: Vec::new(),
            is_allocator: Vec::new(),
            is_system: Vec::new(),
            ids: HashMap::new(),
            resolved: HashMap::new(),
            unnamed: HashSet::new(),
            interpreters: HashSet::new(),
            allocator: None,
            shown: FrameSelection::Usual,
            has_python: false,
            next_lookup: Instant::now(),
            error: None,
        }
    }

    /// Selects the frames that [`frames`](Self::frames) returns for stacks with Python. Must be
    /// called before it.
    pub fn show(&mut self, shown: FrameSelection) {
        self.shown = shown;
    }

    /// Returns true if only Python lines are shown.
    pub fn shows_python_only(&self) -> bool {
        self.shown == FrameSelection::PythonOnly
    }

    /// Creates an empty cache for another program, with the same selection of frames.
    pub fn for_new_program(&self, pid: i32) -> Self {
        Self {
            shown: self.shown,
            ..Self::new(pid)
        }
    }

    /// Returns true if any address was a Python line.
    pub fn has_python(&self) -> bool {
        self.has_python
    }

    /// Returns the pid of the process.
    pub fn pid(&self) -> i32 {
        self.pid
    }

    /// Returns a function's name.
    pub fn name(&self, id: FunctionId) -> &str {
        self.names.get(id as usize).map_or("?", |name| name)
    }

    /// Returns true if a function belongs to a system library, by the files of the addresses that
    /// were looked up.
    pub fn is_system(&self, id: FunctionId) -> bool {
        self.is_system.get(id as usize) == Some(&true)
    }

    /// Returns true if an address was looked up and has no name.
    pub fn is_unnamed(&self, address: u64) -> bool {
        self.unnamed.contains(&address)
    }

    /// Returns the number of functions.
    pub fn function_count(&self) -> usize {
        self.names.len()
    }

    /// Returns the last error and clears it.
    pub fn take_error(&mut self) -> Option<String> {
        self.error.take()
    }

    /// Returns the id of a name, adding it if necessary.
    pub fn intern(&mut self, name: &str) -> FunctionId {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = self.names.len() as FunctionId;
        let allocator = self.allocator.as_ref();
        self.is_allocator
            .push(allocator.is_some_and(|a| a.matches(name)));
        let name: Rc<str> = name.into();
        self.names.push(name.clone());
        self.ids.insert(name, id);
        id
    }

    /// Records whether the code of these functions is in a system library.
    fn record_library(&mut self, functions: &[Frame], is_system: bool) {
        for frame in functions {
            let function = frame.function as usize;
            if function >= self.is_system.len() {
                // New functions count as system functions until code elsewhere is found.
                self.is_system.resize(function + 1, true);
            }
            self.is_system[function] &= is_system;
        }
    }

    /// Returns a frame of which only the name is known.
    fn name_only(&mut self, name: &str) -> Frame {
        Frame {
            function: self.intern(name),
            file: Rc::default(),
            line: 0,
        }
    }

    /// Returns the functions of a stack of return addresses; both lists are innermost first. Omits
    /// the allocator's frames at the leaf, unless there are no others. In stacks with Python, omits
    /// the interpreter's frames between Python lines. Returns `None` until all addresses have been
    /// looked up.
    pub fn frames(&mut self, addresses: &[u64]) -> Option<Vec<FunctionId>> {
        let frames = self.frames_with_lines(addresses)?;
        Some(frames.iter().map(|frame| frame.function).collect())
    }

    /// Like [`frames`](Self::frames), with source lines.
    pub fn frames_with_lines(&mut self, addresses: &[u64]) -> Option<Vec<Frame>> {
        let all: Option<Vec<(u64, &Resolved)>> = addresses
            .iter()
            .map(|address| Some((*address, self.resolved.get(address)?)))
            .collect();
        let all = all?;
        for pair in all.windows(2) {
            let (callee, caller) = (pair[0].1, pair[1].1);
            // Native code that calls a Python frame is the interpreter's loop.
            if callee.is_python
                && !caller.is_python
                && let Some(file) = caller.file.as_ref().filter(|path| path.is_absolute())
                && !self.interpreters.contains(file)
            {
                self.interpreters.insert(file.clone());
            }
        }
        let shown = self.select_frames(&all);
        if shown.is_empty() && self.shown == FrameSelection::PythonOnly {
            return Some(vec![self.name_only(interpreter::NATIVE)]);
        }
        let all: Vec<Frame> = shown.into_iter().flatten().cloned().collect();
        let is_kept = |frame: &Frame| !self.is_allocator[frame.function as usize];
        let first = all.iter().position(is_kept).unwrap_or(0);
        Some(all[first..].to_vec())
    }

    /// Returns the functions of the frames that [`show`](Self::show) selects, innermost first.
    fn select_frames<'a>(&self, all: &[(u64, &'a Resolved)]) -> Vec<&'a [Frame]> {
        let mut shown: Vec<&[Frame]> = Vec::with_capacity(all.len());
        let mut show = |(_, known): (u64, &'a Resolved)| shown.push(&known.functions);
        match self.shown {
            FrameSelection::Native => all.iter().copied().for_each(show),
            FrameSelection::PythonOnly => {
                let python = all.iter().filter(|(_, known)| known.is_python);
                python.copied().for_each(show);
            }
            FrameSelection::Usual => interpreter::show_usual(
                all,
                |(_, known)| self.role(known),
                |(address, _)| marker_at(address).is_some(),
                &mut show,
            ),
        }
        shown
    }

    fn role(&self, known: &Resolved) -> Role {
        match &known.file {
            _ if known.is_python => Role::Python,
            None => Role::Other,
            Some(file) => {
                let names = known
                    .functions
                    .iter()
                    .map(|frame| self.name(frame.function));
                Role::native(file, self.interpreters.contains(file), names)
            }
        }
    }

    /// Detects an interpreter in the profile of newly found addresses.
    fn detect_interpreter(&mut self, profile: &Profile) {
        if !profile.locations.iter().any(|l| profile.is_python(l)) {
            return;
        }
        self.has_python = true;
        let main = symbols::main_mapping(profile).map(|at| profile.mappings[at].path.as_path());
        let python = main.filter(|path| interpreter::is_called_python(path));
        self.interpreters.extend(python.map(Rc::from));
        if let Some(allocator) = &mut self.allocator
            && self.shown == FrameSelection::Usual
            && allocator.interpreters.is_none()
        {
            allocator.interpreters = anchored(interpreter::ALLOCATORS);
            let names = self.names.iter();
            self.is_allocator = names.map(|name| allocator.matches(name)).collect();
        }
    }

    /// Looks up the return addresses that are not cached, at most `BATCH` at once. `profile`
    /// builds a profile of them. Unless `at_once`, pauses between lookups.
    pub fn resolve(
        &mut self,
        addresses: impl Iterator<Item = u64>,
        at_once: bool,
        profile: impl FnOnce(&[u64]) -> Profile,
    ) {
        let start = Instant::now();
        let mut new: Vec<u64> = addresses
            .filter(|a| !self.resolved.contains_key(a))
            .collect();
        new.sort_unstable();
        new.dedup();
        new.truncate(BATCH);
        if new.is_empty() || !at_once && start < self.next_lookup {
            return;
        }
        let profile = profile(&new);
        self.allocator = (self.allocator.take()).or_else(|| Allocator::from_profile(&profile));
        self.detect_interpreter(&profile);
        let locations = profile.locations.len();
        let location = |stack: usize| profile.stacks.get(stack).first().copied();
        let found: Vec<Option<u32>> = (0..new.len()).map(location).collect();
        let object = |location: &Location| match location.mapping {
            NO_MAPPING => "<unknown>".to_owned(),
            mapping => bracketed_file_name(&profile, mapping),
        };
        let objects: Vec<String> = profile.locations.iter().map(object).collect();
        let lines_and_files: Vec<_> = lines_and_files(&profile);
        let program: Option<Rc<Path>> =
            symbols::main_mapping(&profile).map(|at| profile.mappings[at].path.as_path().into());
        let names =
            sandboxed::code_by_name(profile, &OPTIONS, LOOKUP_TIMEOUT, waiting::is_end_requested);
        let names = names.unwrap_or_else(|error| {
            self.error = Some(error.to_string());
            vec![Vec::new(); locations]
        });
        for (address, location) in new.into_iter().zip(found) {
            let location = location.map_or(usize::MAX, |location| location as usize);
            let functions: Rc<[Frame]> = match names.get(location) {
                Some(names) if !names.is_empty() => {
                    let frames = names.iter().map(|code| Frame {
                        function: self.intern(&text::escape(code.name.as_bytes())),
                        file: code.file.clone(),
                        line: code.line,
                    });
                    frames.collect()
                }
                _ => {
                    self.unnamed.insert(address);
                    let object = objects.get(location).map_or("<unknown>", |o| o);
                    [self.name_only(object)].into()
                }
            };
            let (is_python, file) = lines_and_files.get(location).cloned().unwrap_or_default();
            let is_system = !is_python
                && file.as_ref().is_some_and(|file| {
                    Some(file) != program.as_ref() && user_code::is_system_library(file)
                });
            self.record_library(&functions, is_system);
            let known = Resolved {
                functions,
                is_python,
                file,
            };
            self.resolved.insert(address, known);
        }
        self.next_lookup = Instant::now() + start.elapsed() * PAUSE_FACTOR;
    }
}

/// Returns for each location whether it is a Python line, and its file.
fn lines_and_files(profile: &Profile) -> Vec<(bool, Option<Rc<Path>>)> {
    let mappings = profile.mappings.iter();
    let files: Vec<Rc<Path>> = mappings.map(|m| Rc::from(m.path.as_path())).collect();
    let line_and_file = |location: &Location| {
        let file = files.get(location.mapping as usize).cloned();
        (profile.is_python(location), file)
    };
    profile.locations.iter().map(line_and_file).collect()
}

/// Default options of `mem_parser`.
const OPTIONS: Options<'static> = Options {
    binary: None,
    force: false,
    demangle: symbols::demangle::Style::Simple,
    directories: &[],
    debuginfod: false,
    perf_map: None,
};

/// Returns the name for code without a symbol: the name of its file, in brackets.
fn bracketed_file_name(profile: &Profile, mapping: u32) -> String {
    let path = profile.mappings[mapping as usize].path.as_os_str();
    let path = std::os::unix::ffi::OsStrExt::as_bytes(path);
    let base = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
    format!("[{}]", text::escape(base))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn symbols(known: &[(u64, &[&str])]) -> Symbols {
        let mut symbols = Symbols::new(0);
        symbols.allocator = Some(Allocator {
            drop: Regex::new("^(malloc|allocate|operator new)$").unwrap(),
            interpreters: None,
            keep: None,
        });
        for (address, names) in known {
            let functions = names.iter().map(|name| symbols.name_only(name)).collect();
            let known = Resolved {
                functions,
                is_python: names[0].ends_with(')'),
                file: Some(Path::new("/usr/bin/python3").into()),
            };
            symbols.resolved.insert(*address, known);
        }
        symbols
    }

    fn named(symbols: &mut Symbols, addresses: &[u64]) -> Vec<String> {
        let frames = symbols.frames(addresses).unwrap();
        frames
            .iter()
            .map(|id| symbols.name(*id).to_owned())
            .collect()
    }

    #[test]
    fn allocator_frames_are_omitted_at_the_leaf_only() {
        let symbols = &mut symbols(&[
            (1, &["inner"]),
            (2, &["malloc"]),
            (3, &["allocate", "push", "fill"]),
            (4, &["main"]),
        ]);
        assert_eq!(named(symbols, &[2, 4]), ["main"]);
        let outer = ["inner", "malloc", "main"];
        assert_eq!(named(symbols, &[1, 2, 4]), outer);
        assert_eq!(named(symbols, &[2, 2]), ["malloc", "malloc"]);
        assert_eq!(named(symbols, &[2, 3, 4]), ["push", "fill", "main"]);
        assert_eq!(named(symbols, &[1, 2]), ["inner", "malloc"]);
        assert_eq!(symbols.frames(&[1, 9]), None);
    }

    #[test]
    fn interpreter_frames_are_omitted_between_python_lines() {
        let symbols = &mut symbols(&[
            (1, &["PyList_Append"]),
            (2, &["_PyObject_MakeTpCall"]),
            (3, &["_PyEval_EvalFrameDefault"]),
            (4, &["put (a.py:7)"]),
            (5, &["<module> (a.py:9)"]),
            (6, &["Py_BytesMain"]),
        ]);
        let stack = [1, 2, 4, 3, 5, 3, 6];
        let lines = ["PyList_Append", "put (a.py:7)", "<module> (a.py:9)"];
        assert_eq!(named(symbols, &stack), lines);
        // Code that runs no Python is shown.
        assert_eq!(named(symbols, &[1, 6]), ["PyList_Append", "Py_BytesMain"]);
    }

    #[test]
    fn native_or_only_python_frames_can_be_selected() {
        let names: [(u64, &[&str]); 4] = [
            (1, &["PyList_Append"]),
            (2, &["put (a.py:7)"]),
            (3, &["_PyEval_EvalFrameDefault"]),
            (4, &["Py_BytesMain"]),
        ];
        let stack = [1, 2, 3, 4];
        let all = &mut symbols(&names);
        all.show(FrameSelection::Native);
        assert_eq!(named(all, &stack), names.map(|(_, names)| names[0]));
        let alone = &mut symbols(&names);
        alone.show(FrameSelection::PythonOnly);
        assert_eq!(named(alone, &stack), ["put (a.py:7)"]);
        assert_eq!(named(alone, &[1, 4]), [interpreter::NATIVE]);
        assert_eq!(alone.frames(&[1, 9]), None);
    }
}
