//! Escapes text for XML and HTML, as character data and in attribute values.

use std::fmt;

use crate::text;

/// Escapes one line of text. Characters that are not shown, including line ends, become U+FFFD.
pub fn escape(text: &str) -> Escaped<'_> {
    Escaped {
        text,
        keep_line_ends: false,
    }
}

/// Escapes text of several lines. Keeps line ends.
pub fn escape_lines(text: &str) -> Escaped<'_> {
    Escaped {
        text,
        keep_line_ends: true,
    }
}

/// A text that escapes itself when displayed.
pub struct Escaped<'a> {
    text: &'a str,
    keep_line_ends: bool,
}

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Runs without any special character are written at once.
        let mut from = 0;
        for (at, c) in self.text.char_indices() {
            let shown = match c {
                '&' => "&amp;",
                '<' => "&lt;",
                '>' => "&gt;",
                '"' => "&quot;",
                '\'' => "&#39;",
                '\n' if self.keep_line_ends => continue,
                c if text::is_shown(c) => continue,
                _ => "\u{fffd}",
            };
            out.write_str(&self.text[from..at])?;
            out.write_str(shown)?;
            from = at + c.len_utf8();
        }
        out.write_str(&self.text[from..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_and_hidden_characters_are_removed() {
        let text = "<a href=\"'\">&\n\u{202e}";
        let line = "&lt;a href=&quot;&#39;&quot;&gt;&amp;\u{fffd}\u{fffd}";
        assert_eq!(escape(text).to_string(), line);
        let lines = "&lt;a href=&quot;&#39;&quot;&gt;&amp;\n\u{fffd}";
        assert_eq!(escape_lines(text).to_string(), lines);
    }
}
