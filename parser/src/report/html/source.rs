//! Tab with the source lines of the functions with the largest values.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use super::tab::{Data, PageContext, ProfileKind, Tab};
use super::weights::Weights;
use crate::json;
use crate::nodes::{Granularity, Nodes, clean_path};
use crate::report::flame::tree::Weight;
use crate::sources;
use crate::suspects::site::UserCode;
use crate::view::{View, ViewStack};
use profile::printable::printable;
use serde::Serialize;

/// The tab of source lines.
pub const TAB: Tab = Tab {
    script: include_str!("source.js"),
    profiles: ProfileKind::All,
    data: Some(Data {
        key: "sources",
        json: functions_with_source,
    }),
};

/// Maximum number of functions.
const MAX_FUNCTIONS: usize = 60;
/// Maximum number of lines of a function.
const MAX_LINES: u32 = 600;
/// Number of lines shown before and after those with values.
const MARGIN: u32 = 5;
/// Maximum length of a line, in characters. Longer lines are truncated.
const MAX_LINE_LENGTH: usize = 400;

/// Entries of a function, by line.
type Lines = BTreeMap<u32, u32>;

/// Name and file of a function.
type FunctionKey<'a> = (&'a str, &'a str);

/// Returns the functions with source, largest first.
fn functions_with_source(page: &PageContext) -> String {
    let PageContext {
        context,
        columns,
        compared,
    } = *page;
    let nodes = Nodes::new(context.view, Granularity::Lines, true, false);
    let weights = Weights::new(context.view, &nodes, columns);
    let mut functions: BTreeMap<FunctionKey, Lines> = BTreeMap::new();
    for id in 0..nodes.count() as u32 {
        let entry = nodes.entry(id);
        let has_weight = (0..columns.len()).any(|c| weights.cum(id, c) != Weight::default());
        if has_weight && entry.line != 0 && sources::is_source(Path::new(&entry.file)) {
            let lines = functions.entry((&entry.name, &entry.file)).or_default();
            lines.insert(entry.line, id);
        }
    }
    let own = UserCode::new(context.view.profile());
    let innermost = sum_by_innermost(context.view, &own, columns);
    let ranked = rank(functions, &weights, &innermost, columns.len());
    let mut texts: HashMap<&str, Option<String>> = HashMap::new();
    let mut shown = Vec::new();
    for ((name, file), lines) in ranked {
        let text = texts
            .entry(file)
            .or_insert_with(|| sources::read(file, &context.options.source_directories).ok());
        if let Some(text) = text {
            let zero = vec![Weight::default(); columns.len()];
            let inner = innermost.get(&(name.to_owned(), file.to_owned()));
            shown.push(Function {
                own: own.contains(name, file),
                inner: pairs(inner.unwrap_or(&zero), compared),
                weights: rows(&weights, &lines, columns.len(), compared),
                ..function(name, file, &lines, text)
            });
        }
        if shown.len() == MAX_FUNCTIONS {
            break;
        }
    }
    json::embedded(&shown)
}

/// Sums of stacks in each column, by the name and file of the function with the stack's innermost
/// own line.
type Innermost = HashMap<(String, String), Vec<Weight>>;

/// Sums the stacks of a view by the function with their innermost own line.
fn sum_by_innermost(view: &View, own: &UserCode, columns: &[usize]) -> Innermost {
    let mut innermost = Innermost::new();
    for ViewStack {
        index: stack,
        frames,
        ..
    } in view.stacks()
    {
        let Some(line) = own.innermost_line(view, frames) else {
            continue;
        };
        let function = &view.profile().functions[line.function as usize];
        let key = (function.name.clone(), clean_path(&function.file));
        let sums = innermost.entry(key);
        let sums = sums.or_insert_with(|| vec![Weight::default(); columns.len()]);
        let values = view.profile().values_of(stack);
        for (sum, &column) in sums.iter_mut().zip(columns) {
            sum.count(values[column], view.error_in(stack, column));
        }
    }
    innermost
}

