//! Tab with the table of functions.

use std::borrow::Cow;

use super::tab::{Data, PageContext, ProfileKind, Tab};
use super::weights::Weights;
use crate::json;
use crate::places::Places;
use crate::report::context::Context;
use crate::report::flame::data::{places, round_for_json};
use crate::report::flame::tree::Weight;
use crate::report::own;
use profile::printable::printable;
use serde::Serialize;

/// The tab of functions.
pub const TAB: Tab = Tab {
    script: include_str!("functions.js"),
    profiles: ProfileKind::All,
    data: Some(Data {
        key: "functions",
        json: object,
    }),
};

/// Maximum number of rows.
const MAX_ROWS: usize = 20_000;

/// Returns the functions with their values, largest first.
fn object(page: &PageContext) -> String {
    let PageContext {
        context,
        columns,
        compared,
    } = *page;
    let weights = Weights::new(context.view, context.nodes, columns);
    let size = |w: Weight| w.plus + w.minus;
    let totals: Vec<f64> = (0..columns.len())
        .map(|c| {
            let all = (0..context.nodes.count() as u32).map(|e| size(weights.flat(e, c)));
            all.sum::<i128>().max(1) as f64
        })
        .collect();
    // Largest share of any column.
    let rank = |e: u32| {
        let part = |(c, total): (usize, &f64)| size(weights.cum(e, c)) as f64 / total;
        totals.iter().enumerate().map(part).fold(0.0, f64::max)
    };
    let mut ranked: Vec<(f64, u32)> = (0..context.nodes.count() as u32)
        .map(|e| (rank(e), e))
        .filter(|(rank, _)| *rank > 0.0)
        .collect();
    ranked.sort_by(|a, b| {
        let name = |e: u32| context.nodes.name(e);
        (b.0.total_cmp(&a.0)).then_with(|| name(a.1).cmp(name(b.1)))
    });
    let left_out = ranked.len().saturating_sub(MAX_ROWS);
    ranked.truncate(MAX_ROWS);
    let entries: Vec<u32> = ranked.iter().map(|&(_, e)| e).collect();
    let names = ranked
        .iter()
        .map(|&(_, e)| printable(context.nodes.name(e)));
    let column = |c: usize| Column::new(&weights, &ranked, c, compared);
    let own = |&column: &usize| own_lines(context, column, compared);
    json::embedded(&Functions {
        own: columns.iter().map(own).collect(),
        names: names.collect(),
        places: places(&Places::new(context.view, context.nodes), &entries),
        left_out,
        columns: (0..columns.len()).map(column).collect(),
    })
}

fn own_lines(context: &Context, column: usize, compared: bool) -> Vec<OwnRow> {
    let view = context.view.with_column(column, compared);
    let context = Context {
        view: &view,
        ..*context
    };
    let lines = own::largest_lines(&context).into_iter();
    lines
        .map(|line| OwnRow {
            value: line.value,
            text: line.format(true),
            full: line.format(false),
        })
        .collect()
}

/// A line of the user's own code.
#[derive(Serialize)]
struct OwnRow {
    value: i64,
    text: String,
    /// `text` with the whole path.
    full: String,
}

#[derive(Serialize)]
struct Functions<'a> {
    /// Largest own lines of each column; in a comparison, those that have changed most.
    own: Vec<Vec<OwnRow>>,
    names: Vec<Cow<'a, str>>,
    /// Files and lines, in the format of the flame graph.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    places: Vec<String>,
    left_out: usize,
    columns: Vec<Column>,
}

/// Flat and cum of all functions, with their variances if known; in a comparison also the values of
/// the base, and the turnovers ([`SamplingError`](profile::variance::SamplingError)).
#[derive(Serialize)]
struct Column {
    flat: Vec<i128>,
    cum: Vec<i128>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat_variance: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cum_variance: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat_turnover: Option<Vec<f64>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cum_turnover: Option<Vec<f64>>,
    /// Known total that the values are parts of.
    #[serde(skip_serializing_if = "Option::is_none")]
    whole: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    flat_base: Option<Vec<i128>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cum_base: Option<Vec<i128>>,
}

impl Column {
    fn new(weights: &Weights, ranked: &[(f64, u32)], c: usize, compared: bool) -> Self {
        let flat = || ranked.iter().map(|&(_, e)| weights.flat(e, c));
        let cum = || ranked.iter().map(|&(_, e)| weights.cum(e, c));
        let has_variance = cum().any(|w| w.error.variance > 0.0);
        let with_base = compared || cum().any(|w| w.minus != 0);
        let whole = cum().map(|w| w.error.whole).fold(0.0, f64::max);
        Self {
            flat: flat().map(|w| w.plus).collect(),
            cum: cum().map(|w| w.plus).collect(),
            flat_variance: has_variance
                .then(|| flat().map(|w| round_for_json(w.error.variance)).collect()),
            cum_variance: has_variance
                .then(|| cum().map(|w| round_for_json(w.error.variance)).collect()),
            flat_turnover: (has_variance && with_base)
                .then(|| flat().map(|w| round_for_json(w.error.turnover)).collect()),
            cum_turnover: (has_variance && with_base)
                .then(|| cum().map(|w| round_for_json(w.error.turnover)).collect()),
            whole: (has_variance && whole > 0.0).then(|| round_for_json(whole)),
            flat_base: with_base.then(|| flat().map(|w| w.minus).collect()),
            cum_base: with_base.then(|| cum().map(|w| w.minus).collect()),
        }
    }
}
