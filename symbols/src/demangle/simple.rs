//! Extracts the simple name of a C++ function directly from its mangled name.
//!
//! A simple name is a small part of a mangled one: template arguments and parameters, which are
//! most of it in template-heavy programs, only have to be skipped. Demangling everything and
//! removing them again takes sixty times as long.
//!
//! Guarantees: [`simple`] returns the same as `cpp_demangle` with
//! [`super::without_templates`], or `None` if the name contains anything rare (expressions,
//! function-local entities, conversion operators). Takes linear time.
//!
//! Limit: back references in skipped parts are not validated.

/// Maximum nesting depth. Deeper names are left to `cpp_demangle`.
const MAX_DEPTH: usize = 100;

/// Returns the name without parameters and template arguments of the mangled name `_Z…`, which must
/// not have a clone suffix.
pub fn simple(mangled: &str) -> Option<String> {
    let mut scan = Parser::of(mangled)?;
    let shown = scan.name()?;
    // Parameters.
    while !scan.rest.is_empty() {
        scan.type_part(MAX_DEPTH)?;
    }
    Some(shown)
}

/// Returns the simple name whatever the parameters are, and the mangled name without them.
pub fn without_parameters(mangled: &str) -> Option<(String, &str)> {
    let mut scan = Parser::of(mangled)?;
    let shown = scan.name()?;
    mangled
        .get(..mangled.len() - scan.rest.len())
        .map(|name| (shown, name))
}

/// A simple name under construction.
#[derive(Default)]
struct SimpleName<'a> {
    text: String,
    /// Last component, for the names of constructors and destructors.
    last: &'a str,
}

impl<'a> SimpleName<'a> {
    fn push(&mut self, part: &'a str) {
        self.separate();
        self.text.push_str(part);
        self.last = part;
    }

    fn separate(&mut self) {
        if !self.text.is_empty() {
            self.text.push_str("::");
        }
    }
}

/// Parser of a mangled name. Each function consumes what it is named after, or returns `None` if
/// the input does not continue with that.
struct Parser<'a> {
    text: &'a str,
    rest: &'a [u8],
}

impl<'a> Parser<'a> {
    fn of(mangled: &'a str) -> Option<Self> {
        Some(Self {
            text: mangled,
            rest: mangled.strip_prefix("_Z")?.as_bytes(),
        })
    }

    /// Parses a function's name with its template arguments. Returns the simple name.
    fn name(&mut self) -> Option<String> {
        let mut shown = SimpleName::default();
        match self.peek()? {
            b'N' => {
                self.nested_name(&mut shown)?;
                return Some(shown.text);
            }
            b'S' => {
                self.take(b"St")?;
                shown.push("std");
                match self.peek()? {
                    b'a'..=b'z' => self.operator(&mut shown)?,
                    _ => shown.push(self.identifier()?),
                }
            }
            b'L' | b'1'..=b'9' => {
                let _ = self.take(b"L");
                shown.push(self.identifier()?);
            }
            _ => return None,
        }
        self.tags(&mut shown)?;
        if self.peek() == Some(b'I') {
            self.type_part(MAX_DEPTH)?;
        }
        Some(shown.text)
    }

    fn peek(&self) -> Option<u8> {
        self.rest.first().copied()
    }

    fn skip(&mut self, length: usize) -> Option<()> {
        self.rest = self.rest.get(length..)?;
        Some(())
    }

    fn take(&mut self, what: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(what)?;
        Some(())
    }

