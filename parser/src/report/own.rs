//! Lists the lines of the user's own code with the largest values, above the table and in the legend
//! of the call graph. Only for profiles that lie mostly in libraries: their largest entries are
//! functions like those of `std::`, which many callers share (decision 81).

use std::collections::HashMap;

use profile::Line;
use profile::printable::printable;

use super::context::Context;
use crate::measure::percentage;
use crate::nodes::{Granularity, clean_path};
use crate::suspects::site::UserCode;
use crate::view::ViewStack;

/// Maximum number of lines shown.
const MAX_LINES: usize = 5;
/// Lines are shown if libraries have at least 1 / `LIBRARY_RATIO` of the values.
const LIBRARY_RATIO: i64 = 2;

/// Function in the user's own code, and a line in it (0 if unknown).
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
    total: i64,
    /// Sum of the magnitudes of stacks whose innermost function belongs to a library.
    in_libraries: i64,
    by_place: HashMap<Place, i64>,
}

/// The heading of the lines.
const TITLE: &str = "In your own code, by the line that led there";

/// A place with its value.
pub struct OwnLine {
    place: Place,
    /// Sum of the stacks whose innermost own line it is.
    pub value: i64,
}

impl OwnLine {
    /// Formats function, file and line. With `is_brief`, without the directories of the file.
    pub fn format(&self, is_brief: bool) -> String {
        printable(&self.place.format(is_brief)).into_owned()
    }
}

/// Returns the lines to print above the table; none if they would repeat the table.
pub fn table_lines(context: &Context, unit: &str) -> Vec<String> {
    let places = largest_lines(context);
    if places.is_empty() {
        return Vec::new();
    }
    let total = context.view.total();
    let values = places
        .iter()
        .map(|line| context.format_nonzero(line.value, unit));
    let width = context.column_width(values);
    let shown = places.iter().map(|line| {
        format!(
            "{:>width$} {}  {}",
            context.format_nonzero(line.value, unit),
            percentage(line.value, total),
            line.format(false)
        )
    });
    let title = format!("{TITLE} (libraries follow below):");
    std::iter::once(title).chain(shown).collect()
}

/// Returns the lines for a legend.
pub fn legend_lines(context: &Context, unit: &str) -> Vec<String> {
    let places = largest_lines(context);
    if places.is_empty() {
        return Vec::new();
    }
    let total = context.view.total();
    let shown = places.iter().map(|line| {
        format!(
            "{} ({}) {}",
            context.format_nonzero(line.value, unit),
            percentage(line.value, total).trim(),
            line.format(true)
        )
    });
    std::iter::once(format!("{TITLE}:")).chain(shown).collect()
}

/// Returns the largest own lines; none if the profile lies mostly in the user's own code, or if the
/// options exclude them.
pub fn largest_lines(context: &Context) -> Vec<OwnLine> {
    let options = context.options;
    let is_by_function = matches!(
        options.granularity,
        Granularity::Usual | Granularity::Functions
    );
    if options.all_frames || options.compact_labels || !is_by_function {
        return Vec::new();
    }
    let sums = sums(context);
    if sums.in_libraries == 0 || sums.in_libraries < sums.total / LIBRARY_RATIO {
        return Vec::new();
    }
    let mut places: Vec<(Place, i64)> = sums.by_place.into_iter().collect();
    places.retain(|(_, value)| *value != 0);
    places.sort_by(|(a, more), (b, less)| {
        let by_size = less.saturating_abs().cmp(&more.saturating_abs());
        by_size.then_with(|| a.cmp(b))
    });
    places.truncate(MAX_LINES);
    // Small values are left out, as in the table, whose unit is too large for them.
    let min_value = (context.view.total() as f64 * context.trim.node_fraction).abs();
    let is_shown =
        |index: usize, value: i64| index == 0 || value.saturating_abs() as f64 > min_value;
    places
        .into_iter()
        .enumerate()
        .filter(|(index, (_, value))| is_shown(*index, *value))
        .map(|(_, place)| place)
        .map(|(place, value)| OwnLine { place, value })
        .collect()
}

impl Place {
    fn format(&self, is_brief: bool) -> String {
        let mut file = self.file.as_str();
        if is_brief {
            file = file.rsplit('/').next().unwrap_or(file);
        }
        match (file, self.line) {
            ("", _) => self.function.clone(),
            (file, line) => format!("{} {file}:{line}", self.function),
        }
    }
}

fn sums(context: &Context) -> Sums {
    let view = context.view;
    let profile = view.profile();
    let own = UserCode::new(profile);
    let mut sums = Sums::default();
    let mut by_line: HashMap<Line, i64> = HashMap::new();
    for ViewStack { value, frames, .. } in view.stacks() {
        sums.total = sums.total.saturating_add(value.saturating_abs());
        let mut visible = frames.iter().filter(|&&frame| !view.is_hidden(frame));
        let leaf = visible.clone().next();
        let innermost = visible.find_map(|&frame| view.lines(frame).first());
        let is_library = leaf.is_some_and(|&leaf| own.is_system_location(view, leaf))
            || innermost.is_some_and(|line| !own.is_user_function(line.function));
        if is_library {
            sums.in_libraries = sums.in_libraries.saturating_add(value.saturating_abs());
        }
        let function_alone = || {
            let function = own.innermost_function(view, frames)?;
            let line = Line {
                function,
                ..Line::default()
            };
            Some(line)
        };
        if let Some(line) = own.innermost_line(view, frames).or_else(function_alone) {
            let sum = by_line.entry(line).or_default();
            *sum = sum.saturating_add(value);
        }
    }
    for (line, value) in by_line {
        let function = &profile.functions[line.function as usize];
        let place = Place {
            function: function.name.clone(),
            file: if line.line == 0 {
                String::new()
            } else {
                clean_path(&function.file)
            },
            line: line.line,
        };
        let sum = sums.by_place.entry(place).or_default();
        *sum = sum.saturating_add(value);
    }
    sums
}
