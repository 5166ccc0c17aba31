//! The table of functions.

use super::tab::{Data, PageContext, Tab};
use super::weights::Weights;
use crate::report::flame::data::{brief, list, quote};
use crate::report::flame::tree::Weight;
use heap_format::printable::printable;

/// The tab of functions.
pub const TAB: Tab = Tab {
    script: include_str!("functions.js"),
    data: Some(Data {
        key: "functions",
        json: object,
    }),
};

/// More rows than anybody reads.
const MOST: usize = 20_000;

/// The functions with what they hold: `names`, `left_out`, and for each column
/// `flat` and `cum`, their variances where known, with `flat_base` and `cum_base` in a comparison.
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
    // How large an entry is where it is largest.
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
    let left_out = ranked.len().saturating_sub(MOST);
    ranked.truncate(MOST);
    let mut out = String::from("{\"names\":");
    let names = ranked
        .iter()
        .map(|&(_, e)| quote(&printable(context.nodes.name(e))));
    list(&mut out, names);
    out.push_str(&format!(",\"left_out\":{left_out},\"columns\":"));
    let column = |c: usize| {
        let mut out = String::from("\n{\"flat\":");
        list(
            &mut out,
            ranked.iter().map(|&(_, e)| weights.flat(e, c).plus),
        );
        out.push_str(",\"cum\":");
        list(
            &mut out,
            ranked.iter().map(|&(_, e)| weights.cum(e, c).plus),
        );
        let varied = |&(_, e): &(f64, u32)| weights.cum(e, c).variance > 0.0;
        if ranked.iter().any(varied) {
            let flat = ranked
                .iter()
                .map(|&(_, e)| brief(weights.flat(e, c).variance));
            let cum = ranked
                .iter()
                .map(|&(_, e)| brief(weights.cum(e, c).variance));
            out.push_str(",\"flat_variance\":");
            list(&mut out, flat);
            out.push_str(",\"cum_variance\":");
            list(&mut out, cum);
        }
        let less = |&(_, e): &(f64, u32)| weights.cum(e, c).minus != 0;
        if compared || ranked.iter().any(less) {
            out.push_str(",\"flat_base\":");
            list(
                &mut out,
                ranked.iter().map(|&(_, e)| weights.flat(e, c).minus),
            );
            out.push_str(",\"cum_base\":");
            list(
                &mut out,
                ranked.iter().map(|&(_, e)| weights.cum(e, c).minus),
            );
        }
        out + "}"
    };
    list(&mut out, (0..columns.len()).map(column));
    out + "}"
}
