//! Frames with source lines, as reports show them.

use serde::Serialize;
use symbols::own::{self, Code};

/// Frame of a stack.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Frame {
    /// The function.
    pub function: String,
    /// Source file; empty if unknown.
    pub file: String,
    /// Line in the file; 0 if unknown.
    pub line: u32,
    /// True for functions of system libraries.
    #[serde(skip)]
    pub is_system: bool,
}

impl Frame {
    /// Returns a frame without a source line.
    pub fn named(function: &str) -> Self {
        Self {
            function: function.to_owned(),
            file: String::new(),
            line: 0,
            is_system: false,
        }
    }

    /// Formats the source line; `None` if it is unknown.
    pub fn place(&self) -> Option<String> {
        match (self.file.as_str(), self.line) {
            ("", _) => None,
            (file, 0) => Some(file.to_owned()),
            (file, line) => Some(format!("{file}:{line}")),
        }
    }
}

/// Returns the part of a stack that is the user's own code, without the start of the program or
/// thread, and a description of the library functions that it called, if any.
pub fn own_part(frames: &[Frame]) -> (&[Frame], Option<String>) {
    let own = own::part(frames.len(), |at| Code {
        function: &frames[at].function,
        file: &frames[at].file,
        is_system: frames[at].is_system,
    });
    let called = own.start.checked_sub(1).and_then(|at| frames.get(at));
    let through = called.map(|called| match own.start - 1 {
        0 => called.function.clone(),
        more => format!("{} and {more} more of libraries", called.function),
    });
    (&frames[own], through)
}
