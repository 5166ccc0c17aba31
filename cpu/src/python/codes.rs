//! Cache of code objects: names and lines of the functions that frames run. A code object is
//! identified by its address. It is assumed to be unchanged while its own words are unchanged and,
//! unless it has a version, the first bytes of its name and line table. These are read again with
//! each sample, for all code objects by one system call.

use std::collections::HashMap;
use std::sync::Arc;

use cpython::chain::{Damaged, is_pointer};
use cpython::layout::{self, Layout};
use cpython::text::{StringLayout, characters, string_layout};
use cpython::{FRAMES_OMITTED, MAX_FILE, MAX_LINES, MAX_NAME, TABLE_FULL, lines};
use profile::UNNAMED;
use shm_protocol::codes::{Characters, Code, LineTable};

use super::frames::RawFrame;
use super::memory::Memory;
use crate::mixer::IntMap;
use crate::script::ScriptLine;

/// Number of the pseudo code object that stands for all that did not fit.
pub const TABLE_FULL_CODE: u32 = 0;
/// Number of the pseudo code object of omitted frames.
pub const OMITTED_CODE: u32 = 1;
/// Maximum number of code objects known by address.
const MAX_KNOWN_CODES: usize = 1 << 16;
/// Maximum size of the contents of all code objects.
const MAX_CONTENTS_BYTES: usize = 16 << 20;
/// Number of bytes counted for each code object in addition to its contents.
const OVERHEAD_BYTES: usize = 128;
/// Maximum number of bytes of a name and of a line table that are compared, after the reference
/// count.
const COMPARED_NAME_BYTES: u64 = 96;
const COMPARED_LINES_BYTES: u64 = 64;

/// Contents of a code object.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Contents {
    name: String,
    file: String,
    first_line: u32,
    lines: Vec<u8>,
}

/// Fields of a code object that are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct ComparedFields {
    kind: u64,
    name: u64,
    file: u64,
    lines: u64,
    first_line: u32,
    version: u32,
}

/// Bytes that were read at an address.
struct Bytes {
    at: u64,
    bytes: Vec<u8>,
}

/// Code object known by its address.
struct KnownCode {
    number: u32,
    words: ComparedFields,
    name: Bytes,
    lines: Bytes,
}

/// String or table: contents, size of a character, and the part that is compared.
struct ReadObject {
    bytes: Vec<u8>,
    width: u8,
    compared: Bytes,
}

/// Addresses of the types, recognised by name; 0 if not found yet.
#[derive(Default)]
struct Types {
    code: u64,
    text: u64,
    bytes: u64,
}

/// All code objects seen so far.
pub struct Codes {
    table: LineTable,
    types: Types,
    known: IntMap<u64, KnownCode>,
    /// Number of each code object by contents, and contents by number.
    numbers: HashMap<Arc<Contents>, u32>,
    texts: Vec<Arc<Contents>>,
    /// Size of all contents in bytes.
    bytes: usize,
    /// Numbers by address, for the current sample.
    seen: IntMap<u64, u32>,
    /// Buffer for the bytes that are compared.
    compared: Vec<u8>,
}

impl Codes {
    pub fn new(table: LineTable) -> Self {
        let pseudo = |name: &str| {
            Arc::new(Contents {
                name: name.to_owned(),
                file: String::new(),
                first_line: 0,
                lines: Vec::new(),
            })
        };
        Self {
            table,
            types: Types::default(),
            known: IntMap::default(),
            numbers: HashMap::new(),
            // Indexed by number.
            texts: vec![pseudo(TABLE_FULL), pseudo(FRAMES_OMITTED)],
            bytes: 0,
            seen: IntMap::default(),
            compared: Vec::new(),
        }
    }

    /// Returns the line at an instruction offset of a code object.
    pub fn line(&self, number: u32, instruction: u32) -> ScriptLine {
        let text = &self.texts[number as usize % self.texts.len()];
        let code = Code {
            name: Characters::default(),
            file: Characters::default(),
            first_line: text.first_line,
            lines: &text.lines,
            table: self.table,
        };
        ScriptLine {
            name: text.name.clone(),
            file: text.file.clone(),
            first_line: text.first_line,
            line: match number {
                TABLE_FULL_CODE | OMITTED_CODE => 0,
                _ => lines::line(&code, instruction),
            },
        }
    }

