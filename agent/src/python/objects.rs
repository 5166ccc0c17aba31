//! Strings and code objects.

use super::layout::{self, Layout};
use super::memory::word;
use core::slice::from_raw_parts;
use core::sync::atomic::{AtomicU64, Ordering};
use cpython::text::form;
use cpython::{MOST_FILE, MOST_LINES, MOST_NAME};
use shm_protocol::codes::{Characters, Code};

/// Tells whether all pages from one address to another can be read.
pub type Probe<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// Bytes of a code object that are read at most.
const CODE: u64 = 144;

/// Types that were recognised by their names.
static CODE_TYPE: AtomicU64 = AtomicU64::new(0);
static TEXT_TYPE: AtomicU64 = AtomicU64::new(0);
static BYTES_TYPE: AtomicU64 = AtomicU64::new(0);

/// Whether an object's first `bytes` can be read, and it is of the type with this name.
fn is_a(
    (layout, probe): (&Layout, Probe<'_>),
    object: u64,
    bytes: u64,
    (known, name): (&AtomicU64, &[u8]),
) -> bool {
    if object == 0 || !object.is_multiple_of(8) || !readable(probe, object, bytes) {
        return false;
    }
    // SAFETY: found readable.
    let kind = unsafe { word(object + layout.more + layout::TYPE) };
    if kind != 0 && kind == known.load(Ordering::Relaxed) {
        return true;
    }
    if known.load(Ordering::Relaxed) != 0
        || !readable(probe, kind, layout.more + layout::TYPE_NAME + 8)
    {
        return false;
    }
    // SAFETY: found readable.
    let at = unsafe { word(kind + layout.more + layout::TYPE_NAME) };
    if !readable(probe, at, name.len() as u64) {
        return false;
    }
    // SAFETY: found readable.
    let is = unsafe { from_raw_parts(at as *const u8, name.len()) } == name;
    if is {
        known.store(kind, Ordering::Relaxed);
    }
    is
}

fn readable(probe: Probe<'_>, at: u64, bytes: u64) -> bool {
    at.checked_add(bytes).is_some_and(|end| probe(at, end))
}

/// A code object as it was read, and where its parts are. Each word is read once, so that what was
/// found readable is what is used, even if it is written meanwhile.
pub struct Read {
    pub code: Code<'static>,
    pub file: u64,
    pub name: Text,
    pub lines: u64,
    /// Length of the table of lines.
    pub size: u64,
}

/// Where a string is, its length, and its word at [`layout::KIND`].
#[derive(Clone, Copy)]
pub struct Text {
    pub at: u64,
    pub length: u64,
    pub state: u64,
}

/// A code object that is read for the first time; `None`: it is none.
///
/// # Safety
/// If it is one, it stays while the result is used.
pub unsafe fn code(layout: &Layout, at: u64, probe: Probe<'_>) -> Option<Read> {
    if !is_a(
        (layout, probe),
        at,
        CODE + layout.more,
        (&CODE_TYPE, b"code\0"),
    ) {
        return None;
    }
    // SAFETY: a code object, found readable; it holds its parts, which do not change.
    unsafe {
        let (name, of_name) = text((layout, probe), word(at + layout.name), MOST_NAME)?;
        let (file, of_file) = text((layout, probe), word(at + layout.file), MOST_FILE)?;
        let place = word(at + layout.lines);
        let (lines, size) = bytes((layout, probe), place, MOST_LINES)?;
        let code = Code {
            name,
            file,
            first_line: (at as *const u8)
                .add(layout.first_line as usize)
                .cast::<u32>()
                .read_unaligned(),
            lines,
            table: layout.table,
        };
        Some(Read {
            code,
            file: of_file.at,
            name: of_name,
            lines: place,
            size,
        })
    }
}

/// # Safety
/// If it is a string, it stays while the result is used.
unsafe fn text(
    (layout, probe): (&Layout, Probe<'_>),
    at: u64,
    most: u64,
) -> Option<(Characters<'static>, Text)> {
    if !is_a((layout, probe), at, layout.compact, (&TEXT_TYPE, b"str\0")) {
        return None;
    }
    // SAFETY: found readable.
    let (length, state) = unsafe {
        (
            word(at + layout.more + layout::LENGTH),
            word(at + layout.more + layout::KIND),
        )
    };
    let (head, width) = form(layout, state)?;
    let bytes = length.min(most) * width;
    let from = at + head;
    readable(probe, from, bytes).then(|| {
        let characters = Characters {
            // SAFETY: found readable.
            bytes: unsafe { from_raw_parts(from as *const u8, bytes as usize) },
            width: width as u8,
        };
        (characters, Text { at, length, state })
    })
}

/// # Safety
/// If it is a bytes object, it stays while the result is used.
unsafe fn bytes(
    (layout, probe): (&Layout, Probe<'_>),
    at: u64,
    most: u64,
) -> Option<(&'static [u8], u64)> {
    // With the first word of its contents, which are terminated and end at a multiple of eight.
    if !is_a(
        (layout, probe),
        at,
        layout.more + layout::BYTES + 8,
        (&BYTES_TYPE, b"bytes\0"),
    ) {
        return None;
    }
    // SAFETY: found readable.
    let size = unsafe { word(at + layout.more + layout::SIZE) };
    let (from, kept) = (at + layout.more + layout::BYTES, size.min(most));
    readable(probe, from, kept).then(|| {
        // SAFETY: found readable.
        let bytes = unsafe { from_raw_parts(from as *const u8, kept as usize) };
        (bytes, size)
    })
}
