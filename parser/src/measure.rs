//! Formats numbers with units and percentages. Memory has binary prefixes (KiB, MiB) everywhere,
//! unless the user asks for pprof's units.

struct Unit {
    name: &'static str,
    aliases: &'static [&'static str],
    factor: f64,
}

const fn unit(name: &'static str, aliases: &'static [&'static str], factor: f64) -> Unit {
    Unit {
        name,
        aliases,
        factor,
    }
}

/// Units of one kind, smallest first, and the default unit.
struct Family {
    units: &'static [Unit],
    default: &'static Unit,
}

const MEMORY: [Unit; 6] = [
    unit("B", &["b", "byte"], 1.0),
    unit("kB", &["kb", "kbyte", "kilobyte", "kib"], 1024.0),
    unit("MB", &["mb", "mbyte", "megabyte", "mib"], 1_048_576.0),
    unit("GB", &["gb", "gbyte", "gigabyte", "gib"], 1_073_741_824.0),
    unit(
        "TB",
        &["tb", "tbyte", "terabyte", "tib"],
        1_099_511_627_776.0,
    ),
    unit(
        "PB",
        &["pb", "pbyte", "petabyte", "pib"],
        1_125_899_906_842_624.0,
    ),
];

const TIME: [Unit; 5] = [
    unit("ns", &["ns", "nanosecond"], 1.0),
    unit("us", &["\u{3bc}s", "us", "microsecond"], 1e3),
    unit("ms", &["ms", "millisecond"], 1e6),
    unit("s", &["s", "sec", "second"], 1e9),
    unit("hrs", &["hour", "hr"], 3.6e12),
];

const FAMILIES: [Family; 2] = [
    Family {
        units: &MEMORY,
        default: &MEMORY[0],
    },
    Family {
        units: &TIME,
        default: &TIME[3],
    },
];

impl Family {
    fn find(&self, name: &str) -> Option<&Unit> {
        let name = name.to_lowercase();
        let name = if name.len() > 2 {
            name.strip_suffix('s').unwrap_or(&name)
        } else {
            name.as_str()
        };
        self.units.iter().find(|u| u.aliases.contains(&name))
    }

    /// Returns the largest unit of which the value, in base units, has at least one.
    fn best(&self, value: f64) -> &Unit {
        self.units
            .iter()
            .rfind(|u| value / u.factor >= 1.0)
            .unwrap_or(self.default)
    }
}

/// Returns true if values can be printed in this unit: one of memory, time or counts, or the best
/// one.
pub fn is_unit(name: &str) -> bool {
    ["count", "minimum", "auto"].contains(&name) || FAMILIES.iter().any(|f| f.find(name).is_some())
}

/// Converts a value to another unit; `minimum` and `auto` choose the best one. The unit returned is
/// empty if it need not be printed.
pub fn scale(value: i64, from: &str, to: &str) -> (f64, String) {
    if value < 0 && value != i64::MIN {
        let (value, unit) = scale(-value, from, to);
        return (-value, unit);
    }
    for family in &FAMILIES {
        let Some(source) = family.find(from) else {
            continue;
        };
        let base = value as f64 * source.factor;
        let target = match to {
            "minimum" | "auto" => family.best(base),
            _ => family.find(to).unwrap_or(family.default),
        };
        return (base / target.factor, target.name.to_owned());
    }
    let value = value as f64 / count_divisor(from).map_or(1.0, |divisor| divisor as f64);
    match to {
        "count" | "sample" | "unit" | "minimum" | "auto" => (value, String::new()),
        _ if to == from && count_divisor(from).is_some() => (value, String::new()),
        _ => (value, to.to_owned()),
    }
}

/// Returns the divisor in the name of a unit of fractional counts: 100 for `count/100`.
pub fn count_divisor(unit: &str) -> Option<u64> {
    unit.strip_prefix("count/")?.parse().ok().filter(|&n| n > 0)
}

/// Formats a number with as many decimal places as a divisor has zeros, without trailing ones.
fn format_fraction(value: f64, divisor: u64) -> String {
    let places = divisor.ilog10() as usize;
    let text = format!("{value:.places$}");
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats a value without its unit, as an integer or as the fraction that was read.
pub fn format_without_unit(value: i64, unit: &str) -> String {
    match count_divisor(unit) {
        Some(divisor) => format_fraction(value as f64 / divisor as f64, divisor),
        None => value.to_string(),
    }
}

/// Style of values with units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Style {
    /// Style of columns in pprof's layouts: `1.50MiB`, `12KiB`, `0`. Without a space, so that a
    /// value is one field for scripts.
    // Decision 83: one unit for the product.
    #[default]
    Column,
    /// pprof's style, in which a kB has 1024 bytes: `1.50MB`, `12kB`, `0`.
    Pprof,
    /// Our style: `1.50 MiB`, `12 KiB`, `0`.
    Own,
}

impl Style {
    /// Formats a value with its unit.
    pub fn label(self, value: i64, from: &str, to: &str) -> String {
        let (value, unit) = scale(value, from, to);
        let number = match count_divisor(from) {
            Some(divisor) => format_fraction(value, divisor),
            None => format!("{value:.2}"),
        };
        let number = number.strip_suffix(".00").unwrap_or(&number);
        match self {
            _ if number == "0" || number == "-0" => "0".to_owned(),
            Self::Own if !unit.is_empty() => format!("{number} {}", iec_name(&unit)),
            Self::Own | Self::Column => format!("{number}{}", iec_name(&unit)),
            Self::Pprof => format!("{number}{unit}"),
        }
    }

    /// Returns pprof's style instead of a column's if the user named the unit as pprof does: kB,
    /// MB.
    #[must_use]
    pub fn for_unit(self, unit: &str) -> Self {
        let lower = unit.to_lowercase();
        let ours = lower.ends_with("ib") || lower.ends_with("ibs");
        let memory = FAMILIES[0].find(unit).is_some();
        if self == Self::Column && memory && !ours {
            Self::Pprof
        } else {
            self
        }
    }
}

/// Returns the IEC name (KiB) of a unit that [`scale`] returns (kB).
pub fn iec_name(unit: &str) -> &str {
    match unit {
        "kB" => "KiB",
        "MB" => "MiB",
        "GB" => "GiB",
        "TB" => "TiB",
        "PB" => "PiB",
        other => other,
    }
}

/// Formats a value with its unit for a column.
pub fn label(value: i64, from: &str, to: &str) -> String {
    Style::Column.label(value, from, to)
}

/// Formats a mean lifetime or age in our style. The agent's clock does not resolve times below its
/// tick.
pub fn lifetime(ms: f64) -> String {
    const TICK_MS: f64 = 4.0;
    if ms < TICK_MS {
        return "< 4 ms".to_owned();
    }
    Style::Own.label((ms * 1e6) as i64, "nanoseconds", "auto")
}

/// Formats the half-width of a confidence interval around a mean lifetime or age. Returns `0` only
/// for values without sampling error.
pub fn time_error(ms: f64) -> String {
    if ms > 0.0 {
        lifetime(ms)
    } else {
        "0".to_owned()
    }
}

/// Formats the share of a total, six characters wide: ` 4.50%`, `  100%`, ` 0.05%`.
pub fn percentage(value: i64, total: i64) -> String {
    let ratio = if total == 0 {
        0.0
    } else {
        (value as f64 / total as f64).abs() * 100.0
    };
    if (99.95..=100.05).contains(&ratio) {
        "  100%".to_owned()
    } else if ratio >= 1.0 {
        format!("{ratio:5.2}%")
    } else {
        format!("{:>5}%", two_digits(ratio))
    }
}

/// Formats two significant digits without trailing zeros, like C's `%.2g`.
fn two_digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:.1e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |s: &str| {
        if s.contains('.') {
            s.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            s.to_owned()
        }
    };
    if (-4..2).contains(&exponent) {
        let decimals = usize::try_from(1 - exponent).unwrap_or(0);
        trim(&format!("{value:.decimals$}"))
    } else {
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{}e{sign}{:02}", trim(mantissa), exponent.abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_match_pprof_except_for_the_prefixes() {
        let cases = [
            (0, "0", "0"),
            (1, "1B", "1B"),
            (1023, "1023B", "1023B"),
            (1024, "1kB", "1KiB"),
            (1536, "1.50kB", "1.50KiB"),
            (-1536, "-1.50kB", "-1.50KiB"),
            (5 << 20, "5MB", "5MiB"),
            ((1 << 30) + (1 << 28), "1.25GB", "1.25GiB"),
        ];
        for (value, theirs, ours) in cases {
            assert_eq!(Style::Pprof.label(value, "bytes", "minimum"), theirs);
            assert_eq!(label(value, "bytes", "minimum"), ours);
        }
        assert_eq!(Style::Pprof.label(1536, "bytes", "MB"), "0");
        assert_eq!(Style::Pprof.label(15360, "bytes", "MB"), "0.01MB");
        assert_eq!(label(17, "count", "minimum"), "17");
        assert_eq!(label(1_500_000, "nanoseconds", "minimum"), "1.50ms");
    }

    #[test]
    fn fractions_are_shown_as_they_were_read() {
        assert_eq!(label(25, "count/100", "minimum"), "0.25");
        assert_eq!(label(-1250, "count/1000", "count"), "-1.25");
        assert_eq!(label(300, "count/100", "minimum"), "3");
        assert_eq!(Style::Own.label(1, "count/1000", "auto"), "0.001");
        assert_eq!(format_without_unit(30, "count/100"), "0.3");
        assert_eq!(
            (
                format_without_unit(30, "count"),
                format_without_unit(7, "count/0")
            ),
            ("30".into(), "7".into())
        );
    }

    #[test]
    fn our_own_labels_name_powers_of_1024() {
        let cases = [
            (0, "0"),
            (1, "1 B"),
            (1024, "1 KiB"),
            (-1536, "-1.50 KiB"),
            (5 << 20, "5 MiB"),
            ((1 << 30) + (1 << 28), "1.25 GiB"),
            (3 << 40, "3 TiB"),
            (1 << 50, "1 PiB"),
        ];
        for (value, expected) in cases {
            assert_eq!(Style::Own.label(value, "bytes", "minimum"), expected);
        }
        assert_eq!(Style::Own.label(17, "count", "minimum"), "17");
        assert_eq!(
            Style::Own.label(1_500_000, "nanoseconds", "auto"),
            "1.50 ms"
        );
    }

    #[test]
    fn both_spellings_of_a_unit_are_equal() {
        for (ours, theirs) in [
            ("KiB", "kB"),
            ("MiB", "MB"),
            ("GiB", "GB"),
            ("TiB", "TB"),
            ("PiB", "PB"),
        ] {
            assert!(is_unit(ours) && is_unit(theirs));
            for style in [Style::Column, Style::Pprof, Style::Own] {
                let label = |unit| style.label(7 << 50, "bytes", unit);
                assert_eq!(label(ours), label(theirs));
            }
            assert_eq!(Style::Column.for_unit(ours), Style::Column);
            assert_eq!(Style::Column.for_unit(theirs), Style::Pprof);
            assert_eq!(Style::Own.for_unit(theirs), Style::Own);
        }
        for unit in ["minimum", "auto", "ms", "count"] {
            assert_eq!(Style::Column.for_unit(unit), Style::Column);
        }
        assert!(!is_unit("KiBs of it"));
    }

    #[test]
    fn percentages_match_pprof() {
        let cases = [
            (0, "    0%"),
            (100_000_000, "  100%"),
            (45_678_000, "45.68%"),
            (4_500_000, " 4.50%"),
            (999_900, "    1%"),
            (450_000, " 0.45%"),
            (5_100, "0.0051%"),
            (123, "0.00012%"),
            (12, "1.2e-05%"),
            (-45_678_000, "45.68%"),
        ];
        for (value, expected) in cases {
            assert_eq!(percentage(value, 100_000_000), expected, "{value}");
        }
        assert_eq!(percentage(5, 0), "    0%");
    }
}
