//! Source code of functions with values at their lines. Equal to `pprof -list`.

use std::collections::BTreeMap;
use std::fmt::Write;

use anyhow::{Result, bail};

use super::context::Context;
use super::format::{Format, Needs};
use crate::graph::{Graph, Node};
use crate::measure::percentage;
use crate::nearest;
use crate::nodes::Granularity;
use crate::sources;
use profile::printable::printable;

/// `--list`.
pub const FORMAT: Format = Format {
    takes_pattern: true,
    needs: Needs {
        granularity: Some(Granularity::Lines),
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report(
        "list",
        "Source of matching functions, with values at their lines",
        render,
    )
};

/// Number of lines shown before and after those with values.
const MARGIN: u32 = 5;

/// Weights of a line.
#[derive(Clone, Copy, Default)]
struct Weights {
    flat: i64,
    cum: i64,
}

/// Renders the functions whose names match.
fn render(context: &Context) -> Result<String> {
    let Some(pattern) = context.pattern else {
        bail!("--list needs a pattern");
    };
    let graph = Graph::new(context.view, context.nodes, None);
    let mut routines: BTreeMap<(&str, &str), BTreeMap<u32, Weights>> = BTreeMap::new();
    for node in &graph.nodes {
        let entry = context.nodes.entry(node.id);
        if !entry.name.is_empty() && pattern.is_match(&entry.name) {
            let lines = routines.entry((&entry.name, &entry.file)).or_default();
            lines.entry(entry.line).or_default().add(node);
        }
    }
    if routines.is_empty() {
        let names = graph.nodes.iter();
        let names = names.map(|n| context.nodes.entry(n.id).name.as_ref());
        let hint = nearest::function_hint(pattern.as_str(), names);
        bail!("no function matches {pattern}{hint}");
    }
    let total = context.view.total();
    let unit = &context.options.unit;
    let mut out = format!("Total: {}\n", context.format(total, unit));
    out.extend(context.sampling_error(unit).map(|line| line + "\n"));
    for ((name, file), lines) in routines {
        routine(context, &mut out, name, file, &lines);
    }
    Ok(out)
}

impl Weights {
    fn add(&mut self, node: &Node) {
        self.flat = self.flat.saturating_add(node.flat);
        self.cum = self.cum.saturating_add(node.cum);
    }
}

// Writing to a string cannot fail, here and below.
fn routine(
    context: &Context,
    out: &mut String,
    name: &str,
    file: &str,
    lines: &BTreeMap<u32, Weights>,
) {
    if file.is_empty() {
        let _ = writeln!(out, "No source information for {}", printable(name));
        return;
    }
    let sum = |pick: fn(&Weights) -> i64| lines.values().map(pick).fold(0, i64::saturating_add);
    let flat = sum(|w| w.flat);
    let cum = sum(|w| w.cum);
    let name = printable(name);
    let shown = printable(file);
    let _ = writeln!(out, "ROUTINE ======================== {name} in {shown}");
    let unit = &context.options.unit;
    let _ = writeln!(
        out,
        "{:>10} {:>10} (flat, cum) {} of Total",
        context.format(flat, unit),
        context.format(cum, unit),
        percentage(cum, context.view.total()),
    );
    let source = match sources::read(file, &context.options.source_directories) {
        Ok(source) => source,
        Err(error) => {
            let _ = writeln!(out, " Error: {error}");
            return;
        }
    };
    listing(context, out, &source, lines);
}

/// Writes the source lines around those with values.
fn listing(context: &Context, out: &mut String, source: &str, lines: &BTreeMap<u32, Weights>) {
    let numbers = || lines.keys().copied().filter(|&line| line != 0);
    let first = numbers().min().unwrap_or(1).saturating_sub(MARGIN).max(1);
    let last = numbers().max().unwrap_or(1).saturating_add(MARGIN);
    let value_or_dot = |value: i64| {
        if value == 0 {
            ".".into()
        } else {
            context.format(value, &context.options.unit)
        }
    };
    let values = lines
        .values()
        .flat_map(|weights| [weights.flat, weights.cum]);
    let width = context.width(values, &context.options.unit);
    let text = source.lines().enumerate().skip(first as usize - 1);
    for (i, text) in text.take((last - first) as usize + 1) {
        let Weights { flat, cum } = lines.get(&(i as u32 + 1)).copied().unwrap_or_default();
        let text = text.replace('\t', "    ");
        let text = printable(text.trim_end());
        let _ = writeln!(
            out,
            "{:>width$} {:>width$} {:>6}:{text}",
            value_or_dot(flat),
            value_or_dot(cum),
            i + 1
        );
    }
}
