//! Leaving frames and stacks out of a view by name or label: pprof's options
//! with pprof's meanings.

use anyhow::{Context, Result};
use heap_format::{Label, LabelValue, NO_MAPPING, Profile};
use regex::Regex;

use super::View;
use crate::measure;

/// Filters of stacks and frames, all optional.
#[derive(Debug, Default)]
pub struct Filters {
    /// Keep only stacks with a matching frame.
    pub focus: Option<Regex>,
    /// Leave out stacks with a matching frame.
    pub ignore: Option<Regex>,
    /// Leave out matching frames.
    pub hide: Option<Regex>,
    /// Leave out all but matching frames.
    pub show: Option<Regex>,
    /// Leave out what is above the outermost matching frame.
    pub show_from: Option<Regex>,
    /// Leave out what is below the innermost matching frame.
    pub prune_from: Option<Regex>,
    /// Keep only stacks with a matching label.
    pub tag_focus: Option<TagFilter>,
    /// Leave out stacks with a matching label.
    pub tag_ignore: Option<TagFilter>,
}

impl Filters {
    /// The filters in force, as the legend names them.
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
        shown.map(shortened).collect()
    }
}

/// A line of the legend of a bearable length.
fn shortened(text: String) -> String {
    match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}\u{2026}", &text[..at]),
        None => text,
    }
}

/// Compiles a pattern; the message names the option.
pub fn pattern(option: &str, text: Option<&str>) -> Result<Option<Regex>> {
    text.map(|text| Regex::new(text).with_context(|| format!("--{option} is no valid pattern")))
        .transpose()
}

/// A condition on labels: `[key=]pattern,…` or `[key=]range`.
#[derive(Debug)]
pub struct TagFilter {
    text: String,
    key: Option<String>,
    test: Test,
}

