//! Functions and lines of a profile, as they are found.

use std::collections::HashMap;

use heap_format::{Function, Line, Profile};

use super::reader::Frame;
use crate::demangle::{Style, demangle};

/// Functions and lines under construction.
pub struct Names {
    style: Style,
    functions: Vec<Function>,
    known: HashMap<(String, String), u32>,
    lines: Vec<Line>,
    /// For each location, its range of `lines`.
    ranges: Vec<(u32, u32)>,
}

impl Names {
    /// Those that `profile` has already.
    pub fn new(profile: &Profile, style: Style) -> Self {
        Self {
            style,
            functions: profile.functions.clone(),
            known: HashMap::new(),
            lines: profile.lines.clone(),
            ranges: profile
                .locations
                .iter()
                .map(|l| (l.first_line, l.line_count))
                .collect(),
        }
    }

    /// Gives a location one frame that is only a name.
    pub fn add_name(&mut self, number: usize, name: &str) {
        let function = self.function(name, String::new());
        self.ranges[number] = (self.lines.len() as u32, 1);
        self.lines.push(Line {
            function,
            ..Line::default()
        });
    }

    /// Gives a location its frames, innermost first.
    pub fn add(&mut self, number: usize, frames: &[Frame]) {
        let first = self.lines.len() as u32;
        for frame in frames {
            let function = self.function(&frame.name, frame.file.clone());
            self.lines.push(Line {
                function,
                line: frame.line,
                column: frame.column,
            });
        }
        self.ranges[number] = (first, self.lines.len() as u32 - first);
    }

    fn function(&mut self, system_name: &str, file: String) -> u32 {
        let key = (system_name.to_owned(), file);
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let number = self.functions.len() as u32;
        self.functions.push(Function {
            name: demangle(system_name, self.style),
            system_name: system_name.to_owned(),
            file: key.1.clone(),
            start_line: 0,
        });
        self.known.insert(key, number);
        number
    }

    /// Writes them into the profile.
    pub fn apply(self, profile: &mut Profile) {
        profile.functions = self.functions;
        profile.lines = self.lines;
        for (location, (first, count)) in profile.locations.iter_mut().zip(self.ranges) {
            (location.first_line, location.line_count) = (first, count);
        }
    }
}
