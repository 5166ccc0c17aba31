//! Scanner for the numbers in a line.

/// A position in a line.
pub(crate) struct Scan<'a> {
    rest: &'a [u8],
}

impl<'a> Scan<'a> {
    pub(crate) fn new(text: &'a [u8]) -> Self {
        Self { rest: text }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Skips spaces and tabs.
    pub(crate) fn skip_spaces(&mut self) -> &mut Self {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
        self
    }

    /// Consumes `text` if it comes next.
    pub(crate) fn literal(&mut self, text: &[u8]) -> Option<()> {
        self.rest = self.rest.strip_prefix(text)?;
        Some(())
    }

    /// Reads a decimal number, which may be negative.
    pub(crate) fn int(&mut self) -> Option<i64> {
        let (negative, digits) = match self.rest {
            [b'-', rest @ ..] => (true, rest),
            _ => (false, self.rest),
        };
        let mut value: i64 = 0;
        let mut used = 0;
        for &c in digits {
            if !c.is_ascii_digit() {
                break;
            }
            value = value.checked_mul(10)?.checked_sub(i64::from(c - b'0'))?;
            used += 1;
        }
        if used == 0 {
            return None;
        }
        self.rest = &digits[used..];
        if negative {
            Some(value)
        } else {
            value.checked_neg()
        }
    }

    /// Reads a hex number, with or without `0x`.
    pub(crate) fn hex(&mut self) -> Option<u64> {
        let digits = self.rest.strip_prefix(b"0x").unwrap_or(self.rest);
        let mut value: u64 = 0;
        let mut used = 0;
        for &c in digits {
            let digit = HEX[c as usize];
            if digit > 15 {
                break;
            }
            value = (value << 4) | u64::from(digit);
            used += 1;
        }
        if used == 0 || used > 16 {
            return None;
        }
        self.rest = &digits[used..];
        Some(value)
    }

    /// Reads a number up to the next space, with an optional fraction or exponent.
    pub(crate) fn float(&mut self) -> Option<f64> {
        let end = self
            .rest
            .iter()
            .position(|&c| c == b' ')
            .unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        short_decimal(word).or_else(|| {
            std::str::from_utf8(word)
                .ok()?
                .parse()
                .ok()
                .filter(|v: &f64| v.is_finite())
        })
    }
}

/// Parses a number of at most 15 digits with up to three decimals. Digits and power of ten are
/// exact in a double, so only the division rounds.
fn short_decimal(word: &[u8]) -> Option<f64> {
    let point = word.iter().position(|&c| c == b'.').unwrap_or(word.len());
    let fraction = word.get(point + 1..).unwrap_or(&[]);
    if word.len() > 16 || point == 0 || fraction.len() > 3 {
        return None;
    }
    let mut value = 0u64;
    for &c in word[..point].iter().chain(fraction) {
        if !c.is_ascii_digit() {
            return None;
        }
        value = value * 10 + u64::from(c - b'0');
    }
    Some(value as f64 / [1.0, 10.0, 100.0, 1000.0][fraction.len()])
}

const HEX: [u8; 256] = {
    let mut table = [0xff; 256];
    let mut i = 0;
    while i < 10 {
        table[b'0' as usize + i] = i as u8;
        i += 1;
    }
    let mut i = 0;
    while i < 6 {
        table[b'a' as usize + i] = 10 + i as u8;
        table[b'A' as usize + i] = 10 + i as u8;
        i += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_bounded() {
        assert_eq!(Scan::new(b"-9223372036854775808").int(), Some(i64::MIN));
        assert_eq!(Scan::new(b"9223372036854775808").int(), None);
        assert_eq!(Scan::new(b"0xffffffffffffffff ").hex(), Some(u64::MAX));
        assert_eq!(Scan::new(b"0x10000000000000000").hex(), None);
        assert_eq!(Scan::new(b"x").hex(), None);
        assert_eq!(Scan::new(b"1.5 2").float(), Some(1.5));
        assert_eq!(
            Scan::new(b"123456789012.345").float(),
            Some(123_456_789_012.345)
        );
        assert_eq!(Scan::new(b"-2e3").float(), Some(-2000.0));
        assert_eq!(Scan::new(b"1.2.3").float(), None);
        assert_eq!(Scan::new(b"inf").float(), None);
    }
}
