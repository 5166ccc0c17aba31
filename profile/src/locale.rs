//! Character set of a terminal: text beyond ASCII requires a UTF-8 locale.

use std::borrow::Cow;
use std::ffi::OsString;
use std::io::IsTerminal;

/// Variables that name the locale of characters. The first one that is set and not empty applies.
const VARIABLES: [&str; 3] = ["LC_ALL", "LC_CTYPE", "LANG"];

/// Signs that stand as separate words in our messages, and their replacements in ASCII.
const SIGNS: [(&str, &str); 5] = [
    ("…", "..."),
    ("±", "+-"),
    ("–", "-"),
    ("→", "->"),
    ("←", "<-"),
];

/// Returns true if the environment names a UTF-8 locale.
pub fn is_utf8() -> bool {
    names_utf8(|name| std::env::var_os(name))
}

fn names_utf8(value: impl Fn(&str) -> Option<OsString>) -> bool {
    let set = VARIABLES.iter().filter_map(|name| value(name));
    let locale = set.into_iter().find(|value| !value.is_empty());
    let locale = locale.unwrap_or_default().to_string_lossy().to_lowercase();
    // For example, de_DE.UTF-8@euro.
    let codeset = locale.split('@').next().unwrap_or_default();
    let codeset = codeset.rsplit('.').next().unwrap_or_default();
    matches!(codeset, "utf-8" | "utf8")
}

/// Returns true if a stream is a terminal that can only show ASCII.
pub fn is_ascii_terminal(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && !is_utf8()
}

/// Replaces the signs of a line by ASCII. Names and paths are not changed.
pub fn in_ascii(line: &str) -> Cow<'_, str> {
    if line.is_ascii() {
        return line.into();
    }
    let sign = |word| SIGNS.iter().find(|(sign, _)| *sign == word);
    let words = line
        .split(' ')
        .map(|word| sign(word).map_or(word, |(_, ascii)| ascii));
    words.collect::<Vec<_>>().join(" ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_variable_that_is_set_counts() {
        for (variables, expected) in [
            (&[][..], false),
            (&[("LANG", "C.UTF-8")], true),
            (&[("LANG", "en_US.utf8")], true),
            (&[("LANG", "de_DE.UTF-8@euro")], true),
            (&[("LANG", "C")], false),
            (&[("LANG", "zh_CN.GB18030")], false),
            (&[("LC_ALL", "C"), ("LANG", "C.UTF-8")], false),
            (
                &[("LC_ALL", ""), ("LC_CTYPE", "C.UTF-8"), ("LANG", "C")],
                true,
            ),
            (&[("LC_CTYPE", "POSIX"), ("LANG", "C.UTF-8")], false),
        ] {
            let value = |name: &str| {
                let found = variables.iter().find(|(set, _)| *set == name);
                found.map(|(_, value)| OsString::from(value))
            };
            assert_eq!(names_utf8(value), expected, "{variables:?}");
        }
    }

    #[test]
    fn only_isolated_signs_are_replaced() {
        assert_eq!(in_ascii("1 MiB ± 2 KiB"), "1 MiB +- 2 KiB");
        assert_eq!(in_ascii("    … 3 more"), "    ... 3 more");
        assert_eq!(in_ascii("from a ← b"), "from a <- b");
        assert_eq!(in_ascii("/tmp/a…b"), "/tmp/a…b");
    }
}
