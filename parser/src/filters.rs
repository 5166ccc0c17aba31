//! Filters of stacks and frames by name or label. Options and meanings are pprof's.

use anyhow::{Result, anyhow};
use profile::LabelValue;
use regex::Regex;

use crate::measure;

/// Filters of stacks and frames, all optional.
#[derive(Debug, Default)]
pub struct Filters {
    /// Keep only stacks with a matching frame.
    pub focus: Option<Regex>,
    /// Drop stacks with a matching frame.
    pub ignore: Option<Regex>,
    /// Drop matching frames.
    pub hide: Option<Regex>,
    /// Keep only matching frames.
    pub show: Option<Regex>,
    /// Drop the callers of the outermost matching frame.
    pub show_from: Option<Regex>,
    /// Drop the callees of the innermost matching frame.
    pub prune_from: Option<Regex>,
    /// Keep only stacks with a matching label.
    pub tag_focus: Option<TagFilter>,
    /// Drop stacks with a matching label.
    pub tag_ignore: Option<TagFilter>,
}

impl Filters {
    /// Returns the pattern of an option that matches functions.
    pub(crate) fn pattern_of(&self, option: &str) -> Option<&Regex> {
        match option {
            "focus" => self.focus.as_ref(),
            "ignore" => self.ignore.as_ref(),
            "hide" => self.hide.as_ref(),
            "show" => self.show.as_ref(),
            "show_from" => self.show_from.as_ref(),
            "prune_from" => self.prune_from.as_ref(),
            _ => None,
        }
    }

    /// Returns the active filters, as lines of the legend.
    pub fn active(&self) -> Vec<String> {
        let pattern = |p: &Option<Regex>| p.as_ref().map(|p| p.as_str().to_owned());
        let tag = |t: &Option<TagFilter>| t.as_ref().map(|t| t.text.clone());
        let all = [
            ("focus", pattern(&self.focus)),
            ("ignore", pattern(&self.ignore)),
            ("hide", pattern(&self.hide)),
            ("show", pattern(&self.show)),
            ("show_from", pattern(&self.show_from)),
            ("tagfocus", tag(&self.tag_focus)),
            ("tagignore", tag(&self.tag_ignore)),
        ];
        let shown = all
            .into_iter()
            .filter_map(|(name, value)| Some(format!("{name}={}", value?)));
        shown.map(shorten).collect()
    }
}

/// Shortens a line of the legend.
fn shorten(text: String) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}\u{2026}", &text[..at]),
        None => text,
    }
}

/// Compiles a pattern. The error names the option.
pub fn pattern(option: &str, text: Option<&str>) -> Result<Option<Regex>> {
    text.map(|text| compile(option, text)).transpose()
}

fn compile(option: &str, text: &str) -> Result<Regex> {
    Regex::new(text).map_err(|error| {
        // Only the last line of the error is a message; the others point into the pattern.
        let error = error.to_string();
        let reason = error.lines().last().unwrap_or_default();
        let reason = reason.strip_prefix("error: ").unwrap_or(reason);
        anyhow!("--{option} is not a valid pattern: {text:?}: {reason}")
    })
}

/// A condition on labels: `[key=]pattern,…` or `[key=]range`.
#[derive(Debug)]
pub struct TagFilter {
    text: String,
    key: Option<String>,
    test: Test,
}

/// Test of a label's value.
#[derive(Debug)]
enum Test {
    /// Without a key, all patterns must match; with a key, any of them.
    Patterns(Vec<Regex>),
    /// The number is in this range.
    Range {
        low: Option<f64>,
        high: Option<f64>,
        unit: String,
    },
}

impl TagFilter {
    /// Parses the value of the option.
    pub fn parse(option: &str, text: &str) -> Result<Self> {
        let (key, value) = match text.split_once('=') {
            Some((key, value)) => (Some(key.to_owned()), value),
            None => (None, text),
        };
        let test = match parse_range(value) {
            Some(range) => range,
            None => Test::Patterns(
                value
                    .split(',')
                    .map(|pattern| compile(option, pattern))
                    .collect::<Result<_>>()?,
            ),
        };
        Ok(Self {
            text: text.to_owned(),
            key,
            test,
        })
    }

