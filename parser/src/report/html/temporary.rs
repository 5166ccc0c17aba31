//! Tab with short-lived objects, by function.

use std::borrow::Cow;

use super::tab::{Data, PageContext, ProfileKind, Tab, is_false, share};
use crate::breakdown::{self, Breakdown};
use crate::json;
use profile::printable::printable;
use profile::variance::half_width;
use serde::Serialize;

/// The tab of short-lived objects.
pub const TAB: Tab = Tab {
    script: include_str!("temporary.js"),
    profiles: ProfileKind::Memory,
    data: Some(Data {
        key: "temporary",
        json: object,
    }),
};

/// Maximum number of rows.
const MAX_ROWS: usize = 500;

/// The functions, those with most short-lived objects first.
#[derive(Serialize)]
struct Temporary<'a> {
    rows: Vec<Row<'a>>,
    /// Number of functions that are not listed.
    left_out: usize,
}

#[derive(Serialize)]
struct Row<'a> {
    name: Cow<'a, str>,
    /// Number of short-lived objects.
    short: f64,
    /// Half-width of the 95 % confidence interval of `short`.
    error: f64,
    /// Share of the allocated objects that were short-lived.
    share: f64,
    /// Set if `share` rests on few samples.
    #[serde(skip_serializing_if = "is_false")]
    rough: bool,
    bytes: f64,
    lifetime: Option<f64>,
}

fn object(page: &PageContext) -> String {
    let view = page.context.view;
    let nodes = page.context.nodes;
    let known = view.profile().split_by_size_class && !page.compared;
    let temporary = known.then(|| {
        let functions = breakdown::by_function(&page.context.owners()).into_iter();
        let mut rows: Vec<(u32, Breakdown)> = functions
            .filter(|(_, f)| f.total.detail.short_lived_objects >= 0.5)
            .collect();
        rows.sort_by(|(a, left), (b, right)| {
            let count = |owner: &Breakdown| owner.total.detail.short_lived_objects;
            count(right).total_cmp(&count(left)).then(a.cmp(b))
        });
        let left_out = rows.len().saturating_sub(MAX_ROWS);
        rows.truncate(MAX_ROWS);
        let row = |(entry, owner): (u32, Breakdown)| Row {
            name: printable(nodes.name(entry)),
            short: owner.total.detail.short_lived_objects.round(),
            error: half_width(
                owner.total.detail.short_lived_objects,
                owner.total.short_lived_variance,
            )
            .round(),
            share: share(owner.total.short_lived()),
            rough: owner.total.has_few_samples(),
            bytes: owner.total.detail.alloc_bytes.round(),
            lifetime: owner.total.lifetime().map(f64::round),
        };
        Temporary {
            rows: rows.into_iter().map(row).collect(),
            left_out,
        }
    });
    json::embedded(&temporary)
}
