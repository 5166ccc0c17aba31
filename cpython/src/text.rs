//! Strings of an interpreter.

use crate::layout::Layout;
use shm_protocol::codes::Characters;

/// Layout of a string, as its state determines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StringLayout {
    /// Offset of the first character in bytes.
    pub header_bytes: u64,
    /// Size of a character in bytes.
    pub character_bytes: u64,
}

/// Decodes a string's state word, which is at [`STRING_STATE`](crate::layout::STRING_STATE_OFFSET).
/// Returns `None` if no string has such a word.
#[inline(always)]
pub fn string_layout(layout: &Layout, state: u64) -> Option<StringLayout> {
    // The size of a character follows the interning state, which has 2, 8 or 16 bits, depending on
    // the version.
    [2, 8, 16].into_iter().find_map(|shift| {
        let character_bytes = (state >> shift) & 7;
        let is_compact = (state >> (shift + 3)) & 1 == 1;
        let is_ascii = (state >> (shift + 4)) & 1 == 1;
        if !is_compact || !matches!(character_bytes, 1 | 2 | 4) {
            return None;
        }
        let header_bytes = if is_ascii {
            layout.ascii_header_bytes
        } else {
            layout.compact_header_bytes
        };
        Some(StringLayout {
            header_bytes,
            character_bytes,
        })
    })
}

/// Decodes a string's characters. Invalid ones become U+FFFD.
pub fn characters(text: Characters<'_>) -> impl Iterator<Item = char> {
    let units = text.bytes.chunks(usize::from(text.width).max(1));
    units.map(|unit| {
        let mut point = [0; 4];
        let count = unit.len().min(4);
        point[..count].copy_from_slice(&unit[..count]);
        char::from_u32(u32::from_le_bytes(point)).unwrap_or(char::REPLACEMENT_CHARACTER)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout;
    use std::string::String;

    #[test]
    fn strings_of_every_width_are_read() {
        let text =
            |bytes: &[u8], width| -> String { characters(Characters { bytes, width }).collect() };
        assert_eq!(text(b"run", 1), "run");
        assert_eq!(text(&[0xe9], 1), "é");
        assert_eq!(text(&[0x16, 0x4e, 0x41, 0], 2), "世A");
        assert_eq!(text(&[0, 0xf6, 1, 0], 4), "\u{1f600}");
        assert_eq!(text(&[0, 0xd8], 2), "\u{fffd}", "half of a pair");
        assert_eq!(text(&[1, 2, 3], 0).chars().count(), 3);
    }

    #[test]
    fn the_state_word_gives_offset_and_width() {
        let layout = &layout::PYTHON_3_11;
        // Size of a character, compact bit and ASCII bit, shifted left by this many bits.
        let state = |kind: u64, compact: u64, ascii: u64, shift: u32| {
            (kind | (compact << 3) | (ascii << 4)) << shift
        };
        let decoded = |state| {
            let decoded = string_layout(layout, state)?;
            Some((decoded.header_bytes, decoded.character_bytes))
        };
        assert_eq!(decoded(state(1, 1, 1, 2) | 1), Some((48, 1)));
        assert_eq!(decoded(state(2, 1, 0, 2)), Some((72, 2)));
        assert_eq!(decoded(state(4, 1, 0, 8)), Some((72, 4)));
        assert_eq!(decoded(state(1, 1, 1, 16)), Some((48, 1)));
        for invalid in [0, state(1, 0, 0, 2), state(3, 1, 0, 2), u64::MAX] {
            assert_eq!(decoded(invalid), None, "{invalid:x}");
        }
    }
}
