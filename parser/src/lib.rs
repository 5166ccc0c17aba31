//! Renders heap and CPU profiles as tables, graphs, pages and conversions. `mem_parser` is the
//! command line of this library; other programs can render the same reports from profiles in
//! memory.
//!
//! ```
//! use mem_parser::{Options, Output, combine, report, select};
//!
//! let bytes = b"heap profile: 2: 300 [3: 900] @ heap_v2/1\n 2: 300 [3: 900] @ 0x10 0x20\n";
//! let mut profile = profile::read(bytes, "upload").unwrap();
//! let options = Options::default();
//! let format = report::FORMATS.iter().find(|f| f.flag == "top").unwrap();
//! let output = Output::new(format, None);
//!
//! let needs = output.needs(&options);
//! combine::prepare(&mut profile, &needs);
//! let combined = combine::Combined::single(profile);
//! // Here `symbols::symbolize` names the functions.
//! let selection = select(combined, &options).unwrap();
//! let table = mem_parser::render(&selection, &output, &options).unwrap();
//! assert!(table.starts_with(b"Type: inuse_space"));
//! ```
//!
//! For files, [`load::load`] does everything up to [`select`].
//!
//! # Guarantees
//!
//! - Whatever a profile contains, rendering neither panics nor writes anything but the report:
//!   names are text in every format, never markup, formulas or terminal sequences.
//! - The same profile and options yield the same bytes.
//! - Nothing is printed. Warnings are returned, or passed to the caller's closure.
//! - Numbers match pprof's where pprof has them.
//!
//! # Callers
//!
//! Callers must
//! - call [`combine::prepare`], with the [needs](report::format::Needs) of the output, for a
//!   profile that was not read by [`load`];
//! - render a selection only in formats whose needs it was made for. Formats that treat several
//!   dumps in the same way can share one;
//! - set [`Options::divide_by`] to neither 0 nor infinity.
//!
//! # Limits
//!
//! - Only [`load`] and the formats that show source lines (`--list`, `--html`) read files. The
//!   latter only read files that [`sources`] accepts as source files.
//! - The whole report is built in memory.

mod breakdown;
pub mod combine;
mod date;
pub mod files;
pub mod filters;
mod freed;
mod generated;
pub mod graph;
mod hint;
mod json;
pub mod load;
mod measure;
pub mod nearest;
pub mod nodes;
mod options;
mod php;
mod places;
pub mod program;
pub mod python;
pub mod report;
pub mod series;
pub mod sources;
pub mod stdin;
mod suspects;
mod timeline;
mod unmapped;
mod untracked;
pub mod view;

pub use measure::is_unit;

use std::borrow::Cow;

use anyhow::{Result, bail};
use profile::merge::Base;
use profile::{Profile, printable};

use combine::Combined;
use freed::Freed;
use graph::{Order, Trim};
use nodes::Nodes;
pub use options::Options;
use report::context::Context;
pub use report::format::{Format, Output};
use report::format::{Needs, Render};
use series::Series;
use view::View;

/// The part of a profile that reports show.
#[derive(Debug)]
pub struct Selection {
    view: View,
    series: Series,
    base_rule: Base,
    warnings: Vec<String>,
}

impl Selection {
    /// Returns warnings for the user, about filters that match nothing.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns a hint if the output shows only a small part of the profile: live bytes of a process
    /// that freed nearly everything, or one of several events.
    pub fn hint(&self, output: &Output, options: &Options) -> Option<String> {
        let Format {
            render,
            needs,
            extension,
            ..
        } = output.format();
        let is_picture_or_table = matches!(extension, None | Some("svg"));
        let is_report = matches!(render, Render::Report(_)) && is_picture_or_table;
        if !is_report || needs.heap_only || options.column.is_some() {
            return None;
        }
        let profile = self.view.profile();
        Freed::find(profile)
            .map(|freed| freed.hint())
            .or_else(|| other_events(profile))
    }
}

/// Returns a hint that names the events of perf that are not shown.
fn other_events(profile: &Profile) -> Option<String> {
    // The first column is the number of samples of all events.
    let events = profile.sample_types.get(1..)?;
    let shown = profile.sample_types.get(profile.default_type)?;
    if profile.format != profile::Format::PerfScript || events.len() < 2 {
        return None;
    }
    let others = events.iter().filter(|event| *event != shown);
    let options = others.map(|event| format!("--sample_index {}", event.kind));
    let options: Vec<String> = options.collect();
    Some(format!(
        "{} events were recorded; this is {}. The others: {}",
        events.len(),
        shown.kind,
        options.join(", ")
    ))
}

/// Selects a column, and drops allocator frames and what the filters exclude.
pub fn select(combined: Combined, options: &Options) -> Result<Selection> {
    let mut view = View::new(combined.profile, options.column.as_deref())?;
    view.drop_allocator_frames()?;
    let warnings = view.filter(&options.filters);
    if options.relative_percentages {
        view.set_total_to_shown();
    }
    Ok(Selection {
        view,
        series: combined.series,
        base_rule: combined.base_rule,
        warnings,
    })
}

/// Renders an output.
pub fn render(selection: &Selection, output: &Output, options: &Options) -> Result<Vec<u8>> {
    let Selection {
        view,
        series,
        base_rule,
        ..
    } = selection;
    let Format { flag, needs, .. } = output.format();
    if let (true, Some(sampling)) = (needs.heap_only, &view.profile().facts.cpu) {
        bail!(
            "--{flag} is for memory, but this is a profile of {}: give it a dump (.heap)",
            sampling.mode
        );
    }
    let report = match output.format().render {
        Render::Conversion(convert) => return convert(&view.materialize()),
        Render::Report(report) => report,
    };
    let needs = output.needs(options);
    let granularity = needs.granularity.unwrap_or_default();
    let profile = view.profile();
    let recorded = || {
        let main = symbols::main_mapping(profile).map(|i| profile.mappings[i].path.as_path());
        main.or(profile.facts.exe.as_deref())
    };
    let text = report(&Context {
        view,
        nodes: &Nodes::new(view, granularity, needs.inlines, needs.objects),
        series,
        base_rule: *base_rule,
        trim: trim(&needs, options),
        pattern: output.pattern(),
        program: options.program.as_deref().or_else(recorded),
        style: output.format().style.for_unit(&options.unit),
        options,
    })?;
    // Defence in depth, in case a format forgot to escape something.
    let escaped = match printable::text(&text) {
        Cow::Borrowed(_) => None,
        Cow::Owned(escaped) => Some(escaped),
    };
    Ok(escaped.unwrap_or(text).into_bytes())
}

fn trim(needs: &Needs, options: &Options) -> Trim {
    let order = needs.order.unwrap_or(Order::Flat);
    let drop_negative = options.drop_negative;
    match needs.trim {
        None => Trim {
            node_count: 0,
            node_fraction: 0.0,
            edge_fraction: 0.0,
            drop_negative,
            order,
        },
        Some(count) => Trim {
            node_count: options.node_count.unwrap_or(count),
            node_fraction: options.node_fraction,
            edge_fraction: options.edge_fraction,
            drop_negative,
            order,
        },
    }
}
