//! Frames of Python's interpreter, among the native ones of a stack.
//!
//! A Python frame is a location of the mapping [`PYTHON`]: a line of a function, under a
//! pseudo-address that stands for nothing but it. Its function has the qualified name, the file
//! as Python has it, and the line where it begins. It stands on the inner side of the frame of
//! `_PyEval_EvalFrameDefault` that runs it; one such frame may run several.

use std::path::Path;

use crate::profile::{Location, Mapping, Profile};

/// Path of the mapping that Python's frames are in.
pub const PYTHON: &str = "[python]";

/// What a function without a name is called: a program may set any name, and an empty one.
pub const UNNAMED: &str = "<unnamed>";

/// First pseudo-address, which no program can have.
pub const PYTHON_START: u64 = 1 << 61;

/// How many there are.
const LENGTH: u64 = 1 << 32;

/// The mapping that Python's frames are in.
pub fn python_mapping() -> Mapping {
    Mapping {
        start: PYTHON_START,
        end: PYTHON_START + LENGTH,
        path: PYTHON.into(),
        ..Mapping::default()
    }
}

/// A function of a script and a line of it (0: not known) as Python's tools show them:
/// `make_thumbnail (app.py:41)`.
pub fn script_name(name: &str, file: &str, line: u32) -> String {
    let file = short(file);
    let name = if name.is_empty() { UNNAMED } else { name };
    match line {
        // It stands for several, and says so.
        _ if file.is_empty() => name.to_owned(),
        0 => format!("{name} ({file})"),
        line => format!("{name} ({file}:{line})"),
    }
}

/// A file without directories, but for one whose name says nothing without.
fn short(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at + 1);
    let last = slashes.next().unwrap_or(0);
    let says_little = file[last..].starts_with("__") || file[last..].starts_with("index.");
    match says_little {
        true => &file[slashes.next().unwrap_or(0)..],
        false => &file[last..],
    }
}

impl Profile {
    /// What a location is called if it is a line of Python.
    pub fn python_name(&self, location: &Location) -> Option<String> {
        let [line] = self.lines_of(location) else {
            return None;
        };
        let function = &self.functions[line.function as usize];
        let is_python = self.is_python(location);
        is_python.then(|| script_name(&function.name, &function.file, line.line))
    }

    /// Whether a location is a line of Python.
    pub fn is_python(&self, location: &Location) -> bool {
        let mapping = self.mappings.get(location.mapping as usize);
        mapping.is_some_and(|m| m.path == Path::new(PYTHON))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_are_named_without_directories_that_say_nothing() {
        for (file, line, shown) in [
            ("/srv/app.py", 41, "load (app.py:41)"),
            ("/srv/app.py", 0, "load (app.py)"),
            ("/lib/numpy/__init__.py", 7, "load (numpy/__init__.py:7)"),
            ("/srv/web/index.js", 7, "load (web/index.js:7)"),
            ("__main__.py", 7, "load (__main__.py:7)"),
            (
                "<frozen importlib._bootstrap>",
                3,
                "load (<frozen importlib._bootstrap>:3)",
            ),
        ] {
            assert_eq!(script_name("load", file, line), shown);
        }
        assert_eq!(script_name("", "/srv/app.py", 12), "<unnamed> (app.py:12)");
        assert_eq!(script_name("", "", 0), "<unnamed>");
        assert_eq!(
            script_name("[python: table full]", "", 0),
            "[python: table full]"
        );
    }
}
