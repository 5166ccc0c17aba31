//! Tab with the threads, and the largest functions of each.

use std::borrow::Cow;

use super::tab::{Data, PageContext, ProfileKind, Tab, is_false, share};
use crate::breakdown::{self, Breakdown, Sums};
use crate::json;
use profile::printable::printable;
use serde::Serialize;

/// The tab of threads.
pub const TAB: Tab = Tab {
    script: include_str!("threads.js"),
    profiles: ProfileKind::All,
    data: Some(Data {
        key: "threads",
        json: object,
    }),
};

/// Maximum number of functions of a thread.
const MAX_FUNCTIONS: usize = 50;

#[derive(Serialize)]
struct Thread<'a> {
    name: String,
    /// Values, without those of a base.
    values: Vec<i64>,
    /// Values of the base in a comparison.
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Vec<i64>>,
    /// Half-widths of the 95 % confidence intervals of the values or, in a comparison, of their
    /// changes.
    errors: Vec<i64>,
    /// Share of the allocated objects that were short-lived.
    short: f64,
    /// Set if `short` rests on few samples.
    #[serde(skip_serializing_if = "is_false")]
    rough: bool,
    functions: Vec<Function<'a>>,
    left_out: usize,
}

#[derive(Serialize)]
struct Function<'a> {
    name: Cow<'a, str>,
    values: Vec<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Vec<i64>>,
}

fn object(page: &PageContext) -> String {
    let threads = breakdown::by_thread(&page.context.owners());
    let rows = threads.map(|threads| {
        let thread = |(name, owner): (String, Breakdown)| thread(page, &name, owner);
        threads.into_iter().map(thread).collect::<Vec<_>>()
    });
    json::embedded(&rows)
}

fn thread<'a>(page: &PageContext<'a>, name: &str, owner: Breakdown) -> Thread<'a> {
    let values = |sums: &Sums| -> Vec<i64> {
        let columns = page.columns.iter();
        // The sums of a comparison have the base subtracted.
        let without_base = |&c: &usize| {
            let base = if page.compared { sums.base[c] } else { 0 };
            sums.values[c].saturating_add(base)
        };
        columns.map(without_base).collect()
    };
    let base = |sums: &Sums| -> Option<Vec<i64>> {
        let columns = page.columns.iter();
        (page.compared).then(|| columns.map(|&c| sums.base[c]).collect())
    };
    let mut parts: Vec<(u32, Sums)> = owner.parts.into_iter().collect();
    let chosen = page.context.view.column();
    parts.sort_by_key(|(entry, sums)| (std::cmp::Reverse(sums.values[chosen].abs()), *entry));
    let left_out = parts.len().saturating_sub(MAX_FUNCTIONS);
    parts.truncate(MAX_FUNCTIONS);
    let function = |(entry, sums): &(u32, Sums)| Function {
        name: printable(page.context.nodes.name(*entry)),
        values: values(sums),
        base: base(sums),
    };
    Thread {
        name: printable(name).into_owned(),
        values: values(&owner.total),
        base: base(&owner.total),
        errors: page.columns.iter().map(|&c| owner.total.error(c)).collect(),
        short: share(owner.total.short_lived()),
        rough: owner.total.has_few_samples(),
        functions: parts.iter().map(function).collect(),
        left_out,
    }
}
