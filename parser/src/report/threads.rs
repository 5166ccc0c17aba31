//! Allocations by thread, with the largest functions of each.

use std::fmt::Write;

use anyhow::{Result, bail};
use profile::printable::printable;

use super::context::Context;
use super::format::Format;
use crate::breakdown::{self, Breakdown, Sums};
use crate::measure::percentage;
use crate::view::View;

/// `--threads`.
pub const FORMAT: Format = Format::breakdown(
    "threads",
    "Values by thread (by its name; --tagfocus thread=NAME shows one)",
    render,
);

/// Number of functions shown for each thread.
const SHOWN_FUNCTIONS: usize = 3;

fn render(context: &Context) -> Result<String> {
    let Some(threads) = breakdown::by_thread(&context.owners()) else {
        bail!(
            "the dump does not tell threads apart: --threads needs one of a program \
             with the agent, written by this version or a later one"
        );
    };
    let mut out = context.heading();
    let column = context.view.column();
    let mut threads: Vec<(String, Breakdown)> = threads.into_iter().collect();
    threads.sort_by_key(|(_, t)| std::cmp::Reverse(t.total.values[column].abs()));
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        out,
        "{:>13} {:>11}    share  thread, and the functions {}",
        context.view.kind(),
        "\u{b1}",
        most_of(context.view),
    );
    for (name, thread) in &threads {
        let value = thread.total.values[column];
        let share = percentage(value, context.view.total());
        let _ = writeln!(
            out,
            "{:>13} {:>11} {share:>8}  {}",
            context.format(value, &context.options.unit),
            context.format(thread.total.error(column), &context.options.unit),
            printable(name)
        );
        write_functions(context, thread, &mut out);
    }
    Ok(out)
}

/// Describes the functions that are shown for a thread.
fn most_of(view: &View) -> &'static str {
    match (view.profile().is_memory_profile(), view.kind()) {
        (true, kind) if kind.starts_with("inuse_") => "that hold most",
        (true, _) => "that allocated most",
        (false, _) => "with most of it",
    }
}

/// Writes the largest of the functions that own the stacks of a thread.
fn write_functions(context: &Context, thread: &Breakdown, out: &mut String) {
    let column = context.view.column();
    let parts = thread.parts.iter();
    let mut parts: Vec<(u32, &Sums)> = parts
        .map(|(&entry, sums)| (entry, sums))
        .filter(|(_, sums)| sums.values[column] != 0)
        .collect();
    parts.sort_by_key(|(entry, sums)| (std::cmp::Reverse(sums.values[column].abs()), *entry));
    for (entry, sums) in parts.iter().take(SHOWN_FUNCTIONS) {
        let name = printable(context.nodes.name(*entry));
        let value = sums.values[column];
        let error = context.plus_minus(sums.sampling_error(column), &context.options.unit);
        let shown = context.format(value, &context.options.unit) + &error;
        let _ = writeln!(out, "{:>16}{shown:>22}  {name}", "");
    }
    if parts.len() > SHOWN_FUNCTIONS {
        let _ = writeln!(out, "{:>40}and {} more", "", parts.len() - SHOWN_FUNCTIONS);
    }
}
