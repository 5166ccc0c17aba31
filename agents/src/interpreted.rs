//! Names interpreter frames of a snapshot: maps code objects and instruction offsets to functions
//! and lines.

use std::collections::HashMap;

use cpython::{Description, State, lines, text};
use profile::{Function, Location, LocationId, Profile, ProfileBuilder, UNNAMED};
use shm_protocol::codes::{Characters, Code, CodeTable, FRAMES_OMITTED, NO_CODE, frame_of};
use shm_protocol::layout::{PYTHON_DETECTED, PYTHON_GONE, PYTHON_NAMED, PYTHON_UNKNOWN};
use shm_protocol::snapshot::Header;

/// Name of a frame with an invalid code object.
const UNKNOWN: &str = "[python: unknown]";

/// Names of a snapshot's interpreter frames.
pub struct Interpreted<'a> {
    codes: CodeTable<'a>,
    /// Functions by code object and, for [`NO_CODE`], by the offset that says what is missing.
    functions: HashMap<(u32, u32), Function>,
}

impl<'a> Interpreted<'a> {
    /// Creates the table from a snapshot's code objects.
    pub fn new(codes: &'a [u8]) -> Self {
        Self {
            codes: CodeTable::new(codes),
            functions: HashMap::new(),
        }
    }

    /// Returns the function and line of a node's address, or `None` for machine code.
    pub fn frame(&mut self, address: u64) -> Option<(Function, u32)> {
        let (code, offset) = frame_of(address)?;
        let read = self.codes.get(code);
        let kind = if code == NO_CODE { offset } else { 0 };
        let new = || function(code, offset, read.as_ref());
        let function = self.functions.entry((code, kind)).or_insert_with(new);
        let line = read.map_or(0, |code| lines::line(&code, offset));
        Some((function.clone(), line))
    }

    /// Returns the profile location of a node's address, or `None` for machine code.
    pub fn location(&mut self, builder: &mut ProfileBuilder, address: u64) -> Option<LocationId> {
        let (function, line) = self.frame(address)?;
        Some(builder.python_location(function, line))
    }
}

/// Returns true if `address` is a shim: a frame that Python 3.13 and newer insert between
/// `__init__` and the caller that creates the object. The code object of a shim has no lines, and
/// its name and file are the same string.
pub fn is_shim(codes: &[u8], address: u64) -> bool {
    let code = frame_of(address).and_then(|(code, _)| CodeTable::new(codes).get(code));
    code.is_some_and(|code| {
        let is_named = !code.file.bytes.is_empty();
        code.first_line == 0 && is_named && code.name.bytes == code.file.bytes
    })
}

/// Describes the interpreter of a process: its version, and whether its frames are named.
pub fn describe(header: &Header<'_>) -> Option<String> {
    description(header).map(|description| description.to_string())
}

/// Like [`describe`], but structured.
pub fn description(header: &Header<'_>) -> Option<Description> {
    let (version, judgement) = header.python()?;
    let state = match judgement {
        PYTHON_DETECTED => State::Detected,
        PYTHON_NAMED => State::Named,
        PYTHON_GONE => State::Gone,
        PYTHON_UNKNOWN => State::Unknown,
        _ => State::Differs,
    };
    Some(Description {
        version,
        is_free_threaded: header.python_is_free_threaded(),
        state,
    })
}

/// Returns the number of samples whose stacks have an unnamed Python line because the table of code
/// objects was full.
pub fn samples_without_code_object(profile: &Profile) -> u64 {
    let is_table_full = |function: &Function| function.name == cpython::TABLE_FULL;
    let Some(function) = profile.functions.iter().position(is_table_full) else {
        return 0;
    };
    let has_unnamed_line = |location: &Location| {
        let mut lines = profile.lines_of(location).iter();
        profile.is_python(location) && lines.any(|line| line.function as usize == function)
    };
    let locations: Vec<bool> = profile.locations.iter().map(has_unnamed_line).collect();
    let details = profile.details.iter().enumerate();
    let unnamed = details.filter(|(index, _)| {
        let mut frames = profile.stacks.get(*index).iter();
        frames.any(|frame| locations[*frame as usize])
    });
    unnamed.map(|(_, detail)| detail.alloc_samples).sum()
}

fn function(number: u32, offset: u32, code: Option<&Code<'_>>) -> Function {
    let name = match (number, offset, code) {
        (NO_CODE, FRAMES_OMITTED, _) => cpython::FRAMES_OMITTED.to_owned(),
        (NO_CODE, ..) => cpython::TABLE_FULL.to_owned(),
        (_, _, Some(code)) if code.name.bytes.is_empty() => UNNAMED.to_owned(),
        (_, _, Some(code)) => text(code.name),
        (_, _, None) => UNKNOWN.to_owned(),
    };
    Function {
        name,
        system_name: String::new(),
        file: code.map(|code| text(code.file)).unwrap_or_default(),
        start_line: code.map_or(0, |code| code.first_line),
    }
}

fn text(characters: Characters<'_>) -> String {
    text::characters(characters).collect()
}
