//! Options of what to show of a profile, and how.

use std::path::PathBuf;

use crate::filters::Filters;
use crate::graph::Order;
use crate::nodes::Granularity;

/// Options of what to show of a profile, and how. The defaults are the command line's.
#[derive(Debug)]
pub struct Options {
    /// Column to show, by name or index; `None` for the profile's default.
    pub column: Option<String>,
    /// Filters of stacks and frames.
    pub filters: Filters,
    /// Percentages are of what the filters keep, not of everything.
    pub relative_percentages: bool,
    /// Grouping of frames.
    pub granularity: Granularity,
    /// Inlined functions are entries of their own.
    pub inlines: bool,
    /// Order of tables.
    pub order: Order,
    /// Drop small entries, by the next three limits.
    pub trim: bool,
    /// Maximum number of entries; 0 for all, `None` for the format's default.
    pub node_count: Option<usize>,
    /// Minimum share of the total for an entry.
    pub node_fraction: f64,
    /// Minimum share of the total for a call.
    pub edge_fraction: f64,
    /// Drop entries below zero.
    pub drop_negative: bool,
    /// Treat library functions as pprof does: neither name the user's own lines above the table nor
    /// attribute values to them.
    pub all_frames: bool,
    /// Show values with their 95 % confidence intervals.
    pub error_bars: bool,
    /// Unit to print; `minimum` for the best one.
    pub unit: String,
    /// Divisor of all values; not 0.
    pub divide_by: f64,
    /// Omit program and type from the legend.
    pub compact_labels: bool,
    /// Program for titles; `None` for that of the profile.
    pub program: Option<PathBuf>,
    /// Input files, for titles.
    pub files: Vec<PathBuf>,
    /// Input files that are subtracted, for titles.
    pub base_files: Vec<PathBuf>,
    /// Directories to search for source files.
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
            all_frames: false,
            error_bars: false,
            unit: "minimum".to_owned(),
            divide_by: 1.0,
            compact_labels: false,
            program: None,
            files: Vec::new(),
            base_files: Vec::new(),
            source_directories: Vec::new(),
            labels: Vec::new(),
        }
    }
}
