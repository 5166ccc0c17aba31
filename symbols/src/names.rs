//! Functions and lines being added to a profile.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt};
use profile::{Function, Line, Profile};

use super::frame::{Frame, Origin};
use crate::demangle::{self, Style, demangle};

/// Functions and lines under construction.
pub struct Names {
    style: Style,
    functions: Vec<Function>,
    /// Index of each function, by name and file.
    by_name: HashMap<(Rc<str>, Rc<str>), u32>,
    /// Index of each function by the addresses of its strings: a faster lookup, as most frames
    /// share them.
    by_address: HashMap<(ByAddress, ByAddress), u32>,
    lines: Vec<Line>,
    /// Lines of each location.
    ranges: Vec<LineRange>,
}

/// Consecutive lines of the profile.
struct LineRange {
    first: u32,
    count: u32,
}

/// A string compared by its address. The reference keeps it alive, so the address is not reused.
struct ByAddress(Rc<str>);

impl PartialEq for ByAddress {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for ByAddress {}

impl Hash for ByAddress {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

impl Names {
    /// Starts with the functions and lines of `profile`.
    pub fn new(profile: &Profile, style: Style) -> Self {
        Self {
            style,
            functions: profile.functions.clone(),
            by_name: HashMap::new(),
            by_address: HashMap::new(),
            lines: profile.lines.clone(),
            ranges: profile
                .locations
                .iter()
                .map(|l| LineRange {
                    first: l.first_line,
                    count: l.line_count,
                })
                .collect(),
        }
    }

    /// Gives the location with index `number` one frame, of which only the name is known.
    pub fn add_name(&mut self, number: usize, name: &str) {
        let function = self.intern_function(&name.into(), &Rc::default(), Origin::Symbol);
        self.ranges[number] = LineRange {
            first: self.lines.len() as u32,
            count: 1,
        };
        self.lines.push(Line {
            function,
            ..Line::default()
        });
    }

    /// Gives the location with index `number` one frame: this function, without a line.
    pub fn add_function(&mut self, number: usize, function: Function) {
        let name: Rc<str> = function.system_name.as_str().into();
        let file: Rc<str> = function.file.as_str().into();
        let next = self.functions.len() as u32;
        let index = *self.by_name.entry((name, file)).or_insert(next);
        if index == next {
            self.functions.push(function);
        }
        self.ranges[number] = LineRange {
            first: self.lines.len() as u32,
            count: 1,
        };
        self.lines.push(Line {
            function: index,
            ..Line::default()
        });
    }

    /// Gives the location with index `number` its frames, innermost first.
    pub fn add(&mut self, number: usize, frames: &[Frame]) {
        let first = self.lines.len() as u32;
        for frame in frames {
            let function = self.function_of(frame);
            self.lines.push(Line {
                function,
                line: frame.line,
                column: frame.column,
            });
        }
        let count = self.lines.len() as u32 - first;
        self.ranges[number] = LineRange { first, count };
    }

    /// Leaves each location its innermost frame.
    pub fn keep_innermost(&mut self) {
        for range in &mut self.ranges {
            range.count = range.count.min(1);
        }
    }

    /// Returns the index of a frame's function; adds the function if necessary.
    fn function_of(&mut self, frame: &Frame) -> u32 {
        let Frame { name, file, .. } = frame;
        let key = (ByAddress(Rc::clone(name)), ByAddress(Rc::clone(file)));
        if let Some(&number) = self.by_address.get(&key) {
            return number;
        }
        let number = self.intern_function(name, file, frame.origin);
        self.by_address.insert(key, number);
        number
    }

    fn intern_function(&mut self, system_name: &Rc<str>, file: &Rc<str>, origin: Origin) -> u32 {
        let key = (Rc::clone(system_name), Rc::clone(file));
        if let Some(&number) = self.by_name.get(&key) {
            return number;
        }
        let number = self.functions.len() as u32;
        let original = system_name.as_ref().to_owned();
        let (name, system_name) = match origin {
            Origin::Symbol => (demangle(system_name, self.style), original),
            Origin::Source => (demangle::of_source(system_name, self.style), original),
            // The name is generated, so it has no name in a symbol table.
            Origin::Synthetic => (original, String::new()),
        };
        self.functions.push(Function {
            name,
            system_name,
            file: file.as_ref().to_owned(),
            start_line: 0,
        });
        self.by_name.insert(key, number);
        number
    }

    /// Stores the functions and lines in the profile.
    pub fn apply(self, profile: &mut Profile) {
        profile.functions = self.functions;
        profile.lines = self.lines;
        for (location, range) in profile.locations.iter_mut().zip(self.ranges) {
            location.first_line = range.first;
            location.line_count = range.count;
        }
    }
}
