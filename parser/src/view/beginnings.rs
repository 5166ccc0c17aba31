//! What a name must begin with to match a pattern.
//!
//! Patterns of frames to leave out are lists of names, and nearly all names are none of them:
//! checking their first letters for that takes a hundredth of the time that the pattern takes.

/// What means more in a pattern than itself.
const SPECIAL: &str = r".^$|?*+(){}[]\";

/// Texts of which every match of a pattern begins with one. Sorted, so that those with one first
/// letter are together.
#[derive(Debug, PartialEq, Eq)]
pub struct Beginnings<'p>(Vec<&'p str>);

impl Beginnings<'_> {
    /// Whether a name begins with one of them.
    pub fn may_match(&self, name: &str) -> bool {
        let first = |text: &str| text.as_bytes().first().copied();
        let own = first(name);
        let from = self.0.partition_point(|text| first(text) < own);
        let mut alike = self.0[from..].iter().take_while(|text| first(text) == own);
        alike.any(|text| name.starts_with(text))
    }
}

/// Those of a pattern that matches a whole name; `None` if they are not plain.
pub fn of(pattern: &str) -> Option<Beginnings<'_>> {
    // Flags reach over bars.
    if pattern.contains("(?") {
        return None;
    }
    let mut all = Vec::new();
    for choice in choices(pattern)? {
        let mut rest = choice;
        // What may be there and may be not: `(__)?posix_memalign`.
        if let Some((first, other)) = choice.strip_prefix('(').and_then(|c| c.split_once(")?")) {
            all.push(literal(first).filter(|own| *own == first)?);
            rest = other;
        }
        all.push(literal(rest)?);
    }
    all.sort_unstable();
    Some(Beginnings(all))
}

/// The choices that bars divide, outside of parentheses; `None` where there are classes of letters.
fn choices(pattern: &str) -> Option<Vec<&str>> {
    let (mut choices, mut start, mut depth) = (Vec::new(), 0, 0_usize);
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

/// The letters that it begins with and that stand for themselves, if any.
fn literal(choice: &str) -> Option<&str> {
    let end = choice.find(|letter| SPECIAL.contains(letter));
    let (own, rest) = choice.split_at(end.unwrap_or(choice.len()));
    let mut letters = own.chars();
    // The last one may be there, or not.
    if rest.starts_with(['?', '*', '{']) {
        letters.next_back();
    }
    Some(letters.as_str()).filter(|own| !own.is_empty())
}

#[cfg(test)]
mod tests {
    use super::of;

    #[test]
    fn a_list_of_names_tells_what_they_begin_with() {
        let list = r"malloc|(__)?posix_memalign|tc_(c|p?v)alloc|ab?c|operator new(\[\])?|x\|y|z+";
        let all = of(list).unwrap();
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
            assert_eq!(of(pattern), None, "{pattern}");
        }
        assert_eq!(of("éa?").unwrap().0, ["é"]);
    }
}
