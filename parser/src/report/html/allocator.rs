//! The allocator's own figures.

use std::fmt::Write;

use heap_format::printable::printable;

use super::tab::{Data, PageContext, Tab};
use crate::report::flame::data::{list, quote};

/// The tab of the allocator.
pub const TAB: Tab = Tab {
    script: include_str!("allocator.js"),
    data: Some(Data {
        key: "allocator",
        json: figures,
    }),
};

/// The allocator's figures in bytes, by name, and what the samples say is in
/// use; null without figures.
fn figures(page: &PageContext) -> String {
    let profile = page.context.view.profile();
    let figures = &profile.facts.allocator;
    if figures.is_empty() {
        return "null".to_owned();
    }
    let mut out = String::from("{\"sampled\":");
    let sampled = profile.type_index("inuse_space").map(|c| profile.total(c));
    let _ = write!(
        out,
        "{}",
        sampled.map_or("null".to_owned(), |s| s.to_string())
    );
    out.push_str(",\"figures\":");
    list(
        &mut out,
        figures
            .iter()
            .map(|(k, v)| format!("[{},{v}]", quote(&printable(k)))),
    );
    out + "}"
}
