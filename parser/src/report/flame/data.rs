//! Data of the script, as JSON.

use std::borrow::Cow;
use std::collections::HashMap;

use heap_format::merge::Base;
use heap_format::printable::printable;
use serde::Serialize;

use super::rule::Rule;
use super::size::LIMIT;
use super::style;
use super::tree::{ROOT, SMALL, Tree};
use crate::json;
use crate::measure;
use crate::places::Places;
use crate::report::context::Context;
use crate::view::View;

/// Number of a name that stands for the root.
const ALL: i64 = -1;
/// Number of a name that stands for merged small frames.
const FEW: i64 = -2;

const MEMORY: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
const TIME: [&str; 5] = ["ns", "us", "ms", "s", "hrs"];

/// A column as the script shows it.
pub struct Column {
    /// Index in the profile.
    pub index: usize,
    /// 100 %.
    pub total: Totals,
}

/// 100 % under each rule of how wide a frame is.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// As wide as the change.
    pub change: i128,
    /// As wide as the larger one of before and after.
    pub larger: i128,
    /// Weight that is there now.
    pub now: i128,
    /// Weight that was in the base.
    pub base: i128,
}

impl Totals {
    /// The same under every rule.
    pub fn same(total: i64) -> Self {
        let total = i128::from(total);
        Self {
            change: total,
            larger: total,
            now: total,
            base: total,
        }
    }

    /// The totals of a column, of a profile that keeps its base apart if it
    /// is a comparison.
    pub fn of_column(context: &Context, column: usize, compared: bool) -> Self {
        let view = context.view;
        let base = view.of_column(column, true).total();
        if !compared {
            return Self::same(base);
        }
        let base = i128::from(base);
        Self {
            change: match context.base_rule {
                Base::Difference => all_changes(view, column),
                Base::Comparison => base,
            },
            larger: base,
            now: view.of_column(column, false).total().into(),
            base,
        }
    }
}

/// The sum of what changed, as if equal stacks had cancelled out.
fn all_changes(view: &View, column: usize) -> i128 {
    let mut changes: HashMap<&[u32], i128> = HashMap::new();
    let profile = view.profile();
    let stacks = profile.stacks.iter().enumerate();
    for (stack, frames) in stacks.filter(|&(stack, _)| view.is_of_total(stack)) {
        *changes.entry(frames).or_default() += i128::from(profile.values_of(stack)[column]);
    }
    changes.values().map(|change| change.abs()).sum()
}

/// The tree with its names and columns.
#[derive(Serialize)]
struct FlameData<'a> {
    names: Vec<Cow<'a, str>>,
    /// File and line of each name, empty where unknown; none at all if all are.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<String>,
    tints: Vec<String>,
    parent: Vec<u32>,
    name: Vec<i64>,
    columns: Vec<ColumnData<'a>>,
    rule: &'static str,
    pruned: u64,
    limit: f64,
}

/// A column of the tree.
#[derive(Serialize)]
struct ColumnData<'a> {
    kind: &'a str,
    scales: Vec<(String, f64)>,
    totals: Totals,
    plus: Vec<i128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minus: Option<Vec<i128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    variance: Option<Vec<f64>>,
}

/// The tree with its names and columns, as a JSON object.
pub fn object(context: &Context, tree: &Tree, columns: &[Column], rule: Rule) -> String {
    let (nodes, numbers) = numbered_names(context, tree);
    let names: Vec<_> = nodes
        .iter()
        .map(|&node| printable(context.nodes.name(node)))
        .collect();
    let places = places(&Places::new(context.view, context.nodes), &nodes);
    let tint =
        |(name, &node): (&Cow<str>, &u32)| style::tint(name, context.nodes.info(node).origin);
    let column = |(at, column)| self::column(context, tree, at, column);
    json::embedded(&FlameData {
        tints: names.iter().zip(&nodes).map(tint).collect(),
        names,
        places,
        parent: tree.frames.iter().map(|f| f.parent).collect(),
        name: numbers,
        columns: columns.iter().enumerate().map(column).collect(),
        rule: rule.name(),
        pruned: tree.pruned,
        limit: LIMIT,
    })
}

