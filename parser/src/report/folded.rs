//! Folded stacks, for flame-graph tools: `root;…;leaf VALUE`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::context::Context;
use super::format::Format;
use crate::measure;
use crate::view::ViewStack;
use anyhow::Result;
use profile::printable::printable;

/// `--folded`.
pub const FORMAT: Format = Format::report("folded", "Folded stacks, for flame-graph tools", render);

/// Renders one line for each distinct stack with a value, sorted.
fn render(context: &Context) -> Result<String> {
    let mut stacks: BTreeMap<Vec<u32>, i64> = BTreeMap::new();
    for ViewStack { value, frames, .. } in context.view.stacks() {
        let visible = frames.iter().rev().filter(|&&f| !context.view.is_hidden(f));
        let ids = visible
            .flat_map(|&f| context.nodes.of_location(f).iter().rev().copied())
            .collect();
        let sum = stacks.entry(ids).or_default();
        *sum = sum.saturating_add(value);
    }
    let mut lines: Vec<String> = Vec::with_capacity(stacks.len());
    for (ids, value) in stacks {
        let value = context.divide(value);
        if value == 0 {
            continue;
        }
        let names: Vec<String> = ids.iter().map(|&id| name(context.nodes.name(id))).collect();
        let mut line = names.join(";");
        // Writing to a string cannot fail.
        let _ = writeln!(
            line,
            " {}",
            measure::format_without_unit(value, context.view.unit())
        );
        lines.push(line);
    }
    lines.sort();
    Ok(lines.concat())
}

/// Replaces the separators of frames and lines in a name.
fn name(name: &str) -> String {
    printable(name).replace(';', ":")
}
