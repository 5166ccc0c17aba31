//! Python frames in native stacks.
//!
//! A Python frame is a location in the mapping [`PYTHON`], with one line of a function, at a
//! pseudo-address of its own. The function has its qualified name, its file as Python knows it, and
//! the line where it begins. The Python frame is the callee of the frame of
//! `_PyEval_EvalFrameDefault` that runs it; one such frame may run several Python frames.

use std::path::Path;

use crate::profile::{Location, Mapping, Profile};

/// Path of the mapping that contains Python frames.
pub const PYTHON: &str = "[python]";

/// Name of a function whose name is empty. Programs may set any name.
pub const UNNAMED: &str = "<unnamed>";

/// First pseudo-address. No program has addresses this high.
pub const PYTHON_START: u64 = 1 << 61;

/// Number of pseudo-addresses.
const ADDRESS_COUNT: u64 = 1 << 32;

/// Returns the mapping that contains Python frames.
pub fn python_mapping() -> Mapping {
    Mapping {
        start: PYTHON_START,
        end: PYTHON_START + ADDRESS_COUNT,
        path: PYTHON.into(),
        ..Mapping::default()
    }
}

/// Formats a function of a script and a line (0 if unknown) as Python's tools do:
/// `make_thumbnail (app.py:41)`.
pub fn script_name(name: &str, file: &str, line: u32) -> String {
    let file = short_file(file);
    let name = if name.is_empty() { UNNAMED } else { name };
    match line {
        // Without a file, the frame stands for several functions, and the name says so.
        _ if file.is_empty() => name.to_owned(),
        0 => format!("{name} ({file})"),
        line => format!("{name} ({file}:{line})"),
    }
}

/// Returns a file name without directories. Keeps one directory for names such as `__init__.py`.
fn short_file(file: &str) -> &str {
    let mut slashes = file.rmatch_indices('/').map(|(at, _)| at + 1);
    let last = slashes.next().unwrap_or(0);
    let says_little = file[last..].starts_with("__") || file[last..].starts_with("index.");
    if says_little {
        &file[slashes.next().unwrap_or(0)..]
    } else {
        &file[last..]
    }
}

impl Profile {
    /// Returns the name of a location if it is a Python frame.
    pub fn python_name(&self, location: &Location) -> Option<String> {
        let [line] = self.lines_of(location) else {
            return None;
        };
        let function = &self.functions[line.function as usize];
        let is_python = self.is_python(location);
        is_python.then(|| script_name(&function.name, &function.file, line.line))
    }

    /// Returns true if a location is a Python frame.
    pub fn is_python(&self, location: &Location) -> bool {
        let mapping = self.mappings.get(location.mapping as usize);
        mapping.is_some_and(|m| m.path == Path::new(PYTHON))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uninformative_directories_are_removed_from_script_names() {
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
