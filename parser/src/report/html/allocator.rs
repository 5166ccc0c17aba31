//! The allocator's own figures.

use std::borrow::Cow;

use heap_format::printable::printable;
use serde::Serialize;

use super::tab::{Data, Of, PageContext, Tab};
use crate::json;

/// The tab of the allocator.
pub const TAB: Tab = Tab {
    script: include_str!("allocator.js"),
    of: Of::Memory,
    data: Some(Data {
        key: "allocator",
        json: figures,
    }),
};

/// The figures in bytes, by name, and the bytes in use by the samples.
#[derive(Serialize)]
struct Allocator<'a> {
    sampled: Option<i64>,
    figures: Vec<(Cow<'a, str>, u64)>,
}

fn figures(page: &PageContext) -> String {
    let profile = page.context.view.profile();
    let figures = &profile.facts.allocator;
    let allocator = (!figures.is_empty()).then(|| Allocator {
        sampled: profile.type_index("inuse_space").map(|c| profile.total(c)),
        figures: figures.iter().map(|(k, &v)| (printable(k), v)).collect(),
    });
    json::embedded(&allocator)
}
