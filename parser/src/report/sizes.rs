//! Sizes of objects: a histogram of all, and the sizes of each function's objects.

use std::fmt::Write;

use anyhow::{Result, bail};
use profile::printable::printable;

use super::context::Context;
use super::format::Format;
use crate::breakdown::{self, Breakdown, BySize, class_name};
use crate::measure::percentage;

/// `--sizes`.
pub const FORMAT: Format = Format::breakdown(
    "sizes",
    "How large the objects are: a histogram of all, and the sizes of each function's",
    render,
)
.for_memory_only();

/// Default number of functions shown.
const DEFAULT_FUNCTIONS: usize = 20;
/// Maximum number of sizes shown for a function.
const MAX_SIZES: usize = 3;
/// Length of the longest bar, in characters.
const MAX_BAR: f64 = 16.0;

fn render(context: &Context) -> Result<String> {
    let Some(sizes) = breakdown::by_size(context.view) else {
        bail!(
            "the dump does not tell sizes apart: --sizes needs one of a program with the agent, \
             written by this version or a later one"
        );
    };
    let mut out = context.heading();
    histogram(context, &sizes, &mut out);
    functions(context, &mut out);
    Ok(out)
}

fn histogram(context: &Context, sizes: &BySize, out: &mut String) {
    let column = context.view.column();
    let largest = sizes.values().map(|s| s.values[column].abs()).max();
    let largest = largest.unwrap_or(0).max(1);
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        out,
        "        size {:>13} {:>11}    share  short-lived",
        context.view.kind(),
        "\u{b1}"
    );
    for (&class, sums) in sizes {
        let value = sums.values[column];
        let bar = (value.abs() as f64 / largest as f64 * MAX_BAR).ceil() as usize;
        let line = format!(
            "{:>12} {:>13} {:>11} {:>8}  {:>10}%  {}",
            class_name(class),
            context.format(value, &context.options.unit),
            context.format(sums.error(column), &context.options.unit),
            percentage(value, context.view.total()),
            sums.short_lived_percent(),
            "#".repeat(bar),
        );
        let _ = writeln!(out, "{}", line.trim_end());
    }
}

fn functions(context: &Context, out: &mut String) {
    let column = context.view.column();
    let mut functions: Vec<(u32, Breakdown)> = breakdown::by_function(&context.owners())
        .into_iter()
        .filter(|(_, function)| function.total.values[column] != 0)
        .collect();
    functions.sort_by_key(|(entry, f)| (std::cmp::Reverse(f.total.values[column].abs()), *entry));
    let max_rows = context.max_rows(DEFAULT_FUNCTIONS);
    let _ = writeln!(
        out,
        "\n{:>13} {:>11}    share  function, and the sizes of what it allocates",
        context.view.kind(),
        "\u{b1}"
    );
    for (entry, function) in functions.iter().take(max_rows) {
        let value = function.total.values[column];
        let name = printable(context.nodes.name(*entry));
        let share = percentage(value, context.view.total());
        let _ = writeln!(
            out,
            "{:>13} {:>11} {share:>8}  {name}",
            context.format(value, &context.options.unit),
            context.format(function.total.error(column), &context.options.unit),
        );
        let _ = writeln!(out, "{:>24}{}", "", parts(context, function));
    }
    *out += &Context::more_rows_line(functions.len(), max_rows);
}

/// Formats the sizes of a function, largest share first.
fn parts(context: &Context, function: &Breakdown) -> String {
    let column = context.view.column();
    let whole = function.total.values[column];
    let mut parts: Vec<(u32, i64)> = function
        .parts
        .iter()
        .map(|(&class, sums)| (class, sums.values[column]))
        .filter(|&(_, value)| value != 0)
        .collect();
    parts.sort_by_key(|&(class, value)| (std::cmp::Reverse(value.abs()), class));
    let part = |&(class, value): &(u32, i64)| {
        format!("{} {}", class_name(class), percentage(value, whole).trim())
    };
    let mut texts: Vec<String> = parts.iter().take(MAX_SIZES).map(part).collect();
    if parts.len() > MAX_SIZES {
        texts.push(format!("{} more", parts.len() - MAX_SIZES));
    }
    texts.join(", ")
}
