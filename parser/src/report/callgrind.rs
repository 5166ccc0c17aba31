//! The callgrind format, for KCachegrind. Equal to `pprof -callgrind`.

use std::collections::HashMap;
use std::fmt::Write;

use super::context::Context;
use super::format::{Format, Needs};
use crate::graph::Graph;
use crate::measure;
use crate::nodes::Granularity;
use crate::nodes::{Entry, Nodes};
use anyhow::Result;
use profile::printable::printable;

/// `--callgrind`.
pub const FORMAT: Format = Format {
    needs: Needs {
        granularity: Some(Granularity::Addresses),
        inlines: true,
        objects: true,
        trim: None,
        ..Needs::TABLE
    },
    ..Format::report("callgrind", "Call graph for KCachegrind", render)
};

/// Renders the graph by address.
fn render(context: &Context) -> Result<String> {
    let trimmed = Graph::trimmed(context.view, context.nodes, &context.trim);
    // Callgrind only supports integers.
    let unit = context.unit_for(&trimmed, false);
    let mut writer = Writer {
        context,
        unit,
        out: String::new(),
        node_names: distinct_names(&trimmed.graph, context.nodes),
        objects: HashMap::new(),
        files: HashMap::new(),
        names: HashMap::new(),
    };
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(writer.out, "positions: instr line");
    let _ = writeln!(
        writer.out,
        "events: {}({})",
        context.view.kind(),
        writer.unit
    );
    let mut previous: Option<&Entry> = None;
    for (number, node) in trimmed.graph.nodes.iter().enumerate() {
        writer.node(&trimmed.graph, number, previous);
        previous = Some(context.nodes.entry(node.id));
    }
    Ok(writer.out)
}

struct Writer<'a> {
    context: &'a Context<'a>,
    unit: String,
    out: String,
    /// Name of each entry of the graph.
    node_names: Vec<String>,
    objects: HashMap<String, usize>,
    files: HashMap<String, usize>,
    names: HashMap<String, usize>,
}

impl Writer<'_> {
    fn node(&mut self, graph: &Graph, number: usize, previous: Option<&Entry>) {
        let nodes = self.context.nodes;
        let node = &graph.nodes[number];
        let entry = nodes.entry(node.id);
        let same =
            |b: &Entry| (&b.object, &b.file, &b.name) == (&entry.object, &entry.file, &entry.name);
        if !previous.is_some_and(same) {
            let object = compress(&mut self.objects, &entry.object);
            let file = compress(&mut self.files, &entry.file);
            let name = compress(&mut self.names, &self.node_names[number]);
            let _ = writeln!(self.out, "\nob={object}\nfl={file}\nfn={name}");
        }
        let address = relative_address(previous, entry.address);
        let value = self.scaled(node.flat);
        let _ = writeln!(self.out, "{address} {} {value}", entry.line);
        for edge in graph.sorted_edges(&node.outs, nodes) {
            let edge = &graph.edges[edge as usize];
            if !graph.is_listed(edge.to) {
                continue;
            }
            let callee = nodes.entry(graph.id(edge.to));
            let file = compress(&mut self.files, &callee.file);
            let name = compress(&mut self.names, &self.node_names[edge.to as usize]);
            let address = relative_address(previous, callee.address);
            let value = self.scaled(edge.weight);
            // The number of calls is unknown.
            let _ = writeln!(self.out, "cfl={file}\ncfn={name}");
            let _ = writeln!(self.out, "calls=0 {address} {}\n* * {value}", callee.line);
        }
    }

    fn scaled(&self, value: i64) -> i64 {
        measure::scale(
            self.context.divide(value),
            self.context.view.unit(),
            &self.unit,
        )
        .0 as i64
    }
}

/// Returns a distinct name for each entry. Readers merge entries with equal file and name, so those
/// of several objects get a number.
fn distinct_names(graph: &Graph, nodes: &Nodes) -> Vec<String> {
    let mut objects: HashMap<(&str, &str), Vec<&str>> = HashMap::new();
    let entries = || graph.nodes.iter().map(|node| nodes.entry(node.id));
    for entry in entries() {
        let known = objects.entry((&entry.file, &entry.name)).or_default();
        if !known.contains(&entry.object.as_str()) {
            known.push(&entry.object);
        }
    }
    let name = |entry: &Entry| match &objects[&(entry.file.as_str(), entry.name.as_str())][..] {
        [_] => entry.name.clone(),
        all => {
            let position = all.iter().position(|o| *o == entry.object).unwrap_or(0);
            format!("{} [{}/{}]", entry.name, position + 1, all.len())
        }
    };
    entries().map(name).collect()
}

/// Returns a name in compressed form: with its number, and only the first time with the name
/// itself.
fn compress(known: &mut HashMap<String, usize>, name: &str) -> String {
    if name.is_empty() {
        return String::new();
    }
    if let Some(number) = known.get(name) {
        return format!("({number})");
    }
    let number = known.len() + 1;
    known.insert(name.to_owned(), number);
    format!("({number}) {}", printable(name))
}

/// Returns an address, relative to the previous one if that is shorter.
fn relative_address(previous: Option<&Entry>, address: u64) -> String {
    let absolute = format!("{address:#x}");
    let Some(previous) = previous else {
        return absolute;
    };
    let difference = address.wrapping_sub(previous.address) as i64;
    let relative = match difference {
        0 => "*".to_owned(),
        d if d > 0 => format!("+{d}"),
        d => d.to_string(),
    };
    if relative.len() < absolute.len() {
        relative
    } else {
        absolute
    }
}
