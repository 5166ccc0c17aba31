//! Advice for profiles with much code without names.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use profile::{Profile, maps, marker_at, printable};

use crate::files::Sources;
use crate::program;
use crate::view::{View, ViewStack};

/// Program that returns the Debian package that installed a file.
const DPKG_QUERY: &str = "/usr/bin/dpkg-query";

/// A hint is given if the innermost code of at least 1 / `LEAF_RATIO` of the values has no name.
const LEAF_RATIO: i64 = 20;
/// A hint is given if at least 1 / `CALLER_RATIO` of the values are in code without names or in
/// functions that it called.
const CALLER_RATIO: i64 = 5;
/// Maximum number of files named in a hint.
const MAX_FILES: usize = 3;
/// File name prefixes of the runtime, which starts programs and threads. Users do not miss the
/// names of its internal functions.
const RUNTIME_FILES: [&str; 9] = [
    "libc.",
    "libc-",
    "libpthread",
    "ld-",
    "libstdc++.",
    "libc++.",
    "libc++abi.",
    "libgomp.",
    "libomp.",
];

/// Sums of absolute values by whether code has names.
#[derive(Default)]
struct Unnamed {
    /// Sum of all values.
    all: i64,
    /// Sum of stacks whose innermost frame outside the runtime has no name.
    leaf: i64,
    /// `leaf`, plus the sum of stacks in which at least half of the frames have no name.
    leaf_or_callers: i64,
    /// `leaf_or_callers` by file, largest first.
    files: Vec<(PathBuf, i64)>,
}

/// Returns a hint if much of a view lies in code without names: how much, in which files, and how
/// to get the names. Omits files for which a warning already explains why they were not read.
pub fn unnamed_code_hint(view: &View, sources: &Sources, warnings: &[String]) -> Option<String> {
    let is_explained = |file: &Path| {
        let path_text = printable::path(file);
        warnings.iter().any(|warning| warning.contains(&path_text))
    };
    let unnamed = Unnamed::count(view, is_explained);
    // The total of a difference is less than the sum of its changes.
    let total = view.total().max(unnamed.all).max(1);
    let is_much = |value: i64, ratio: i64| value > 0 && value >= total / ratio;
    let is_hinted =
        is_much(unnamed.leaf, LEAF_RATIO) || is_much(unnamed.leaf_or_callers, CALLER_RATIO);
    if sources.force || !is_hinted {
        return None;
    }
    let share = |value: i64| match value.saturating_mul(100) / total {
        0 if value > 0 => "less than 1%".to_owned(),
        percent => format!("{percent}%"),
    };
    let files = &unnamed.files;
    let shown = files.iter().take(MAX_FILES);
    let shown = shown.map(|(file, value)| format!("{} {}", printable::path(file), share(*value)));
    let mut shown: Vec<String> = shown.collect();
    if files.len() > MAX_FILES {
        shown.push(format!("{} more", files.len() - MAX_FILES));
    }
    let called = unnamed.leaf_or_callers - unnamed.leaf;
    let (values, verb) = values_and_verb(view);
    let summary = match (unnamed.leaf, called) {
        (leaf, 0) => format!("{} of the {values} {verb} code without names", share(leaf)),
        (0, called) => format!(
            "{} of the {values} {verb} functions called by code without names",
            share(called)
        ),
        (leaf, called) => format!(
            "{} of the {values} {verb} code without names, {} {} functions that it called",
            share(leaf),
            share(called),
            verb.rsplit(' ').next().unwrap_or(verb)
        ),
    };
    Some(format!(
        "{summary} ({}); {}",
        shown.join(", "),
        advice(view.profile(), &files[0].0, sources)
    ))
}

/// Returns the name of the values, and the verb that relates them to code.
fn values_and_verb(view: &View) -> (String, &'static str) {
    match (view.unit(), &view.profile().facts.cpu) {
        ("bytes", _) => ("bytes".to_owned(), "were allocated by"),
        (_, Some(sampling)) => (sampling.mode.to_string(), "was spent in"),
        _ => ("values".to_owned(), "are of"),
    }
}

/// Returns advice on how to get names for the file that has most of the unnamed code.
fn advice(profile: &Profile, file: &Path, sources: &Sources) -> String {
    let main = program::main_mapping(profile).map(|main| maps::strip_deleted(&main.path).0);
    let is_main = main == Some(file);
    let given = sources.binary.as_deref().filter(|_| is_main);
    let mut advice = Vec::new();
    // A machine without symbol servers, such as a board, is assumed not to build programs.
    let has_servers = has_symbol_servers();
    match package(given.unwrap_or(file)) {
        Some(package) => advice.push(format!("install {package}-dbgsym")),
        None if has_servers => advice.push("keep symbols when you build it".to_owned()),
        None => {}
    }
    if has_servers && !sources.debuginfod {
        advice.push("add --debuginfod".to_owned());
    }
    let where_else = if is_main {
        "name a copy that has them with -p"
    } else {
        "name the directory of its debug file with --symbol-path"
    };
    advice.push(where_else.to_owned());
    advice.join(" or ")
}

