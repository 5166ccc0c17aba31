//! The call graph for graphviz. Equal to `pprof -dot`, except for the boxes of labels.

use std::fmt::Write;

use super::context::Context;
use super::format::{Format, Needs};
use crate::graph::{Graph, Node};
use crate::measure::percentage;
use crate::nodes::Entry;
use anyhow::Result;
use profile::printable::printable;

/// `--dot`.
pub const FORMAT: Format = Format {
    needs: Needs::GRAPH,
    ..Format::report("dot", "Call graph for graphviz", render)
};

/// Renders the graph.
fn render(context: &Context) -> Result<String> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    let unit = context.common_unit(&trimmed);
    let legend = context.legend(&trimmed, &unit);
    let title = context
        .program
        .and_then(|p| p.file_name())
        .map(|n| n.to_string_lossy());
    let title = escape(title.as_deref().unwrap_or("unnamed"));
    // Writing to a string cannot fail, here and below.
    let mut out = format!("digraph \"{title}\" {{\nnode [style=filled fillcolor=\"#f8f8f8\"]\n");
    let lines: Vec<String> = legend.iter().map(|line| escape(line)).collect();
    let _ = writeln!(
        out,
        "subgraph cluster_L {{ \"{}\" [shape=box fontsize=16 label=\"{}\\l\"] }}",
        lines[0],
        lines.join("\\l")
    );
    let graph = &trimmed.graph;
    let heaviest = graph
        .nodes
        .iter()
        .map(|n| n.flat.saturating_abs())
        .max()
        .unwrap_or(0);
    for (i, node) in graph.nodes.iter().enumerate() {
        write_node(context, &mut out, i, node, heaviest, &unit);
    }
    let edges: Vec<u32> = graph.connected_edges().collect();
    for edge in graph.sorted_edges(&edges, context.nodes) {
        write_edge(context, &mut out, graph, edge, &unit);
    }
    out += "}\n";
    Ok(out)
}

fn write_node(
    context: &Context,
    out: &mut String,
    i: usize,
    node: &Node,
    heaviest: i64,
    unit: &str,
) {
    let total = context.view.total();
    let share = |value| percentage(value, total).trim().to_owned();
    let flat = context.format(node.flat, unit);
    let cum = context.format(node.cum, unit);
    let mut label = label(context.nodes.entry(node.id));
    label += &if node.flat == 0 {
        "0".into()
    } else {
        format!("{flat} ({})", share(node.flat))
    };
    if node.cum != node.flat {
        label += if node.flat == 0 { " " } else { "\\n" };
        let _ = write!(label, "of {cum} ({})", share(node.cum));
    }
    let growth = (node.flat.saturating_abs() as f64 / heaviest.max(1) as f64).sqrt();
    let _ = writeln!(
        out,
        "N{n} [label=\"{label}\" id=\"node{n}\" fontsize={} shape=box tooltip=\"{} ({cum})\" \
         color=\"{}\" fillcolor=\"{}\"]",
        8 + (16.0 * growth).ceil() as u32,
        escape(context.nodes.name(node.id)),
        color(node.cum, total, false),
        color(node.cum, total, true),
        n = i + 1,
    );
}

fn write_edge(context: &Context, out: &mut String, graph: &Graph, edge: u32, unit: &str) {
    let edge = &graph.edges[edge as usize];
    let total = context.view.total();
    let weight = context.format(edge.weight, unit);
    let name = |node: u32| escape(context.nodes.name(graph.id(node)));
    let from = name(edge.from);
    let to = name(edge.to);
    let steps = |max: i64| {
        let share = edge
            .weight
            .saturating_mul(max)
            .checked_div(total)
            .unwrap_or(0);
        1 + share.saturating_abs().min(max)
    };
    let _ = writeln!(
        out,
        "N{} -> N{} [label=\" {weight}{}\" weight={} penwidth={} color=\"{}\" \
         tooltip=\"{from} {} {to} ({weight})\"{}]",
        edge.from + 1,
        edge.to + 1,
        if edge.inline { "\\n (inline)" } else { "" },
        steps(100),
        steps(5),
        color(edge.weight, total, false),
        if edge.residual { "..." } else { "->" },
        if edge.residual {
            " style=\"dotted\""
        } else {
            ""
        },
    );
}

/// Returns the parts of a name, one per line.
fn label(entry: &Entry) -> String {
    let mut entry = entry.clone();
    if !entry.is_script()
        && let Some(base) = entry.file.rsplit('/').next()
    {
        entry.file = base.to_owned();
    }
    entry.name = entry.name.replace("::", "\n");
    let lines: Vec<String> = entry.printable().split('\n').map(escape).collect();
    lines.join("\\n") + "\\n"
}

/// Escapes text for a quoted string.
fn escape(text: &str) -> String {
    printable(&text.replace('\\', "\\\\").replace('"', "\\\"")).into_owned()
}

/// Returns red for a large share, grey for none, and green for a negative one.
fn color(value: i64, total: i64, background: bool) -> String {
    let share = if total == 0 {
        0.0
    } else {
        value as f64 / total.saturating_abs() as f64
    };
    let share = share.clamp(-1.0, 1.0);
    let (mut saturation, brightness) = if background { (0.1, 0.93) } else { (1.0, 0.7) };
    if share.abs() < 0.2 {
        saturation *= share.abs() / 0.2;
    }
    let shifted = share.abs().powf(0.3);
    let dim = brightness * (1.0 - saturation * shifted);
    let (red, green) = if share < 0.0 {
        (dim, brightness)
    } else {
        (brightness, dim)
    };
    let blue = brightness * (1.0 - saturation);
    let byte = |v: f64| (v * 255.0) as u8;
    format!("#{:02x}{:02x}{:02x}", byte(red), byte(green), byte(blue))
}
