//! Leak suspects, for the page's table.

use std::borrow::Cow;

use super::tab::{Data, Of, PageContext, Tab, share};
use crate::json;
use crate::report::context::Context;
use crate::suspects::{self, Suspect};
use crate::untracked;
use heap_format::printable::printable;
use serde::Serialize;

/// The tab of leak suspects.
pub const TAB: Tab = Tab {
    script: include_str!("leaks.js"),
    of: Of::Memory,
    data: Some(Data {
        key: "suspects",
        json: object,
    }),
};

/// Rows of the table.
const MOST: usize = 200;
/// Frames of a stack that are listed, from the allocating one on.
const MOST_FRAMES: usize = 40;

/// The suspects, worst first.
#[derive(Serialize)]
struct Suspects<'a> {
    /// Length of the session in seconds.
    duration: Option<f64>,
    /// `None` without values in use.
    rows: Option<Vec<Row<'a>>>,
    /// What the values in use do not hold.
    #[serde(skip_serializing_if = "Option::is_none")]
    untracked: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    score: f64,
    bytes: f64,
    error: f64,
    objects: f64,
    samples: Option<u64>,
    plain: f64,
    kept: f64,
    age: Option<f64>,
    lifetime: Option<f64>,
    growth: Option<GrowthRow>,
    site: Option<SiteRow>,
    stack: Vec<Cow<'a, str>>,
    /// Number of further frames of the stack.
    more: usize,
}

/// The user's own line that allocates; name and file as the source tab has them.
#[derive(Serialize)]
struct SiteRow {
    short: String,
    name: String,
    file: String,
    line: u32,
}

#[derive(Serialize)]
struct GrowthRow {
    rate: f64,
    error: f64,
    verdict: &'static str,
}

fn object(page: &PageContext) -> String {
    let context = page.context;
    let duration = context.view.profile().facts.duration_ns;
    let found = suspects::find(context.view, context.nodes, &context.series.moments);
    let rows = |found: &Vec<Suspect>| found.iter().take(MOST).map(|s| row(context, s)).collect();
    json::embedded(&Suspects {
        duration: duration.map(|ns| (ns as f64 / 1e6).round() / 1e3),
        rows: found.as_ref().map(rows),
        untracked: untracked::remark(context.view.profile()),
    })
}

fn row<'a>(context: &Context<'a>, suspect: &Suspect) -> Row<'a> {
    let names = suspect.entries.iter().take(MOST_FRAMES);
    Row {
        score: whole(suspect.score),
        bytes: whole(suspect.bytes),
        error: whole(suspect.error),
        objects: whole(suspect.objects),
        samples: suspect.samples,
        plain: whole(suspect.plain),
        kept: share(suspect.kept),
        age: suspect.age.map(whole),
        lifetime: suspect.lifetime.map(whole),
        growth: suspect.growth.as_ref().map(|growth| GrowthRow {
            rate: whole(growth.rate),
            error: whole(growth.error),
            verdict: growth.verdict.word(),
        }),
        site: suspect.site.as_ref().map(|site| SiteRow {
            short: printable(&site.short()).into_owned(),
            name: printable(&site.function).into_owned(),
            file: printable(&site.file).into_owned(),
            line: site.line,
        }),
        stack: names.map(|&e| printable(context.nodes.name(e))).collect(),
        more: suspect.entries.len().saturating_sub(MOST_FRAMES),
    }
}

/// A number of JSON, which knows neither infinity nor NaN.
fn whole(value: f64) -> f64 {
    if value.is_finite() {
        value.round()
    } else {
        0.0
    }
}
