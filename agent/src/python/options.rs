//! The options of an interpreter that tell it to leave its environment aside.

use core::ffi::{CStr, c_char, c_int};

/// What the loader tells constructors of the program's command line.
#[derive(Clone, Copy)]
pub struct CommandLine {
    pub count: c_int,
    pub arguments: *const *const c_char,
}

impl CommandLine {
    fn get(self, index: usize) -> Option<&'static [u8]> {
        if index >= usize::try_from(self.count).ok()? || self.arguments.is_null() {
            return None;
        }
        // SAFETY: glibc passes so many arguments; they stay for as long as the process runs.
        unsafe {
            let argument = *self.arguments.add(index);
            (!argument.is_null()).then(|| CStr::from_ptr(argument).to_bytes())
        }
    }

    /// Whether this is `python -I` or `python -E`.
    pub fn ignores_environment(self) -> bool {
        ignores_environment(&|index| self.get(index))
    }
}

fn ignores_environment<'a>(get: &dyn Fn(usize) -> Option<&'a [u8]>) -> bool {
    let program = get(0).unwrap_or_default();
    let name = program.rsplit(|byte| *byte == b'/').next();
    if !name.is_some_and(|name| name.starts_with(b"python")) {
        return false;
    }
    let mut index = 1;
    while let Some([b'-', letters @ ..]) = get(index) {
        index += 1;
        if letters == b"-check-hash-based-pycs" {
            index += 1;
            continue;
        }
        if letters.first() == Some(&b'-') {
            continue;
        }
        for (place, letter) in letters.iter().enumerate() {
            match letter {
                b'I' | b'E' => return true,
                b'c' | b'm' => return false,
                b'W' | b'X' => {
                    // Its value is the rest, or the next argument.
                    index += usize::from(place + 1 == letters.len());
                    break;
                }
                _ => {}
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_found_among_others() {
        let ignores = |line: &str| {
            let arguments: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
            ignores_environment(&|index| arguments.get(index).copied())
        };
        for line in [
            "python3 -I x.py",
            "/usr/bin/python3.11 -sE",
            "python3 -X dev -I x.py",
            "python3 -W ignore -uEm x",
            "python3 --check-hash-based-pycs never -I",
        ] {
            assert!(ignores(line), "{line}");
        }
        for line in [
            "python3",
            "python3 x.py -I",
            "python3 -c -I",
            "python3 -X E x.py",
            "python3 -Wignore::E x.py",
            "python3 -um E",
            "uwsgi -I",
            "python3 -",
        ] {
            assert!(!ignores(line), "{line}");
        }
    }
}