/// Orders the functions by the largest of their scores in the columns, highest first. A function's
/// score is the sum of its flat, its cumulative and its innermost weight, each relative to the
/// largest one of any function.
fn rank<'a>(
    functions: BTreeMap<FunctionKey<'a>, Lines>,
    weights: &Weights,
    innermost: &Innermost,
    columns: usize,
) -> Vec<(FunctionKey<'a>, Lines)> {
    let size = |w: Weight| (w.plus + w.minus) as f64;
    // Flat, cumulative and innermost weight of a function.
    let score = |(name, file): FunctionKey, lines: &Lines, column: usize| -> [f64; 3] {
        let inner = innermost.get(&(name.to_owned(), file.to_owned()));
        [
            lines.values().map(|&e| size(weights.flat(e, column))).sum(),
            lines.values().map(|&e| size(weights.cum(e, column))).sum(),
            inner.map_or(0.0, |inner| size(inner[column])),
        ]
    };
    let scored = functions.into_iter().map(|(key, lines)| {
        let scores: Vec<_> = (0..columns).map(|c| score(key, &lines, c)).collect();
        (scores, (key, lines))
    });
    let scored: Vec<_> = scored.collect();
    let mut largest = vec![[1.0f64; 3]; columns];
    for (scores, _) in &scored {
        for (largest, score) in largest.iter_mut().flatten().zip(scores.iter().flatten()) {
            *largest = largest.max(*score);
        }
    }
    let highest_score = |scores: &[[f64; 3]]| -> f64 {
        let column_scores = scores.iter().zip(&largest).map(|(score, largest)| {
            let shares = score.iter().zip(largest).map(|(s, l)| s / l);
            shares.sum::<f64>()
        });
        column_scores.fold(0.0, f64::max)
    };
    let ranked = scored
        .into_iter()
        .map(|(scores, f)| (highest_score(&scores), f));
    let mut ranked: Vec<_> = ranked.collect();
    ranked.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.0.cmp(&b.1.0)));
    ranked.into_iter().map(|(_, function)| function).collect()
}

/// For each column, a list of `[line, flat, cum]`. In a comparison, the flat and cum of the base
/// follow.
type Rows = Vec<Vec<Vec<i128>>>;

fn rows(weights: &Weights, lines: &Lines, columns: usize, compared: bool) -> Rows {
    let row = |line: u32, flat: Weight, cum: Weight| {
        if compared {
            vec![line.into(), flat.plus, cum.plus, flat.minus, cum.minus]
        } else {
            vec![line.into(), flat.net(), cum.net()]
        }
    };
    let column = |c: usize| {
        let rows = lines.iter();
        rows.map(|(&line, &e)| row(line, weights.flat(e, c), weights.cum(e, c)))
            .collect()
    };
    (0..columns).map(column).collect()
}

/// Returns the value of each column. In a comparison, the value of the base follows.
fn pairs(weights: &[Weight], compared: bool) -> Vec<Vec<i128>> {
    let pair = |weight: &Weight| {
        if compared {
            vec![weight.plus, weight.minus]
        } else {
            vec![weight.net()]
        }
    };
    weights.iter().map(pair).collect()
}

/// A function with its lines.
#[derive(Default, Serialize)]
struct Function {
    name: String,
    file: String,
    /// Set for a function of the user's own code, as opposed to a library's.
    own: bool,
    /// Weights of stacks whose innermost own line is in the function; see [`pairs`].
    inner: Vec<Vec<i128>>,
    /// Number of the first line.
    first: u32,
    text: Vec<String>,
    weights: Rows,
}

/// Returns a function with its source text, without weights.
fn function(name: &str, file: &str, lines: &Lines, text: &str) -> Function {
    let numbers = || lines.keys().copied();
    let first = numbers().min().unwrap_or(1).saturating_sub(MARGIN).max(1);
    let last = numbers().max().unwrap_or(1).saturating_add(MARGIN);
    let count = (last - first + 1).min(MAX_LINES) as usize;
    let shown = text.lines().skip(first as usize - 1).take(count);
    let line = |line: &str| {
        let line = line.replace('\t', "    ");
        let start: String = line.trim_end().chars().take(MAX_LINE_LENGTH).collect();
        printable(&start).into_owned()
    };
    Function {
        name: printable(name).into_owned(),
        file: printable(file).into_owned(),
        first,
        text: shown.map(line).collect(),
        ..Function::default()
    }
}
