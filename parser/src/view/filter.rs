//! Drops frames and stacks from a view by name or label.

use std::sync::Arc;

use profile::{Label, LabelValue, NO_MAPPING, Profile};
use regex::Regex;

use super::View;
use crate::filters::Filters;
use crate::nearest;

/// Functions and files of a profile that match a pattern.
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
        let profile = Arc::clone(&self.profile);
        let mut warn = |option: &str, matched: bool| {
            if !matched {
                let hint = filters.pattern_of(option).map(|pattern| {
                    let names = profile.functions.iter().map(|f| f.name.as_str());
                    nearest::function_hint(pattern.as_str(), names)
                });
                let hint = hint.unwrap_or_default();
                warnings.push(format!("--{option} matches nothing{hint}"));
            }
        };
        self.filter_by_name(filters, &mut warn);
        if let Some(pattern) = &filters.show_from {
            warn("show_from", self.show_from(pattern));
        }
        if filters.tag_focus.is_some() || filters.tag_ignore.is_some() {
            self.filter_by_tag(filters, &mut warn);
        }
        if let Some(pattern) = &filters.prune_from {
            warn("prune_from", self.prune_from(pattern));
        }
        warnings
    }

    fn filter_by_name(&mut self, filters: &Filters, warn: &mut impl FnMut(&str, bool)) {
        let matches = |p: &Option<Regex>| p.as_ref().map(|p| Matches::new(&self.profile, p));
        let focus = matches(&filters.focus);
        let ignore = matches(&filters.ignore);
        let hide = matches(&filters.hide);
        let show = matches(&filters.show);
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

    /// Drops stacks for which `keep` returns false.
    fn keep_stacks(&mut self, keep: impl Fn(&[u32]) -> bool) {
        for i in 0..self.spans.len() {
            let (from, to) = self.spans[i];
            let frames = &self.profile.stacks.get(i)[from as usize..to as usize];
            self.dropped[i] |= !keep(frames);
        }
    }

    /// Drops the lines that match, or with `keep` those that do not, and hides locations without
    /// lines left.
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
            // Frames without names can only match by their file.
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

    fn prune_from(&mut self, pattern: &Regex) -> bool {
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
        holds_match.contains(&true)
    }

    fn filter_by_tag(&mut self, filters: &Filters, warn: &mut impl FnMut(&str, bool)) {
        let mut focused = false;
        let mut ignored = false;
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

    /// Returns the labels of a stack, with the size of its objects as `bytes`.
    pub fn labels(&self, stack: usize) -> Vec<(String, LabelValue)> {
        let all = &self.profile.labels;
        let start = all.partition_point(|l| (l.stack as usize) < stack);
        let labels_of_stack = all[start..]
            .iter()
            .take_while(|l| l.stack as usize == stack);
        let pair = |l: &Label| (l.key.clone(), l.value.clone());
        let mut labels: Vec<_> = labels_of_stack.map(pair).collect();
        if let Some(&size) = self.profile.block_sizes.get(stack) {
            labels.push(("bytes".into(), LabelValue::Number(size, "bytes".into())));
        }
        labels
    }
}
