//! The callgrind format, for KCachegrind. Equal to `pprof -callgrind`.

use std::collections::HashMap;
use std::fmt::Write;

use super::context::Context;
use super::format::{Format, Needs};
use crate::graph::Graph;
use crate::measure;
use crate::nodes::Granularity;
use crate::nodes::{Info, Nodes};
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
        shown: distinct_names(&trimmed.graph, context.nodes),
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
    let mut before: Option<&Info> = None;
    for (number, node) in trimmed.graph.nodes.iter().enumerate() {
        writer.node(&trimmed.graph, number, before);
        before = Some(context.nodes.info(node.id));
    }
    Ok(writer.out)
}

struct Writer<'a> {
    context: &'a Context<'a>,
    unit: String,
    out: String,
    /// Name of each entry of the graph.
    shown: Vec<String>,
    objects: HashMap<String, usize>,
    files: HashMap<String, usize>,
    names: HashMap<String, usize>,
}

impl Writer<'_> {
    fn node(&mut self, graph: &Graph, number: usize, before: Option<&Info>) {
        let nodes = self.context.nodes;
        let node = &graph.nodes[number];
        let info = nodes.info(node.id);
        let same =
            |b: &Info| (&b.object, &b.file, &b.name) == (&info.object, &info.file, &info.name);
        if !before.is_some_and(same) {
            let object = compressed(&mut self.objects, &info.object);
            let file = compressed(&mut self.files, &info.file);
            let name = compressed(&mut self.names, &self.shown[number]);
            let _ = writeln!(self.out, "\nob={object}\nfl={file}\nfn={name}");
        }
        let address = relative(before, info.address);
        let value = self.scaled(node.flat);
        let _ = writeln!(self.out, "{address} {} {value}", info.line);
        for edge in graph.sorted(&node.outs, nodes) {
            let edge = &graph.edges[edge as usize];
            if !graph.is_listed(edge.to) {
                continue;
            }
            let callee = nodes.info(graph.id(edge.to));
            let file = compressed(&mut self.files, &callee.file);
            let name = compressed(&mut self.names, &self.shown[edge.to as usize]);
            let address = relative(before, callee.address);
            let value = self.scaled(edge.weight);
            // The number of calls is unknown.
            let _ = writeln!(self.out, "cfl={file}\ncfn={name}");
            let _ = writeln!(self.out, "calls=0 {address} {}\n* * {value}", callee.line);
        }
    }

    fn scaled(&self, value: i64) -> i64 {
        measure::scale(
            self.context.divided(value),
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
    let infos = || graph.nodes.iter().map(|node| nodes.info(node.id));
    for info in infos() {
        let known = objects.entry((&info.file, &info.name)).or_default();
        if !known.contains(&info.object.as_str()) {
            known.push(&info.object);
        }
    }
    let name = |info: &Info| match &objects[&(info.file.as_str(), info.name.as_str())][..] {
        [_] => info.name.clone(),
        all => {
            let position = all.iter().position(|o| *o == info.object).unwrap_or(0);
            format!("{} [{}/{}]", info.name, position + 1, all.len())
        }
    };
    infos().map(name).collect()
}

/// Returns a name in compressed form: with its number, and only the first time with the name
/// itself.
fn compressed(known: &mut HashMap<String, usize>, name: &str) -> String {
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

/// Returns an address, relative to the one before if that is shorter.
fn relative(before: Option<&Info>, address: u64) -> String {
    let absolute = format!("{address:#x}");
    let Some(before) = before else {
        return absolute;
    };
    let difference = address.wrapping_sub(before.address) as i64;
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
