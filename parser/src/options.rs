//! The caller's choices of what is shown of a profile and how.

use std::path::PathBuf;

use crate::filters::Filters;
use crate::graph::Order;
use crate::nodes::Granularity;

/// Choices of what is shown of a profile and how. The default is that of the command line.
#[derive(Debug)]
pub struct Options {
    /// Column that is shown, by name or number; the profile's default one without.
    pub column: Option<String>,
    /// Stacks and frames that count.
    pub filters: Filters,
    /// Percentages are of what the filters leave, not of everything.
    pub relative_percentages: bool,
    /// Grouping of frames.
    pub granularity: Granularity,
    /// Inlined functions are entries of their own.
    pub inlines: bool,
    /// Order of tables.
    pub order: Order,
    /// Small entries are left out, as the next three say.
    pub trim: bool,
    /// Maximum number of entries that are shown, 0 for all; the format's default without.
    pub node_count: Option<usize>,
    /// Least share of the total for an entry.
    pub node_fraction: f64,
    /// Least share of the total for a call.
    pub edge_fraction: f64,
    /// Entries below zero are left out.
    pub drop_negative: bool,
    /// Values are shown with their 95 % confidence intervals.
    pub error_bars: bool,
    /// Unit to print; `minimum` for the best one.
    pub unit: String,
    /// Divisor of all values; not 0.
    pub divide_by: f64,
    /// Program and type are left out of the legend.
    pub compact_labels: bool,
    /// The program, for titles; the profile's own without.
    pub program: Option<PathBuf>,
    /// Files that the profile was read from, for titles.
    pub files: Vec<PathBuf>,
    /// Directories that are searched for source files.
    pub source_directories: Vec<PathBuf>,
    /// Labels of all rows, for formats that are read into a database.
    pub labels: Vec<(String, String)>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            column: None,
            filters: Filters::default(),
            relative_percentages: false,
            granularity: Granularity::Usual,
            inlines: true,
            order: Order::Flat,
            trim: true,
            node_count: None,
            node_fraction: 0.005,
            edge_fraction: 0.001,
            drop_negative: false,
            error_bars: false,
            unit: "minimum".to_owned(),
            divide_by: 1.0,
            compact_labels: false,
            program: None,
            files: Vec::new(),
            source_directories: Vec::new(),
            labels: Vec::new(),
        }
    }
}
