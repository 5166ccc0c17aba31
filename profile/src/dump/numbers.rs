//! Fast formatting of numbers into a byte buffer.

/// Numbers below 100, as two digits each.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[0; 2]; 100];
    let mut n = 0;
    while n < 100 {
        pairs[n] = [b'0' + (n / 10) as u8, b'0' + (n % 10) as u8];
        n += 1;
    }
    pairs
};

/// Appends a decimal number.
pub(crate) fn write_decimal(out: &mut Vec<u8>, mut value: u64) {
    if value < 10 {
        return out.push(b'0' + value as u8);
    }
    let mut digits = [0u8; 20];
    let mut at = digits.len();
    while value >= 100 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[(value % 100) as usize]);
        value /= 100;
    }
    if value >= 10 {
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[value as usize]);
    } else {
        at -= 1;
        digits[at] = b'0' + value as u8;
    }
    out.extend_from_slice(&digits[at..]);
}

/// Bytes that [`HexText::write`] writes, whatever the length of the number.
pub(crate) const HEX_ROOM: usize = 24;

/// A hex number as text. Formatted once per address and copied for each use, always in full,
/// because a copy of fixed size is faster than one of the exact length.
#[derive(Clone, Copy)]
pub(crate) struct HexText {
    /// The text, padded with zeros. The last byte is its length.
    text: [u8; HEX_ROOM],
}

impl HexText {
    /// Formats ` 0x…`, including the space before it.
    pub(crate) fn new(value: u64) -> Self {
        let digits = (64 - value.leading_zeros()).div_ceil(4).max(1) as usize;
        let mut text = [0u8; HEX_ROOM];
        text[..3].copy_from_slice(b" 0x");
        for (i, c) in text[3..3 + digits].iter_mut().enumerate() {
            let nibble = (value >> (4 * (digits - 1 - i))) & 15;
            *c = b"0123456789abcdef"[nibble as usize];
        }
        text[HEX_ROOM - 1] = 3 + digits as u8;
        Self { text }
    }

    /// Writes the number at `at`, where there must be [`HEX_ROOM`] bytes. Returns the offset of its
    /// end.
    #[inline]
    pub(crate) fn write(&self, room: &mut [u8], at: usize) -> usize {
        room[at..at + HEX_ROOM].copy_from_slice(&self.text);
        at + usize::from(self.text[HEX_ROOM - 1])
    }
}

/// Rounds a non-negative number below 2^53 to thousandths. Returns its whole part and its
/// thousandths.
fn thousandths(value: f64) -> (u64, u64) {
    let whole = value as u64;
    // The difference is exact for every double in this range.
    match ((value - whole as f64) * 1000.0 + 0.5) as u64 {
        1000 => (whole + 1, 0),
        rest => (whole, rest),
    }
}

/// Returns a non-negative number as it is read back after [`write_fraction`] has written it.
pub(crate) fn as_written(value: f64) -> f64 {
    if !(value.is_finite() && value < EXPONENT_FROM) {
        return value;
    }
    let (whole, rest) = thousandths(value);
    (whole * 1000 + rest) as f64 / 1000.0
}

/// Smallest number that is written in exponent form.
const EXPONENT_FROM: f64 = 9e15;

/// Appends a number rounded to thousandths, without trailing zeros. Writes large numbers exactly,
/// in exponent form, and 0 for numbers that are not finite.
pub(crate) fn write_fraction(out: &mut Vec<u8>, value: f64) {
    if !value.is_finite() {
        return out.push(b'0');
    }
    if value.abs() >= EXPONENT_FROM {
        return out.extend_from_slice(format!("{value:e}").as_bytes());
    }
    let (whole, thousandths) = thousandths(value.abs());
    if value < 0.0 && (whole, thousandths) != (0, 0) {
        out.push(b'-');
    }
    write_decimal(out, whole);
    if thousandths != 0 {
        let digits = [thousandths / 100, thousandths / 10 % 10, thousandths % 10];
        let used = digits.iter().rposition(|&d| d != 0).map_or(0, |at| at + 1);
        out.push(b'.');
        out.extend(digits[..used].iter().map(|&d| b'0' + d as u8));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn shown(value: f64) -> String {
        let mut out = Vec::new();
        write_fraction(&mut out, value);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn fractions_are_short() {
        assert_eq!(shown(0.0), "0");
        assert_eq!(shown(-0.0), "0");
        assert_eq!(shown(12.5), "12.5");
        assert_eq!(shown(-1.25), "-1.25");
        assert_eq!(shown(0.9996), "1");
        assert_eq!(shown(3.001), "3.001");
        assert_eq!(shown(f64::NAN), "0");
    }

    proptest! {
        #[test]
        fn fractions_come_back(value in prop::num::f64::NORMAL) {
            let back: f64 = shown(value).parse().unwrap();
            prop_assert!((back - value).abs() <= 0.000_501);
        }

        #[test]
        fn hex_is_as_printf_writes_it(value: u64) {
            let mut room = [b'?'; 2 * HEX_ROOM];
            let end = HexText::new(value).write(&mut room, 5);
            let expected = format!(" {value:#x}");
            prop_assert_eq!(&room[5..end], expected.as_bytes());
        }

        #[test]
        fn decimals_are_as_printf_writes_them(value: u64) {
            let mut out = Vec::new();
            write_decimal(&mut out, value);
            prop_assert_eq!(out, value.to_string().into_bytes());
        }
    }
}
