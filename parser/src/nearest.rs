//! Finds the names nearest to a misspelt one.

use std::path::{Path, PathBuf};

use strsim::osa_distance;

/// Maximum number of names to examine in a directory or profile.
const MAX_NAMES: usize = 50_000;

/// Number of characters of a name that are compared.
const COMPARED_CHARS: usize = 80;

/// Returns the word nearest to a misspelt one, if any is near.
pub fn word<'a>(typed: &str, words: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let typed = truncate(typed);
    let limit = (typed.chars().count() / 3).max(1);
    let near = words.take(MAX_NAMES).filter_map(|word| {
        let distance = osa_distance(&typed, &truncate(word));
        (distance <= limit && distance < typed.chars().count()).then_some((distance, word))
    });
    near.min().map(|(_, word)| word)
}

/// Returns the file nearest to one that does not exist, in the same directory.
pub fn file(missing: &Path) -> Option<PathBuf> {
    let name = missing.file_name()?.to_str()?;
    let parent = missing.parent()?;
    let directory = if parent.as_os_str().is_empty() {
        Path::new(".")
    } else {
        parent
    };
    let entries = std::fs::read_dir(directory).ok()?.take(MAX_NAMES).flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    let names: Vec<String> = files
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    let words = || names.iter().map(String::as_str);
    let found = word(name, words()).or_else(|| completion(name, words()))?;
    Some(parent.join(found))
}

/// Extensions of the names of dumps.
const DUMPS: [&str; 2] = ["heap", "cpu"];

/// Returns the newest dump in a directory.
pub fn newest_dump(directory: &Path) -> Option<PathBuf> {
    let entries = std::fs::read_dir(directory).ok()?.take(MAX_NAMES).flatten();
    let is_dump = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        extension.is_some_and(|extension| DUMPS.contains(&extension))
    };
    let dumps = entries.filter(|entry| is_dump(&entry.path()));
    let aged = dumps.filter_map(|entry| {
        let about = entry.metadata().ok().filter(std::fs::Metadata::is_file)?;
        Some((about.modified().ok()?, entry.path()))
    });
    aged.max().map(|(_, path)| path)
}

/// Returns the shortest name that begins with an incomplete one: users do not type the pid and
/// number of a dump.
fn completion<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let stem = name.strip_suffix(".heap").unwrap_or(name);
    let longer = names.filter(|other| stem.chars().count() > 2 && other.starts_with(stem));
    longer
        .take(MAX_NAMES)
        .min_by_key(|other| (other.len(), *other))
}

/// Returns the end of a message about a pattern that matches no function: the nearest names.
pub fn function_hint<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> String {
    let found = nearest_functions(pattern, names);
    let shown: Vec<String> = found.iter().map(|name| shorten(name)).collect();
    match shown.as_slice() {
        [] => String::new(),
        [one] => format!("; the nearest name is {one}"),
        [most @ .., last] => format!("; the nearest names are {} and {last}", most.join(", ")),
    }
}

/// Returns at most three functions with the names nearest to a pattern.
fn nearest_functions<'a>(pattern: &str, names: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let wanted: Vec<String> = pattern.split('|').map(without_metacharacters).collect();
    let score = |name: &str| {
        let whole = crate::view::without_parameters(name).to_lowercase();
        let distance = |wanted: &String| relative_distance(wanted, &whole);
        wanted.iter().map(distance).min().unwrap_or(UNRELATED)
    };
    let named = names.filter(|name| !name.is_empty()).take(MAX_NAMES);
    let mut found: Vec<(u32, &str)> = named.map(|name| (score(name), name)).collect();
    found.retain(|(score, _)| *score <= MAX_DISTANCE);
    found.sort_unstable();
    found.dedup();
    // Drops names that are much farther away than the nearest one.
    let near = found
        .first()
        .map_or(0, |(score, _)| score + MAX_DISTANCE_BEYOND_NEAREST);
    let found = found.into_iter().take_while(|(score, _)| *score <= near);
    found.map(|(_, name)| name).take(3).collect()
}

/// Returns the last parts of a name, as many as the wanted name has.
fn last_parts<'a>(name: &'a str, wanted: &str) -> &'a str {
    let parts = wanted.matches("::").count();
    match name.rmatch_indices("::").nth(parts) {
        Some((at, between)) => &name[at + between.len()..],
        None => name,
    }
}

/// Maximum relative distance of a name that is suggested, in thousandths.
const MAX_DISTANCE: u32 = 400;
/// Maximum difference to the relative distance of the nearest name, in thousandths.
const MAX_DISTANCE_BEYOND_NEAREST: u32 = 200;
/// Relative distance of names that have nothing in common, in thousandths.
const UNRELATED: u32 = 1000;

/// Returns the edit distance between two names, in thousandths of the longer one's length.
fn relative_distance(wanted: &str, name: &str) -> u32 {
    let letters = wanted.chars().count();
    if letters < 2 {
        return UNRELATED;
    }
    if letters > 2 && name.contains(wanted) {
        return 1;
    }
    let name_end = truncate(last_parts(name, wanted));
    let length = letters.max(name_end.chars().count());
    (osa_distance(wanted, &name_end) * UNRELATED as usize / length) as u32
}

/// Removes characters that are special in patterns.
fn without_metacharacters(pattern: &str) -> String {
    let kept = pattern
        .chars()
        .filter(|c| c.is_alphanumeric() || "_:~ ".contains(*c));
    truncate(&kept.collect::<String>()).to_lowercase()
}

fn truncate(text: &str) -> String {
    text.chars().take(COMPARED_CHARS).collect()
}

fn shorten(name: &str) -> String {
    match name.char_indices().nth(COMPARED_CHARS) {
        Some((at, _)) => format!("{}\u{2026}", &name[..at]),
        None => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_similar_words_are_found() {
        let words = ["flame", "focus", "folded", "files"];
        let near = |typed| word(typed, words.into_iter());
        assert_eq!(near("flmae"), Some("flame"));
        assert_eq!(near("foldd"), Some("folded"));
        assert_eq!(near("x"), None);
        assert_eq!(near("zebra"), None);
    }

    #[test]
    fn functions_are_compared_by_their_bare_names() {
        let names = [
            "shop::Room::fill(int)",
            "dictAdd",
            "dictAddRaw",
            "main",
            "operator new(unsigned long)",
        ];
        let hint = |pattern| function_hint(pattern, names.into_iter());
        assert_eq!(
            hint("^dictad$"),
            "; the nearest names are dictAdd and dictAddRaw"
        );
        assert_eq!(
            hint("Room::fil1"),
            "; the nearest name is shop::Room::fill(int)"
        );
        assert_eq!(hint("^room"), "; the nearest name is shop::Room::fill(int)");
        assert_eq!(hint("zzzzzz"), "");
        assert_eq!(hint("("), "");
    }

    #[test]
    fn long_names_cost_little() {
        let deep = format!("{}::fill(int)", ["space"; 40].join("::"));
        assert!(function_hint("fil1", [deep.as_str()].into_iter()).contains("space::space"));
        let long = "x".repeat(1 << 20);
        assert!(function_hint(&long, [long.as_str()].into_iter()).len() < 400);
        assert_eq!(word(&long, ["flame"].into_iter()), None);
    }
}
