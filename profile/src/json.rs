//! Reads JSON token by token, without building a tree and without recursion: profiles nest as deep as
//! stacks, deeper than serde_json accepts.
//!
//! Commas count as white space, which cannot change a value.

use std::borrow::Cow;

use crate::error::Fault;

/// Maximum depth of values that are skipped.
const MAX_SKIPPED_DEPTH: usize = 1 << 10;

/// JSON text, and a position in it.
pub(crate) struct Json<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Json<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { text, at: 0 }
    }

    /// Returns the next byte that is neither white space nor a comma, without consuming it.
    pub(crate) fn peek(&mut self) -> Result<u8, Fault> {
        let rest = &self.text[self.at..];
        let blank = |c: &u8| c.is_ascii_whitespace() || *c == b',';
        self.at += rest.iter().take_while(|c| blank(c)).count();
        let next = self.text.get(self.at).copied();
        next.ok_or_else(|| Fault::whole("ends in the middle: it was not written completely"))
    }

    /// Consumes a byte that must come next.
    pub(crate) fn expect(&mut self, byte: u8) -> Result<(), Fault> {
        if self.peek()? != byte {
            return Err(self.fault());
        }
        self.at += 1;
        Ok(())
    }

    /// Consumes a byte if it comes next. Returns true if it did.
    pub(crate) fn consume_if_next(&mut self, byte: u8) -> Result<bool, Fault> {
        let matches = self.peek()? == byte;
        self.at += usize::from(matches);
        Ok(matches)
    }

    /// Consumes the next key of an object; `None` at the object's end, which is consumed.
    pub(crate) fn key(&mut self) -> Result<Option<Cow<'a, [u8]>>, Fault> {
        if self.consume_if_next(b'}')? {
            return Ok(None);
        }
        let key = self.string()?;
        self.expect(b':')?;
        Ok(Some(key))
    }

    /// Consumes a string.
    pub(crate) fn string(&mut self) -> Result<Cow<'a, [u8]>, Fault> {
        self.expect(b'"')?;
        let text = self.text;
        let start = self.at;
        let mut decoded: Option<Vec<u8>> = None;
        loop {
            let rest = &text[self.at..];
            let Some(length) = memchr::memchr2(b'"', b'\\', rest) else {
                self.at = text.len();
                self.peek()?;
                return Err(self.fault());
            };
            if let Some(decoded) = &mut decoded {
                decoded.extend(&rest[..length]);
            }
            self.at += length + 1;
            if rest[length] == b'"' {
                let plain = Cow::Borrowed(&text[start..self.at - 1]);
                return Ok(decoded.map_or(plain, Cow::Owned));
            }
            let decoded = decoded.get_or_insert_with(|| text[start..self.at - 1].to_vec());
            let character = self.escape()?;
            decoded.extend(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }

    /// Consumes an escape sequence behind its backslash.
    fn escape(&mut self) -> Result<char, Fault> {
        let letter = self.text.get(self.at).copied().unwrap_or_default();
        self.at += 1;
        Ok(match letter {
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'"' | b'\\' | b'/' => letter.into(),
            b'u' => {
                let first = self.hex()?;
                let is_pair =
                    (0xd800..0xdc00).contains(&first) && self.text[self.at..].starts_with(b"\\u");
                let code = if is_pair {
                    self.at += 2;
                    let second = self.hex()?;
                    0x1_0000 + ((first & 0x3ff) << 10) + (second & 0x3ff)
                } else {
                    first
                };
                char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
            }
            _ => return Err(self.fault()),
        })
    }

    fn hex(&mut self) -> Result<u32, Fault> {
        let digits = self.text.get(self.at..self.at + 4);
        let digits = digits.filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let digits = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let code = digits.and_then(|digits| u32::from_str_radix(digits, 16).ok());
        self.at = (self.at + 4).min(self.text.len());
        code.ok_or_else(|| self.fault())
    }

    /// Consumes a number.
    pub(crate) fn number(&mut self) -> Result<f64, Fault> {
        self.peek()?;
        let rest = &self.text[self.at..];
        let digits = |c: &&u8| c.is_ascii_digit() || b"+-.eE".contains(c);
        let length = rest.iter().take_while(digits).count();
        let text = std::str::from_utf8(&rest[..length]).ok();
        let number = text.and_then(|text| text.parse::<f64>().ok());
        let number = number.filter(|number| number.is_finite());
        let number = number.ok_or_else(|| self.fault())?;
        self.at += length;
        Ok(number)
    }

    /// Consumes a value of any kind.
    pub(crate) fn skip(&mut self) -> Result<(), Fault> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                }
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth > 0 => {
                    depth -= 1;
                    self.at += 1;
                }
                b':' if depth > 0 => self.at += 1,
                _ => self.word()?,
            }
            if depth == 0 {
                return Ok(());
            }
            if depth > MAX_SKIPPED_DEPTH {
                return Err(self.fault());
            }
        }
    }

    /// Consumes a number, `true`, `false` or `null`.
    fn word(&mut self) -> Result<(), Fault> {
        let rest = &self.text[self.at..];
        let is_part = |c: &&u8| c.is_ascii_alphanumeric() || b"+-.".contains(c);
        let length = rest.iter().take_while(is_part).count();
        if length == 0 {
            return Err(self.fault());
        }
        self.at += length;
        Ok(())
    }

    /// Returns the fault of text that is not as expected at this position.
    pub(crate) fn fault(&self) -> Fault {
        Fault::whole(format!(
            "is damaged: its JSON is malformed at byte {}",
            self.at
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn string(text: &str) -> Option<String> {
        let mut json = Json::new(text.as_bytes());
        let string = json.string().ok()?;
        Some(String::from_utf8_lossy(&string).into_owned())
    }

    #[test]
    fn strings_are_decoded() {
        for (text, expected) in [
            (r#""""#, ""),
            (r#""plain""#, "plain"),
            (r#""a\"b\\c\/d\n""#, "a\"b\\c/d\n"),
            (r#""\u00e9\u4e2d""#, "é中"),
            (r#""\ud83d\ude00!""#, "😀!"),
            (r#""\ud83dx""#, "\u{fffd}x"),
        ] {
            assert_eq!(string(text).as_deref(), Some(expected), "{text}");
        }
        for text in [
            r#"""#,
            r#""a"#,
            r#""a\"#,
            r#""\q""#,
            r#""\u12""#,
            r#""\u12g4""#,
            "a",
        ] {
            assert_eq!(string(text), None, "{text}");
        }
    }

    #[test]
    fn values_are_skipped_as_a_whole() {
        for text in [
            "1e5 7",
            "\"}\" 7",
            "{\"a\": [1, {\"b\": null}], \"c\": {}} 7",
            "[] 7",
        ] {
            let mut json = Json::new(text.as_bytes());
            json.skip().unwrap_or_else(|_| panic!("{text}"));
            assert_eq!(json.number().ok(), Some(7.0), "{text}");
        }
        for text in ["", "]", "{", "[1, 2", "@", &"[".repeat(1 << 20)] {
            assert!(Json::new(text.as_bytes()).skip().is_err(), "{text:.9}");
        }
    }
}
