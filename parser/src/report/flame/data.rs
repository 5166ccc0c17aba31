//! Data of the flame graph's script, as JSON.

use std::borrow::Cow;
use std::collections::HashMap;

use profile::merge::Base;
use profile::printable::printable;
use serde::Serialize;

use super::rule::WidthRule;
use super::size::MIN_SHARE;
use super::style;
use super::tree::{MERGED, MergedStack, ROOT, Tree};
use crate::json;
use crate::measure;
use crate::places::Places;
use crate::report::context::Context;
use crate::view::View;

/// Name index that stands for the root.
const ROOT_NAME: i64 = -1;
/// Name index that stands for merged small frames.
const SMALL_NAME: i64 = -2;

const MEMORY: [&str; 6] = ["B", "kB", "MB", "GB", "TB", "PB"];
const TIME: [&str; 5] = ["ns", "us", "ms", "s", "hrs"];

/// A column that the script can show.
pub struct Column {
    /// Index in the profile.
    pub index: usize,
    /// Values that count as 100 %.
    pub total: Totals,
}

/// Values that count as 100 %, for each rule of frame widths.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Totals {
    /// Width is the change.
    pub change: i128,
    /// Width is the larger one of before and after.
    pub larger: i128,
    /// Width is the present value.
    pub now: i128,
    /// Width is the base's value.
    pub base: i128,
}

impl Totals {
    /// Returns the same total for every rule.
    pub fn same(total: i64) -> Self {
        let total = i128::from(total);
        Self {
            change: total,
            larger: total,
            now: total,
            base: total,
        }
    }

    /// Returns the totals of a column. In a comparison, the profile must keep its base separate.
    pub fn of_column(context: &Context, column: usize, compared: bool) -> Self {
        let view = context.view;
        let base = view.with_column(column, true).total();
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
            now: view.with_column(column, false).total().into(),
            base,
        }
    }
}

/// Returns the sum of all changes, as if equal stacks had cancelled out.
fn all_changes(view: &View, column: usize) -> i128 {
    let mut changes: HashMap<&[u32], i128> = HashMap::new();
    let profile = view.profile();
    let stacks = profile.stacks.iter().enumerate();
    for (stack, frames) in stacks.filter(|&(stack, _)| view.counts_in_total(stack)) {
        *changes.entry(frames).or_default() += i128::from(profile.values_of(stack)[column]);
    }
    changes.values().map(|change| change.abs()).sum()
}

/// The tree with its names and columns.
#[derive(Serialize)]
struct FlameData<'a> {
    names: Vec<Cow<'a, str>>,
    /// File and line of each name, empty if unknown. Missing if all are unknown.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<String>,
    /// Style class of each name.
    tints: Vec<String>,
    /// Caller of each frame.
    parent: Vec<u32>,
    /// Name of each frame: index in `names`, or a negative constant.
    name: Vec<i64>,
    columns: Vec<ColumnData<'a>>,
    rule: &'static str,
    pruned: u64,
    limit: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    unseen: Option<MergedStacksData<'a>>,
}

/// The heaviest stacks of merged frames, for the search.
#[derive(Serialize)]
struct MergedStacksData<'a> {
    /// Names that no frame has. Their indices follow those of the frames' names.
    names: Vec<Cow<'a, str>>,
    /// Merged frame of each stack.
    frame: Vec<u32>,
    /// Indices of the names in each stack.
    held: Vec<Vec<u32>>,
    /// Values of the stacks in each column.
    columns: Vec<MergedStacksColumn>,
}

/// Values of stacks in a column.
#[derive(Serialize)]
struct MergedStacksColumn {
    plus: Vec<i128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    minus: Option<Vec<i128>>,
}

