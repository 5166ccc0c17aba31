//! Compares printed numbers with the true ones, as exactly as they are printed.

/// A printed number, in base units, and its maximum rounding error.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// The number.
    pub value: f64,
    /// Maximum rounding error: half of the last digit.
    pub half: f64,
}

/// Units and their base units. A kB of pprof's formats has 1024 bytes.
const UNITS: [(&str, f64); 17] = [
    ("", 1.0),
    ("B", 1.0),
    ("kB", 1024.0),
    ("KiB", 1024.0),
    ("MB", 1_048_576.0),
    ("MiB", 1_048_576.0),
    ("GB", 1_073_741_824.0),
    ("GiB", 1_073_741_824.0),
    ("%", 0.01),
    ("ms", 1e-3),
    ("s", 1.0),
    ("us", 1e-6),
    ("µs", 1e-6),
    ("ns", 1e-9),
    ("min", 60.0),
    ("mins", 60.0),
    ("hrs", 3600.0),
];

impl Figure {
    /// Reads a number with a unit, with or without a space: `8 MiB`, `2.50MB`, `0.0062%`, `1.97 s`.
    /// `decimals` is the number of decimals of a number that is printed in full. Trailing zeros may
    /// be omitted.
    pub fn read(text: &str, decimals: i32) -> Option<Self> {
        let text = text.trim().trim_start_matches(['~', '+']);
        let is_number = |c: char| c.is_ascii_digit() || "+-.e".contains(c);
        let end = text.find(|c| !is_number(c)).unwrap_or(text.len());
        let (number, unit) = (&text[..end], text[end..].trim());
        let (_, scale) = UNITS.iter().find(|(name, _)| *name == unit)?;
        let value: f64 = number.parse().ok()?;
        let whole = matches!(unit, "" | "B") && !number.contains('.');
        let last = match unit {
            "%" if value == 100.0 => 0.1,
            // Two digits.
            "%" if value < 1.0 && value > 0.0 => 10f64.powi(value.log10().floor() as i32 - 1),
            _ if whole => 1.0,
            _ => 10f64.powi(-decimals),
        };
        Some(Self {
            value: value * scale,
            // Numbers are rounded to integers in base units first, and a half may go either way.
            half: last * scale * 0.500_001 + if scale > &1.0 { 0.5 } else { 0.0 },
        })
    }

    /// Returns true if this figure is the printed form of `truth`.
    pub fn is(&self, truth: f64) -> bool {
        (self.value - truth).abs() <= self.half + truth.abs() * 1e-12
    }
}

/// Checks that a number of bytes, objects or seconds with two decimals is `truth`.
#[track_caller]
pub fn assert_figure(text: &str, truth: f64, what: &str) {
    assert_printed(text, 2, truth, what);
}

/// Like [`assert_figure`], but a zero without a unit has that of its neighbour.
#[track_caller]
pub fn assert_beside(text: &str, neighbour: &str, truth: f64, what: &str) {
    let unit = neighbour.trim_start_matches(|c: char| c.is_ascii_digit() || "-.+".contains(c));
    let text = match text {
        "0" => format!("0.{unit}"),
        _ => text.to_owned(),
    };
    assert_figure(&text, truth, what);
}

/// Checks that a printed number with so many decimals is `truth`.
#[track_caller]
pub fn assert_printed(text: &str, decimals: i32, truth: f64, what: &str) {
    let figure =
        Figure::read(text, decimals).unwrap_or_else(|| panic!("{what}: {text:?} is no number"));
    assert!(figure.is(truth), "{what}: {text:?}, where {truth} is true");
}

/// Checks that a printed percentage is this part of the whole.
#[track_caller]
pub fn assert_share(text: &str, part: f64, whole: f64, what: &str) {
    assert!(text.trim().ends_with('%'), "{what}: {text:?}");
    let share = if whole == 0.0 {
        0.0
    } else {
        (part / whole).abs()
    };
    assert_figure(text, share, what);
}

/// Returns the rest of the line after a label.
#[track_caller]
pub fn after<'a>(text: &'a str, label: &str) -> &'a str {
    let at = text
        .find(label)
        .unwrap_or_else(|| panic!("{label:?} is not in {text}"));
    let rest = &text[at + label.len()..];
    rest.lines().next().expect("a line").trim()
}

/// Returns the lines of a table below its head, which contains `head`.
#[track_caller]
pub fn below<'a>(text: &'a str, head: &str) -> Vec<&'a str> {
    let mut lines = text.lines().skip_while(|line| !line.contains(head));
    assert!(lines.next().is_some(), "{head:?} is not in {text}");
    lines.collect()
}