/// File and line of each of these entries, empty where unknown; an empty list if all are.
pub fn places(places: &Places, entries: &[u32]) -> Vec<String> {
    let place = |&entry| places.of(entry).unwrap_or_default();
    let all: Vec<String> = entries.iter().map(place).collect();
    if all.iter().all(String::is_empty) {
        return Vec::new();
    }
    all.iter().map(|p| printable(p).into_owned()).collect()
}

/// The entries in the order in which the frames name them first, and each frame's number there.
fn numbered_names(context: &Context, tree: &Tree) -> (Vec<u32>, Vec<i64>) {
    let mut entries: Vec<u32> = Vec::new();
    let mut number_of = vec![u32::MAX; context.nodes.count()];
    let numbers = (tree.frames.iter())
        .map(|frame| match frame.node {
            ROOT => ALL,
            SMALL => FEW,
            node => {
                let number = &mut number_of[node as usize];
                if *number == u32::MAX {
                    *number = entries.len() as u32;
                    entries.push(node);
                }
                i64::from(*number)
            }
        })
        .collect();
    (entries, numbers)
}

fn column<'a>(context: &Context<'a>, tree: &Tree, at: usize, column: &Column) -> ColumnData<'a> {
    let kind = &context.view.profile().sample_types[column.index];
    let own = || (0..tree.frames.len()).map(|f| tree.own(f, at));
    let options = context.options;
    ColumnData {
        kind: &kind.kind,
        scales: scales(&kind.unit, &options.unit, options.divide_by),
        totals: column.total,
        plus: own().map(|w| w.plus).collect(),
        minus: (own().any(|w| w.minus != 0)).then(|| own().map(|w| w.minus).collect()),
        variance: (own().any(|w| w.variance > 0.0))
            .then(|| own().map(|w| brief(w.variance)).collect()),
    }
}

/// A variance with as many digits as are useful: a thousandth of itself.
pub fn brief(variance: f64) -> f64 {
    if variance > 0.0 && variance.is_finite() {
        format!("{variance:.3e}").parse().unwrap_or(variance)
    } else {
        0.0
    }
}

/// Units that values may be shown in, smallest first: name and factor.
pub fn scales(from: &str, to: &str, divide_by: f64) -> Vec<(String, f64)> {
    let best = measure::scale(1, from, "minimum").1;
    let family: &[&str] = [&MEMORY[..], &TIME[..]]
        .into_iter()
        .find(|units| units.contains(&best.as_str()))
        .unwrap_or(&[]);
    let fixed = measure::scale(1, from, to).1;
    let units: Vec<&str> = match to {
        _ if family.is_empty() => vec![&fixed],
        "minimum" | "auto" => family.to_vec(),
        _ => vec![&fixed],
    };
    let one = |unit: &str| {
        let factor = if family.is_empty() {
            1.0
        } else {
            // Small units have no whole number of large ones, so ask the other way.
            measure::scale(1, unit, &best).0 / measure::scale(1, from, &best).0
        };
        (measure::own_name(unit).to_owned(), factor * divide_by)
    };
    units.into_iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_those_of_the_column() {
        let bytes = scales("bytes", "minimum", 1.0);
        let first = [("B", 1.0), ("KiB", 1024.0), ("MiB", 1_048_576.0)];
        assert_eq!(
            bytes[..3],
            first.map(|(unit, factor)| (unit.to_owned(), factor))
        );
        let one = |unit: &str, factor| vec![(unit.to_owned(), factor)];
        assert_eq!(scales("bytes", "MB", 1.0), one("MiB", 1_048_576.0));
        assert_eq!(scales("bytes", "KiB", 2.0), one("KiB", 2048.0));
        assert_eq!(scales("count", "minimum", 1.0), one("", 1.0));
        let times = scales("nanoseconds", "minimum", 1.0);
        assert_eq!(times[1], ("us".to_owned(), 1000.0));
    }
}
