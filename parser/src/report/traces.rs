//! Every stack with its value. Equal to `pprof -traces`.

use std::fmt::Write;

use anyhow::Result;
use profile::LabelValue;

use super::context::Context;
use super::format::{Format, Needs};
use crate::measure;
use crate::view::ViewStack;
use profile::printable::printable;

/// `--traces`.
pub const FORMAT: Format = Format {
    needs: Needs {
        merged_stacks: true,
        variance: true,
        ..Needs::TABLE
    },
    ..Format::report("traces", "Every stack with its value", render)
};

const SEPARATOR: &str = "-----------+-------------------------------------------------------\n";

/// Column of values in lines that have none.
const NO_VALUE: &str = "             ";

/// Renders the stacks.
fn render(context: &Context) -> Result<String> {
    let mut out = String::new();
    let error = context.sampling_error(&context.options.unit);
    for line in context.origin().into_iter().chain(error) {
        out += &line;
        out.push('\n');
    }
    for ViewStack {
        index: stack,
        value,
        frames,
    } in context.view.stacks()
    {
        let visible = || frames.iter().filter(|&&f| !context.view.is_hidden(f));
        if visible().next().is_none() {
            continue;
        }
        out += SEPARATOR;
        labels(context, stack, &mut out);
        let mut value = context.format(value, &context.options.unit);
        for &frame in visible() {
            let ids = context.nodes.of_location(frame);
            for (i, &id) in ids.iter().enumerate() {
                if value.is_empty() {
                    out += NO_VALUE;
                } else {
                    // Writing to a string cannot fail, here and below.
                    let _ = write!(out, "{value:>10}   ");
                }
                // Only the first frame's line has the value.
                value.clear();
                out += &printable(context.nodes.name(id));
                out += if i + 1 < ids.len() {
                    " (inline)\n"
                } else {
                    "\n"
                };
            }
        }
    }
    out += SEPARATOR;
    Ok(out)
}

fn labels(context: &Context, stack: usize, out: &mut String) {
    let labels = context.view.labels(stack);
    let mut texts = Vec::new();
    let mut numbers = Vec::new();
    for (key, value) in &labels {
        match value {
            LabelValue::Text(text) => texts.push((key, printable(text).into_owned())),
            LabelValue::Number(n, unit) => {
                let unit = if unit.is_empty() { key } else { unit };
                numbers.push((key, measure::label(*n, unit, "auto")));
            }
        }
    }
    texts.sort();
    numbers.sort();
    for (key, value) in texts.iter().chain(&numbers) {
        let _ = writeln!(out, "{:>10}:  {value}", printable(key));
    }
}
