//! Parsers for the values of options.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use mem_parser::nodes::Granularity;
use symbols::demangle::Style;

const GRANULARITIES: [(&str, Granularity); 4] = [
    ("functions", Granularity::Functions),
    ("lines", Granularity::Lines),
    ("files", Granularity::Files),
    ("addresses", Granularity::Addresses),
];

/// Returns the parser of `--granularity`.
pub fn granularities() -> impl TypedValueParser<Value = Granularity> {
    PossibleValuesParser::new(GRANULARITIES.map(|(name, _)| name)).map(|name| {
        let found = GRANULARITIES.iter().find(|g| g.0 == name);
        found.map_or(Granularity::Usual, |g| g.1)
    })
}

const STYLES: [(&str, Style, &str); 4] = [
    (
        "simple",
        Style::Simple,
        "Neither parameters nor template arguments, as pprof shows names",
    ),
    (
        "templates",
        Style::Templates,
        "Template arguments, but no parameters",
    ),
    ("full", Style::Full, "Everything, as c++filt shows it"),
    ("none", Style::None, "The name in the symbol table"),
];

/// Returns the parser of `--demangle`.
pub fn styles() -> impl TypedValueParser<Value = Style> {
    let values = STYLES.map(|(name, _, help)| PossibleValue::new(name).help(help));
    PossibleValuesParser::new(values).map(|name| {
        let found = STYLES.iter().find(|s| s.0 == name);
        found.map_or(Style::Simple, |s| s.1)
    })
}

/// Parses `--unit`.
pub fn unit(text: &str) -> Result<String, String> {
    if mem_parser::is_unit(text) {
        return Ok(text.to_owned());
    }
    let expected = "expected B, KiB, MiB, GiB, TiB, PiB (kB, MB and so on are the same, as in \
                    pprof), ns, us, ms, s, hrs, count or auto";
    Err(expected.to_owned())
}

/// Parses `--label`.
pub fn label(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("expected KEY=VALUE, as in service=checkout".to_owned()),
    }
}

/// Parses options that are shares of a total.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("expected a share of the total, from 0 to 1".to_owned()),
    }
}

/// Divisors for which the quotients can still be shown.
const DIVISORS: std::ops::RangeInclusive<f64> = 1e-6..=1e18;

/// Parses `--divide_by`.
pub fn divisor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(divisor) if DIVISORS.contains(&divisor) => Ok(divisor),
        _ => Err("expected a number from 0.000001 to 1e18".to_owned()),
    }
}
