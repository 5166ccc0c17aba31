//! A page for a browser with tabs for all columns of a profile: flame graph, call graph, tables,
//! source lines, memory over time, leak suspects, leak check, allocator statistics.
//!
//! A tab consists of a Rust file, which generates its data, and a script of the same name, which
//! draws them.
//!
//! # Guarantees
//!
//! - The page is one HTML document that needs no other file and no network, and works when opened
//!   from disk.
//! - Data from a dump is in a `<script type="application/json">`, and is shown as text only.
//! - The page's policy forbids its browser to load anything, and to run any script but the page's
//!   own, identified by their hashes ([`policy`]).
//! - The same view yields the same bytes.
//!
//! # Callers
//!
//! The view must keep a base separate, because the page shows before, after and change.
//!
//! # Limits
//!
//! - Only a limited number of functions and source lines are listed, largest first, and the page
//!   says so.
//! - The page contains source lines only if this machine has the source files.

mod about;
mod allocator;
mod cost;
mod flame;
mod functions;
mod graph;
mod leaks;
mod lost;
mod policy;
mod sizes;
mod source;
mod tab;
mod temporary;
mod threads;
mod time;
mod weights;

use std::borrow::Cow;
use std::fmt::Write;

use anyhow::Result;
use callgraph::help;
use callgraph::xml::escape;
use profile::Profile;
use profile::cpu::Mode;
use profile::merge::BASE_LABEL;
use profile::printable::printable;

use super::context::Context;
use super::flame::style;
use super::format::{Dumps, Format, Needs};
use crate::freed::Freed;
use crate::json;
use crate::measure::Style;
use tab::{Data, PageContext, Tab};

/// `--html`.
pub const FORMAT: Format = Format {
    extension: Some("html"),
    style: Style::Own,
    needs: Needs {
        variance: true,
        dumps: Dumps::SeparateBase,
        accepts_cpu_profile: true,
        ..Needs::GRAPH
    },
    ..Format::report(
        "html",
        "One page for a browser: flame graph, call graph, tables, source",
        render,
    )
};

/// Tabs of the page, from left to right.
const TABS: &[Tab] = &[
    lost::TAB,
    flame::TAB,
    graph::TAB,
    functions::TAB,
    source::TAB,
    time::TAB,
    leaks::TAB,
    sizes::TAB,
    threads::TAB,
    temporary::TAB,
    allocator::TAB,
    cost::TAB,
    about::TAB,
];

/// Scripts that the tabs' scripts depend on.
const SHARED: &str = concat!(
    include_str!("html/values.js"),
    include_str!("html/table.js"),
    include_str!("html/header.js"),
    include_str!("html/state.js"),
    include_str!("html/page.js"),
);
const START: &str = include_str!("html/start.js");
const TIME_STYLE: &str = include_str!("html/time.css");

/// Maximum number of columns on the page.
const MAX_COLUMNS: usize = 8;

/// Renders the page.
fn render(context: &Context) -> Result<String> {
    let page = PageContext {
        context,
        columns: &columns(context),
        compared: is_compared(context),
    };
    let data = data(&page);
    let (graphs, script_in_graph) = graph::pictures_and_script(&page);
    let script = script(context.view.profile());
    let policy = policy::policy_for(&[&script, &script_in_graph]);
    let title = title(context);
    let title = escape(&title);
    let style = style::sheet();
    Ok(format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta name=\"referrer\" content=\"no-referrer\">\n\
         <title>{title}</title>\n<style>\n{style}{}{TIME_STYLE}</style>\n</head>\n<body>\n\
         <noscript>This page draws with its own script, which this browser does not run.\
         </noscript>\n\
         <script type=\"application/json\" id=\"profile\">\n{data}</script>\n\
         <script type=\"application/json\" id=\"graphs\">\n{graphs}</script>\n\
         <script>{script}</script>\n</body>\n</html>\n",
        page::STYLE
    ))
}

/// Returns the columns of the page, in the profile's order.
fn columns(context: &Context) -> Vec<usize> {
    let profile = context.view.profile();
    let count = profile.sample_types.len();
    let mut columns: Vec<usize> = (0..count.min(MAX_COLUMNS)).collect();
    if profile.facts.leak_check.is_some() {
        // Lost objects are live, so allocated values would be the same numbers.
        columns.retain(|&c| !profile.sample_types[c].kind.starts_with("alloc_"));
    }
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
    // A process may be named after a link to its program.
    let process = context.view.profile().facts.process.as_deref();
    let program = context.program.and_then(|p| p.file_name());
    let program = || program.map_or("profile".into(), |name| name.to_string_lossy());
    let name = process.map_or_else(program, Cow::Borrowed);
    format!("{} - {}", printable(&name), kind(context.view.profile()))
}

/// Returns the kind of a profile, for the title.
fn kind(profile: &Profile) -> &'static str {
    let mode = profile.facts.cpu.as_ref().map(|cpu| cpu.mode);
    if profile.facts.leak_check.is_some() {
        return "leak check";
    }
    match (profile.is_memory_profile(), profile.time_column(), mode) {
        (true, Some(_), _) => "heap and CPU profile",
        (true, None, _) => "heap profile",
        (false, _, Some(Mode::Wall | Mode::OffCpu)) => "profile of elapsed time",
        (false, Some(_), _) => "CPU profile",
        (false, None, _) => "profile",
    }
}

/// Returns the tabs for a profile.
fn tabs(profile: &Profile) -> impl Iterator<Item = &'static Tab> {
    TABS.iter().filter(|tab| tab.profiles.includes(profile))
}

/// Returns the JSON of the page.
fn data(page: &PageContext) -> String {
    let PageContext {
        context, columns, ..
    } = page;
    let profile = context.view.profile();
    let sampled: Vec<bool> = columns
        .iter()
        .map(|&column| super::sampling::is_about(profile, column))
        .collect();
    let freed = Freed::find(profile).filter(|_| context.options.column.is_none());
    let first = freed.map_or(context.view.column(), |freed| freed.column);
    let chosen = columns.iter().position(|&c| c == first);
    let note = freed.map(|freed| format!("Nearly everything was freed: {}.", freed.text()));
    let mut out = format!(
        "{{\"title\":{},\"note\":{},\"column\":{},\"compared\":{},\"memory\":{},\"sampling\":{},\"sampled\":{}",
        json::embedded(&title(context)),
        json::embedded(&note),
        chosen.unwrap_or(0),
        page.compared,
        profile.is_memory_profile(),
        json::embedded(&sampling(profile)),
        json::embedded(&sampled),
    );
    let tabs = tabs(profile);
    for Data { key, json } in tabs.filter_map(|tab| tab.data.as_ref()) {
        // Writing to a string cannot fail.
        let _ = write!(out, ",\n\"{key}\":{}", json(page));
    }
    out.push_str("}\n");
    out
}

/// Returns the facts about the sampling of a CPU profile, for display.
fn sampling(profile: &Profile) -> Vec<(&'static str, Cow<'static, str>)> {
    let facts = super::sampling::facts(profile).into_iter();
    facts
        .map(|(name, text)| (name, Cow::Owned(printable(&text).into_owned())))
        .collect()
}

/// Returns the page's own script.
fn script(profile: &Profile) -> String {
    let tabs: String = tabs(profile).map(|tab| tab.script).collect();
    let flame = super::flame::SCRIPT;
    format!(
        "\n{flame}{}{}{}{SHARED}{tabs}{START}",
        help::SCRIPT,
        help::KEYS,
        page::SCRIPT
    )
}
