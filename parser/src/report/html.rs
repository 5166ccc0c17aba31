//! One page for a browser: flame graph, call graph, tables, source lines, leak
//! suspects and the allocator's figures, of every column at once.
//!
//! Promises: [`render`] returns one HTML document that needs no other file and
//! no network, and works when opened from a disk. What comes from a dump is
//! data in a `<script type="application/json">` and is shown as text only. The
//! page forbids its browser to load anything and to run any script but the
//! page's own, by their hashes ([`policy`]). The same view gives the same
//! bytes.
//!
//! Limits: functions and source lines are listed up to a number, largest
//! first, and the page says so. Source lines come from this machine's files, so
//! the page holds them only where the files are found.
//!
//! The view must keep a base apart, not subtract it: the page shows before,
//! after and change.

mod about;
mod functions;
mod graphs;
mod policy;
mod sources;
mod suspects;
mod weights;

use std::fmt::Write;

use anyhow::Result;
use heap_format::merge::BASE_LABEL;

use super::context::Context;
use super::flame::data::{self, Column, Totals, quote};
use super::flame::tree::Tree;
use super::flame::{self, Rule, style};
use super::format::{Dumps, Format, Needs};
use heap_format::printable::printable;

/// `--html`.
pub const FORMAT: Format = Format {
    needs: Needs {
        variance: true,
        dumps: Dumps::BaseApart,
        ..Needs::GRAPH
    },
    ..Format::report(
        "html",
        "One page for a browser: flame graph, call graph, tables, source",
        render,
    )
};

const PAGE: &str = include_str!("html/page.js");
const STYLE: &str = include_str!("html/page.css");

/// More columns than a person can choose from are left out.
const MOST_COLUMNS: usize = 8;

/// The page.
fn render(context: &Context) -> Result<String> {
    let shown = columns(context);
    let compared = is_compared(context);
    let data = data(context, &shown, compared);
    let (graphs, script_in_graph) = graphs::all(context, &shown, compared);
    let script = format!("\n{}{PAGE}", flame::SCRIPT);
    let policy = policy::of(&[&script, &script_in_graph]);
    let title = escape(&title(context));
    let style = style::sheet();
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n<style>\n{style}{STYLE}</style>\n</head>\n<body>\n\
         <noscript>This page draws with its own script, which this browser does not run.\
         </noscript>\n\
         <script type=\"application/json\" id=\"profile\">\n{data}</script>\n\
         <script type=\"application/json\" id=\"graphs\">\n{graphs}</script>\n\
         <script>{script}</script>\n</body>\n</html>\n"
    ))
}

/// The columns of the page, in the profile's order.
fn columns(context: &Context) -> Vec<usize> {
    let count = context.view.profile().sample_types.len();
    let mut columns: Vec<usize> = (0..count.min(MOST_COLUMNS)).collect();
    if !columns.contains(&context.view.column()) {
        columns.push(context.view.column());
    }
    columns
}

fn is_compared(context: &Context) -> bool {
    let labels = &context.view.profile().labels;
    labels.iter().any(|l| l.key == BASE_LABEL)
}

fn title(context: &Context) -> String {
    let program = context.program.and_then(|p| p.file_name());
    let name = program.map_or("profile".into(), |name| name.to_string_lossy());
    format!("{} - heap profile", printable(&name))
}

fn data(context: &Context, shown: &[usize], compared: bool) -> String {
    let tree = Tree::new(context.view, context.nodes, shown, flame::LIMIT);
    let rule = if compared { Rule::Larger } else { Rule::Change };
    let columns: Vec<Column> = shown
        .iter()
        .map(|&index| Column {
            index,
            total: Totals::of(context.view, index, compared),
        })
        .collect();
    let chosen = shown.iter().position(|&c| c == context.view.column());
    let mut out = format!(
        "{{\"title\":{},\"column\":{},\"compared\":{compared}",
        quote(&title(context)),
        chosen.unwrap_or(0)
    );
    let mut part = |key: &str, value: String| {
        // Writing to a string cannot fail.
        let _ = write!(out, ",\n\"{key}\":{value}");
    };
    part("flame", data::object(context, &tree, &columns, rule));
    part("functions", functions::object(context, shown, compared));
    part("sources", sources::all(context, shown, compared));
    part("suspects", suspects::object(context));
    part("allocator", about::allocator(context));
    part("about", about::facts(context));
    out.push_str("}\n");
    out
}

/// A text as HTML character data.
fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}
