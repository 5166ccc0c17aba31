//! Literal prefixes of a pattern, as a fast pre-check.
//!
//! Patterns of frames to drop are lists of names, and nearly all names match none of them.
//! Comparing the first letters takes a hundredth of the time of matching the pattern.

/// Characters with a special meaning in patterns.
const SPECIAL: &str = r".^$|?*+(){}[]\";

/// Prefixes such that every match of a pattern begins with one of them. Sorted, so that prefixes
/// with the same first letter are adjacent.
#[derive(Debug, PartialEq, Eq)]
pub struct Prefixes<'p>(Vec<&'p str>);

impl Prefixes<'_> {
    /// Returns true if a name begins with one of the prefixes.
    pub fn may_match(&self, name: &str) -> bool {
        let first = |text: &str| text.as_bytes().first().copied();
        let initial = first(name);
        let from = self.0.partition_point(|text| first(text) < initial);
        let mut alike = self.0[from..]
            .iter()
            .take_while(|text| first(text) == initial);
        alike.any(|text| name.starts_with(text))
    }
}

/// Returns the prefixes of a pattern that matches whole names; `None` if the pattern is too
/// complex.
pub fn literal_prefixes(pattern: &str) -> Option<Prefixes<'_>> {
    // Flags may apply to several alternatives.
    if pattern.contains("(?") {
        return None;
    }
    let mut all = Vec::new();
    for choice in choices(pattern)? {
        let mut rest = choice;
        // An optional prefix, as in `(__)?posix_memalign`.
        if let Some((first, other)) = choice.strip_prefix('(').and_then(|c| c.split_once(")?")) {
            all.push(literal(first).filter(|prefix| *prefix == first)?);
            rest = other;
        }
        all.push(literal(rest)?);
    }
    all.sort_unstable();
    Some(Prefixes(all))
}

/// Splits a pattern into its alternatives, outside of parentheses; `None` if it has character
/// classes.
fn choices(pattern: &str) -> Option<Vec<&str>> {
    let mut choices = Vec::new();
    let mut start = 0;
    let mut depth = 0_usize;
    let mut letters = pattern.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' => drop(letters.next()),
            '[' => return None,
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            '|' if depth == 0 => {
                choices.push(&pattern[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    choices.push(&pattern[start..]);
    Some(choices)
}

/// Returns the literal prefix of an alternative, if any.
fn literal(choice: &str) -> Option<&str> {
    let end = choice.find(|letter| SPECIAL.contains(letter));
    let (prefix, rest) = choice.split_at(end.unwrap_or(choice.len()));
    let mut letters = prefix.chars();
    // The last letter is optional.
    if rest.starts_with(['?', '*', '{']) {
        letters.next_back();
    }
    Some(letters.as_str()).filter(|prefix| !prefix.is_empty())
}

#[cfg(test)]
mod tests {
    use super::literal_prefixes;

    #[test]
    fn fixed_prefixes_of_patterns_are_found() {
        let list = r"malloc|(__)?posix_memalign|tc_(c|p?v)alloc|ab?c|operator new(\[\])?|x\|y|z+";
        let all = literal_prefixes(list).unwrap();
        let expected = [
            "__",
            "a",
            "malloc",
            "operator new",
            "posix_memalign",
            "tc_",
            "x",
            "z",
        ];
        assert_eq!(all.0, expected);
        for text in expected {
            assert!(all.may_match(text) && all.may_match(&format!("{text}x")));
        }
        for name in ["", "_", "b", "mallo", "operator", "t", "posix", "~", "é"] {
            assert!(!all.may_match(name), "{name}");
        }
    }

    #[test]
    fn patterns_without_a_fixed_beginning_exclude_nothing() {
        for pattern in [
            "",
            "a|",
            ".*alloc",
            "(?i)malloc",
            "x(?i)|malloc",
            "[mc]alloc",
            "a?",
            "(a|b)?c",
            "(a?)?b",
            r"\w+",
            "a)|b",
            "(x)y",
            "m|^",
            "é?",
        ] {
            assert_eq!(literal_prefixes(pattern), None, "{pattern}");
        }
        assert_eq!(literal_prefixes("éa?").unwrap().0, ["é"]);
    }
}
