//! Our tables as pprof would print them.

use regex::{Captures, Regex};

/// Replaces KiB, MiB and so on by pprof's names, and spaces as [`one_space`] does: our names are
/// longer, so that columns may be wider.
pub fn with_their_units(text: &str) -> String {
    let units = Regex::new(r"([0-9])([KMGTP])iB").unwrap();
    let named = units.replace_all(text, |found: &Captures| {
        format!("{}{}B", &found[1], found[2].replace('K', "k"))
    });
    one_space(&named)
}

/// Replaces runs of spaces by one or, before a line, none.
pub fn one_space(text: &str) -> String {
    let spaces = Regex::new(" +").unwrap();
    spaces.replace_all(text, " ").replace("\n ", "\n")
}