    /// Returns the numbers of the frames' code objects, in the order of the frames.
    pub fn numbers(
        &mut self,
        memory: &mut Memory<'_>,
        layout: &Layout,
        frames: &[RawFrame],
    ) -> Result<Vec<u32>, Damaged> {
        self.compare(memory.pid(), layout, frames);
        let number = |frame: &RawFrame| match (frame.code, self.seen.get(&frame.code)) {
            (0, _) => Ok(OMITTED_CODE),
            (_, Some(number)) => Ok(*number),
            (code, None) => {
                let number = self.add(memory, layout, code).ok_or(Damaged)?;
                self.seen.insert(code, number);
                Ok(number)
            }
        };
        frames.iter().map(number).collect()
    }

    /// Compares the known code objects of these frames with the process's memory, and collects the
    /// unchanged ones in `seen`.
    fn compare(&mut self, pid: i32, layout: &Layout, frames: &[RawFrame]) {
        self.seen.clear();
        let length = layout.code_bytes() as usize;
        let mut parts = Vec::new();
        let mut checked = Vec::new();
        for frame in frames {
            let Some(known) = self.known.get(&frame.code) else {
                continue;
            };
            if self.seen.insert(frame.code, TABLE_FULL_CODE).is_none() {
                checked.push(frame.code);
                parts.push((frame.code, length));
                let compared = [&known.name, &known.lines];
                parts.extend(compared.map(|part| (part.at, part.bytes.len())));
            }
        }
        self.seen.clear();
        let bytes = parts.iter().map(|(_, length)| *length).sum();
        self.compared.resize(bytes, 0);
        let read_parts = capture::read_memory_parts(pid, &parts, &mut self.compared);
        let mut rest = &self.compared[..];
        for (code, parts) in checked
            .iter()
            .zip(parts.chunks_exact(3))
            .take(read_parts / 3)
        {
            let known = &self.known[code];
            let mut next = |part: usize| {
                let (first, others) = rest.split_at(parts[part].1);
                rest = others;
                first
            };
            let words = next(0);
            let name = next(1);
            let lines = next(2);
            let is_same = ComparedFields::of(layout, words) == known.words
                && *name == known.name.bytes
                && *lines == known.lines.bytes;
            if is_same {
                self.seen.insert(*code, known.number);
            }
        }
    }

    /// Reads the code object at an address and returns its number, or `None` if it is not a code
    /// object.
    fn add(&mut self, memory: &mut Memory<'_>, layout: &Layout, at: u64) -> Option<u32> {
        let mut bytes = vec![0; layout.code_bytes() as usize];
        memory.read(at, &mut bytes).then_some(())?;
        let words = ComparedFields::of(layout, &bytes);
        let types = &mut self.types;
        is_type(memory, layout, words.kind, &mut types.code, b"code\0").then_some(())?;
        let name = read_string(memory, layout, types, words.name, MAX_NAME)?;
        let file = read_string(memory, layout, types, words.file, MAX_FILE)?;
        let lines = read_bytes(memory, layout, types, words.lines)?;
        let string = |part: &ReadObject| {
            let bytes = &part.bytes[..];
            let width = part.width;
            characters(Characters { bytes, width }).collect()
        };
        let text = Contents {
            name: if name.bytes.is_empty() {
                UNNAMED.to_owned()
            } else {
                string(&name)
            },
            file: string(&file),
            first_line: words.first_line,
            lines: lines.bytes,
        };
        let number = self.number(text);
        if self.known.len() >= MAX_KNOWN_CODES {
            self.known.clear();
        }
        let mut known = KnownCode {
            number,
            words,
            name: name.compared,
            lines: lines.compared,
        };
        if words.version != 0 {
            // No other code object of its interpreter has this version, so nothing else needs to be
            // compared.
            known.name.bytes.clear();
            known.lines.bytes.clear();
        }
        self.known.insert(at, known);
        Some(number)
    }

    /// Returns the number of a code object's contents. The same contents have one number, since
    /// programs may compile the same source again and again.
    fn number(&mut self, text: Contents) -> u32 {
        if let Some(number) = self.numbers.get(&text) {
            return *number;
        }
        let bytes = OVERHEAD_BYTES + text.name.len() + text.file.len() + text.lines.len();
        if self.bytes + bytes > MAX_CONTENTS_BYTES {
            return TABLE_FULL_CODE;
        }
        self.bytes += bytes;
        let number = self.texts.len() as u32;
        let text = Arc::new(text);
        self.texts.push(text.clone());
        self.numbers.insert(text, number);
        number
    }
}

