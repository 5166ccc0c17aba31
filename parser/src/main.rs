//! `mem_parser`: reads heap profiles, prints tables and draws call graphs.
//!
//! Glue only: arguments, reading, symbols, one report, output. Results go to
//! standard output, talk to standard error. Exit codes: 0 ok, 1 failed, 2 bad
//! usage.

mod cli;
mod graph;
mod load;
mod measure;
mod moment;
mod nodes;
mod output;
mod report;
mod series;
mod sources;
mod suspects;
mod view;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser;
use heap_format::{Profile, dump, pprof};

use cli::{Cli, FilterOptions};
use graph::{Order, Trim};
use load::Loaded;
use nodes::{Granularity, Nodes};
use series::Series;
use view::{Filters, TagFilter, View, pattern};

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// A message, without anything that acts on a terminal: it may hold names from
/// anywhere.
fn say(message: &str) {
    eprintln!("mem_parser: {}", heap_format::printable::text(message));
}

fn run(cli: &Cli) -> Result<()> {
    if let Some(output) = &cli.output {
        output::check(output)?;
    }
    if cli.view.divide_by == 0.0 || !cli.view.divide_by.is_finite() {
        bail!("--divide_by needs a number other than 0");
    }
    let filters = filters(&cli.filters)?;
    let Loaded { profile, series } = load::load(cli)?;
    let program = program(cli, &profile);
    let mut view = View::new(profile, cli.values.wanted())?;
    view.drop_allocator_frames()?;
    for warning in view.filter(&filters) {
        say(&format!("warning: {warning}"));
    }
    if cli.filters.relative_percentages {
        view.total_of_shown();
    }
    let content = render(cli, &view, &series, program.as_deref())?;
    let written = output::write(cli.output.as_deref(), &content);
    // The program ends: its memory goes as a whole, not piece by piece.
    std::mem::forget((view, series));
    written
}

/// The output asked for.
fn render(cli: &Cli, view: &View, series: &Series, program: Option<&Path>) -> Result<Vec<u8>> {
    let kind = &cli.report;
    let mut out = Vec::new();
    if kind.proto {
        pprof::write(&view.materialize(), &mut out)?;
        return Ok(out);
    }
    if kind.symbolize {
        dump::write(&view.materialize(), &mut out)?;
        return Ok(out);
    }
    if kind.raw {
        let text = report::raw::render(&view.materialize());
        return Ok(heap_format::printable::text(&text)
            .into_owned()
            .into_bytes());
    }
    let (grain, inlines) = match kind {
        _ if kind.callgrind => (Granularity::Addresses, true),
        _ if kind.list.is_some() => (Granularity::Lines, !cli.view.noinlines),
        _ => (cli.view.grain(), !cli.view.noinlines),
    };
    let nodes = Nodes::new(view, grain, inlines, kind.callgrind);
    let context = report::Context {
        view,
        nodes: &nodes,
        trim: trim(cli),
        unit: cli.view.unit.clone(),
        program,
        files: &cli.dumps,
        divide_by: cli.view.divide_by,
        compact: cli.view.compact_labels,
        active_filters: active_filters(&cli.filters),
        series,
        ci: cli.view.ci,
    };
    // Whatever an output forgot to escape.
    let text = text(cli, &context)?;
    Ok(heap_format::printable::text(&text)
        .into_owned()
        .into_bytes())
}

fn text(cli: &Cli, context: &report::Context) -> Result<String> {
    let kind = &cli.report;
    Ok(match kind {
        _ if kind.svg => report::svg::render(context),
        _ if kind.flame => report::flame::render(context),
        _ if kind.html => report::html::render(context, &cli.view.source_path),
        _ if kind.tree => report::tree::render(context, None)?,
        _ if kind.traces => report::traces::render(context),
        _ if kind.dot => report::dot::render(context),
        _ if kind.callgrind => report::callgrind::render(context),
        _ if kind.folded => report::folded::render(context),
        _ if kind.json => report::json::render(context),
        _ if kind.csv => report::csv::render(context),
        _ if kind.rss => {
            let base = cli.base.base.len() + cli.base.diff_base.len();
            if cli.dumps.len() + base > 1 {
                bail!("--rss tells of one moment: give it one dump");
            }
            report::rss::render(context)?
        }
        _ if kind.leaks => report::leaks::render(context, cli.view.nodecount)?,
        cli::Report {
            peek: Some(peek), ..
        } => report::tree::render(context, pattern("peek", Some(peek))?.as_ref())?,
        cli::Report {
            list: Some(list), ..
        } => match pattern("list", Some(list))? {
            Some(list) => report::list::render(context, &list, &cli.view.source_path)?,
            None => bail!("--list needs a pattern"),
        },
        _ => report::top::render(context),
    })
}

fn filters(options: &FilterOptions) -> Result<Filters> {
    let tag = |option: &str, text: &Option<String>| {
        text.as_deref()
            .map(|text| TagFilter::parse(option, text))
            .transpose()
    };
    Ok(Filters {
        focus: pattern("focus", options.focus.as_deref())?,
        ignore: pattern("ignore", options.ignore.as_deref())?,
        hide: pattern("hide", options.hide.as_deref())?,
        show: pattern("show", options.show.as_deref())?,
        show_from: pattern("show_from", options.show_from.as_deref())?,
        prune_from: pattern("prune_from", options.prune_from.as_deref())?,
        tag_focus: tag("tagfocus", &options.tagfocus)?,
        tag_ignore: tag("tagignore", &options.tagignore)?,
    })
}

/// The filters in force, as the legend names them.
fn active_filters(options: &FilterOptions) -> Vec<String> {
    let all = [
        ("focus", &options.focus),
        ("ignore", &options.ignore),
        ("hide", &options.hide),
        ("show", &options.show),
        ("show_from", &options.show_from),
        ("tagfocus", &options.tagfocus),
        ("tagignore", &options.tagignore),
    ];
    let shown = all
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name}={}", value.as_ref()?)));
    let short = |text: String| match text.char_indices().nth(80) {
        Some((at, _)) => format!("{}\u{2026}", &text[..at]),
        None => text,
    };
    shown.map(short).collect()
}

/// The program: as given, otherwise as the dump names it.
fn program(cli: &Cli, profile: &Profile) -> Option<PathBuf> {
    let recorded = || symbols::main_mapping(profile).map(|i| profile.mappings[i].path.as_path());
    cli.binary
        .as_deref()
        .or_else(recorded)
        .map(Path::to_path_buf)
}

fn trim(cli: &Cli) -> Trim {
    let (view, kind) = (&cli.view, &cli.report);
    let graph = kind.svg || kind.dot || kind.html;
    let order = match (graph, view.cum) {
        (true, _) => Order::Entropy,
        (false, true) => Order::Cum,
        (false, false) => Order::Flat,
    };
    let drop_negative = view.drop_negative;
    let whole = !view.trim || kind.peek.is_some() || kind.callgrind || kind.json;
    if whole {
        return Trim {
            node_count: 0,
            node_fraction: 0.0,
            edge_fraction: 0.0,
            drop_negative,
            order,
        };
    }
    let default_count = if graph || kind.tree { 80 } else { 0 };
    Trim {
        node_count: view.nodecount.unwrap_or(default_count),
        node_fraction: view.nodefraction,
        edge_fraction: view.edgefraction,
        drop_negative,
        order,
    }
}
