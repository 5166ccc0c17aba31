//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, ValueEnum};
use symbols::demangle::Style;

use crate::nodes::Granularity;

/// Reads heap profiles: tables, call graphs, and conversions.
///
/// Reads this project's dumps, jemalloc's and gperftools' text, and recognises
/// them by their content.
#[derive(Parser, Debug)]
#[command(name = "mem_parser", version, max_term_width = 100)]
#[command(group(ArgGroup::new("output_kind").required(true)))]
pub struct Cli {
    /// The program that was profiled
    #[arg(short = 'p', long = "program", value_name = "BINARY")]
    pub binary: Option<PathBuf>,

    /// The dump to read; several are added up
    #[arg(short = 'f', id = "dump", long = "file", value_name = "DUMP", required = true, num_args = 1..)]
    pub dumps: Vec<PathBuf>,

    /// Write to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Use binaries although their build ids differ from the profiled ones
    #[arg(long)]
    pub force: bool,

    /// Where symbols are found.
    #[command(flatten)]
    pub symbols: SymbolOptions,

    /// What to print.
    #[command(flatten)]
    pub report: Report,

    /// Which values to show.
    #[command(flatten)]
    pub values: Values,

    /// How to show them.
    #[command(flatten)]
    pub view: ViewOptions,

    /// Which stacks and frames count.
    #[command(flatten)]
    pub filters: FilterOptions,

    /// What is subtracted.
    #[command(flatten)]
    pub base: BaseOptions,
}

/// Where symbols are found.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Symbols")]
pub struct SymbolOptions {
    /// Root of another machine's file system, or a folder with binaries or debug files
    #[arg(long, value_name = "FOLDER", alias = "symbol_path")]
    pub symbol_path: Vec<PathBuf>,

    /// Ask debuginfod-find for symbols that are not here
    #[arg(long)]
    pub debuginfod: bool,

    /// Names of code made at run time, instead of /tmp/perf-PID.map
    #[arg(long, value_name = "FILE", alias = "perf_map")]
    pub perf_map: Option<PathBuf>,
}

/// The outputs; exactly one is asked for.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Outputs (one of these)")]
pub struct Report {
    /// Table of functions, largest first
    #[arg(
        short = 't',
        long = "top",
        visible_alias = "text",
        group = "output_kind"
    )]
    pub top: bool,

    /// Call graph as SVG
    #[arg(short = 's', long = "svg", group = "output_kind")]
    pub svg: bool,

    /// Flame graph as SVG, interactive in a browser
    #[arg(long, group = "output_kind")]
    pub flame: bool,

    /// One page for a browser: flame graph, call graph, tables, source
    #[arg(long, group = "output_kind")]
    pub html: bool,

    /// Functions with their callers and callees
    #[arg(long, group = "output_kind")]
    pub tree: bool,

    /// Callers and callees of matching functions
    #[arg(long, value_name = "PATTERN", group = "output_kind")]
    pub peek: Option<String>,

    /// Every stack with its value
    #[arg(long, group = "output_kind")]
    pub traces: bool,

    /// Source of matching functions, with values at their lines
    #[arg(long, value_name = "PATTERN", group = "output_kind")]
    pub list: Option<String>,

    /// Call graph for graphviz
    #[arg(long, group = "output_kind")]
    pub dot: bool,

    /// Call graph for KCachegrind
    #[arg(long, group = "output_kind")]
    pub callgrind: bool,

    /// Samples, locations and mappings as text
    #[arg(long, group = "output_kind")]
    pub raw: bool,

    /// Folded stacks, for flame-graph tools
    #[arg(long, group = "output_kind")]
    pub folded: bool,

    /// Gzipped profile.proto, for pprof
    #[arg(long, group = "output_kind")]
    pub proto: bool,

    /// Everything as JSON, for programs
    #[arg(long, group = "output_kind")]
    pub json: bool,

    /// Table of functions as comma-separated values
    #[arg(long, group = "output_kind")]
    pub csv: bool,

    /// Leak suspects: stacks that stay, age and, with several dumps of one session, grow
    #[arg(long, group = "output_kind")]
    pub leaks: bool,

    /// Where the resident memory is: heap, holes, dirty pages, and what is outside
    #[arg(long, group = "output_kind")]
    pub rss: bool,

    /// The dump itself with symbols inside, readable on any machine
    #[arg(long, group = "output_kind")]
    pub symbolize: bool,
}

/// The column to show.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Values", rename_all = "snake_case")]
#[group(multiple = false)]
pub struct Values {
    /// Bytes that are in use (default)
    #[arg(long, alias = "inuse-space")]
    pub inuse_space: bool,

    /// Objects that are in use
    #[arg(long, alias = "inuse-objects")]
    pub inuse_objects: bool,

    /// Bytes that were allocated, freed ones included
    #[arg(long, alias = "alloc-space")]
    pub alloc_space: bool,

    /// Objects that were allocated, freed ones included
    #[arg(long, alias = "alloc-objects")]
    pub alloc_objects: bool,

    /// Any column by its name or number, for profiles of other kinds
    #[arg(long, value_name = "NAME", alias = "sample-index")]
    pub sample_index: Option<String>,
}