    /// Returns true if a stack with these labels matches.
    pub(crate) fn matches(&self, labels: &[(String, LabelValue)]) -> bool {
        let labels_of_key = || {
            labels
                .iter()
                .filter(|(k, _)| self.key.as_ref().is_none_or(|key| key == k))
        };
        match &self.test {
            Test::Range { low, high, unit } => labels_of_key().any(|(key, value)| match value {
                LabelValue::Number(n, label_unit) => {
                    let label_unit = if label_unit.is_empty() {
                        key
                    } else {
                        label_unit
                    };
                    let (n, scaled_unit) = measure::scale(*n, label_unit, unit);
                    scaled_unit == measure::scale(1, unit, unit).1
                        && low.is_none_or(|low| n >= low)
                        && high.is_none_or(|high| n <= high)
                }
                LabelValue::Text(_) => false,
            }),
            Test::Patterns(patterns) if self.key.is_some() => {
                let texts = || labels_of_key().filter_map(|(_, value)| text_of(value));
                patterns
                    .iter()
                    .any(|p| texts().any(|text| p.is_match(text)))
            }
            Test::Patterns(patterns) => patterns.iter().all(|p| {
                labels_of_key().any(|(key, value)| {
                    text_of(value).is_some_and(|text| p.is_match(&format!("{key}:{text}")))
                })
            }),
        }
    }
}

fn text_of(value: &LabelValue) -> Option<&str> {
    match value {
        LabelValue::Text(text) => Some(text),
        LabelValue::Number(..) => None,
    }
}

/// Parses `32kb`, `:64kb`, `4mb:` or `12kb:64mb`.
fn parse_range(text: &str) -> Option<Test> {
    let bound = |text: &str| -> Option<(i64, String)> {
        let digits = text.trim_start_matches(['+', '-']);
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        let (number, unit) = text.split_at(text.len() - digits.len() + end);
        let letters = unit.chars().all(|c| c.is_ascii_alphabetic());
        let number = number.parse().ok()?;
        letters.then(|| (number, unit.to_owned()))
    };
    let (low, high) = match text.split_once(':') {
        Some(("", high)) => (None, Some(bound(high)?)),
        Some((low, "")) => (Some(bound(low)?), None),
        Some((low, high)) => (Some(bound(low)?), Some(bound(high)?)),
        None => (Some(bound(text)?), Some(bound(text)?)),
    };
    let unit = low
        .as_ref()
        .or(high.as_ref())
        .map(|(_, unit)| unit.clone())?;
    let scaled = |bound: Option<(i64, String)>| {
        bound.map(|(n, bound_unit)| measure::scale(n, &bound_unit, &unit).0)
    };
    Some(Test::Range {
        low: scaled(low),
        high: scaled(high),
        unit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_ranges_match_pprof() {
        let sized = |n| vec![("bytes".to_owned(), LabelValue::Number(n, "bytes".into()))];
        let cases = [
            ("32kb", 32 << 10, 33 << 10),
            (":64kb", 64 << 10, 65 << 10),
            ("4mb:", 4 << 20, 3 << 20),
            ("12kb:64mb", 13 << 10, 11 << 10),
            ("bytes=16b", 16, 17),
        ];
        for (text, yes, no) in cases {
            let filter = TagFilter::parse("tagfocus", text).unwrap();
            assert!(filter.matches(&sized(yes)), "{text}");
            assert!(!filter.matches(&sized(no)), "{text}");
        }
    }

    #[test]
    fn tag_patterns_match_key_and_value() {
        let labels = vec![("thread".to_owned(), LabelValue::Text("worker 3".into()))];
        let matches = |text| TagFilter::parse("tagfocus", text).unwrap().matches(&labels);
        assert!(matches("thread=work.*"));
        assert!(matches("thread:worker"));
        assert!(matches("work,3"));
        assert!(!matches("work,4"));
        assert!(!matches("pool=work"));
        assert!(TagFilter::parse("tagfocus", "(").is_err());
    }
}