#[derive(Debug)]
enum Test {
    /// All of these patterns match (any of them, for a given key).
    Patterns(Vec<Regex>),
    /// A number between two, in a unit.
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
        let test = match range(value) {
            Some(range) => range,
            None => Test::Patterns(
                value
                    .split(',')
                    .map(|p| {
                        Regex::new(p).with_context(|| format!("--{option} is no valid pattern"))
                    })
                    .collect::<Result<_>>()?,
            ),
        };
        Ok(Self {
            text: text.to_owned(),
            key,
            test,
        })
    }

    fn matches(&self, labels: &[(String, LabelValue)]) -> bool {
        let of_key = || {
            labels
                .iter()
                .filter(|(k, _)| self.key.as_ref().is_none_or(|key| key == k))
        };
        match &self.test {
            Test::Range { low, high, unit } => of_key().any(|(key, value)| match value {
                LabelValue::Number(n, own) => {
                    let own = if own.is_empty() { key } else { own };
                    let (n, own) = measure::scale(*n, own, unit);
                    own == measure::scale(1, unit, unit).1
                        && low.is_none_or(|low| n >= low)
                        && high.is_none_or(|high| n <= high)
                }
                LabelValue::Text(_) => false,
            }),
            Test::Patterns(patterns) if self.key.is_some() => {
                let texts = || of_key().filter_map(|(_, value)| text_of(value));
                patterns
                    .iter()
                    .any(|p| texts().any(|text| p.is_match(text)))
            }
            Test::Patterns(patterns) => patterns.iter().all(|p| {
                of_key().any(|(key, value)| {
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

/// `32kb`, `:64kb`, `4mb:` or `12kb:64mb`.
fn range(text: &str) -> Option<Test> {
    let bound = |text: &str| -> Option<(i64, String)> {
        let digits = text.trim_start_matches(['+', '-']);
        let end = digits
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(digits.len());
        let (number, unit) = text.split_at(text.len() - digits.len() + end);
        let letters = unit.chars().all(|c| c.is_ascii_alphabetic());
        Some((number.parse().ok()?, unit.to_owned())).filter(|_| letters)
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
    let scaled =
        |bound: Option<(i64, String)>| bound.map(|(n, own)| measure::scale(n, &own, &unit).0);
    Some(Test::Range {
        low: scaled(low),
        high: scaled(high),
        unit,
    })
}

/// Functions and files of a profile that a pattern matches.
struct Matches {
    functions: Vec<bool>,
    mappings: Vec<bool>,
}

impl Matches {
    fn new(profile: &Profile, pattern: &Regex) -> Self {
        let functions = profile
            .functions
            .iter()
            .map(|f| pattern.is_match(&f.name) || pattern.is_match(&f.file))
            .collect();
        let mappings = profile
            .mappings
            .iter()
            .map(|m| pattern.is_match(&m.path.to_string_lossy()))
            .collect();
        Self {
            functions,
            mappings,
        }
    }

    fn mapping(&self, index: u32) -> bool {
        index != NO_MAPPING && self.mappings[index as usize]
    }
}

impl View {
    /// Applies filters. Returns warnings about those that match nothing.
    pub fn filter(&mut self, filters: &Filters) -> Vec<String> {
        let mut warnings = Vec::new();
        let mut warn = |option: &str, matched: bool| {
            if !matched {
                warnings.push(format!("--{option} matches nothing"));
            }
        };
        self.by_name(filters, &mut warn);
        if let Some(pattern) = &filters.show_from {
            warn("show_from", self.show_from(pattern));
        }
        if filters.tag_focus.is_some() || filters.tag_ignore.is_some() {
            self.by_tag(filters, &mut warn);
        }
        if let Some(pattern) = &filters.prune_from {
            self.prune_from(pattern);
        }
        warnings
    }

    fn by_name(&mut self, filters: &Filters, warn: &mut impl FnMut(&str, bool)) {
        let matches = |p: &Option<Regex>| p.as_ref().map(|p| Matches::new(&self.profile, p));
        let (focus, ignore) = (matches(&filters.focus), matches(&filters.ignore));
        let (hide, show) = (matches(&filters.hide), matches(&filters.show));
        if focus.is_some() || ignore.is_some() {
            let focused = focus.as_ref().map(|m| self.matching_locations(m));
            let ignored = ignore.as_ref().map(|m| self.matching_locations(m));
            for (option, set) in [("focus", &focused), ("ignore", &ignored)] {
                warn(option, set.as_ref().is_none_or(|set| set.contains(&true)));
            }
            self.keep_stacks(|frames| {
                let any = |set: &[bool]| frames.iter().any(|&f| set[f as usize]);
                focused.as_deref().is_none_or(any) && !ignored.as_deref().is_some_and(any)
            });
        }
        for (option, matches, keep) in [("hide", hide, false), ("show", show, true)] {
            let Some(matches) = matches else { continue };
            let found = self.matching_locations(&matches).contains(&true);
            warn(option, found);
            self.keep_lines(&matches, keep);
        }
        let hidden = std::mem::take(&mut self.hidden);
        if hidden.contains(&true) {
            self.keep_stacks(|frames| frames.iter().any(|&f| !hidden[f as usize]));
        }
        self.hidden = hidden;
    }

    fn matching_locations(&self, matches: &Matches) -> Vec<bool> {
        (0..self.ranges.len() as u32)
            .map(|i| {
                self.lines(i)
                    .iter()
                    .any(|l| matches.functions[l.function as usize])
                    || matches.mapping(self.profile.locations[i as usize].mapping)
            })
            .collect()
    }

    /// Leaves out stacks for which `keep` is false.
    fn keep_stacks(&mut self, keep: impl Fn(&[u32]) -> bool) {
        for i in 0..self.spans.len() {
            let (from, to) = self.spans[i];
            let frames = &self.profile.stacks.get(i)[from as usize..to as usize];
            self.dropped[i] |= !keep(frames);
        }
    }

    /// Leaves out the lines that match, or those that do not, and locations
    /// that this leaves without lines.
    fn keep_lines(&mut self, matches: &Matches, keep: bool) {
        for i in 0..self.ranges.len() {
            let (first, count) = self.ranges[i];
            let whole = matches.mapping(self.profile.locations[i].mapping);
            let start = self.lines.len() as u32;
            for at in first..first + count {
                let line = self.lines[at as usize];
                if (whole || matches.functions[line.function as usize]) == keep {
                    self.lines.push(line);
                }
            }
            let kept = self.lines.len() as u32 - start;
            // Frames without names match by their file alone.
            let nameless_stays = count == 0 && !keep && !whole;
            if kept == count {
                self.lines.truncate(start as usize);
            } else {
                self.ranges[i] = (start, kept);
            }
            self.hidden[i] |= kept == 0 && !nameless_stays;
        }
    }

    fn show_from(&mut self, pattern: &Regex) -> bool {
        let matches = Matches::new(&self.profile, pattern);
        let mut shown = vec![false; self.ranges.len()];
        for (i, shown) in shown.iter_mut().enumerate() {
            if matches.mapping(self.profile.locations[i].mapping) {
                *shown = true;
                continue;
            }
            let (first, count) = self.ranges[i];
            let lines = &self.lines[first as usize..(first + count) as usize];
            if let Some(at) = lines
                .iter()
                .rposition(|l| matches.functions[l.function as usize])
            {
                self.ranges[i] = (first, at as u32 + 1);
                *shown = true;
            }
        }
        for i in 0..self.spans.len() {
            let (from, to) = self.spans[i];
            let frames = &self.profile.stacks.get(i)[from as usize..to as usize];
            match frames.iter().rposition(|&f| shown[f as usize]) {
                Some(at) => self.spans[i].1 = from + at as u32 + 1,
                None => self.dropped[i] = true,
            }
        }
        shown.contains(&true)
    }

    fn prune_from(&mut self, pattern: &Regex) {
        let matching: Vec<bool> = self
            .profile
            .functions
            .iter()
            .map(|f| pattern.is_match(super::without_parameters(&f.name)))
            .collect();
        let mut holds_match = vec![false; self.ranges.len()];
        for (i, holds) in holds_match.iter_mut().enumerate() {
            let (first, count) = self.ranges[i];
            let lines = &self.lines[first as usize..(first + count) as usize];
            if let Some(at) = lines.iter().position(|l| matching[l.function as usize]) {
                self.ranges[i] = (first + at as u32, count - at as u32);
                *holds = true;
            }
        }
        for i in 0..self.spans.len() {
            let (from, to) = self.spans[i];
            let frames = &self.profile.stacks.get(i)[from as usize..to as usize];
            if let Some(at) = frames.iter().position(|&f| holds_match[f as usize]) {
                self.spans[i].0 = from + at as u32;
            }
        }
    }

    fn by_tag(&mut self, filters: &Filters, warn: &mut impl FnMut(&str, bool)) {
        let (mut focused, mut ignored) = (false, false);
        for i in 0..self.spans.len() {
            let labels = self.labels(i);
            let focus = filters
                .tag_focus
                .as_ref()
                .is_none_or(|f| f.matches(&labels));
            let ignore = filters
                .tag_ignore
                .as_ref()
                .is_some_and(|f| f.matches(&labels));
            focused |= focus;
            ignored |= ignore;
            self.dropped[i] |= !focus || ignore;
        }
        warn("tagfocus", focused);
        warn("tagignore", ignored || filters.tag_ignore.is_none());
    }

    /// The labels of a stack, with the size of its objects as `bytes`.
    pub fn labels(&self, stack: usize) -> Vec<(String, LabelValue)> {
        let all = &self.profile.labels;
        let start = all.partition_point(|l| (l.stack as usize) < stack);
        let own = all[start..]
            .iter()
            .take_while(|l| l.stack as usize == stack);
        let pair = |l: &Label| (l.key.clone(), l.value.clone());
        let mut labels: Vec<_> = own.map(pair).collect();
        if let Some(&size) = self.profile.block_sizes.get(stack) {
            labels.push(("bytes".into(), LabelValue::Number(size, "bytes".into())));
        }
        labels
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tag_ranges_are_as_pprof_reads_them() {
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
