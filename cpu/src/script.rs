//! Lines of interpreter functions as frames of stacks.

use std::collections::HashMap;
use std::rc::Rc;

use cpython::Description;

/// Lowest frame that is a line of a script. Such frames are below
/// [`FIRST_OF_KERNEL`](crate::recording::FIRST_OF_KERNEL), where no process has code.
pub const FIRST_OF_SCRIPT: u64 = 1 << 61;

/// Line of a function.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ScriptLine {
    /// Name of the function, as the interpreter has it.
    pub name: String,
    /// Path of its file, as the interpreter has it.
    pub file: String,
    /// Line at which the function begins; 0 if not known.
    pub first_line: u32,
    /// Line number; 0 if not known.
    pub line: u32,
}

impl ScriptLine {
    /// Returns true if this is a shim: a frame of the interpreter itself, between `__init__` and
    /// its caller (CPython 3.13 and later), which the interpreter does not show either. Its code
    /// object has no lines, and one string for both name and file.
    #[must_use]
    pub fn is_shim(&self) -> bool {
        self.first_line == 0 && !self.file.is_empty() && self.name == self.file
    }
}

/// Lines that appear in a process's stacks.
#[derive(Default)]
pub struct Script {
    /// Description of the interpreter, if there is one.
    pub interpreter: Option<Description>,
    lines: Vec<Rc<ScriptLine>>,
    frames: HashMap<Rc<ScriptLine>, u64>,
}

impl Script {
    /// Returns true if there are no lines.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// Returns the frame of a line. Adds the line if it is new.
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

    /// Returns the line of a frame, or `None` if it is not a script's.
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
    fn each_line_has_one_frame() {
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
