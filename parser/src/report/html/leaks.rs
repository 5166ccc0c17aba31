//! Leak suspects, for the page's table.

use std::fmt::Write;

use super::tab::{Data, PageContext, Tab};
use crate::report::context::Context;
use crate::report::flame::data::{list, quote};
use crate::suspects::{self, Suspect};
use heap_format::printable::printable;

/// The tab of leak suspects.
pub const TAB: Tab = Tab {
    script: include_str!("leaks.js"),
    data: Some(Data {
        key: "suspects",
        json: object,
    }),
};

/// Rows of the table.
const MOST: usize = 200;
/// Frames of a stack that are listed, from the allocating one on.
const MOST_FRAMES: usize = 40;

/// `duration` of the session in seconds or null, and `rows`, worst first;
/// without values in use `rows` is null.
fn object(page: &PageContext) -> String {
    let context = page.context;
    let profile = context.view.profile();
    let duration = (profile.facts.duration_ns).map(|ns| format!("{:.3}", ns as f64 / 1e9));
    let mut out = format!(
        "{{\"duration\":{},\"rows\":",
        duration.as_deref().unwrap_or("null")
    );
    let found = suspects::find(context.view, context.nodes, &context.series.moments);
    match found {
        Some(found) => list(&mut out, found.iter().take(MOST).map(|s| row(context, s))),
        None => out += "null",
    }
    out + "}"
}

fn row(context: &Context, suspect: &Suspect) -> String {
    let or_null = |value: Option<f64>| value.map_or("null".to_owned(), |v| whole(v).to_string());
    let samples = suspect.samples.map_or("null".to_owned(), |n| n.to_string());
    let mut out = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        out,
        "\n{{\"score\":{},\"bytes\":{},\"error\":{},\"objects\":{},\"samples\":{samples},\
         \"plain\":{},\"kept\":{},\"age\":{},\"lifetime\":{},\"growth\":",
        whole(suspect.score),
        whole(suspect.bytes),
        whole(suspect.error),
        whole(suspect.objects),
        whole(suspect.plain),
        (suspect.kept * 1e4).round() / 1e4,
        or_null(suspect.age),
        or_null(suspect.lifetime),
    );
    let _ = match &suspect.growth {
        Some(growth) => write!(
            out,
            "{{\"rate\":{},\"error\":{},\"verdict\":{}}}",
            whole(growth.rate),
            whole(growth.error),
            quote(growth.verdict.word()),
        ),
        None => write!(out, "null"),
    };
    out += ",\"stack\":";
    let names = suspect.entries.iter().take(MOST_FRAMES);
    list(
        &mut out,
        names.map(|&e| quote(&printable(context.nodes.name(e)))),
    );
    let more = suspect.entries.len().saturating_sub(MOST_FRAMES);
    let _ = write!(out, ",\"more\":{more}}}");
    out
}

/// A number of JSON, which knows neither infinity nor NaN.
fn whole(value: f64) -> f64 {
    if value.is_finite() {
        value.round()
    } else {
        0.0
    }
}