    fn digits(&mut self) -> &'a [u8] {
        let end = self.rest.iter().position(|c| !c.is_ascii_digit());
        let (digits, rest) = self.rest.split_at(end.unwrap_or(self.rest.len()));
        self.rest = rest;
        digits
    }

    /// Parses an identifier that follows its length.
    fn source_name(&mut self) -> Option<&'a str> {
        let digits = self.digits();
        if digits.len() > 6 {
            return None;
        }
        let number = |sum: usize, digit: &u8| sum * 10 + usize::from(digit - b'0');
        let length = digits.iter().fold(0, number);
        let start = self.text.len() - self.rest.len();
        self.skip(length)?;
        self.text
            .get(start..start + length)
            .filter(|n| !n.is_empty())
    }

    /// Parses a source name that can be shown unchanged.
    fn identifier(&mut self) -> Option<&'a str> {
        let plain = |c: u8| c.is_ascii_alphanumeric() || c == b'_';
        let name = self.source_name()?;
        let usual = name.bytes().all(plain) && !name.starts_with("_GLOBAL_");
        usual.then_some(name)
    }

    /// Parses ABI tags: `B5cxx11`.
    fn tags(&mut self, shown: &mut SimpleName<'a>) -> Option<()> {
        while self.take(b"B").is_some() {
            let tag = self.identifier()?;
            shown.text.extend(["[abi:", tag, "]"]);
        }
        Some(())
    }

    /// Parses `N…E` as the name of a function.
    fn nested_name(&mut self, shown: &mut SimpleName<'a>) -> Option<()> {
        self.skip(1)?;
        while matches!(self.peek()?, b'r' | b'V' | b'K' | b'R' | b'O') {
            self.skip(1)?;
        }
        loop {
            match self.peek()? {
                b'E' if !shown.text.is_empty() => return self.skip(1),
                b'I' if !shown.text.is_empty() => self.type_part(MAX_DEPTH)?,
                b'0'..=b'9' => {
                    shown.push(self.identifier()?);
                    self.tags(shown)?;
                }
                b'S' if shown.text.is_empty() => {
                    shown.push("std");
                    if self.take(b"St").is_none() {
                        self.take(b"Sa")?;
                        shown.push("allocator");
                    }
                }
                b'C' if shown.last != "std" => {
                    self.structor(b"123")?;
                    shown.push(shown.last);
                }
                b'D' if shown.last != "std" => {
                    self.structor(b"012")?;
                    shown.separate();
                    shown.text.push('~');
                    shown.text.push_str(shown.last);
                }
                b'a'..=b'z' if !shown.text.is_empty() => self.operator(shown)?,
                _ => return None,
            }
        }
    }

    /// Parses a constructor or destructor: a letter and one of the digits `kinds`.
    fn structor(&mut self, kinds: &[u8]) -> Option<()> {
        self.rest.get(1).filter(|kind| kinds.contains(kind))?;
        self.skip(2)
    }

    fn operator(&mut self, shown: &mut SimpleName<'a>) -> Option<()> {
        const KNOWN: [(&[u8], &str); 16] = [
            (b"cl", "operator()"),
            (b"ix", "operator[]"),
            (b"aS", "operator="),
            (b"eq", "operator=="),
            (b"ne", "operator!="),
            (b"pt", "operator->"),
            (b"de", "operator*"),
            (b"pl", "operator+"),
            (b"mi", "operator-"),
            (b"pp", "operator++"),
            (b"mm", "operator--"),
            (b"pL", "operator+="),
            (b"mI", "operator-="),
            (b"nt", "operator!"),
            (b"nw", "operator new"),
            (b"dl", "operator delete"),
        ];
        let (code, text) = KNOWN.iter().find(|(code, _)| self.rest.starts_with(code))?;
        shown.push(text);
        self.skip(code.len())
    }

    /// Parses one part of a type, of template arguments or of parameters: a group, a name, or
    /// the code of a pointer, qualifier or built-in type.
    fn type_part(&mut self, depth_left: usize) -> Option<()> {
        match self.peek()? {
            b'0'..=b'9' => self.source_name().map(|_| ()),
            b'N' => self.group(depth_left, Self::nested_part),
            b'I' | b'J' | b'F' => self.group(depth_left, Self::type_part),
            b'Z' if matches!(self.rest.get(1), Some(b'N' | b'S' | b'1'..=b'9')) => {
                self.group(depth_left, Self::type_part)
            }
            b'L' => self.literal(depth_left),
            b'U' => self.unnamed(depth_left),
            b'A' => {
                self.skip(1)?;
                self.digits();
                self.take(b"_")
            }
            b'D' => {
                let known = b"nadefhipsuo012";
                self.rest.get(1).filter(|c| known.contains(c))?;
                self.skip(2)
            }
            b'C' => self.structor(b"12345"),
            b'S' | b'T' => self.reference(),
            b'P' | b'R' | b'O' | b'K' | b'V' | b'M' | b'B' => self.skip(1),
            b'a'..=b'j' | b'l'..=b'o' | b'r'..=b't' | b'v'..=b'z' => self.skip(1),
            _ => None,
        }
    }

    /// Parses one part of a nested name.
    fn nested_part(&mut self, depth_left: usize) -> Option<()> {
        match self.peek()? {
            b'r' | b'V' | b'K' | b'R' | b'O' | b'M' => self.skip(1),
            // Internal linkage.
            b'L' => self.skip(1),
            b'c' if self.rest.starts_with(b"cv") => None,
            b'l' if self.rest.starts_with(b"li") => None,
            b'a'..=b'z' => self.skip(2),
            b'D' => self.structor(b"012"),
            b'0'..=b'9' | b'I' | b'U' | b'S' | b'T' | b'C' | b'B' => self.type_part(depth_left),
            _ => None,
        }
    }

    /// Parses the parts between a letter and its closing `E`.
    fn group(&mut self, depth_left: usize, part: fn(&mut Self, usize) -> Option<()>) -> Option<()> {
        let depth_left = depth_left.checked_sub(1)?;
        self.skip(1)?;
        while self.peek()? != b'E' {
            part(self, depth_left)?;
        }
        self.skip(1)
    }

    /// Parses a literal: `Li5E`, or one of an enumeration type.
    fn literal(&mut self, depth_left: usize) -> Option<()> {
        self.skip(1)?;
        match self.peek()? {
            b'a'..=b'z' => self.skip(1)?,
            b'1'..=b'9' | b'N' => self.type_part(depth_left)?,
            _ => return None,
        }
        let _ = self.take(b"n");
        if self.digits().is_empty() {
            return None;
        }
        self.take(b"E")
    }

    /// Parses an unnamed type: `Ul…E_`, a lambda, or `Ut_`.
    fn unnamed(&mut self, depth_left: usize) -> Option<()> {
        self.skip(1)?;
        match self.peek()? {
            b'l' => self.group(depth_left, Self::type_part)?,
            b't' => self.skip(1)?,
            _ => return None,
        }
        self.digits();
        self.take(b"_")
    }

    /// Parses a substitution or template parameter: `S_`, `S1A_`, `St`, `T_`, `T0_`.
    fn reference(&mut self) -> Option<()> {
        let is_substitution = self.peek()? == b'S';
        self.skip(1)?;
        if is_substitution && matches!(self.peek()?, b't' | b'a' | b'b' | b's' | b'i' | b'o' | b'd')
        {
            return self.skip(1);
        }
        while self.peek()?.is_ascii_digit() || is_substitution && self.peek()?.is_ascii_uppercase()
        {
            self.skip(1)?;
        }
        self.take(b"_")
    }
}

