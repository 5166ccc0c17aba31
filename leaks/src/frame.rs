//! Frames with source lines, as reports show them.

use serde::Serialize;
use symbols::user_code::{self, Code};

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

/// Part of a stack, as reports show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// Function of the user.
    Own(&'a Frame),
    /// Library functions that lead from one function of the user to the next: what was called, and
    /// how many more.
    Libraries(String),
}

fn code(frame: &Frame) -> Code<'_> {
    Code {
        function: &frame.function,
        file: &frame.file,
        is_system: frame.is_system,
    }
}

/// Describes library functions, innermost first: the outermost, which the user called, and the
/// number of the others.
fn libraries(frames: &[Frame]) -> Option<String> {
    let (called, others) = frames.split_last()?;
    Some(match others.len() {
        0 => called.function.clone(),
        more => format!("{} and {more} more of libraries", called.function),
    })
}

/// Returns the part of a stack that is the user's own code, without the start of the program or
/// thread, and a description of the library functions that it called, if any. A stack without the
/// user's code is returned completely.
pub fn own_part(frames: &[Frame]) -> (Vec<Part<'_>>, Option<String>) {
    let own = user_code::user_part(frames.len(), |at| code(&frames[at]));
    let through = libraries(&frames[..own.start]);
    let frames = &frames[own];
    let is_own = |frame: &Frame| !code(frame).is_foreign() && !user_code::is_start(&frame.function);
    let has_own = frames.iter().any(is_own);
    let groups = frames.chunk_by(|a, b| has_own && !is_own(a) && !is_own(b));
    let mut steps = Vec::new();
    for group in groups {
        if has_own && !is_own(&group[0]) {
            steps.extend(libraries(group).map(Part::Libraries));
        } else {
            steps.extend(group.first().map(Part::Own));
        }
    }
    (steps, through)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(functions: &[&str]) -> (Vec<String>, Option<String>) {
        let frames: Vec<Frame> = functions.iter().map(|name| Frame::named(name)).collect();
        let (steps, through) = own_part(&frames);
        let text = |part: &Part<'_>| match part {
            Part::Own(frame) => frame.function.clone(),
            Part::Libraries(text) => format!("({text})"),
        };
        (steps.iter().map(text).collect(), through)
    }

    #[test]
    fn libraries_between_functions_of_the_user_are_one_step() {
        let (steps, through) = described(&[
            "alloc::fmt::format",
            "app::main::{{closure}}",
            "core::iter::map_fold",
            "core::iter::fold",
            "core::iter::collect",
            "app::main",
            "std::rt::lang_start",
            "main",
            "_start",
        ]);
        let expected = [
            "app::main::{{closure}}",
            "(core::iter::collect and 2 more of libraries)",
            "app::main",
        ];
        assert_eq!(steps, expected);
        assert_eq!(through.as_deref(), Some("alloc::fmt::format"));
        let (steps, _) = described(&["work", "std::invoke", "main"]);
        assert_eq!(steps, ["work", "(std::invoke)", "main"]);
    }

    #[test]
    fn a_stack_without_the_users_code_is_complete() {
        let functions = ["std::string::append", "std::copy", "_start"];
        assert_eq!(
            described(&functions),
            (functions.map(str::to_owned).to_vec(), None)
        );
        assert_eq!(described(&[]), (Vec::new(), None));
    }
}
