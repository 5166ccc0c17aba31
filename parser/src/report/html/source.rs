//! Source lines of the functions that hold most.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::tab::{Data, PageContext, Tab};
use super::weights::Weights;
use crate::json;
use crate::nodes::{Granularity, Nodes};
use crate::report::flame::tree::Weight;
use crate::sources;
use crate::suspects::site::is_own;
use heap_format::printable::printable;
use serde::Serialize;

/// The tab of source lines.
pub const TAB: Tab = Tab {
    script: include_str!("source.js"),
    data: Some(Data {
        key: "sources",
        json: all,
    }),
};

/// Functions whose source is shown.
const MOST_FUNCTIONS: usize = 60;
/// Lines shown of a function.
const MOST_LINES: u32 = 600;
/// Lines shown before and after those with values.
const MARGIN: u32 = 5;
/// Longer lines are truncated.
const LONGEST: usize = 400;

/// The entries of a function, by line.
type Lines = BTreeMap<u32, u32>;

/// The functions with source, largest first.
fn all(page: &PageContext) -> String {
    let PageContext {
        context,
        columns,
        compared,
    } = *page;
    let nodes = Nodes::new(context.view, Granularity::Lines, true, false);
    let weights = Weights::new(context.view, &nodes, columns);
    let mut functions: BTreeMap<(&str, &str), Lines> = BTreeMap::new();
    for entry in 0..nodes.count() as u32 {
        let info = nodes.info(entry);
        let holds = (0..columns.len()).any(|c| weights.cum(entry, c) != Weight::default());
        if holds && info.line != 0 && sources::is_source(Path::new(&info.file)) {
            let lines = functions.entry((&info.name, &info.file)).or_default();
            lines.insert(info.line, entry);
        }
    }
    let ranked = rank(functions, &weights, columns.len());
    let mut texts: HashMap<&str, Option<String>> = HashMap::new();
    let mut shown = Vec::new();
    for ((name, file), lines) in ranked {
        let text = texts
            .entry(file)
            .or_insert_with(|| sources::read(file, &context.options.source_directories).ok());
        if let Some(text) = text {
            let rows = rows(&weights, &lines, columns.len(), compared);
            shown.push(function(name, file, &lines, text, rows));
        }
        if shown.len() == MOST_FUNCTIONS {
            break;
        }
    }
    json::embedded(&shown)
}

/// The functions by what their lines hold themselves and in all, largest first.
fn rank<'a>(
    functions: BTreeMap<(&'a str, &'a str), Lines>,
    weights: &Weights,
    columns: usize,
) -> Vec<((&'a str, &'a str), Lines)> {
    let size = |w: Weight| (w.plus + w.minus) as f64;
    let score = |lines: &Lines, column: usize| -> (f64, f64) {
        let flat = lines.values().map(|&e| size(weights.flat(e, column))).sum();
        (
            flat,
            lines.values().map(|&e| size(weights.cum(e, column))).sum(),
        )
    };
    let mut totals = vec![(1.0f64, 1.0f64); columns];
    for lines in functions.values() {
        for (column, total) in totals.iter_mut().enumerate() {
            let (flat, cum) = score(lines, column);
            *total = (total.0.max(flat), total.1.max(cum));
        }
    }
    let whole = |lines: &Lines| -> f64 {
        let part = |(column, total): (usize, &(f64, f64))| {
            let (flat, cum) = score(lines, column);
            flat / total.0 + cum / total.1
        };
        totals.iter().enumerate().map(part).fold(0.0, f64::max)
    };
    let mut ranked: Vec<_> = functions.into_iter().map(|f| (whole(&f.1), f)).collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.0.cmp(&b.1.0)));
    ranked.into_iter().map(|(_, function)| function).collect()
}

/// For each column a list of `[line, flat, cum]`, with the base's flat and cum
/// behind them in a comparison.
type Rows = Vec<Vec<Vec<i128>>>;

fn rows(weights: &Weights, lines: &Lines, columns: usize, compared: bool) -> Rows {
    let row = |line: u32, flat: Weight, cum: Weight| match compared {
        true => vec![line.into(), flat.plus, cum.plus, flat.minus, cum.minus],
        false => vec![line.into(), flat.net(), cum.net()],
    };
    let column = |c: usize| {
        let rows = lines.iter();
        rows.map(|(&line, &e)| row(line, weights.flat(e, c), weights.cum(e, c)))
            .collect()
    };
    (0..columns).map(column).collect()
}

/// A function with its lines.
#[derive(Serialize)]
struct Function {
    name: String,
    file: String,
    /// Whether the user has written it, rather than a library's author.
    own: bool,
    /// Number of the first line.
    first: u32,
    text: Vec<String>,
    weights: Rows,
}

fn function(name: &str, file: &str, lines: &Lines, text: &str, weights: Rows) -> Function {
    let known = || lines.keys().copied();
    let first = known().min().unwrap_or(1).saturating_sub(MARGIN).max(1);
    let last = known().max().unwrap_or(1).saturating_add(MARGIN);
    let count = (last - first + 1).min(MOST_LINES) as usize;
    let shown = text.lines().skip(first as usize - 1).take(count);
    let line = |line: &str| {
        let line = line.replace('\t', "    ");
        let start: String = line.trim_end().chars().take(LONGEST).collect();
        printable(&start).into_owned()
    };
    Function {
        name: printable(name).into_owned(),
        file: printable(file).into_owned(),
        own: is_own(name, file),
        first,
        text: shown.map(line).collect(),
        weights,
    }
}
