//! Wildcard patterns for names of programs: `*` matches any string, `?` any one byte.

// Decision 31: the environment names the programs that carry the agent.

/// Returns true if a pattern matches the whole string. Takes O(pattern × string) time.
pub fn covers(pattern: &[u8], text: &[u8]) -> bool {
    let mut p = 0;
    let mut t = 0;
    // Position of the last star, and the end of what it matches.
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(c) if *c == b'?' || *c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                // The last star matches one byte more.
                let Some((star_at, matched_to)) = star else {
                    return false;
                };
                star = Some((star_at, matched_to + 1));
                p = star_at + 1;
                t = matched_to + 1;
            }
        }
    }
    pattern[p..].iter().all(|c| *c == b'*')
}

/// Returns true if one of the patterns, which are separated by colons, matches the string.
pub fn any_covers(patterns: &[u8], text: &[u8]) -> bool {
    patterns
        .split(|byte| *byte == b':')
        .any(|pattern| !pattern.is_empty() && covers(pattern, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        for (pattern, text, expected) in [
            ("redis*", "redis-server", true),
            ("*server", "redis-server", true),
            ("r?dis-*er", "redis-server", true),
            ("*", "", true),
            ("redis", "redis-server", false),
            ("*x", "redis-server", false),
            ("a*a*a*a*a*b", "aaaaaaaaaaaaaaaaaaaa", false),
        ] {
            let found = covers(pattern.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{pattern}");
        }
    }

    #[test]
    fn lists() {
        for (patterns, text, expected) in [
            ("planner:redis*", "redis-server", true),
            ("planner:redis*", "planner", true),
            ("planner:redis*", "plan", false),
            ("激光:my planner", "my planner", true),
            ("激光:my planner", "激光", true),
            ("::", "", false),
            ("", "planner", false),
        ] {
            let found = any_covers(patterns.as_bytes(), text.as_bytes());
            assert_eq!(found, expected, "{patterns}");
        }
    }
}
