//! The call graph as a picture.

use super::context::Context;
use super::format::{Format, Needs};
use super::own;
use super::sampling;
use crate::graph::{Graph, Trimmed};
use crate::measure::{self, Style, percentage};
use crate::nodes::Entry;
use crate::places::Places;
use crate::series::Totals;
use anyhow::Result;
use profile::printable::printable;
use profile::variance::SamplingError;

/// `-s`.
pub const FORMAT: Format = Format {
    short: Some('s'),
    extension: Some("svg"),
    style: Style::Own,
    needs: Needs {
        variance: true,
        ..Needs::GRAPH
    },
    ..Format::report("svg", "Call graph as SVG", render)
};

/// Renders the picture as SVG.
fn render(context: &Context) -> Result<String> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    Ok(callgraph::render(&picture(context, &trimmed)))
}

/// Returns the graph to draw.
pub fn picture(context: &Context, trimmed: &Trimmed) -> callgraph::Graph {
    let unit = context.common_unit(trimmed);
    let graph = &trimmed.graph;
    let places = Places::new(context.view, context.nodes);
    let nodes = graph
        .nodes
        .iter()
        .map(|node| drawn_node(context, &places, node, &unit))
        .collect();
    let edges = graph
        .connected_edges()
        .map(|edge| drawn_edge(context, graph, &graph.edges[edge as usize], &unit))
        .collect();
    callgraph::Graph {
        title: title(context, trimmed, &unit),
        nodes,
        edges,
        total: context.view.total() as f64,
    }
}

/// Returns the lines of the legend, with all values in the unit of the total.
fn title(context: &Context, trimmed: &Trimmed, unit: &str) -> Vec<String> {
    let total = context.divide(context.view.total());
    let requested = context.options.unit.as_str();
    let (mut scaled, mut best) = measure::scale(total, context.view.unit(), requested);
    let mut name = measure::iec_name(&best).to_owned();
    // Uses jeprof's unit, unless another one was requested.
    if requested == "minimum" && ["MB", "GB", "TB", "PB"].contains(&best.as_str()) {
        (scaled, best) = measure::scale(total, context.view.unit(), "MB");
        name.clone_from(&best);
    }
    let unit = if best.is_empty() { unit } else { best.as_str() };
    let kind = context.view.kind();
    let mut lines = vec![if best.is_empty() {
        let total = context.format(context.view.total(), unit);
        format!("Total: {total} ({kind})")
    } else {
        format!("Total {name}: {scaled:.1} ({kind})")
    }];
    if let Some(program) = context.program {
        lines.push(profile::printable::path(program));
    }
    let (options, series) = (context.options, context.series);
    for (number, file) in options.files.iter().enumerate() {
        let total = total_of(context, series.dump_totals.get(number), unit);
        lines.push(format!("Dump: {}{total}", profile::printable::path(file)));
    }
    for (number, file) in options.base_files.iter().enumerate() {
        let total = total_of(context, series.base_totals.get(number), unit);
        lines.push(format!("Base: {}{total}", profile::printable::path(file)));
    }
    lines.extend(context.leak_check());
    let profile = context.view.profile();
    let column = context.view.column();
    lines.extend(sampling::interval(profile, column));
    lines.extend(context.coverage(trimmed, unit));
    lines.extend(own::legend_lines(context, unit));
    // Names the unit in all lines as in the first one.
    let iec_unit = format!(" {}", measure::iec_name(&best));
    let renamed = |line: String| line.replace(&iec_unit, &format!(" {name}"));
    if best.is_empty() {
        return lines;
    }
    lines.into_iter().map(renamed).collect()
}

/// Returns the total of one of two compared dumps, in parentheses; empty if it is unknown.
fn total_of(context: &Context, totals: Option<&Totals>, unit: &str) -> String {
    let total = totals.and_then(|totals| totals.of_column(context.view.kind()));
    total.map_or(String::new(), |total| {
        format!(" ({})", context.format(total, unit))
    })
}

fn drawn_node(
    context: &Context,
    places: &Places,
    node: &crate::graph::Node,
    unit: &str,
) -> callgraph::Node {
    let total = context.view.total();
    let entry = context.nodes.entry(node.id);
    let label = |value: i64, error: SamplingError| match value {
        0 => "0".to_owned(),
        _ => format!(
            "{}{} ({})",
            context.format(value, unit),
            if context.options.error_bars {
                context.plus_minus(error, unit)
            } else {
                String::new()
            },
            percentage(value, total).trim()
        ),
    };
    let place = places.place_of(node.id).unwrap_or_default();
    callgraph::Node {
        name: printable(&short_name(entry)).into_owned(),
        full_name: printable(context.nodes.name(node.id)).into_owned(),
        place: printable(&place).into_owned(),
        detail: detail(context, node, unit),
        flat: node.flat as f64,
        cum: node.cum as f64,
        flat_label: label(node.flat, node.flat_error),
        cum_label: label(node.cum, node.cum_error),
        color_weight: if total == 0 {
            0.0
        } else {
            node.cum as f64 / total as f64
        },
    }
}

/// Returns the name for a box, without the directories of its file.
fn short_name(entry: &Entry) -> String {
    let mut entry = entry.clone();
    if !entry.is_script()
        && let Some(base) = entry.file.rsplit('/').next()
    {
        entry.file = base.to_owned();
    }
    entry.printable()
}

/// Returns the last lines of the tooltip: the confidence intervals of the values.
fn detail(context: &Context, node: &crate::graph::Node, unit: &str) -> String {
    if node.cum_error.variance <= 0.0 {
        return String::new();
    }
    let flat = context.format_error(node.flat_error, unit);
    let cum = context.format_error(node.cum_error, unit);
    format!("at 95 %: flat \u{b1}{flat}, cum \u{b1}{cum}")
}

fn drawn_edge(
    context: &Context,
    graph: &Graph,
    edge: &crate::graph::Edge,
    unit: &str,
) -> callgraph::Edge {
    let name = |node: u32| context.nodes.name(graph.id(node));
    let label = context.format(edge.weight, unit);
    let error = context.plus_minus(edge.error, unit);
    let detail = format!(
        "{} \u{2192} {} ({label}{error})",
        name(edge.from),
        name(edge.to)
    );
    callgraph::Edge {
        from: edge.from as usize,
        to: edge.to as usize,
        weight: edge.weight as f64,
        label,
        residual: edge.residual,
        inlined: edge.inline,
        detail: printable(&detail).into_owned(),
    }
}