/// Returns the stacks that end in merged frames. `nodes` are the entries in `FlameData::names`.
fn merged_stacks<'a>(
    context: &Context<'a>,
    tree: &Tree,
    nodes: &[u32],
) -> Option<MergedStacksData<'a>> {
    if tree.merged_stacks.is_empty() {
        return None;
    }
    let mut numbers: HashMap<u32, u32> = nodes.iter().copied().zip(0..).collect();
    let mut names = Vec::new();
    let mut number = |&entry: &u32| {
        let next = numbers.len() as u32;
        *numbers.entry(entry).or_insert_with(|| {
            names.push(printable(context.nodes.name(entry)));
            next
        })
    };
    let entries = tree.merged_stacks.iter().map(|stack| &stack.entries);
    let held = entries
        .map(|entries| entries.iter().map(&mut number).collect())
        .collect();
    let column = |at: usize| {
        let values = |value_of: fn(&MergedStack, usize) -> i128| -> Vec<i128> {
            tree.merged_stacks
                .iter()
                .map(|stack| value_of(stack, at))
                .collect()
        };
        let minus = values(|stack, at| stack.weights[at].minus);
        MergedStacksColumn {
            plus: values(|stack, at| stack.weights[at].plus),
            minus: minus.iter().any(|value| *value != 0).then_some(minus),
        }
    };
    Some(MergedStacksData {
        frame: tree.merged_stacks.iter().map(|stack| stack.frame).collect(),
        held,
        columns: (0..tree.columns).map(column).collect(),
        names,
    })
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
    /// Sums of the absolute values that contribute to the variances, if there is a base.
    #[serde(skip_serializing_if = "Option::is_none")]
    turnover: Option<Vec<f64>>,
    /// Known total that the values are parts of.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<f64>,
}

/// Returns the tree with its names and columns, as a JSON object.
pub fn object(context: &Context, tree: &Tree, columns: &[Column], rule: WidthRule) -> String {
    let (nodes, numbers) = numbered_names(context, tree);
    let names: Vec<_> = nodes
        .iter()
        .map(|&node| printable(context.nodes.name(node)))
        .collect();
    let places = places(&Places::new(context.view, context.nodes), &nodes);
    let tint = |(name, &node): (&Cow<str>, &u32)| {
        style::name_class(name, context.nodes.entry(node).origin)
    };
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
        limit: MIN_SHARE,
        unseen: merged_stacks(context, tree, &nodes),
    })
}

/// Returns file and line of each entry, empty if unknown. Returns an empty list if all are unknown.
pub fn places(places: &Places, entries: &[u32]) -> Vec<String> {
    let place = |&entry| places.place_of(entry).unwrap_or_default();
    let all: Vec<String> = entries.iter().map(place).collect();
    if all.iter().all(String::is_empty) {
        return Vec::new();
    }
    all.iter().map(|p| printable(p).into_owned()).collect()
}

/// Returns the entries in the order in which frames first refer to them, and the index of each
/// frame's entry.
fn numbered_names(context: &Context, tree: &Tree) -> (Vec<u32>, Vec<i64>) {
    let mut entries: Vec<u32> = Vec::new();
    let mut number_of = vec![u32::MAX; context.nodes.count()];
    let numbers = (tree.frames.iter())
        .map(|frame| match frame.node {
            ROOT => ROOT_NAME,
            MERGED => SMALL_NAME,
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
    let self_weights = || (0..tree.frames.len()).map(|f| tree.self_weight(f, at));
    let has_decrease = self_weights().any(|w| w.minus != 0);
    let is_sampled = self_weights().any(|w| w.error.variance > 0.0);
    let is_change = !context.view.profile().errors.is_empty();
    let options = context.options;
    ColumnData {
        kind: &kind.kind,
        scales: scales(&kind.unit, &options.unit, options.divide_by),
        totals: column.total,
        plus: self_weights().map(|w| w.plus).collect(),
        minus: has_decrease.then(|| self_weights().map(|w| w.minus).collect()),
        variance: is_sampled.then(|| {
            self_weights()
                .map(|w| round_for_json(w.error.variance))
                .collect()
        }),
        turnover: (is_sampled && is_change).then(|| {
            self_weights()
                .map(|w| round_for_json(w.error.turnover))
                .collect()
        }),
        whole: whole(context, column.index).filter(|_| is_sampled),
    }
}

/// Returns the known total that the values of a column are parts of, if there is one.
fn whole(context: &Context, column: usize) -> Option<f64> {
    let whole = context.view.profile().wholes.get(column).copied();
    whole.filter(|whole| *whole > 0.0)
}

/// Rounds a variance or turnover to a relative precision of one thousandth.
pub fn round_for_json(value: f64) -> f64 {
    if value > 0.0 && value.is_finite() {
        format!("{value:.3e}").parse().unwrap_or(value)
    } else {
        0.0
    }
}

/// Returns the units that values may be shown in, smallest first: name and factor.
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
    let scale = |unit: &str| {
        let factor = if family.is_empty() {
            1.0
        } else {
            // A small unit is not an integer multiple of a large one, so this inverts the ratio.
            measure::scale(1, unit, &best).0 / measure::scale(1, from, &best).0
        };
        (measure::iec_name(unit).to_owned(), factor * divide_by)
    };
    units.into_iter().map(scale).collect()
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
