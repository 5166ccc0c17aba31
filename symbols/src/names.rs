//! Functions and lines of a profile, as they are found.

use std::hash::{Hash, Hasher};
use std::rc::Rc;

use foldhash::{HashMap, HashMapExt};
use heap_format::{Function, Line, Profile};

use super::frame::{Frame, Origin};
use crate::demangle::{self, Style, demangle};

/// Functions and lines under construction.
pub struct Names {
    style: Style,
    functions: Vec<Function>,
    /// By name and file.
    known: HashMap<(Rc<str>, Rc<str>), u32>,
    /// The same by where these are in memory, as most come more than once.
    seen: HashMap<(Same, Same), u32>,
    lines: Vec<Line>,
    /// For each location, its range of `lines`.
    ranges: Vec<(u32, u32)>,
}

/// A text that is equal to itself alone. It lives as long as this, so its place in memory
/// is no other's.
struct Same(Rc<str>);

impl PartialEq for Same {
    fn eq(&self, other: &Self) -> bool {
        Rc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Same {}

impl Hash for Same {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.as_ptr().hash(state);
    }
}

impl Names {
    /// Those that `profile` has already.
    pub fn new(profile: &Profile, style: Style) -> Self {
        Self {
            style,
            functions: profile.functions.clone(),
            known: HashMap::new(),
            seen: HashMap::new(),
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
        let function = self.function(&name.into(), &Rc::default(), Origin::Symbol);
        self.ranges[number] = (self.lines.len() as u32, 1);
        self.lines.push(Line {
            function,
            ..Line::default()
        });
    }

    /// Gives a location one frame, of this function at no known line.
    pub fn add_function(&mut self, number: usize, function: Function) {
        let name: Rc<str> = function.system_name.as_str().into();
        let file: Rc<str> = function.file.as_str().into();
        let next = self.functions.len() as u32;
        let known = *self.known.entry((name, file)).or_insert(next);
        if known == next {
            self.functions.push(function);
        }
        self.ranges[number] = (self.lines.len() as u32, 1);
        self.lines.push(Line {
            function: known,
            ..Line::default()
        });
    }

    /// Gives a location its frames, innermost first.
    pub fn add(&mut self, number: usize, frames: &[Frame]) {
        let first = self.lines.len() as u32;
        for frame in frames {
            let function = self.shared(frame);
            self.lines.push(Line {
                function,
                line: frame.line,
                column: frame.column,
            });
        }
        self.ranges[number] = (first, self.lines.len() as u32 - first);
    }

    fn shared(&mut self, frame: &Frame) -> u32 {
        let Frame { name, file, .. } = frame;
        let key = (Same(Rc::clone(name)), Same(Rc::clone(file)));
        if let Some(&number) = self.seen.get(&key) {
            return number;
        }
        let number = self.function(name, file, frame.origin);
        self.seen.insert(key, number);
        number
    }

    fn function(&mut self, system_name: &Rc<str>, file: &Rc<str>, origin: Origin) -> u32 {
        let key = (Rc::clone(system_name), Rc::clone(file));
        if let Some(&number) = self.known.get(&key) {
            return number;
        }
        let number = self.functions.len() as u32;
        let own = system_name.as_ref().to_owned();
        let (name, system_name) = match origin {
            Origin::Symbol => (demangle(system_name, self.style), own),
            Origin::Source => (demangle::of_source(system_name, self.style), own),
            // It is none of a table of symbols.
            Origin::Made => (own, String::new()),
        };
        self.functions.push(Function {
            name,
            system_name,
            file: file.as_ref().to_owned(),
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
