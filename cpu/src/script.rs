//! Lines of an interpreter's functions, among the frames of stacks.

use std::collections::HashMap;
use std::rc::Rc;

use cpython::Description;

/// Frames from here on, and before [`FIRST_OF_KERNEL`](crate::recording::FIRST_OF_KERNEL), are lines of a
/// script: addresses that no code of a process has.
pub const FIRST_OF_SCRIPT: u64 = 1 << 61;

/// A line of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScriptLine {
    /// The function, as the interpreter calls it.
    pub name: String,
    /// The file that it is from, as in the interpreter.
    pub file: String,
    /// The line where it begins; 0: not known.
    pub first_line: u32,
    /// The line; 0: not known.
    pub line: u32,
}

impl ScriptLine {
    /// Whether it is of a frame of the interpreter's own, between `__init__` and who makes the object
    /// (CPython from 3.13 on), which the interpreter does not show either: its code object has no
    /// lines, and one string for its name and its file.
    #[must_use]
    pub fn is_shim(&self) -> bool {
        self.first_line == 0 && !self.file.is_empty() && self.name == self.file
    }
}

/// The lines that a process's stacks lead through.
#[derive(Default)]
pub struct Script {
    /// What is known about the interpreter.
    pub interpreter: Option<Description>,
    lines: Vec<Rc<ScriptLine>>,
    frames: HashMap<Rc<ScriptLine>, u64>,
}

impl Script {
    /// Whether no line was met.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The frame of a line, which stays the same.
    pub fn frame(&mut self, line: ScriptLine) -> u64 {
        if let Some(&frame) = self.frames.get(&line) {
            return frame;
        }
        let frame = FIRST_OF_SCRIPT + self.lines.len() as u64;
        let line = Rc::new(line);
        self.lines.push(line.clone());
        self.frames.insert(line, frame);
        frame
    }

    /// The line of a frame, if that is one.
    #[must_use]
    pub fn line(&self, frame: u64) -> Option<&ScriptLine> {
        let index = frame.checked_sub(FIRST_OF_SCRIPT)?;
        let line = self.lines.get(usize::try_from(index).ok()?)?;
        Some(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::{FIRST_OF_KERNEL, TRUNCATED};

    #[test]
    fn a_line_has_one_frame_and_other_frames_have_none() {
        let mut script = Script::default();
        let line = |line| ScriptLine {
            name: "load".to_owned(),
            file: "app.py".to_owned(),
            first_line: 3,
            line,
        };
        let frames = [5, 7, 5].map(|number| script.frame(line(number)));
        assert_eq!(frames[0], frames[2]);
        assert_ne!(frames[0], frames[1]);
        assert_eq!(script.line(frames[1]), Some(&line(7)));
        for other in [TRUNCATED, frames[1] + 1, FIRST_OF_KERNEL, u64::MAX] {
            assert_eq!(script.line(other), None, "{other:x}");
        }
    }
}
