//! Data model of heap and CPU profiles, and the formats that they are read from and written to.
//!
//! Guarantees:
//! - [`open`] and [`read`] recognise a format by its contents and return a [`Profile`]. For any
//!   input, they return a profile or a [`ReadError`] that names the file and, for text, the line:
//!   no panic, no hang, memory use within a small multiple of the input. Text is streamed, not held
//!   in memory.
//! - Sampled counts are scaled up while reading, stack by stack, by pprof's formula and rounding.
//!   This project's own dumps carry exact values, which are used instead.
//! - [`dump::write`] writes text that pprof, jeprof and google-pprof read with the same totals, and
//!   that [`read`] reads back unchanged. [`cpu::write`] does the same for CPU profiles.
//!
//! Callers must
//! - treat addresses as *lookup addresses*: return addresses minus one. Readers and
//!   [`ProfileBuilder`] have already subtracted it;
//! - treat names and paths in a profile as untrusted text.
//!
//! Limits: at most 2³² − 1 distinct locations; lines of text up to 64 MiB.

pub mod age;
pub mod beside;
mod builder;
pub mod cpu;
pub mod crowding;
mod decimal;
mod detail;
pub mod dump;
pub mod elapsed;
mod error;
pub mod fold;
mod folded;
mod foreign;
mod frames;
mod go_text;
mod heap_text;
pub mod history;
mod identity;
mod intern;
mod jemalloc;
mod json;
mod kind;
mod labels;
pub mod leaks;
mod lines;
pub mod locale;
pub mod maps;
mod marker;
pub mod merge;
pub mod moment;
mod named;
mod nesting;
pub mod numbering;
pub mod opening;
pub mod otlp;
pub mod overwritten;
mod packed;
mod perf;
pub mod pprof;
pub mod printable;
mod profile;
mod python;
pub mod resident;
pub mod rss;
mod sampling;
mod scale;
mod scan;
mod stacks;
mod symbolized;
mod v8;
mod value_type;
pub mod variance;

use std::fs::File;
use std::io::Read;
use std::path::Path;

pub use builder::{LocationId, ProfileBuilder};
pub use detail::{AgeSpread, Detail};
pub use error::ReadError;
pub use identity::FileIdentity;
pub use leaks::{LEAK_LABEL, LeakCheck, Loss, Lost, Suppressed};
pub use marker::{
    MARKERS, MERGED_ADDRESS, Marker, NOT_SAMPLED_ADDRESS, RESIDENT_BEFORE_ADDRESS,
    TABLE_FULL_ADDRESS, TRUNCATED_ADDRESS, marker_at,
};
pub use moment::{Moment, StackBytes};
pub use profile::{
    BuildId, Cost, Facts, Format, Function, GO, IntervalPeriod, Label, LabelValue, Line, Location,
    Mapping, NO_MAPPING, OTHER_THREADS, Profile, THREAD_LABEL, Thread,
};
pub use python::{PYTHON, PYTHON_START, UNNAMED, python_mapping, script_name};
pub use scale::unsample;
pub use stacks::Stacks;
pub use value_type::{ValueType, heap_sample_types};

use error::Fault;
use kind::Kind;
use lines::Lines;
use packed::Unpacking;

/// Reads the profile in a file.
pub fn open(path: &Path) -> Result<Profile, ReadError> {
    let (file, name) = open_with_name(path)?;
    read_from(file, &name)
}

/// Opens a file. Returns it with its name for messages.
fn open_with_name(path: &Path) -> Result<(File, String), ReadError> {
    let name = printable::path(path);
    match opening::named_by_user(path) {
        Ok(file) => Ok((file, name)),
        Err(error) => Err(ReadError::Io { name, error }),
    }
}

/// Reads a dump of this project, or heap text of tcmalloc. Programs that call only this function
/// are not linked with the readers of other formats.
pub fn open_dump(path: &Path) -> Result<Profile, ReadError> {
    let (file, name) = open_with_name(path)?;
    let mut lines = Lines::new(file);
    read_dump(&mut lines).map_err(|fault| fault.into_error(&name, lines.number()))
}

fn read_dump<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    if lines.peek(START_SIZE)?.starts_with(heap_text::START) {
        heap_text::read(lines)
    } else {
        Err(Fault::whole("is not a dump"))
    }
}

/// Reads a profile from bytes. Errors call the input `name`.
pub fn read(bytes: &[u8], name: &str) -> Result<Profile, ReadError> {
    read_from(bytes, name)
}

/// Reads a profile from a stream. Errors call the input `name`.
pub fn read_from(reader: impl Read, name: &str) -> Result<Profile, ReadError> {
    let mut lines = Lines::new(reader);
    recognise(&mut lines).map_err(|fault| fault.into_error(name, lines.number()))
}

/// Name of standard input in messages.
pub const STANDARD_INPUT: &str = "standard input";

/// First bytes of UTF-8 text as some Windows editors write it.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Bytes at the start of a file that are examined to recognise its format.
const START_SIZE: usize = 1 << 16;

/// Reads a profile in the format that its first bytes show.
fn recognise<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    lines.skip(BYTE_ORDER_MARK)?;
    let start = lines.peek(START_SIZE)?;
    if start.is_empty() {
        return Err(Fault::whole("is empty"));
    }
    if packed::looks_like(start) {
        return read_packed(lines.rest()?);
    }
    match Kind::recognise(start)? {
        Kind::Binary(kind) => kind.read(&lines.rest()?, None),
        Kind::Text(kind) => kind.read(lines),
    }
}

/// Reads a file that was compressed once or several times.
fn read_packed(mut content: Vec<u8>) -> Result<Profile, Fault> {
    let stored = content.len();
    for _ in 0..packed::MAX_LAYERS {
        let mut lines = Lines::new(Unpacking::new(&content, stored, packed::TEXT_LIMIT));
        lines.skip(BYTE_ORDER_MARK)?;
        let start = lines.peek(START_SIZE)?;
        if start.is_empty() {
            return Err(Fault::whole("is empty once it is unpacked"));
        }
        let is_packed = packed::looks_like(start);
        let kind = if is_packed {
            None
        } else {
            Some(Kind::recognise(start).map_err(Fault::of_packed)?)
        };
        match kind {
            Some(Kind::Text(kind)) => return kind.read(&mut lines),
            Some(Kind::Binary(kind)) => {
                return kind.read(&packed::unpack(&content, stored)?, Some(stored));
            }
            None => content = packed::unpack(&content, stored)?,
        }
    }
    let max = packed::MAX_LAYERS;
    Err(Fault::whole(format!(
        "is compressed more than {max} times: unpack it first"
    )))
}
