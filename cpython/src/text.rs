//! Strings of an interpreter.

use crate::layout::Layout;
use shm_protocol::codes::Characters;

/// Returns the offset of a string's characters and their size in bytes, from its word at
/// [`KIND`](crate::layout::KIND). Returns `None` if no string has such a word.
#[inline(always)]
pub fn form(layout: &Layout, state: u64) -> Option<(u64, u64)> {
    // Depending on the version, two, eight or sixteen bits before the kind say whether the string
    // is interned.
    [2, 8, 16].into_iter().find_map(|shift| {
        let kind = state >> shift & 7;
        let (compact, ascii) = (state >> (shift + 3) & 1, state >> (shift + 4) & 1);
        let head = match ascii {
            1 => layout.ascii,
            _ => layout.compact,
        };
        (matches!(kind, 1 | 2 | 4) && compact == 1).then_some((head, kind))
    })
}

/// Decodes a string's characters. Invalid ones become U+FFFD.
pub fn characters(text: Characters<'_>) -> impl Iterator<Item = char> {
    let wide = text.bytes.chunks(usize::from(text.width).max(1));
    wide.map(|bytes| {
        let mut point = [0; 4];
        let count = bytes.len().min(4);
        point[..count].copy_from_slice(&bytes[..count]);
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
    fn a_string_says_where_its_characters_are() {
        let layout = &layout::PYTHON_3_11;
        // The kind, whether it is compact, and whether it is ASCII, behind this many bits.
        let state = |kind: u64, compact: u64, ascii: u64, shift: u32| {
            (kind | compact << 3 | ascii << 4) << shift
        };
        assert_eq!(form(layout, state(1, 1, 1, 2) | 1), Some((48, 1)));
        assert_eq!(form(layout, state(2, 1, 0, 2)), Some((72, 2)));
        assert_eq!(form(layout, state(4, 1, 0, 8)), Some((72, 4)));
        assert_eq!(form(layout, state(1, 1, 1, 16)), Some((48, 1)));
        for none in [0, state(1, 0, 0, 2), state(3, 1, 0, 2), u64::MAX] {
            assert_eq!(form(layout, none), None, "{none:x}");
        }
    }
}