impl ComparedFields {
    /// Extracts the fields from a code object's first [`Layout::code_bytes`].
    fn of(layout: &Layout, bytes: &[u8]) -> Self {
        let word = |at: u64| {
            let bytes = bytes.get(at as usize..).and_then(<[u8]>::first_chunk);
            bytes.copied().map_or(0, u64::from_le_bytes)
        };
        Self {
            kind: word(layout.extra_header_bytes + layout::TYPE_OFFSET),
            name: word(layout.name),
            file: word(layout.file),
            lines: word(layout.lines),
            first_line: word(layout.first_line) as u32,
            version: match layout.version {
                0 => 0,
                at => word(at) as u32,
            },
        }
    }
}

/// Returns true if the type at address `kind` has this name. `known` caches its address.
fn is_type(
    memory: &mut Memory<'_>,
    layout: &Layout,
    kind: u64,
    known: &mut u64,
    name: &[u8],
) -> bool {
    if *known != 0 || !is_pointer(kind) {
        return *known == kind && kind != 0;
    }
    let mut text = [0; 8];
    let text = &mut text[..name.len()];
    let at = memory.word(kind + layout.extra_header_bytes + layout::TYPE_NAME_OFFSET);
    let is_named = at.is_some_and(|at| memory.read(at, text) && text == name);
    if is_named {
        *known = kind;
    }
    is_named
}

/// Reads the part of an object that is compared: at most `max_bytes` bytes, beginning with its
/// type. The object has `bytes` bytes.
fn compared_part(
    memory: &mut Memory<'_>,
    layout: &Layout,
    object: u64,
    bytes: u64,
    max_bytes: u64,
) -> Option<Bytes> {
    let at = object + layout.extra_header_bytes + layout::TYPE_OFFSET;
    let length = (bytes - layout.extra_header_bytes - layout::TYPE_OFFSET).min(max_bytes);
    let mut bytes = vec![0; length as usize];
    let is_read = memory.read(at, &mut bytes);
    is_read.then_some(Bytes { at, bytes })
}

/// Reads a string of at most `max_chars` characters.
fn read_string(
    memory: &mut Memory<'_>,
    layout: &Layout,
    types: &mut Types,
    at: u64,
    max_chars: u64,
) -> Option<ReadObject> {
    is_pointer(at).then_some(())?;
    let kind = memory.word(at + layout.extra_header_bytes + layout::TYPE_OFFSET)?;
    is_type(memory, layout, kind, &mut types.text, b"str\0").then_some(())?;
    let length = memory
        .word(at + layout.extra_header_bytes + layout::STRING_LENGTH_OFFSET)?
        .min(max_chars);
    let state = memory.word(at + layout.extra_header_bytes + layout::STRING_STATE_OFFSET)?;
    let StringLayout {
        header_bytes,
        character_bytes,
    } = string_layout(layout, state)?;
    let mut bytes = vec![0; (length * character_bytes) as usize];
    memory.read(at + header_bytes, &mut bytes).then_some(())?;
    let end = header_bytes + length * character_bytes;
    Some(ReadObject {
        bytes,
        width: character_bytes as u8,
        compared: compared_part(memory, layout, at, end, COMPARED_NAME_BYTES)?,
    })
}

/// Reads a `bytes` object.
fn read_bytes(
    memory: &mut Memory<'_>,
    layout: &Layout,
    types: &mut Types,
    at: u64,
) -> Option<ReadObject> {
    is_pointer(at).then_some(())?;
    let kind = memory.word(at + layout.extra_header_bytes + layout::TYPE_OFFSET)?;
    is_type(memory, layout, kind, &mut types.bytes, b"bytes\0").then_some(())?;
    let size = memory
        .word(at + layout.extra_header_bytes + layout::BYTES_SIZE_OFFSET)?
        .min(MAX_LINES);
    let head = layout.extra_header_bytes + layout::BYTES_CONTENT_OFFSET;
    let mut bytes = vec![0; size as usize];
    memory.read(at + head, &mut bytes).then_some(())?;
    Some(ReadObject {
        bytes,
        width: 1,
        compared: compared_part(memory, layout, at, head + size, COMPARED_LINES_BYTES)?,
    })
}