#[cfg(test)]
mod tests {
    use super::{simple, without_parameters};
    use std::fmt::Write;

    #[test]
    fn skipped_attributes_may_have_any_usual_form() {
        let cases = [
            ("_ZN3KeyILi5EEC2EOS0_", "Key::Key"),
            ("_ZN3KeyILi5EED0Ev", "Key::~Key"),
            ("_ZNSaIcED1Ev", "std::allocator::~allocator"),
            ("_ZL4fillRKSt6vectorIiSaIiEE", "fill"),
            ("_ZNK1A4pathB5cxx11Ev", "A::path[abi:cxx11]"),
            ("_ZN1AIZN1B1fEvEUlT_E0_JRKiA4_cEEclIXT_EEEv", ""),
            ("_ZN1AIZN1B1fEvEUlT_E0_JRKiA4_cEEclEv", "A::operator()"),
            ("_ZN1AILN1B1CE2ELb1EE3getEPFvM1BiE", "A::get"),
        ];
        for (mangled, expected) in cases {
            let found = simple(mangled).unwrap_or_default();
            assert_eq!(found, expected, "{mangled}");
        }
    }

    #[test]
    fn parameters_may_have_any_value() {
        let name = "_ZSt11make_sharedI4NodeJEE";
        let whole = format!(
            "{name}St10shared_ptrINSt9enable_ifIXntsrSt8is_arrayIT_E5valueES4_E4typeEEDpOT0_"
        );
        assert_eq!(simple(&whole), None);
        assert_eq!(
            without_parameters(&whole),
            Some(("std::make_shared".into(), name))
        );
        for none in ["_Z", "_ZN1A", "_Z1fIX", "f"] {
            assert_eq!(without_parameters(none), None, "{none}");
        }
    }

    #[test]
    fn truncated_or_damaged_names_are_left_to_the_library() {
        let whole = "_ZNSt6vectorI3KeyILi5EESaIS1_EE9push_backEZN1A1fEvEUlvE_";
        assert_eq!(simple(whole).unwrap(), "std::vector::push_back");
        let parameters = whole.find("ZN1A").unwrap();
        for end in 0..whole.len() {
            // Parameters may end wherever one does.
            let expected = (end >= parameters).then_some("std::vector::push_back");
            let found = simple(&whole[..end]);
            assert!(found.is_none() || found.as_deref() == expected, "{end}");
        }
        let mut deep = String::from("_Z1f");
        (0..100_000).for_each(|_| deep.push('N'));
        for name in [
            &deep,
            "_ZN",
            "_Z99999999a",
            "_Z3\u{e4}\u{e4}",
            "_Z2\u{e4}v",
            "_ZNE",
            "_ZNC1Ev",
        ] {
            assert_eq!(simple(name), None, "{name:.20}");
        }
        let mut many = String::from("_Z1fI");
        (0..100_000).for_each(|i| write!(many, "S{i}_").unwrap());
        many.push('E');
        assert_eq!(simple(&many).unwrap(), "f");
    }
}
