//! Entries with their callers and callees. Equal to `pprof -tree` and `pprof -peek`, except for
//! the names of units.

use std::fmt::Write;

use anyhow::{Result, bail};
use regex::Regex;

use super::context::Context;
use super::format::{Format, Needs};
use crate::graph::{Edge, Graph, Node};
use crate::measure::percentage;
use crate::nearest;
use profile::printable::printable;

/// `--tree`.
pub const FORMAT: Format = Format {
    needs: Needs {
        trim: Some(80),
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report("tree", "Functions with their callers and callees", render)
};

/// Width of an entry's columns with the gap behind them, in characters.
const COLUMNS_WIDTH: usize = 58;
const SEPARATOR: &str =
    "----------------------------------------------------------+-------------\n";

fn render(context: &Context) -> Result<String> {
    table(context, None)
}

/// Renders all entries, or those whose names match the pattern.
pub fn table(context: &Context, pattern: Option<&Regex>) -> Result<String> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    let unit = context.common_unit(&trimmed);
    let mut out = String::new();
    let legend = context.legend(&trimmed, &unit);
    for line in legend.into_iter().chain(context.sampling_error(&unit)) {
        out += &line;
        out.push('\n');
    }
    out += SEPARATOR;
    let values = trimmed.graph.nodes.iter().flat_map(|n| [n.flat, n.cum]);
    let printer = Printer {
        context,
        graph: &trimmed.graph,
        width: context.width(values, &unit),
        unit,
    };
    let width = printer.width;
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        out,
        "{:>width$}  flat%   sum% {:>width$}   cum%{:gap$} calls calls% + context \t \t ",
        "flat",
        "cum",
        "",
        gap = printer.gap().saturating_sub(14),
    );
    let mut sum = 0i64;
    let mut matched = false;
    for node in &trimmed.graph.nodes {
        if pattern.is_some_and(|pattern| !pattern.is_match(context.nodes.name(node.id))) {
            continue;
        }
        matched = true;
        sum = sum.saturating_add(node.flat);
        printer.entry(&mut out, node, sum);
    }
    if let (Some(pattern), false) = (pattern, matched) {
        let names = trimmed.graph.nodes.iter();
        let names = names.map(|n| context.nodes.name(n.id));
        let hint = nearest::function_hint(pattern.as_str(), names);
        bail!("no function matches {pattern}{hint}");
    }
    if !trimmed.graph.nodes.is_empty() {
        out += SEPARATOR;
    }
    Ok(out)
}

struct Printer<'a> {
    context: &'a Context<'a>,
    graph: &'a Graph,
    unit: String,
    /// Width of a column of values, in characters.
    width: usize,
}

impl Printer<'_> {
    /// Returns the number of spaces between an entry's columns and the bar before its name.
    fn gap(&self) -> usize {
        /// Width of the three percentages and of the spaces between the columns, in characters.
        const PERCENTAGES_WIDTH: usize = 22;
        COLUMNS_WIDTH.saturating_sub(PERCENTAGES_WIDTH + 2 * self.width)
    }

    fn entry(&self, out: &mut String, node: &Node, sum: i64) {
        let Printer {
            context,
            graph,
            unit,
            width,
        } = self;
        let total = context.view.total();
        *out += SEPARATOR;
        for edge in graph.sorted_edges(&node.ins, context.nodes) {
            let edge = &graph.edges[edge as usize];
            self.call(out, edge, edge.from, node.cum);
        }
        let _ = writeln!(
            out,
            "{:>width$} {} {} {:>width$} {}{:gap$}| {}",
            context.format(node.flat, unit),
            percentage(node.flat, total),
            percentage(sum, total),
            context.format(node.cum, unit),
            percentage(node.cum, total),
            "",
            printable(context.nodes.name(node.id)),
            gap = self.gap(),
        );
        for edge in graph.sorted_edges(&node.outs, context.nodes) {
            let edge = &graph.edges[edge as usize];
            self.call(out, edge, edge.to, node.cum);
        }
    }

    fn call(&self, out: &mut String, edge: &Edge, other: u32, cum: i64) {
        let name = self.context.nodes.name(self.graph.id(other));
        let _ = writeln!(
            out,
            "{:>50} {} |   {}{}",
            self.context.format(edge.weight, &self.unit),
            percentage(edge.weight, cum),
            printable(name),
            if edge.inline { " (inline)" } else { "" },
        );
    }
}
