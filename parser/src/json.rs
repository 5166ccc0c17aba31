//! Writes JSON by serde, as a document or embedded in a page.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Serializer;
use serde_json::ser::{CharEscape, CompactFormatter, Formatter};

/// Formats a JSON document on one line.
pub fn document(value: &impl Serialize) -> String {
    write(value, Form::Document)
}

/// Formats JSON for a `<script>` in HTML or XML. Escapes `<`, `>`, `&` and apostrophes, so that
/// nothing in it can end the element or become markup. Replaces bidirectional controls, which could
/// make a name read as another one. Each object of a list is on a line of its own.
pub fn embedded(value: &impl Serialize) -> String {
    write(value, Form::Embedded)
}

/// Form of the output.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Document,
    Embedded,
}

fn write(value: &impl Serialize, form: Form) -> String {
    let formatter = EscapingFormatter {
        form,
        in_list: false,
    };
    let mut out = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut out, formatter);
    // Cannot fail: the output is in memory, and all our types have string keys.
    let written = value.serialize(&mut serializer);
    debug_assert!(written.is_ok());
    String::from_utf8_lossy(&out).into_owned()
}

/// Formatter that writes short numbers and escapes strings.
struct EscapingFormatter {
    form: Form,
    in_list: bool,
}

impl Formatter for EscapingFormatter {
    fn write_f64<W: ?Sized + Write>(&mut self, out: &mut W, value: f64) -> io::Result<()> {
        // Integers are written without a fraction, in the range in which they are exact.
        if value.fract() == 0.0 && value.abs() < 9e15 {
            write!(out, "{value}")
        } else {
            CompactFormatter.write_f64(out, value)
        }
    }

    fn write_string_fragment<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        fragment: &str,
    ) -> io::Result<()> {
        let mut from = 0;
        for (at, c) in fragment.char_indices() {
            let Some(escaped) = replacement(c, self.form) else {
                continue;
            };
            out.write_all(&fragment.as_bytes()[from..at])?;
            write!(out, "\\u{:04x}", u32::from(escaped))?;
            from = at + c.len_utf8();
        }
        out.write_all(&fragment.as_bytes()[from..])
    }

    fn write_char_escape<W: ?Sized + Write>(
        &mut self,
        out: &mut W,
        escape: CharEscape,
    ) -> io::Result<()> {
        CompactFormatter.write_char_escape(out, escape)
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, out: &mut W, first: bool) -> io::Result<()> {
        self.in_list = true;
        CompactFormatter.begin_array_value(out, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.in_list = false;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, out: &mut W) -> io::Result<()> {
        let starts_line = self.in_list && self.form == Form::Embedded;
        self.in_list = false;
        out.write_all(if starts_line { b"\n{" } else { b"{" })
    }
}

/// Returns the character to escape instead of `c`, or `None` if `c` is written as it is.
fn replacement(c: char, form: Form) -> Option<char> {
    match c {
        '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => Some(c),
        '\'' if form == Form::Embedded => Some(c),
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{fffe}' | '\u{ffff}'
            if form == Form::Embedded =>
        {
            Some('\u{fffd}')
        }
        c if c.is_control() => Some(c),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_can_neither_end_an_element_nor_become_markup() {
        assert_eq!(embedded(&"a\"b\\c"), r#""a\"b\\c""#);
        assert_eq!(
            embedded(&"</script><!--&'\u{1}\u{2028}\u{9b}"),
            r#""\u003c/script\u003e\u003c!--\u0026\u0027\u0001\u2028\u009b""#
        );
        assert_eq!(embedded(&"a\u{202e}b"), r#""a\ufffdb""#);
        assert_eq!(
            document(&"a\u{202e}'b</script>"),
            "\"a\u{202e}'b\\u003c/script\\u003e\""
        );
        assert_eq!(embedded(&"grün 名"), "\"grün 名\"");
    }

    #[test]
    fn numbers_have_no_needless_digits() {
        assert_eq!(
            document(&[1.0, -0.5, 1e-9, 4e15]),
            "[1,-0.5,1e-9,4000000000000000]"
        );
        assert_eq!(document(&[f64::NAN, f64::INFINITY]), "[null,null]");
        assert_eq!(
            document(&(u64::MAX, i128::MAX)),
            format!("[{},{}]", u64::MAX, i128::MAX)
        );
    }

    #[test]
    fn each_embedded_object_of_a_list_is_on_a_line_of_its_own() {
        #[derive(Serialize)]
        struct Row {
            a: [u32; 2],
        }
        let rows = [Row { a: [1, 2] }, Row { a: [3, 4] }];
        assert_eq!(embedded(&rows), "[\n{\"a\":[1,2]},\n{\"a\":[3,4]}]");
        assert_eq!(document(&rows), "[{\"a\":[1,2]},{\"a\":[3,4]}]");
    }
}
