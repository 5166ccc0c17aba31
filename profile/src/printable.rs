//! Escapes untrusted text for display: characters that act on a terminal, end a line, or
//! misrepresent the text.

use std::borrow::Cow;
use std::fmt::Write;
use std::path::Path;

/// Returns true for characters that are escaped: control characters (C0, C1 and DEL), line and
/// paragraph separators, bidirectional controls, and characters of zero width.
#[inline]
pub fn is_hidden(c: char) -> bool {
    // Nearly all text is ASCII.
    if c.is_ascii() {
        return c.is_ascii_control();
    }
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}'
            | '\u{e0000}'..='\u{e007f}')
}

/// Escapes a name that becomes part of a line.
pub fn printable(name: &str) -> Cow<'_, str> {
    escape_if(name, is_hidden)
}

/// Escapes a path that becomes part of a line.
pub fn path(path: &Path) -> String {
    printable(&path.to_string_lossy()).into_owned()
}

/// Escapes a whole text, except for its line ends and tabs.
///
/// The escapes (`\u001b`) are also those of JSON, so a JSON string keeps its value.
pub fn text(text: &str) -> Cow<'_, str> {
    escape_if(text, |c| is_hidden(c) && !matches!(c, '\n' | '\r' | '\t'))
}

/// Escapes the characters for which `hidden` returns true.
fn escape_if(text: &str, hidden: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.contains(&hidden) {
        return text.into();
    }
    let mut out = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        match c {
            '\n' if hidden(c) => out.push_str("\\n"),
            '\t' if hidden(c) => out.push_str("\\t"),
            '\r' if hidden(c) => out.push_str("\\r"),
            c if hidden(c) => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
            c => out.push(c),
        }
    }
    out.into()
}

/// Appends text, with `?` for characters that act on a terminal, except for the control characters
/// `kept`. A dump has the exact paths in its facts.
pub(crate) fn replace_hidden(buffer: &mut Vec<u8>, text: &[u8], kept: &[u8]) {
    for chunk in text.utf8_chunks() {
        for c in chunk.valid().chars() {
            let shown = match c {
                c if c.is_ascii() && kept.contains(&(c as u8)) => c,
                c if is_hidden(c) => '?',
                c => c,
            };
            buffer.extend_from_slice(shown.encode_utf8(&mut [0; 4]).as_bytes());
        }
        // C1 control bytes act on terminals that do not use UTF-8.
        let invalid = chunk.invalid().iter();
        buffer.extend(invalid.map(|&b| if b < 0xa0 { b'?' } else { b }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_invisible_characters_are_escaped() {
        assert!(matches!(
            printable("plain \u{fc}\u{4e2d}"),
            Cow::Borrowed(_)
        ));
        let hostile = "a\x1b[2J\nb\u{9b}c\u{7f}\u{202e}d\u{e0041}";
        let shown = "a\\u001b[2J\\nb\\u009bc\\u007f\\u202ed\\udb40\\udc41";
        assert_eq!(printable(hostile), shown);
        assert_eq!(text("a\tb\n\x1bc"), "a\tb\n\\u001bc");
    }
}