/// Returns true if this machine can ask symbol servers: their addresses are set, and the client is
/// installed.
pub fn has_symbol_servers() -> bool {
    let is_named = std::env::var_os("DEBUGINFOD_URLS").is_some_and(|urls| !urls.is_empty());
    let has_client = |directory: PathBuf| directory.join("debuginfod-find").is_file();
    let path = || std::env::var_os("PATH").unwrap_or_default();
    is_named && std::env::split_paths(&path()).any(has_client)
}

impl Unnamed {
    fn count(view: &View, is_explained: impl Fn(&Path) -> bool) -> Self {
        let profile = view.profile();
        let paths = profile.mappings.iter().map(|mapping| {
            let path = maps::strip_deleted(&mapping.path).0;
            // perf calls anonymous memory `//anon`: `generated` advises on it.
            let is_file =
                path.is_absolute() && !path.as_os_str().as_encoded_bytes().starts_with(b"//");
            (is_file && !is_explained(path)).then_some(path)
        });
        let paths: Vec<Option<&Path>> = paths.collect();
        let unnamed_file = |&frame: &u32| {
            let location = &profile.locations[frame as usize];
            let path = paths.get(location.mapping as usize).copied().flatten();
            let known = marker_at(location.address).is_some() || !profile.is_unnamed(location);
            path.filter(|_| !known && !view.is_hidden(frame))
        };
        let main = program::main_mapping(profile).map(|main| &main.path);
        let runtime_mappings: Vec<bool> = profile
            .mappings
            .iter()
            .map(|mapping| Some(&mapping.path) != main && is_runtime_file(&mapping.path))
            .collect();
        let is_runtime = |frame: &u32| {
            let mapping = profile.locations[*frame as usize].mapping;
            runtime_mappings
                .get(mapping as usize)
                .copied()
                .unwrap_or(false)
        };
        let files: Vec<Option<&Path>> = (0..profile.locations.len() as u32)
            .map(|frame| unnamed_file(&frame))
            .collect();
        let mut unnamed = Self::default();
        let mut sums: HashMap<&Path, i64> = HashMap::new();
        for ViewStack { value, frames, .. } in view.stacks() {
            let value = value.saturating_abs();
            let add = |sum: &mut i64| *sum = sum.saturating_add(value);
            add(&mut unnamed.all);
            let visible = frames.iter().filter(|&&frame| !view.is_hidden(frame));
            let visible: Vec<u32> = visible.copied().collect();
            // Ignores the start-up code of programs and threads: the C library, and the entry point
            // that called it, which has no name in stripped programs.
            let mut frames = &visible[..];
            if let [rest @ .., caller, _] = frames
                && is_runtime(caller)
            {
                frames = &visible[..rest.len() + 1];
            }
            let frames = frames.iter().filter(|frame| !is_runtime(frame));
            let files: Vec<Option<&Path>> = frames.map(|frame| files[*frame as usize]).collect();
            let mut paths: Vec<&Path> = files.iter().copied().flatten().collect();
            let is_leaf_unnamed = files.first().is_some_and(Option::is_some);
            // Users do not miss the names of a few callers among many.
            if !is_leaf_unnamed && paths.len() * 2 < files.len() {
                continue;
            }
            paths.sort_unstable();
            paths.dedup();
            if is_leaf_unnamed {
                add(&mut unnamed.leaf);
            }
            if !paths.is_empty() {
                add(&mut unnamed.leaf_or_callers);
            }
            paths
                .iter()
                .for_each(|path| add(sums.entry(path).or_default()));
        }
        let sums = sums.into_iter().filter(|(_, value)| *value > 0);
        unnamed.files = sums
            .map(|(path, value)| (path.to_path_buf(), value))
            .collect();
        let files = &mut unnamed.files;
        files.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
        unnamed
    }
}

fn is_runtime_file(file: &Path) -> bool {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    RUNTIME_FILES.iter().any(|start| name.starts_with(start))
}

/// Returns the package that installed a file. Only for paths that dpkg-query does not interpret as
/// patterns.
fn package(file: &Path) -> Option<String> {
    let file = file.canonicalize().ok()?;
    let path = file.to_str()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) {
        return None;
    }
    // If /bin is a link to /usr/bin, the package database may contain either path.
    let merged = path.strip_prefix("/usr").filter(|p| p.starts_with('/'));
    [Some(path), merged]
        .into_iter()
        .flatten()
        .find_map(package_owning)
}

