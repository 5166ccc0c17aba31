//! What to do about a program whose functions have no names.

use std::path::Path;
use std::process::{Command, Stdio};

use heap_format::{Profile, maps, printable};

use crate::load::Sources;
use crate::program;

/// Where Debian's systems tell which package a file is of.
const DPKG_QUERY: &str = "/usr/bin/dpkg-query";

/// What to do where most places in the program's own code have no names, unless a warning
/// says why already.
pub fn unnamed(profile: &Profile, sources: &Sources, warnings: &[String]) -> Option<String> {
    let main = program::main(profile)?;
    let counted = program::counted(profile, |mapping| mapping.path == main.path);
    if sources.force || counted.all == 0 || counted.named * 2 >= counted.all {
        return None;
    }
    let recorded = maps::strip_deleted(&main.path).0;
    let file = sources.binary.as_deref().unwrap_or(recorded);
    let (shown, name) = (printable::path(file), printable::path(recorded));
    if warnings
        .iter()
        .any(|w| w.contains(&shown) || w.contains(&name))
    {
        return None;
    }
    let (unnamed, all) = (counted.all - counted.named, counted.all);
    let servers = match sources.debuginfod {
        true => "",
        false => ", add --debuginfod to ask symbol servers",
    };
    let first = match package(file) {
        Some(package) => format!("install {package}-dbgsym"),
        None => "keep them when you build it (no strip, -g for lines)".to_owned(),
    };
    Some(format!(
        "{unnamed} of {all} places in the code of {shown} have no names, its symbols are missing: \
         {first}{servers}, or name a copy that has them with -p"
    ))
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
