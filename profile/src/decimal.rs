//! Decimal numbers, kept exactly.

/// Maximum number of decimal places that are kept: as many as fit into an `i64`.
const MAX_PLACES: u32 = 18;

/// Maximum number of decimal places of a file's numbers, unless all numbers are small.
const MAX_COMMON_PLACES: u32 = 9;

/// Maximum sum of a file's scaled numbers with which they may have more than [`MAX_COMMON_PLACES`].
const MAX_SMALL_SUM: i64 = 1_000_000_000;

/// Largest value of a scaled number. Below it, `f64` is exact.
const MAX_SCALED: i64 = 1 << 53;

/// A number: `digits × 10^-places`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    digits: i64,
    places: u32,
}

/// Meaning of the commas in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Commas {
    Decimal,
    Groups,
    /// Either of them.
    Unclear,
}

impl Decimal {
    /// Parses `12`, `-1.25`, `5e-05` or `1e3`. Digits beyond [`MAX_PLACES`] places are rounded.
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(text).ok()?;
        if let Ok(digits) = text.parse::<i64>() {
            return Some(Self { digits, places: 0 });
        }
        let is_number = text.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
            && text.contains(['.', 'e', 'E']);
        let value = text
            .parse::<f64>()
            .ok()
            .filter(|n| n.abs() < MAX_SCALED as f64 && is_number)?;
        // The shortest text of the value, without an exponent: zeros, and at most 17 other digits.
        let plain = format!("{value}");
        let (whole, fraction) = plain.split_once('.').unwrap_or((&plain, ""));
        let places = fraction.len().min(MAX_PLACES as usize);
        let digits: i64 = format!("{whole}{}", &fraction[..places]).parse().ok()?;
        let is_rounded_up = fraction.as_bytes().get(places).is_some_and(|&c| c >= b'5');
        let up = if value < 0.0 { -1 } else { 1 };
        Some(Self {
            digits: digits + if is_rounded_up { up } else { 0 },
            places: places as u32,
        })
    }

    pub(crate) fn is_zero(self) -> bool {
        self.digits == 0
    }

    /// Returns true for a number that is too small to be kept.
    pub(crate) fn is_too_small(self) -> bool {
        self.digits == 0 && self.places > 0
    }

    /// Parses a number with commas: `0,25` has a decimal comma, `1,234,567` and `1,234.5` have groups
    /// of digits. `1,234` may have either, so the writer of the file decides (see [`Commas`]).
    pub(crate) fn parse_with_commas(text: &[u8]) -> Option<(Self, Commas)> {
        let text = std::str::from_utf8(text).ok()?;
        if let Some((whole, fraction)) = text.split_once('.') {
            let (_, commas) = Self::parse_with_commas(whole.as_bytes())?;
            let is_fraction = !fraction.is_empty() && fraction.bytes().all(|c| c.is_ascii_digit());
            let number = Self::parse(text.replace(',', "").as_bytes())?;
            let is_grouped = matches!(commas, Commas::Groups | Commas::Unclear) && is_fraction;
            return is_grouped.then_some((number, Commas::Groups));
        }
        let (whole, last) = text.rsplit_once(',')?;
        let digits: String = text.chars().filter(|&c| c != ',').collect();
        let first = whole.split(',').next()?.trim_start_matches(['-', '+']);
        let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_digit());
        if !is_digits(first) || !is_digits(last) || last.len() > MAX_COMMON_PLACES as usize {
            return None;
        }
        let are_groups = whole
            .split(',')
            .skip(1)
            .all(|part| part.len() == 3 && is_digits(part));
        let may_be_groups = last.len() == 3 && (1..=3).contains(&first.len()) && first != "0";
        let commas = match (whole.contains(','), are_groups && may_be_groups) {
            (true, true) => Commas::Groups,
            (true, false) => return None,
            (false, true) => Commas::Unclear,
            (false, false) => Commas::Decimal,
        };
        let places = if commas == Commas::Groups {
            0
        } else {
            last.len() as u32
        };
        let digits = digits.parse().ok()?;
        Some((Self { digits, places }, commas))
    }

    /// Returns the number that the text means if its commas separate groups of digits.
    pub(crate) fn with_groups(self) -> Self {
        Self { places: 0, ..self }
    }

    /// Returns the number of decimal places with which all numbers are integers when scaled, or
    /// fewer if these would be too large. Exceeds [`MAX_COMMON_PLACES`] only for small numbers.
    pub(crate) fn common_places(numbers: &[Self]) -> u32 {
        let max = numbers
            .iter()
            .map(|number| number.places)
            .max()
            .unwrap_or(0);
        let scaled_sum = |places| {
            let scaled = numbers
                .iter()
                .map(|number| number.scale_to(places).saturating_abs());
            scaled.fold(0, i64::saturating_add)
        };
        let fits = |places: &u32| {
            let limit = if *places > MAX_COMMON_PLACES {
                MAX_SMALL_SUM
            } else {
                MAX_SCALED
            };
            scaled_sum(*places) < limit
        };
        (0..=max).rev().find(fits).unwrap_or(0)
    }

    /// Returns the number times `10^places`, rounded.
    pub(crate) fn scale_to(self, places: u32) -> i64 {
        match places.checked_sub(self.places) {
            Some(more) => self.digits.saturating_mul(10i64.saturating_pow(more)),
            None => {
                let divisor = 10i64.saturating_pow(self.places - places);
                (self.digits as f64 / divisor as f64).round() as i64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Option<(i64, u32)> {
        Decimal::parse(text.as_bytes()).map(|number| (number.digits, number.places))
    }

    #[test]
    fn numbers_are_exact() {
        assert_eq!(parsed("12"), Some((12, 0)));
        assert_eq!(parsed("-1.25"), Some((-125, 2)));
        assert_eq!(parsed("0.30"), Some((3, 1)));
        assert_eq!(parsed("2.0"), Some((2, 0)));
        assert_eq!(parsed("1.5e-3"), Some((15, 4)));
        assert_eq!(parsed("5e-05"), Some((5, 5)));
        assert_eq!(parsed("1E3"), Some((1000, 0)));
        assert_eq!(parsed("0.1234567891"), Some((1_234_567_891, 10)));
        assert_eq!(parsed("1e-18"), Some((1, 18)));
        assert_eq!(parsed("-1.5e-18"), Some((-2, 18)));
        assert_eq!(
            parsed("0.30000000000000004"),
            Some((30_000_000_000_000_004, 17))
        );
        assert!(Decimal::parse(b"1e-20").unwrap().is_too_small());
        assert!(!Decimal::parse(b"0.0").unwrap().is_too_small());
        for text in [
            "",
            ".",
            "e3",
            "nan",
            "inf",
            "1e309",
            "x",
            "1.x",
            "infinity.",
            "-inf",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn commas_separate_decimals_or_groups() {
        let parsed = |text: &str| {
            let (number, commas) = Decimal::parse_with_commas(text.as_bytes())?;
            Some((number.digits, number.places, commas))
        };
        assert_eq!(parsed("0,25"), Some((25, 2, Commas::Decimal)));
        assert_eq!(parsed("-0,250"), Some((-250, 3, Commas::Decimal)));
        assert_eq!(parsed("1234,567"), Some((1_234_567, 3, Commas::Decimal)));
        assert_eq!(parsed("1,234"), Some((1234, 3, Commas::Unclear)));
        assert_eq!(parsed("1,234,567"), Some((1_234_567, 0, Commas::Groups)));
        assert_eq!(parsed("1,234.50"), Some((12_345, 1, Commas::Groups)));
        for text in [
            "1,23,456",
            "1,",
            ",5",
            "a,5",
            "1,2,3",
            "1,5e3",
            "1.234,5",
            "0,5.5",
            "1,234.",
            "1,234.5e3",
            "1,2345678901",
        ] {
            assert_eq!(parsed(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_of_one_file_have_one_scale() {
        let numbers: Vec<Decimal> = ["0.25", "3", "1.5"]
            .iter()
            .map(|text| Decimal::parse(text.as_bytes()).unwrap())
            .collect();
        let places = Decimal::common_places(&numbers);
        let scaled: Vec<i64> = numbers.iter().map(|n| n.scale_to(places)).collect();
        assert_eq!((places, scaled), (2, vec![25, 300, 150]));
        let mut mixed = numbers.clone();
        mixed.push(Decimal::parse(b"1e-12").unwrap());
        assert_eq!(Decimal::common_places(&mixed), 9);
        assert_eq!(Decimal::common_places(&mixed[3..]), 12);
        let mut large = numbers;
        large.push(Decimal::parse(b"4000000000000000").unwrap());
        assert_eq!(Decimal::common_places(&large), 0);
        assert_eq!(large[0].scale_to(0), 0);
        assert_eq!(large[2].scale_to(0), 2);
    }
}
