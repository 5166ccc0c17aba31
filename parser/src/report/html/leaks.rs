//! Tab with leak suspects.

use std::borrow::Cow;

use super::tab::{Data, PageContext, ProfileKind, Tab, is_false, share};
use crate::json;
use crate::report::context::Context;
use crate::suspects::{self, Found, Suspect};
use crate::untracked;
use profile::printable::printable;
use serde::Serialize;

/// The tab of leak suspects.
pub const TAB: Tab = Tab {
    script: include_str!("leaks.js"),
    profiles: ProfileKind::Memory,
    data: Some(Data {
        key: "suspects",
        json: object,
    }),
};

/// Maximum number of rows.
const MAX_ROWS: usize = 200;
/// Maximum number of frames of a stack, innermost first.
const MAX_FRAMES: usize = 40;

/// The suspects, worst first.
#[derive(Serialize)]
struct Suspects<'a> {
    /// Duration of the session, in seconds.
    duration: Option<f64>,
    /// Rows; `None` without live values.
    rows: Option<Vec<Row<'a>>>,
    /// Number of suspects that are not listed.
    left_out: usize,
    /// Remark on objects that live values do not contain.
    #[serde(skip_serializing_if = "Option::is_none")]
    untracked: Option<String>,
}

#[derive(Serialize)]
struct Row<'a> {
    score: f64,
    bytes: f64,
    /// Half-width of the 95 % confidence interval of `bytes`.
    error: f64,
    objects: f64,
    samples: Option<u64>,
    /// Score if growth is ignored, in bytes.
    plain: f64,
    /// Live share of the allocated bytes.
    kept: f64,
    /// Set if `kept` rests on few samples.
    #[serde(skip_serializing_if = "is_false")]
    rough: bool,
    /// Mean age of live objects, in milliseconds.
    age: Option<f64>,
    /// Half-width of the 95 % confidence interval of `age`, if known.
    age_error: Option<f64>,
    /// Mean lifetime of freed objects, in milliseconds.
    lifetime: Option<f64>,
    growth: Option<GrowthRow>,
    site: Option<SiteRow>,
    stack: Vec<Cow<'a, str>>,
    /// Number of further frames.
    more: usize,
}

/// Line of the user's own code that allocates. Has the name and file that the source tab shows.
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

/// Returns the data of the tab as JSON.
fn object(page: &PageContext) -> String {
    let context = page.context;
    let duration = context.view.profile().facts.duration_ns;
    let found = suspects::find(context.view, context.nodes, &context.series.moments);
    let rows = |found: &Found| {
        let suspects = found.suspects.iter();
        suspects.take(MAX_ROWS).map(|s| row(context, s)).collect()
    };
    json::embedded(&Suspects {
        duration: duration.map(|ns| (ns as f64 / 1e6).round() / 1e3),
        rows: found.as_ref().map(rows),
        left_out: (found.as_ref()).map_or(0, |found| found.stacks().saturating_sub(MAX_ROWS)),
        untracked: untracked::remark(context.view.profile()),
    })
}

fn row<'a>(context: &Context<'a>, suspect: &Suspect) -> Row<'a> {
    let names = suspect.entries.iter().take(MAX_FRAMES);
    Row {
        score: round(suspect.score),
        bytes: round(suspect.bytes),
        error: round(suspect.error),
        objects: round(suspect.objects),
        samples: suspect.samples,
        plain: round(suspect.score_without_growth),
        kept: share(suspect.kept),
        rough: suspect.has_few_samples,
        age: suspect.age.map(round),
        age_error: suspect.age_error.map(f64::ceil),
        lifetime: suspect.lifetime.map(round),
        growth: suspect.growth.as_ref().map(|growth| GrowthRow {
            rate: round(growth.rate),
            error: round(growth.error),
            verdict: growth.verdict.word(),
        }),
        site: suspect.site.as_ref().map(|site| SiteRow {
            short: printable(&site.short()).into_owned(),
            name: printable(&site.function).into_owned(),
            file: printable(&site.file).into_owned(),
            line: site.line,
        }),
        stack: names.map(|&e| printable(context.nodes.name(e))).collect(),
        more: suspect.entries.len().saturating_sub(MAX_FRAMES),
    }
}

/// Rounds to an integer. Returns 0 for infinity and NaN, which JSON cannot represent.
fn round(value: f64) -> f64 {
    if value.is_finite() {
        value.round()
    } else {
        0.0
    }
}
