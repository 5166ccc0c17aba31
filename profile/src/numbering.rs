//! Orders dumps by the numbers in their names: `app.17.9999.heap` comes before `app.17.10000.heap`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Sort key of a path. Paths that differ only in numbers are ordered by these, whatever their
/// number of digits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    /// The path with one `0` for each number.
    shape: Vec<u8>,
    /// Each number, as the count of its significant digits and these digits.
    numbers: Vec<(usize, Vec<u8>)>,
}

impl Key {
    /// Returns true if the paths differ only in numbers.
    pub fn differs_only_in_numbers(&self, other: &Self) -> bool {
        self.shape == other.shape
    }
}

/// Returns the sort key of a path.
pub fn key(path: &Path) -> Key {
    let mut rest = path.as_os_str().as_bytes();
    let mut key = Key {
        shape: Vec::with_capacity(rest.len()),
        numbers: Vec::new(),
    };
    while let Some((&first, others)) = rest.split_first() {
        let digits = rest.iter().take_while(|b| b.is_ascii_digit()).count();
        if digits == 0 {
            key.shape.push(first);
            rest = others;
            continue;
        }
        let (number, after) = rest.split_at(digits);
        let zeros = number.iter().take_while(|&&b| b == b'0').count();
        let number = number[zeros..].to_vec();
        key.shape.push(b'0');
        key.numbers.push((number.len(), number));
        rest = after;
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_thousand_is_after_9999() {
        let ordered = [
            "a.1.0001.heap",
            "a.1.0002.heap",
            "a.1.9999.heap",
            "a.1.10000.heap",
            "a.1.123456789012345678901234567890.heap",
            "a.2.0002.heap",
        ];
        let mut paths = ordered;
        paths.sort_unstable();
        assert_ne!(paths, ordered, "not the order of text");
        paths.sort_by_key(|path| key(Path::new(path)));
        assert_eq!(paths, ordered);
    }

    #[test]
    fn names_that_differ_only_in_numbers_are_similar() {
        let like = |a: &str, b: &str| key(Path::new(a)).differs_only_in_numbers(&key(Path::new(b)));
        assert!(like("jeprof.17.9.i9.heap", "jeprof.17.10.i10.heap"));
        assert!(!like("jeprof.17.9.i9.heap", "jeprof.17.10.f.heap"));
        assert!(!like("before.heap", "after.heap"));
    }
}
