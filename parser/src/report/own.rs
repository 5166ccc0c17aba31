//! The user's own lines above the table, where most of a profile lies in libraries: the table's
//! first rows are functions of `std::` then, which many callers share (decision 81).

use std::collections::HashMap;

use profile::printable::printable;

use super::context::Context;
use crate::measure::percentage;
use crate::nodes::{Granularity, clean};
use crate::suspects::site::Own;

/// Maximum number of lines shown.
const MAX_LINES: usize = 5;
/// Inverse of the share of the values in libraries from which lines are shown.
const LIBRARY_RATIO: i64 = 2;

/// A function of the user's own, and a line in it (0 if unknown).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Place {
    function: String,
    file: String,
    line: u32,
}

/// Values by the user's own lines.
#[derive(Default)]
struct Sums {
    /// Sum of the magnitudes of all stacks.
    all: i64,
    /// Sum of the magnitudes of stacks whose innermost function belongs to a library.
    in_libraries: i64,
    by_place: HashMap<Place, i64>,
}

/// Returns the lines above the table; none if they would repeat the table.
pub fn lines(context: &Context, unit: &str) -> Vec<String> {
    let options = context.options;
    let is_by_function = matches!(
        options.granularity,
        Granularity::Usual | Granularity::Functions
    );
    if options.all_frames || options.compact_labels || !is_by_function {
        return Vec::new();
    }
    let sums = sums(context);
    if sums.in_libraries == 0 || sums.in_libraries < sums.all / LIBRARY_RATIO {
        return Vec::new();
    }
    let mut places: Vec<(Place, i64)> = sums.by_place.into_iter().collect();
    places.retain(|(_, value)| *value != 0);
    places.sort_by(|(a, more), (b, less)| {
        let by_size = less.saturating_abs().cmp(&more.saturating_abs());
        by_size.then_with(|| a.cmp(b))
    });
    if places.is_empty() {
        return Vec::new();
    }
    let total = context.view.total();
    let values = places.iter().take(MAX_LINES).map(|place| place.1);
    let width = context.width(values, unit);
    let shown = places.iter().take(MAX_LINES).map(|(place, value)| {
        format!(
            "{:>width$} {}  {}",
            context.format(*value, unit),
            percentage(*value, total),
            printable(&place.shown())
        )
    });
    let title = "In your own code, by the line that led there (libraries follow below):";
    std::iter::once(title.to_owned()).chain(shown).collect()
}

impl Place {
    fn shown(&self) -> String {
        match (self.file.as_str(), self.line) {
            ("", _) => self.function.clone(),
            (file, line) => format!("{} {file}:{line}", self.function),
        }
    }
}

fn sums(context: &Context) -> Sums {
    let view = context.view;
    let profile = view.profile();
    let own = Own::new(profile);
    let mut sums = Sums::default();
    for (_, value, frames) in view.stacks() {
        sums.all = sums.all.saturating_add(value.saturating_abs());
        let mut visible = frames.iter().filter(|&&frame| !view.is_hidden(frame));
        let innermost = visible.find_map(|&frame| view.lines(frame).first());
        let in_library = innermost.is_some_and(|line| {
            let function = &profile.functions[line.function as usize];
            !own.has(&function.name, &function.file)
        });
        if in_library {
            sums.in_libraries = sums.in_libraries.saturating_add(value.saturating_abs());
        }
        let place = own
            .line(view, frames)
            .map(|(function, line)| Place {
                function: function.name.clone(),
                file: clean(&function.file),
                line,
            })
            .or_else(|| {
                let function = own.function(view, frames)?;
                Some(Place {
                    function: function.name.clone(),
                    file: String::new(),
                    line: 0,
                })
            });
        if let Some(place) = place {
            let sum = sums.by_place.entry(place).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    sums
}
