//! Tab with short-lived objects, by function.

use std::borrow::Cow;

use super::tab::{Data, PageContext, ProfileKind, Tab, is_false, share};
use crate::breakdown::{self, Owner};
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

#[derive(Serialize)]
struct Row<'a> {
    name: Cow<'a, str>,
    short: f64,
    /// Half-width of the 95 % confidence interval of `short`.
    error: f64,
    share: f64,
    /// Set if `share` is of few samples.
    #[serde(skip_serializing_if = "is_false")]
    rough: bool,
    bytes: f64,
    lifetime: Option<f64>,
}

fn object(page: &PageContext) -> String {
    let view = page.context.view;
    let nodes = page.context.nodes;
    let known = view.profile().split_by_size_class && !page.compared;
    let rows = known.then(|| {
        let functions = breakdown::by_function(&page.context.owners()).into_iter();
        let mut rows: Vec<(u32, Owner)> = functions
            .filter(|(_, f)| f.all.detail.short_lived_objects >= 0.5)
            .collect();
        rows.sort_by(|(a, left), (b, right)| {
            let count = |owner: &Owner| owner.all.detail.short_lived_objects;
            count(right).total_cmp(&count(left)).then(a.cmp(b))
        });
        rows.truncate(MAX_ROWS);
        let row = |(entry, owner): (u32, Owner)| Row {
            name: printable(nodes.name(entry)),
            short: owner.all.detail.short_lived_objects.round(),
            error: half_width(
                owner.all.detail.short_lived_objects,
                owner.all.short_lived_variance,
            )
            .round(),
            share: share(owner.all.short_lived()),
            rough: owner.all.has_few_samples(),
            bytes: owner.all.detail.alloc_bytes.round(),
            lifetime: owner.all.lifetime().map(f64::round),
        };
        rows.into_iter().map(row).collect::<Vec<_>>()
    });
    json::embedded(&rows)
}
