//! Recognises the format of a file by its first bytes.

use std::io::Read;

use crate::error::Fault;
use crate::lines::Lines;
use crate::profile::Profile;
use crate::{cpu, folded, foreign, heap_text, jemalloc, perf, pprof, symbolized, v8};

/// Format of a file that is not compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Text(TextKind),
    Binary(BinaryKind),
}

/// Format that is streamed line by line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TextKind {
    HeapText,
    Jemalloc,
    Cpu,
    Symbolized,
    Perf,
    Folded,
    /// Lines of a log before heap text.
    Logged,
}

/// Format that is held in memory as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BinaryKind {
    Gperftools,
    Pprof,
    V8,
}

impl Kind {
    /// Returns the format of a file that starts like this. The error says what the file is instead,
    /// and what to do with it.
    pub(crate) fn recognise(start: &[u8]) -> Result<Self, Fault> {
        if let Some(kind) = TextKind::with_header(start) {
            return Ok(Self::Text(kind));
        }
        if start.iter().all(u8::is_ascii_whitespace) {
            return Err(Fault::whole("holds only blank lines"));
        }
        if cpu::gperftools::looks_like(start) {
            return Ok(Self::Binary(BinaryKind::Gperftools));
        }
        if v8::looks_like(start) {
            return Ok(Self::Binary(BinaryKind::V8));
        }
        if let Some(fault) = foreign::recognise(start) {
            return Err(fault);
        }
        if format_after_log(start).is_some() {
            Ok(Self::Text(TextKind::Logged))
        } else if perf::looks_like(start) {
            Ok(Self::Text(TextKind::Perf))
        } else if is_text(start) && folded::looks_like(start) {
            // Some lines of text are well-formed protobuf.
            Ok(Self::Text(TextKind::Folded))
        } else if pprof::looks_like(start) {
            Ok(Self::Binary(BinaryKind::Pprof))
        } else if folded::looks_like(start) {
            Ok(Self::Text(TextKind::Folded))
        } else {
            Err(foreign::unknown_kind(start))
        }
    }
}

impl TextKind {
    /// Returns the format of text that begins with a header of its own.
    fn with_header(start: &[u8]) -> Option<Self> {
        let headers: [(&[u8], Self); 4] = [
            (heap_text::START, Self::HeapText),
            (jemalloc::START, Self::Jemalloc),
            (cpu::START, Self::Cpu),
            (symbolized::START, Self::Symbolized),
        ];
        let found = headers.iter().find(|(header, _)| start.starts_with(header));
        found.map(|&(_, kind)| kind)
    }

    pub(crate) fn read<R: Read>(self, lines: &mut Lines<R>) -> Result<Profile, Fault> {
        match self {
            Self::HeapText => heap_text::read(lines),
            Self::Jemalloc => jemalloc::read(lines),
            Self::Cpu => cpu::read(lines),
            Self::Symbolized => symbolized::read(lines),
            Self::Perf => perf::read(lines),
            Self::Folded => folded::read(lines),
            Self::Logged => read_logged(lines),
        }
    }
}

impl BinaryKind {
    /// Reads a whole profile. `stored` is the size of its file, if that is compressed.
    pub(crate) fn read(self, bytes: &[u8], stored: Option<usize>) -> Result<Profile, Fault> {
        match self {
            Self::Gperftools => cpu::gperftools::read(bytes),
            Self::Pprof => pprof::read(bytes, stored.unwrap_or(bytes.len())),
            Self::V8 => v8::read(bytes),
        }
    }
}

/// Returns true if all control characters are white space. protobuf's tags contain others.
pub(crate) fn is_text(start: &[u8]) -> bool {
    start.iter().all(|c| *c >= b' ' || c.is_ascii_whitespace())
}

/// Returns the format of heap text or of a jemalloc dump that follows other lines, which the program
/// or its allocator printed into the same file (`<jemalloc>: …`).
fn format_after_log(start: &[u8]) -> Option<TextKind> {
    for line in start.split(|&c| c == b'\n') {
        match TextKind::with_header(line) {
            Some(kind @ (TextKind::HeapText | TextKind::Jemalloc)) => return Some(kind),
            _ if line.contains(&0) => return None,
            _ => {}
        }
    }
    None
}

/// Reads a profile after the lines of a log.
fn read_logged<R: Read>(lines: &mut Lines<R>) -> Result<Profile, Fault> {
    loop {
        let header = lines.peek(heap_text::START.len())?;
        if let Some(kind) = TextKind::with_header(header) {
            return kind.read(lines);
        }
        if lines.next()?.is_none() {
            return Err(Fault::whole("holds no profile after its first lines"));
        }
    }
}
