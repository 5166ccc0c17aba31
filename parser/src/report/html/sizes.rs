//! Tab with the sizes of objects, in total and by function.

use std::borrow::Cow;

use super::tab::{Data, PageContext, ProfileKind, Tab, is_false, share};
use crate::breakdown::{self, BySize, class_name};
use crate::json;
use profile::printable::printable;
use serde::Serialize;

/// The tab of sizes.
pub const TAB: Tab = Tab {
    script: include_str!("sizes.js"),
    profiles: ProfileKind::Memory,
    data: Some(Data {
        key: "sizes",
        json: object,
    }),
};

/// Maximum number of functions.
const MAX_FUNCTIONS: usize = 500;

#[derive(Serialize)]
struct Sizes<'a> {
    all: Vec<Row>,
    functions: Vec<Function<'a>>,
    left_out: usize,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    sizes: Vec<Row>,
}

/// A size class: its name, a value for each column, and the share of short-lived objects.
#[derive(Serialize)]
struct Row {
    class: u32,
    name: String,
    values: Vec<i64>,
    /// Half-width of each value's 95 % confidence interval.
    errors: Vec<i64>,
    short: f64,
    /// Set if `short` rests on few samples.
    #[serde(skip_serializing_if = "is_false")]
    rough: bool,
}

fn object(page: &PageContext) -> String {
    let view = page.context.view;
    let sizes = breakdown::by_size(view).map(|all| sizes(page, &all));
    json::embedded(&sizes)
}

fn sizes<'a>(page: &PageContext<'a>, all: &BySize) -> Sizes<'a> {
    let nodes = page.context.nodes;
    let mut functions: Vec<_> = breakdown::by_function(&page.context.owners())
        .into_iter()
        .collect();
    // Largest share of any column.
    let total = |c: usize| page.context.view.profile().total(c).max(1) as f64;
    let totals: Vec<f64> = page.columns.iter().map(|&c| total(c)).collect();
    let rank = |values: &[i64]| {
        let parts = page.columns.iter().zip(&totals);
        let part = parts.map(|(&c, total)| values[c].abs() as f64 / total);
        part.fold(0.0, f64::max)
    };
    functions.sort_by(|(a, left), (b, right)| {
        let order = rank(&right.total.values).total_cmp(&rank(&left.total.values));
        order.then(a.cmp(b))
    });
    let left_out = functions.len().saturating_sub(MAX_FUNCTIONS);
    functions.truncate(MAX_FUNCTIONS);
    let function = |(entry, owner): (u32, breakdown::Breakdown)| Function {
        name: printable(nodes.name(entry)),
        sizes: rows(page, &owner.parts),
    };
    Sizes {
        all: rows(page, all),
        functions: functions.into_iter().map(function).collect(),
        left_out,
    }
}

fn rows(page: &PageContext, sizes: &BySize) -> Vec<Row> {
    let row = |(&class, sums): (&u32, &breakdown::Sums)| Row {
        class,
        name: class_name(class),
        values: page.columns.iter().map(|&c| sums.values[c]).collect(),
        errors: page.columns.iter().map(|&c| sums.error(c)).collect(),
        short: share(sums.short_lived()),
        rough: sums.has_few_samples(),
    };
    sizes.iter().map(row).collect()
}
