//! Finds the source position of each entry, for tooltips: its file, and the line with the largest
//! value.

use std::cmp::Reverse;
use std::collections::HashMap;

use profile::Line;

use crate::nodes::{Nodes, clean_path};
use crate::view::{View, ViewStack};

/// Source positions of all entries.
pub struct Places<'a> {
    view: &'a View,
    nodes: &'a Nodes,
    /// Function and line of each entry; `None` if no file is known.
    best: Vec<Option<(u32, u32)>>,
}

impl<'a> Places<'a> {
    /// Computes the positions from all stacks of a view.
    pub fn new(view: &'a View, nodes: &'a Nodes) -> Self {
        let profile = view.profile();
        let mut location_values = vec![0i128; profile.locations.len()];
        for ViewStack {
            value: weight,
            frames,
            ..
        } in view.stacks()
        {
            for &location in frames {
                location_values[location as usize] += i128::from(weight).abs();
            }
        }
        let mut sums: HashMap<(u32, u32, u32), i128> = HashMap::new();
        for location in 0..profile.locations.len() as u32 {
            let ids = nodes.of_location(location);
            for (&id, line) in ids
                .iter()
                .zip(lines_with_entries(view, location, ids.len()))
            {
                if !profile.functions[line.function as usize].file.is_empty() {
                    let sum = sums.entry((id, line.function, line.line)).or_default();
                    *sum += location_values[location as usize];
                }
            }
        }
        let mut ranked: Vec<_> = sums.into_iter().collect();
        // The best position comes last: known lines after unknown ones, then by value.
        ranked.sort_by_key(|&((id, function, line), sum)| {
            (id, line != 0, sum, Reverse(function), Reverse(line))
        });
        let mut best = vec![None; nodes.count()];
        for ((id, function, line), _) in ranked {
            best[id as usize] = Some((function, line));
        }
        Self { view, nodes, best }
    }

    /// Returns `file:line` of an entry; `None` if it is unknown, or already part of the entry's
    /// name.
    pub fn place_of(&self, id: u32) -> Option<String> {
        let info = self.nodes.entry(id);
        // The name of a script's entry contains only the base name of its file.
        if !info.file.is_empty() && !info.is_script() {
            return None;
        }
        let (function, line) = self.best[id as usize]?;
        let file = clean_path(&self.view.profile().functions[function as usize].file);
        Some(match line {
            0 => file,
            line => format!("{file}:{line}"),
        })
    }
}

/// Returns the lines of a location that have entries: all of them, or only the outermost one.
fn lines_with_entries(view: &View, location: u32, entries: usize) -> &[Line] {
    let lines = view.lines(location);
    &lines[lines.len().saturating_sub(entries)..]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nodes::Granularity;

    fn view() -> View {
        let data = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap");
        let profile = profile::read(&std::fs::read(data).unwrap()[..], "test").unwrap();
        View::new(profile, Some("alloc_space")).unwrap()
    }

    #[test]
    fn the_line_with_the_most_is_named() {
        let view = view();
        let lines = Nodes::new(&view, Granularity::Lines, true, false);
        let mut held: HashMap<String, i64> = HashMap::new();
        for ViewStack {
            value: weight,
            frames,
            ..
        } in view.stacks()
        {
            for &id in frames.iter().flat_map(|&f| lines.of_location(f)) {
                let info = lines.entry(id);
                if info.name == "main" {
                    *held
                        .entry(format!("{}:{}", info.file, info.line))
                        .or_default() += weight;
                }
            }
        }
        assert!(held.len() > 1, "{held:?}");
        let most = held.iter().max_by_key(|(_, weight)| **weight).unwrap().0;
        let nodes = Nodes::new(&view, Granularity::Functions, true, false);
        let places = Places::new(&view, &nodes);
        let id = (0..nodes.count() as u32).find(|&id| nodes.name(id) == "main");
        assert_eq!(places.place_of(id.unwrap()).as_ref(), Some(most));
    }

    #[test]
    fn names_with_a_place_keep_it() {
        let view = view();
        for granularity in [Granularity::Lines, Granularity::Files] {
            let nodes = Nodes::new(&view, granularity, true, false);
            let places = Places::new(&view, &nodes);
            for id in 0..nodes.count() as u32 {
                let known = !nodes.entry(id).file.is_empty();
                assert!(
                    !known || places.place_of(id).is_none(),
                    "{}",
                    nodes.name(id)
                );
            }
        }
    }
}
