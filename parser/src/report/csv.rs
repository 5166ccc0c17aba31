//! The table of entries as comma-separated values (RFC 4180).

use std::fmt::Write;

use anyhow::Result;
use profile::variance::SamplingError;

use super::context::Context;
use super::format::Format;
use crate::graph::{Graph, Node};
use profile::printable::printable;

/// `--csv`.
pub const FORMAT: Format = Format::report(
    "csv",
    "Table of functions as comma-separated values",
    render,
);

/// Renders the table, with numbers without units.
fn render(context: &Context) -> Result<String> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    let share = |value: i64| match context.view.total() {
        0 => 0.0,
        total => value as f64 / total as f64 * 100.0,
    };
    let unit = field(context.view.unit());
    let error_heads = if context.options.error_bars {
        format!(",flat \u{b1} ({unit}),cum \u{b1} ({unit})")
    } else {
        String::new()
    };
    let mut out =
        format!("function,flat ({unit}),flat %,cum ({unit}),cum %,file,line{error_heads}\r\n");
    for node in &trimmed.graph.nodes {
        let entry = context.nodes.entry(node.id);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "{},{},{:.4},{},{:.4},{},{}{}\r\n",
            field(if entry.name.is_empty() {
                context.nodes.name(node.id)
            } else {
                &entry.name
            }),
            context.divide(node.flat),
            share(node.flat),
            context.divide(node.cum),
            share(node.cum),
            field(&entry.file),
            if entry.line == 0 {
                String::new()
            } else {
                entry.line.to_string()
            },
            errors(context, node),
        );
    }
    Ok(out)
}

/// Formats the half-widths of the 95 % confidence intervals of flat and cum, if requested.
fn errors(context: &Context, node: &Node) -> String {
    if !context.options.error_bars {
        return String::new();
    }
    let half = |error: SamplingError| context.divide(error.half_width().round() as i64);
    let flat = half(node.flat_error);
    let cum = half(node.cum_error);
    format!(",{flat},{cum}")
}

/// Quotes a field if needed. A field that a spreadsheet would interpret as a formula gets a leading
/// apostrophe, because names come from the dump.
fn field(text: &str) -> String {
    let text = printable(text);
    let formula = text.starts_with(['=', '+', '-', '@']);
    let text = if formula {
        format!("'{text}")
    } else {
        text.into_owned()
    };
    if text.contains([',', '"', '\r', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::field;

    #[test]
    fn fields_are_quoted_and_never_formulas() {
        assert_eq!(field("plain"), "plain");
        assert_eq!(field("f(int, \"x\")"), "\"f(int, \"\"x\"\")\"");
        assert_eq!(field("=cmd()"), "'=cmd()");
        assert_eq!(field("a\nb"), "a\\nb");
    }
}
