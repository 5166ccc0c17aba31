//! Frames of an interpreter in a snapshot: from code objects and places in them to functions and
//! lines.

mod lines;

use std::collections::HashMap;

use heap_format::{Function, Location, LocationId, Profile, ProfileBuilder};
use shm_protocol::codes::{Characters, Code, CodeTable, LEFT_OUT, NO_CODE, frame_of};
use shm_protocol::layout::{PYTHON_GONE, PYTHON_MET, PYTHON_NAMED, PYTHON_UNKNOWN};
use shm_protocol::snapshot::Header;

/// Name of the frame for those whose code objects found no room.
pub const TABLE_FULL: &str = "[python: table full]";
/// Name of the frame for the outer ones of a stack that is too deep.
const LEFT_OUT_NAME: &str = "[python: outer frames left out]";
/// Name of a frame whose code object is not what it should be.
const UNKNOWN: &str = "[python: unknown]";

/// The interpreted frames of a snapshot.
pub struct Interpreted<'a> {
    codes: CodeTable<'a>,
    functions: HashMap<(u32, u32), Function>,
}

impl<'a> Interpreted<'a> {
    /// Of a snapshot's code objects.
    pub fn new(codes: &'a [u8]) -> Self {
        Self {
            codes: CodeTable::new(codes),
            functions: HashMap::new(),
        }
    }

    /// The function and the line that a node's address stands for; `None` for machine code.
    pub fn frame(&mut self, address: u64) -> Option<(Function, u32)> {
        let (code, place) = frame_of(address)?;
        let read = self.codes.get(code);
        let which = if code == NO_CODE { place } else { 0 };
        let new = || function(code, place, read.as_ref());
        let function = self.functions.entry((code, which)).or_insert_with(new);
        let line = read.map_or(0, |code| lines::line(&code, place));
        Some((function.clone(), line))
    }

    /// Its location in a profile; `None` for machine code.
    pub fn location(&mut self, builder: &mut ProfileBuilder, address: u64) -> Option<LocationId> {
        let (function, line) = self.frame(address)?;
        Some(builder.python_location(function, line))
    }
}

/// Whether a node stands for a frame of the interpreter's own, between `__init__` and who makes the object
/// (from 3.13 on): its code object has no lines, and the same string for its name and its file.
pub fn is_shim(codes: &[u8], address: u64) -> bool {
    let code = frame_of(address).and_then(|(code, _)| CodeTable::new(codes).get(code));
    code.is_some_and(|code| code.first_line == 0 && code.name.bytes == code.file.bytes)
}

/// What is told of the interpreter in a process: its version, and whether its frames are named.
pub fn describe(header: &Header<'_>) -> Option<String> {
    let (version, judgement) = header.python()?;
    let [release, major, minor, micro] = [4, 24, 16, 8].map(|shift| version >> shift & 0xff);
    let version = match release & 15 {
        // Known by its functions alone, which say nothing of the patch.
        0 => format!("{major}.{minor}"),
        _ => format!("{major}.{minor}.{micro}"),
    };
    let state = match judgement {
        PYTHON_MET => "no frame seen yet",
        PYTHON_NAMED => "named",
        PYTHON_GONE => "unloaded: frames after that are left out",
        PYTHON_UNKNOWN => "a version that is not known: its frames are left out",
        _ => "its data differ from what its version has: its frames are left out",
    };
    let build = match header.python_is_unlocked() {
        true => ", free-threaded",
        false => "",
    };
    Some(format!("{version}{build}: {state}"))
}

/// Samples of a profile in whose stacks a line of Python has no name, as there was no room for it.
pub fn without_room(profile: &Profile) -> u64 {
    let is_it = |function: &Function| function.name == TABLE_FULL;
    let Some(function) = profile.functions.iter().position(is_it) else {
        return 0;
    };
    let stands_for_it = |location: &Location| {
        let mut lines = profile.lines_of(location).iter();
        profile.is_python(location) && lines.any(|line| line.function as usize == function)
    };
    let locations: Vec<bool> = profile.locations.iter().map(stands_for_it).collect();
    let details = profile.details.iter().enumerate();
    let concerned = details.filter(|(index, _)| {
        let mut frames = profile.stacks.get(*index).iter();
        frames.any(|frame| locations[*frame as usize])
    });
    concerned.map(|(_, detail)| detail.alloc_samples).sum()
}

fn function(number: u32, place: u32, code: Option<&Code<'_>>) -> Function {
    let name = match (number, place, code) {
        (NO_CODE, LEFT_OUT, _) => LEFT_OUT_NAME.to_owned(),
        (NO_CODE, ..) => TABLE_FULL.to_owned(),
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

/// A string as the interpreter has it; what is no character becomes one that says so.
fn text(characters: Characters<'_>) -> String {
    let wide = characters
        .bytes
        .chunks(usize::from(characters.width).max(1));
    wide.map(|bytes| {
        let mut point = [0; 4];
        point[..bytes.len().min(4)].copy_from_slice(&bytes[..bytes.len().min(4)]);
        char::from_u32(u32::from_le_bytes(point)).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_of_every_width_are_read() {
        let text = |bytes: &[u8], width| text(Characters { bytes, width });
        assert_eq!(text(b"run", 1), "run");
        assert_eq!(text(&[0xe9], 1), "é");
        assert_eq!(text(&[0x16, 0x4e, 0x41, 0], 2), "世A");
        assert_eq!(text(&[0, 0xf6, 1, 0], 4), "\u{1f600}");
        assert_eq!(text(&[0, 0xd8], 2), "\u{fffd}", "half of a pair");
        assert_eq!(text(&[1, 2, 3], 0).chars().count(), 3);
    }
}
