//! Demangles the names of D functions to qualified names, with template arguments as `…`. Supports
//! the ABI of D 2.077, which introduced back references, and the one before.

use super::Style;

/// Maximum depth of nested types and names.
const MAX_DEPTH: u32 = 32;
/// Maximum length of a name in bytes. Back references may repeat parts of it.
const MAX_NAME: usize = 4096;

/// Demangles `_D3app4main4workFZv` to `app.main.work`. Returns `None` for other names.
pub(super) fn demangle(name: &str, style: Style) -> Option<String> {
    let mut parser = Parser {
        text: name.as_bytes(),
        at: 2,
        depth: 0,
        style,
    };
    if name == "_Dmain" {
        return Some("D main".to_owned());
    }
    if !name.starts_with("_D") {
        return None;
    }
    let shown = parser.qualified_name()?;
    // The rest is the type of the symbol. Data that the compiler generates has none.
    let rest = parser.text.get(parser.at..)?;
    let is_end = rest.is_empty() || rest == b"Z" || parser.skip_type().is_some();
    is_end.then_some(shown)
}

struct Parser<'t> {
    text: &'t [u8],
    at: usize,
    depth: u32,
    style: Style,
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip(&mut self, text: &[u8]) -> bool {
        let is_here = self.text[self.at..].starts_with(text);
        self.at += if is_here { text.len() } else { 0 };
        is_here
    }

    /// Skips `length` bytes. Returns `None` if there are fewer.
    fn skip_bytes(&mut self, length: usize) -> Option<()> {
        let end = self.at.checked_add(length)?;
        self.at = Some(end).filter(|end| *end <= self.text.len())?;
        Some(())
    }

    fn number(&mut self) -> Option<usize> {
        let rest = self.text.get(self.at..)?;
        let digits = rest.iter().take_while(|c| c.is_ascii_digit()).count();
        let number = std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()?;
        self.at += digits;
        Some(number)
    }

    /// Returns true if a part of a qualified name begins here.
    fn is_at_name(&self) -> bool {
        match self.peek() {
            Some(b'0'..=b'9') => true,
            Some(b'_') => self.text[self.at..].starts_with(b"__T"),
            Some(b'Q') => self
                .target()
                .is_some_and(|to| self.text[to].is_ascii_digit()),
            _ => false,
        }
    }

    /// Returns the position to which the back reference here leads.
    fn target(&self) -> Option<usize> {
        let mut distance = 0usize;
        for byte in self.text.get(self.at + 1..)? {
            let digit = match byte {
                b'A'..=b'Z' => byte - b'A',
                b'a'..=b'z' => byte - b'a',
                _ => return None,
            };
            distance = distance.checked_mul(26)?.checked_add(digit.into())?;
            if byte.is_ascii_lowercase() {
                return self.at.checked_sub(distance).filter(|_| distance > 0);
            }
        }
        None
    }

    fn skip_reference(&mut self) -> Option<()> {
        self.at += 1;
        while self.next()?.is_ascii_uppercase() {}
        Some(())
    }

    fn qualified_name(&mut self) -> Option<String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut shown = String::new();
        let mut last = String::new();
        while self.is_at_name() {
            let part = self.name_part()?;
            // An eponymous template and its member have one name in the source.
            let is_repeated = self.style == Style::Simple && part == last;
            last.clone_from(&part);
            if !part.is_empty() && !is_repeated {
                if !shown.is_empty() {
                    shown.push('.');
                }
                shown.push_str(&part);
            }
            if shown.len() > MAX_NAME {
                return None;
            }
            // The type of a function in which the next name is nested.
            let here = self.at;
            let is_function = self.skip_function();
            if is_function.is_none() || !self.is_at_name() {
                self.at = here;
            }
        }
        self.depth -= 1;
        (!shown.is_empty()).then_some(shown)
    }

    /// Reads an identifier, a template's instance, or a reference to an identifier.
    fn name_part(&mut self) -> Option<String> {
        if self.peek() == Some(b'Q') {
            let to = self.target()?;
            self.skip_reference()?;
            let after = std::mem::replace(&mut self.at, to);
            let part = self.name_part();
            self.at = after;
            return part;
        }
        if self.skip(b"__T") {
            return self.instance();
        }
        let length = self.number()?;
        let end = self.at.checked_add(length)?;
        let name = self.text.get(self.at..end)?;
        if name.starts_with(b"__T") {
            self.at += b"__T".len();
            let instance = self.instance();
            self.at = end;
            return instance;
        }
        self.at = end;
        let name = std::str::from_utf8(name).ok()?;
        Some(match name {
            "__ctor" => "this".to_owned(),
            "__dtor" => "~this".to_owned(),
            name => name.to_owned(),
        })
    }

    fn instance(&mut self) -> Option<String> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let name = self.name_part()?;
        loop {
            self.skip(b"H");
            match self.next()? {
                b'Z' => break,
                b'T' => self.skip_type()?,
                b'V' => {
                    self.skip_type()?;
                    self.skip_value()?;
                }
                b'S' => drop(self.qualified_name()?),
                b'X' => {
                    let length = self.number()?;
                    self.skip_bytes(length)?;
                }
                _ => return None,
            }
        }
        self.depth -= 1;
        Some(match self.style {
            Style::Simple => name,
            _ => name + "!(\u{2026})",
        })
    }

    fn skip_value(&mut self) -> Option<()> {
        match self.next()? {
            b'n' => {}
            b'i' | b'N' => drop(self.number()?),
            b'0'..=b'9' => {
                self.at -= 1;
                self.number()?;
            }
            b'a' | b'w' | b'd' => {
                let length = self.number()?;
                self.skip(b"_").then_some(())?;
                self.skip_bytes(length.checked_mul(2)?)?;
            }
            b'A' | b'S' => {
                for _ in 0..self.number()?.min(MAX_NAME) {
                    self.skip_value()?;
                }
            }
            _ => return None,
        }
        Some(())
    }

    fn skip_type(&mut self) -> Option<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        match self.next()? {
            b'a'..=b'w' => {}
            b'x' | b'y' | b'O' | b'A' | b'P' => self.skip_type()?,
            b'z' => drop(self.next()?),
            b'N' => match self.next()? {
                b'g' | b'h' => self.skip_type()?,
                b'n' => {}
                _ => return None,
            },
            b'G' => {
                self.number()?;
                self.skip_type()?;
            }
            b'H' => {
                self.skip_type()?;
                self.skip_type()?;
            }
            b'S' | b'C' | b'E' | b'T' | b'I' => drop(self.qualified_name()?),
            b'D' => {
                while self.peek().is_some_and(|c| b"xyO".contains(&c)) {
                    self.at += 1;
                }
                self.skip_function()?;
                self.skip_type()?;
            }
            b'B' => {
                for _ in 0..self.number()?.min(MAX_NAME) {
                    self.skip_type()?;
                }
            }
            b'Q' => {
                self.at -= 1;
                self.target()?;
                self.skip_reference()?;
            }
            b'M' | b'F' | b'U' | b'W' | b'R' | b'Y' => {
                self.at -= 1;
                self.skip_function()?;
                self.skip_type()?;
            }
            _ => return None,
        }
        self.depth -= 1;
        Some(())
    }

    /// Skips the type of a function, including its parameters but not its return type.
    fn skip_function(&mut self) -> Option<()> {
        // A method, and the qualifiers of `this`: const, immutable, shared, inout.
        if self.skip(b"M") {
            while [&b"x"[..], b"y", b"O", b"Ng"]
                .iter()
                .any(|qualifier| self.skip(qualifier))
            {}
        }
        b"FUWRY".contains(&self.next()?).then_some(())?;
        // Attributes: pure, nothrow, ref and others.
        while let [b'N', b'a'..=b'f' | b'i'..=b'm', ..] = self.text.get(self.at..)? {
            self.at += 2;
        }
        loop {
            match self.peek()? {
                b'X' | b'Y' | b'Z' => {
                    self.at += 1;
                    return Some(());
                }
                // out, ref, lazy, in, scope, return.
                b'J' | b'K' | b'L' | b'I' | b'M' => self.at += 1,
                b'N' if self.text.get(self.at + 1) == Some(&b'k') => self.at += 2,
                _ => self.skip_type()?,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_d_are_qualified() {
        for (mangled, shown) in [
            ("_D3app4main4workFZv", "app.main.work"),
            (
                "_D3app4main__T4PoolTiZQi4fillMFNbNiiZv",
                "app.main.Pool.fill",
            ),
            (
                "_D3app4main11__T4PoolTiZ4Pool4fillMFiZv",
                "app.main.Pool.fill",
            ),
            ("_D3app5outerFiZ5innerMFZi", "app.outer.inner"),
            ("_D3app4Pool6__ctorMFiZC3app4Pool", "app.Pool.this"),
            ("_D3std5stdio__T7writelnTAyaZQnFNfQjZv", "std.stdio.writeln"),
            ("_Dmain", "D main"),
        ] {
            let found = demangle(mangled, Style::Simple);
            assert_eq!(found.as_deref(), Some(shown), "{mangled}");
        }
        let template = "_D3std5stdio__T7writelnTAyaZQnFNfQjZv";
        let found = demangle(template, Style::Full);
        assert_eq!(
            found.as_deref(),
            Some("std.stdio.writeln!(\u{2026}).writeln")
        );
    }

    #[test]
    fn other_and_damaged_names_are_left() {
        let whole = "_D3app4main__T4PoolTiZQi4fillMFNbNiiZv";
        for end in 0..whole.len() {
            let _ = demangle(&whole[..end], Style::Simple);
        }
        let deep = format!("_D1aF{}Zv", "P".repeat(10_000));
        let long = format!("_D{}a", "9".repeat(40));
        for other in [
            "_D", "_DYNAMIC", "_Dx", "_D3ab", "_D1aQ", "_D1aQa", &deep, &long,
        ] {
            assert_eq!(demangle(other, Style::Simple), None, "{other}");
        }
    }
}
