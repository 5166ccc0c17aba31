//! How much of a profile lies in code without names, and what to do about it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use heap_format::{Location, Profile, maps, marker_at, printable};

use crate::load::Sources;
use crate::program;
use crate::view::View;

/// Where Debian's systems tell which package a file is of.
const DPKG_QUERY: &str = "/usr/bin/dpkg-query";

/// One in how many of the values may lie in code without names before there is a hint.
const LITTLE: i64 = 20;
/// How many files are named.
const MOST_FILES: usize = 3;

/// Where most of the values that lie in code without names are, and what would name it: of files
/// of which no warning says already why they are not read.
pub fn unnamed(view: &View, sources: &Sources, warnings: &[String]) -> Option<String> {
    let mut files = files(view);
    files.retain(|(file, _)| {
        let shown = printable::path(file);
        !warnings.iter().any(|warning| warning.contains(&shown))
    });
    let all = files.iter().map(|(_, value)| value).sum::<i64>();
    if sources.force || all == 0 || all < view.total() / LITTLE {
        return None;
    }
    let share = |value: i64| match value.saturating_mul(100) / view.total().max(1) {
        0 => "less than 1%".to_owned(),
        percent => format!("{percent}%"),
    };
    let shown = files.iter().take(MOST_FILES);
    let shown = shown.map(|(file, value)| format!("{} {}", printable::path(file), share(*value)));
    let mut shown: Vec<String> = shown.collect();
    if files.len() > MOST_FILES {
        shown.push(format!("{} more", files.len() - MOST_FILES));
    }
    Some(format!(
        "{} of the {} lie in code without names ({}); {}",
        share(all),
        what(view),
        shown.join(", "),
        help(view.profile(), &files[0].0, sources)
    ))
}

/// What is counted.
fn what(view: &View) -> String {
    match (view.unit(), &view.profile().facts.cpu) {
        ("bytes", _) => "bytes".to_owned(),
        (_, Some(sampling)) => sampling.mode.to_string(),
        _ => "values".to_owned(),
    }
}

/// What would name the code of the file that has most of it.
fn help(profile: &Profile, file: &Path, sources: &Sources) -> String {
    let main = program::main(profile).map(|main| maps::strip_deleted(&main.path).0);
    let is_main = main == Some(file);
    let here = sources.binary.as_deref().filter(|_| is_main);
    let first = match package(here.unwrap_or(file)) {
        Some(package) => format!("install {package}-dbgsym"),
        None => "keep symbols when you build it (no strip, -g for lines)".to_owned(),
    };
    let servers = match sources.debuginfod {
        true => "",
        false => ", add --debuginfod to ask symbol servers",
    };
    let copy = match is_main {
        true => "or name a copy that has them with -p",
        false => "or a directory with its debug file with --symbol-path",
    };
    format!("{first}{servers}, {copy}")
}

/// The files with code without names in which values lie, by how much, most first.
fn files(view: &View) -> Vec<(PathBuf, i64)> {
    let profile = view.profile();
    let mut files: HashMap<u32, i64> = HashMap::new();
    for (_, value, frames) in view.stacks() {
        let innermost = frames.iter().find(|&&frame| !view.is_hidden(frame));
        let location = innermost.map(|&frame| &profile.locations[frame as usize]);
        if let Some(location) = location.filter(|location| is_unnamed(profile, location)) {
            let sum = files.entry(location.mapping).or_default();
            *sum = sum.saturating_add(value.saturating_abs());
        }
    }
    // A file has several mappings.
    let mut paths: HashMap<&Path, i64> = HashMap::new();
    for (mapping, value) in files {
        let path = maps::strip_deleted(&profile.mappings[mapping as usize].path).0;
        let sum = paths.entry(path).or_default();
        *sum = sum.saturating_add(value);
    }
    let paths = paths.into_iter().filter(|(_, value)| *value > 0);
    let mut files: Vec<(PathBuf, i64)> = paths.map(|(p, v)| (p.to_path_buf(), v)).collect();
    files.sort_by(|(a, more), (b, less)| less.cmp(more).then_with(|| a.cmp(b)));
    files
}

/// Whether a location is in a file's code, and has no name from a symbol.
fn is_unnamed(profile: &Profile, location: &Location) -> bool {
    let mapping = profile.mappings.get(location.mapping as usize);
    let in_file = mapping.is_some_and(|mapping| mapping.path.is_absolute());
    in_file && marker_at(location.address).is_none() && profile.is_unnamed(location)
}

/// The package that installed a file. Only of a plain name: others are patterns to that program.
fn package(file: &Path) -> Option<String> {
    let file = file.canonicalize().ok()?;
    let path = file.to_str()?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    if !path.starts_with('/') || !path.chars().all(plain) {
        return None;
    }
    // Where /bin is a link to /usr/bin, the list may have either.
    let merged = path.strip_prefix("/usr").filter(|p| p.starts_with('/'));
    [Some(path), merged].into_iter().flatten().find_map(owner)
}

fn owner(path: &str) -> Option<String> {
    let output = Command::new(DPKG_QUERY)
        .args(["--search", path])
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let (package, of) = text.lines().next()?.split_once(": ")?;
    let name = package.split(':').next()?;
    let valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c);
    (of == path && !name.is_empty() && name.chars().all(valid)).then(|| name.to_owned())
}