fn package_owning(path: &str) -> Option<String> {
    let output = Command::new(DPKG_QUERY)
        .args(["--search", path])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (package, owned) = text.lines().next()?.split_once(": ")?;
    let name = package.split(':').next()?;
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    (owned == path && !name.is_empty() && name.chars().all(valid)).then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use profile::merge::Base;
    use profile::{Detail, Line, Mapping, ProfileBuilder};
    use symbols::demangle::Style;

    use super::*;
    use crate::python::FrameSelection;

    const PROGRAM: u64 = 0x1_0000;
    const LIBRARY: u64 = 0x2_0000;
    const LIBC: u64 = 0x3_0000;
    const RUNTIME: u64 = 0x4_0000;

    /// Returns the hint for these stacks of 1000 bytes each, where only the addresses `named` have
    /// names.
    fn message(stacks: &[&[u64]], named: &[u64]) -> Option<String> {
        let mut builder = ProfileBuilder::new(1);
        for (start, path) in [
            (PROGRAM, "/opt/none/program"),
            (LIBRARY, "/opt/none/library.so"),
            (LIBC, "/opt/none/libc.so.6"),
            (RUNTIME, "/opt/none/libstdc++.so.6"),
        ] {
            builder.module(Mapping {
                start,
                end: start + 0x1_0000,
                path: path.into(),
                ..Mapping::default()
            });
        }
        let detail = Detail {
            alloc_samples: 1,
            alloc_objects: 10.0,
            alloc_bytes: 1000.0,
            ..Detail::default()
        };
        for stack in stacks {
            builder.stack(stack.iter().map(|address| address + 1), &detail);
        }
        let mut profile = builder.finish();
        profile.functions.push(profile::Function {
            name: "function".to_owned(),
            ..Default::default()
        });
        profile.lines.push(Line::default());
        for location in &mut profile.locations {
            location.line_count = named.contains(&location.address).into();
        }
        let view = View::new(profile, None).unwrap();
        let sources = Sources {
            dumps: Vec::new(),
            base: Vec::new(),
            base_rule: Base::Difference,
            binary: None,
            force: false,
            demangle: Style::default(),
            symbol_directories: Vec::new(),
            debuginfod: false,
            perf_map: None,
            module_names: false,
            python: FrameSelection::default(),
        };
        unnamed_code_hint(&view, &sources, &[])
    }

    #[test]
    fn shares_of_unnamed_code_and_its_callees_are_reported() {
        let named = [LIBRARY, LIBC];
        let unnamed = message(&[&[PROGRAM, LIBC]], &named).unwrap();
        let expected =
            "100% of the bytes were allocated by code without names (/opt/none/program 100%); ";
        assert!(unnamed.starts_with(expected), "{unnamed}");
        let called = message(&[&[LIBRARY, PROGRAM, LIBC]], &named).unwrap();
        let expected = "100% of the bytes were allocated by functions called by code without names \
                        (/opt/none/program 100%); ";
        assert!(called.starts_with(expected), "{called}");
        let stacks: [&[u64]; 4] = [
            &[PROGRAM, LIBC],
            &[LIBRARY, PROGRAM],
            &[LIBRARY],
            &[LIBRARY],
        ];
        let both = message(&stacks, &named).unwrap();
        let expected = "25% of the bytes were allocated by code without names, 25% by functions that it called (/opt/none/program 50%)";
        assert!(both.starts_with(expected), "{both}");
    }

    #[test]
    fn launchers_get_no_hint() {
        let main = PROGRAM;
        let start = PROGRAM + 0x100;
        // In stripped programs that export their functions, only `_start` has no name.
        let stack: &[u64] = &[LIBRARY, main, LIBC, start];
        assert_eq!(message(&[stack], &[LIBRARY, main, LIBC]), None);
        assert_eq!(message(&[stack], &[LIBRARY, main]), None);
        // If main has no name, symbols would help.
        assert!(message(&[stack], &[LIBRARY, LIBC]).is_some());
        // A static function between functions with names is not missed.
        let (caller, leaf) = (PROGRAM + 0x200, PROGRAM + 0x300);
        let stack: &[u64] = &[leaf, PROGRAM + 0x400, caller, main, LIBC, start];
        assert_eq!(message(&[stack], &[leaf, caller, main, LIBC]), None);
        // Internals of the runtime, which starts threads and reserves memory, give no hint, either.
        let thread: &[u64] = &[LIBRARY, RUNTIME, LIBC];
        assert_eq!(message(&[thread, &[RUNTIME, LIBC]], &[LIBRARY]), None);
        // Little unnamed memory gives no hint, either.
        let stacks: Vec<&[u64]> = [vec![&[LIBRARY][..]; 30], vec![&[PROGRAM][..]]].concat();
        assert_eq!(message(&stacks, &[LIBRARY]), None);
    }
}
