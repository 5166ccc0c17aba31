//! Reads code objects and the strings in them, without trusting their addresses.

use super::layout::{self, Layout};
use super::memory::read_word;
use core::slice::from_raw_parts;
use core::sync::atomic::{AtomicU64, Ordering};
use cpython::text::{StringLayout, string_layout};
use cpython::{MAX_FILE, MAX_LINES, MAX_NAME};
use shm_protocol::codes::{Characters, Code};

/// Function that returns true if all pages from one address to another are readable.
pub type Probe<'a> = &'a mut dyn FnMut(u64, u64) -> bool;

/// Type of objects, recognised once by its name.
struct Type {
    /// Name with its terminating zero.
    name: &'static [u8],
    /// Address of the type object; 0 before it is recognised.
    at: AtomicU64,
}

impl Type {
    const fn named(name: &'static [u8]) -> Self {
        let at = AtomicU64::new(0);
        Self { name, at }
    }
}

static CODE: Type = Type::named(b"code\0");
static TEXT: Type = Type::named(b"str\0");
static BYTES: Type = Type::named(b"bytes\0");

/// Returns true if an object's first `bytes` are readable and it has this type.
fn has_type(layout: &Layout, probe: Probe<'_>, object: u64, bytes: u64, expected: &Type) -> bool {
    let known = &expected.at;
    let name = expected.name;
    if object == 0 || !object.is_multiple_of(8) || !is_readable(probe, object, bytes) {
        return false;
    }
    // SAFETY: the object's first bytes were just found readable.
    let type_address =
        unsafe { read_word(object + layout.extra_header_bytes + layout::TYPE_OFFSET) };
    if type_address != 0 && type_address == known.load(Ordering::Relaxed) {
        return true;
    }
    if known.load(Ordering::Relaxed) != 0
        || !is_readable(
            probe,
            type_address,
            layout.extra_header_bytes + layout::TYPE_NAME_OFFSET + 8,
        )
    {
        return false;
    }
    // SAFETY: `type_address` was just found readable up to its name.
    let at =
        unsafe { read_word(type_address + layout.extra_header_bytes + layout::TYPE_NAME_OFFSET) };
    if !is_readable(probe, at, name.len() as u64) {
        return false;
    }
    // SAFETY: this many bytes were just found readable.
    let is_expected = unsafe { from_raw_parts(at as *const u8, name.len()) } == name;
    if is_expected {
        known.store(type_address, Ordering::Relaxed);
    }
    is_expected
}

fn is_readable(probe: Probe<'_>, at: u64, bytes: u64) -> bool {
    at.checked_add(bytes).is_some_and(|end| probe(at, end))
}

/// Contents of a code object, and the addresses of its parts. Each word is read only once, so the
/// address that was found readable is the one that is used, even if the program changes it.
pub struct CodeObject {
    pub code: Code<'static>,
    /// Address of the file name.
    pub file: u64,
    pub name: Text,
    /// Address of the line table.
    pub lines: u64,
    /// Size of the line table in bytes.
    pub size: u64,
}

/// String object: its address, its length in characters, and its state (see
/// [`layout::STRING_STATE_OFFSET`]).
#[derive(Clone, Copy)]
pub struct Text {
    pub at: u64,
    pub length: u64,
    pub state: u64,
}

/// Reads a code object. Returns `None` if there is none at `at`, or if a part of it is not
/// readable.
///
/// # Safety
/// If there is a code object at `at`, it stays alive while the result is used.
pub unsafe fn read_code(layout: &Layout, at: u64, probe: Probe<'_>) -> Option<CodeObject> {
    if !has_type(layout, probe, at, layout.code_bytes(), &CODE) {
        return None;
    }
    // SAFETY: a readable code object. It keeps its parts alive, and they do not change.
    unsafe {
        let (name, name_object) = read_text(layout, probe, read_word(at + layout.name), MAX_NAME)?;
        let (file, file_object) = read_text(layout, probe, read_word(at + layout.file), MAX_FILE)?;
        let lines_at = read_word(at + layout.lines);
        let (lines, size) = read_bytes(layout, probe, lines_at, MAX_LINES)?;
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
        Some(CodeObject {
            code,
            file: file_object.at,
            name: name_object,
            lines: lines_at,
            size,
        })
    }
}

/// Reads at most `max` characters of a string.
///
/// # Safety
/// If there is a string at `at`, it stays alive while the result is used.
unsafe fn read_text(
    layout: &Layout,
    probe: Probe<'_>,
    at: u64,
    max: u64,
) -> Option<(Characters<'static>, Text)> {
    if !has_type(layout, probe, at, layout.compact_header_bytes, &TEXT) {
        return None;
    }
    // SAFETY: a string whose head was just found readable.
    let (length, state) = unsafe {
        (
            read_word(at + layout.extra_header_bytes + layout::STRING_LENGTH_OFFSET),
            read_word(at + layout.extra_header_bytes + layout::STRING_STATE_OFFSET),
        )
    };
    let StringLayout {
        header_bytes,
        character_bytes,
    } = string_layout(layout, state)?;
    let bytes = length.min(max) * character_bytes;
    let from = at + header_bytes;
    is_readable(probe, from, bytes).then(|| {
        let characters = Characters {
            // SAFETY: these bytes were just found readable, and the string stays alive.
            bytes: unsafe { from_raw_parts(from as *const u8, bytes as usize) },
            width: character_bytes as u8,
        };
        (characters, Text { at, length, state })
    })
}

/// Reads at most `max` bytes of a bytes object. Also returns its full size.
///
/// # Safety
/// If there is a bytes object at `at`, it stays alive while the result is used.
unsafe fn read_bytes(
    layout: &Layout,
    probe: Probe<'_>,
    at: u64,
    max: u64,
) -> Option<(&'static [u8], u64)> {
    // Includes the first word of the contents, which always exists: they end with a zero and are
    // padded to eight bytes.
    if !has_type(
        layout,
        probe,
        at,
        layout.extra_header_bytes + layout::BYTES_CONTENT_OFFSET + 8,
        &BYTES,
    ) {
        return None;
    }
    // SAFETY: the head of the object was just found readable.
    let size = unsafe { read_word(at + layout.extra_header_bytes + layout::BYTES_SIZE_OFFSET) };
    let from = at + layout.extra_header_bytes + layout::BYTES_CONTENT_OFFSET;
    let bytes_read = size.min(max);
    is_readable(probe, from, bytes_read).then(|| {
        // SAFETY: these bytes were just found readable, and the object stays alive.
        let bytes = unsafe { from_raw_parts(from as *const u8, bytes_read as usize) };
        (bytes, size)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cpython::layout::{MAX_CODE_BYTES, PYTHON_3_11};

    #[test]
    fn a_code_object_is_probed_up_to_its_last_field() {
        for last in [144, MAX_CODE_BYTES - 8] {
            let layout = Layout {
                name: last,
                ..PYTHON_3_11
            };
            let mut probed = (0, 0);
            let mut probe = |from: u64, to: u64| {
                probed = (from, to);
                false
            };
            // SAFETY: nothing is read, since nothing is said to be readable.
            assert!(unsafe { read_code(&layout, 4096, &mut probe) }.is_none());
            assert_eq!(probed, (4096, 4096 + last + 8));
        }
    }
}
