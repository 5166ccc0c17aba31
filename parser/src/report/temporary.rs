//! Short-lived objects, whose allocation could be avoided by reusing a buffer.

use std::fmt::Write;

use anyhow::{Result, bail};
use profile::printable::printable;
use profile::variance::half_width;

use super::context::Context;
use super::format::Format;
use crate::breakdown::{self, Breakdown};
use crate::measure::{self, Style, percentage};

/// `--temporary`.
pub const FORMAT: Format = Format::breakdown(
    "temporary",
    "Functions whose objects are freed within a few milliseconds",
    render,
)
.for_memory_only();

/// Default number of functions shown.
const DEFAULT_FUNCTIONS: usize = 40;

fn render(context: &Context) -> Result<String> {
    let mut functions: Vec<(u32, Breakdown)> = breakdown::by_function(&context.owners())
        .into_iter()
        .filter(|(_, function)| short_lived(function) > 0)
        .collect();
    let profile = context.view.profile();
    if functions.is_empty() && !profile.split_by_size_class {
        bail!(
            "the dump does not count short-lived objects: --temporary needs one of a program \
             with the agent, written by this version or a later one"
        );
    }
    functions.sort_by_key(|(entry, function)| (std::cmp::Reverse(short_lived(function)), *entry));
    let short: f64 = (functions.iter())
        .map(|(_, function)| function.total.detail.short_lived_objects)
        .sum();
    let variance: f64 = (functions.iter())
        .map(|(_, function)| function.total.short_lived_variance)
        .sum();
    let margin = match half_width(short, variance).round() {
        0.0 => String::new(),
        error => format!(" \u{b1} {error}"),
    };
    let max_rows = context.max_rows(DEFAULT_FUNCTIONS);
    let mut lines = context.identity();
    lines.extend(context.filters());
    let mut out = lines.join("\n") + "\n";
    if functions.is_empty() {
        out += "No short-lived objects: none was freed within 4 to 8 ms of its allocation\n";
        return Ok(out);
    }
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        out,
        "Short-lived: {short:.0}{margin} objects, freed within 4 to 8 ms of their allocation\n\
         short-lived       ±    share  of its own    of bytes  freed after  function"
    );
    for (entry, function) in functions.iter().take(max_rows) {
        let count = short_lived(function);
        let error = half_width(count as f64, function.total.short_lived_variance).round();
        let life = function
            .total
            .lifetime()
            .map_or_else(|| "-".to_owned(), measure::lifetime);
        let _ = writeln!(
            out,
            "{count:>11} {error:>7} {:>8}  {:>9}% {:>11}  {life:>11}  {}",
            percentage(count, short as i64),
            function.total.short_lived_percent(),
            bytes(context, function.total.detail.alloc_bytes),
            printable(context.nodes.name(*entry)),
        );
    }
    out += &Context::more_rows_line(functions.len(), max_rows);
    Ok(out)
}

fn short_lived(function: &Breakdown) -> i64 {
    function.total.detail.short_lived_objects.round() as i64
}

fn bytes(context: &Context, bytes: f64) -> String {
    let value = context.divide(bytes.round() as i64);
    Style::Own.label(value, "bytes", &context.options.unit)
}
