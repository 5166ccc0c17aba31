//! The command line.

use std::path::PathBuf;

use clap::{ArgGroup, Args, Parser, ValueEnum};

use crate::demangle::Style;
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

    /// The dump to read
    #[arg(short = 'f', long = "file", value_name = "DUMP", required = true)]
    pub files: Vec<PathBuf>,

    /// Write to this file instead of standard output
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Use binaries although their build ids differ from the profiled ones
    #[arg(long)]
    pub force: bool,

    /// What to print.
    #[command(flatten)]
    pub report: Report,

    /// Which values to show.
    #[command(flatten)]
    pub values: Values,

    /// How to show them.
    #[command(flatten)]
    pub view: ViewOptions,
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
}

/// The column to show.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Values")]
#[group(multiple = false)]
pub struct Values {
    /// Bytes that are in use (default)
    #[arg(long, visible_alias = "inuse-space")]
    pub inuse_space: bool,

    /// Objects that are in use
    #[arg(long, visible_alias = "inuse-objects")]
    pub inuse_objects: bool,

    /// Bytes that were allocated, freed ones included
    #[arg(long, visible_alias = "alloc-space")]
    pub alloc_space: bool,

    /// Objects that were allocated, freed ones included
    #[arg(long, visible_alias = "alloc-objects")]
    pub alloc_objects: bool,

    /// Any column by its name or number, for profiles of other kinds
    #[arg(long, value_name = "NAME", visible_alias = "sample-index")]
    pub sample_index: Option<String>,
}

/// How to show the values.
#[derive(Args, Debug)]
#[command(next_help_heading = "View")]
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

    /// What becomes one entry
    #[arg(long, value_enum, default_value_t = Granularity::Functions)]
    pub granularity: Granularity,

    /// Count inlined functions for the function they were inlined into
    #[arg(long)]
    pub noinlines: bool,

    /// How C++ and Rust names are shown
    #[arg(long, value_enum, default_value_t = Style::Simple)]
    pub demangle: Style,

    /// Unit to print: B, kB, MB, …, or the best one
    #[arg(long, default_value = "minimum")]
    pub unit: String,
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