/// How to show the values.
#[derive(Args, Debug)]
#[command(next_help_heading = "View", rename_all = "snake_case")]
pub struct ViewOptions {
    /// Show at most this many functions [default: all in tables, 80 in graphs]
    #[arg(short = 'n', long, value_name = "N")]
    pub nodecount: Option<usize>,

    /// Hide functions below this share of the total
    #[arg(long, value_name = "SHARE", default_value_t = 0.005)]
    pub nodefraction: f64,

    /// Hide edges below this share of the total
    #[arg(long, value_name = "SHARE", default_value_t = 0.001)]
    pub edgefraction: f64,

    /// Sort by what a function and its callees hold
    #[arg(long)]
    pub cum: bool,

    /// Leave out what is below zero in a comparison
    #[arg(long)]
    pub drop_negative: bool,

    /// Limit and cut off as the three options above say; --trim=false shows everything
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    pub trim: bool,

    /// What becomes one entry
    #[arg(long, value_enum, default_value_t = Granularity::Functions)]
    pub granularity: Granularity,

    /// Same as --granularity=functions
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub functions: bool,

    /// Same as --granularity=lines
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub lines: bool,

    /// Same as --granularity=files
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub files: bool,

    /// Same as --granularity=addresses
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub addresses: bool,

    /// Count inlined functions for the function they were inlined into
    #[arg(long)]
    pub noinlines: bool,

    /// Show how far each value may be off, at 95 %
    #[arg(long)]
    pub ci: bool,

    /// How C++ and Rust names are shown
    #[arg(long, value_enum, default_value_t = Style::Simple)]
    pub demangle: Style,

    /// Unit to print: B, kB, MB, …, or the best one
    #[arg(long, default_value = "minimum")]
    pub unit: String,

    /// Divide all values by this before showing them
    #[arg(long, value_name = "N", default_value_t = 1.0, alias = "divide-by")]
    pub divide_by: f64,

    /// Leave program and type out of the legend
    #[arg(long, alias = "compact-labels")]
    pub compact_labels: bool,

    /// Folders to search for source files
    #[arg(long, value_name = "FOLDER", alias = "source-path")]
    pub source_path: Vec<PathBuf>,
}

/// Which stacks and frames count. Patterns are matched against the name of
/// the function, its source file and its object file.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Filters", rename_all = "snake_case")]
pub struct FilterOptions {
    /// Only stacks through a matching frame
    #[arg(long, value_name = "PATTERN")]
    pub focus: Option<String>,

    /// Only stacks through no matching frame
    #[arg(long, value_name = "PATTERN")]
    pub ignore: Option<String>,

    /// Leave out matching frames
    #[arg(long, value_name = "PATTERN")]
    pub hide: Option<String>,

    /// Leave out all other frames
    #[arg(long, value_name = "PATTERN")]
    pub show: Option<String>,

    /// Leave out the frames above the outermost matching one
    #[arg(long, value_name = "PATTERN", alias = "show-from")]
    pub show_from: Option<String>,

    /// Leave out the frames below the innermost matching one
    #[arg(long, value_name = "PATTERN", alias = "prune-from")]
    pub prune_from: Option<String>,

    /// Only stacks with a matching label, or one in a range: 1kb:10kb
    #[arg(long, value_name = "[KEY=]VALUE")]
    pub tagfocus: Option<String>,

    /// Only stacks without such a label
    #[arg(long, value_name = "[KEY=]VALUE")]
    pub tagignore: Option<String>,

    /// Percentages of what the filters leave, not of everything
    #[arg(long, alias = "relative-percentages")]
    pub relative_percentages: bool,
}

/// What is subtracted.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Comparison", rename_all = "snake_case")]
#[group(multiple = false)]
pub struct BaseOptions {
    /// Subtract this dump
    #[arg(long, value_name = "DUMP")]
    pub base: Vec<PathBuf>,

    /// Subtract this dump, and show percentages of it
    #[arg(long, value_name = "DUMP", alias = "diff-base")]
    pub diff_base: Vec<PathBuf>,
}

impl ViewOptions {
    /// How finely frames are told apart.
    pub fn grain(&self) -> Granularity {
        match self {
            Self {
                functions: true, ..
            } => Granularity::Functions,
            Self { lines: true, .. } => Granularity::Lines,
            Self { files: true, .. } => Granularity::Files,
            Self {
                addresses: true, ..
            } => Granularity::Addresses,
            Self { granularity, .. } => *granularity,
        }
    }
}

impl ValueEnum for Granularity {
    fn value_variants<'a>() -> &'a [Self] {
        &[Self::Functions, Self::Lines, Self::Files, Self::Addresses]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self {
            Self::Functions => "functions",
            Self::Lines => "lines",
            Self::Files => "files",
            Self::Addresses => "addresses",
        }))
    }
}

impl Values {
    /// The name of the column asked for.
    pub fn wanted(&self) -> Option<&str> {
        match self {
            Self {
                inuse_space: true, ..
            } => Some("inuse_space"),
            Self {
                inuse_objects: true,
                ..
            } => Some("inuse_objects"),
            Self {
                alloc_space: true, ..
            } => Some("alloc_space"),
            Self {
                alloc_objects: true,
                ..
            } => Some("alloc_objects"),
            Self { sample_index, .. } => sample_index.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
