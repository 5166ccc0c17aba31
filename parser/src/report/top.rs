//! The table of entries. Equal to `pprof -top`, but for the names of units.

use std::fmt::Write;

use super::context::Context;
use super::format::{Format, Needs};
use super::own;
use crate::graph::{Graph, Node};
use crate::measure::percentage;
use anyhow::Result;
use profile::printable::printable;
use profile::variance::SamplingError;

/// `-t`.
pub const FORMAT: Format = Format {
    short: Some('t'),
    alias: Some("text"),
    needs: Needs {
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report("top", "Table of functions, largest first", render)
};

/// Renders the table.
fn render(context: &Context) -> Result<String> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    let unit = context.common_unit(&trimmed);
    let total = context.view.total();
    let mut out = String::new();
    let mut lines = context.legend(&trimmed, &unit);
    let exact = !context.options.error_bars;
    lines.extend(context.sampling_error(&unit).filter(|_| exact));
    lines.extend(own::table_lines(context, &unit));
    for line in lines {
        out += &line;
        out.push('\n');
    }
    let values = trimmed.graph.nodes.iter().flat_map(|n| [n.flat, n.cum]);
    let width = context.width(values, &unit);
    // Writing to a string cannot fail, here and below.
    let _ = if exact {
        writeln!(
            out,
            "{:>width$}  flat%   sum% {:>width$}   cum%",
            "flat", "cum"
        )
    } else {
        writeln!(
            out,
            "{:>width$} {:>width$}  flat%   sum% {:>width$} {:>width$}   cum%",
            "flat", "\u{b1}", "cum", "\u{b1}"
        )
    };
    let error = |error: SamplingError| {
        if exact {
            String::new()
        } else {
            format!(" {:>width$}", context.format_error(error, &unit))
        }
    };
    let mut sum = 0i64;
    for node in &trimmed.graph.nodes {
        sum = sum.saturating_add(node.flat);
        let _ = writeln!(
            out,
            "{:>width$}{} {} {} {:>width$}{} {}  {}{}",
            context.format(node.flat, &unit),
            error(node.flat_error),
            percentage(node.flat, total),
            percentage(sum, total),
            context.format(node.cum, &unit),
            error(node.cum_error),
            percentage(node.cum, total),
            printable(context.nodes.name(node.id)),
            inlining(&trimmed.graph, node),
        );
    }
    Ok(out)
}

/// Describes whether an entry is inlined into all, some or none of its callers.
fn inlining(graph: &Graph, node: &Node) -> &'static str {
    let inline = |&e: &u32| graph.edges[e as usize].inline;
    match (node.ins.iter().any(inline), node.ins.iter().all(inline)) {
        (false, _) => "",
        (true, true) => " (inline)",
        (true, false) => " (partial-inline)",
    }
}
