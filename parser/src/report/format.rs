//! Output formats: the flag of each, its requirements of the stages before it, and its renderer.

use anyhow::Result;
use profile::Profile;
use regex::Regex;

use super::context::Context;
use crate::graph::Order;
use crate::measure::Style;
use crate::nodes::Granularity;
use crate::options::Options;

/// An output format, described by a constant in the file that renders it.
#[derive(Debug)]
pub struct Format {
    /// Long flag, without dashes.
    pub flag: &'static str,
    /// Short flag.
    pub short: Option<char>,
    /// Alternative long flag.
    pub alias: Option<&'static str>,
    /// Line of `--help`.
    pub help: &'static str,
    /// Extension of the output file if standard output is a terminal, which cannot show the output.
    /// `None` for text.
    pub extension: Option<&'static str>,
    /// Set if the flag takes a pattern of functions.
    pub takes_pattern: bool,
    /// Style of values: of columns in pprof's layouts, ours in others.
    pub style: Style,
    /// Requirements of the stages before rendering.
    pub needs: Needs,
    /// Renderer.
    pub render: Render,
}

/// A renderer, by its input.
#[derive(Clone, Copy, Debug)]
pub enum Render {
    /// Text about functions, lines, files or addresses.
    Report(fn(&Context) -> Result<String>),
    /// Conversion of the filtered profile.
    Conversion(fn(&Profile) -> Result<Vec<u8>>),
}

impl Format {
    /// Defines a report without short flag, alias or pattern, and with the needs of a table.
    pub const fn report(
        flag: &'static str,
        help: &'static str,
        render: fn(&Context) -> Result<String>,
    ) -> Self {
        Self::new(flag, help, Render::Report(render))
    }

    /// Defines a report of one dump in our own layout, which is not trimmed.
    pub const fn breakdown(
        flag: &'static str,
        help: &'static str,
        render: fn(&Context) -> Result<String>,
    ) -> Self {
        Self {
            style: Style::Own,
            needs: Needs {
                dumps: Dumps::Single,
                variance: true,
                ..Needs::TABLE
            },
            ..Self::report(flag, help, render)
        }
    }

    /// Restricts the format to heap profiles.
    pub const fn for_memory_only(mut self) -> Self {
        self.needs.heap_only = true;
        self
    }

    /// Defines a conversion of the whole profile, otherwise like [`report`](Self::report).
    pub const fn conversion(
        flag: &'static str,
        help: &'static str,
        render: fn(&Profile) -> Result<Vec<u8>>,
    ) -> Self {
        Self::new(flag, help, Render::Conversion(render))
    }

    const fn new(flag: &'static str, help: &'static str, render: Render) -> Self {
        Self {
            flag,
            short: None,
            alias: None,
            help,
            extension: None,
            takes_pattern: false,
            style: Style::Column,
            needs: Needs::TABLE,
            render,
        }
    }
}

/// Requirements of a format of the stages before rendering.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Flag of the format, for messages.
    pub flag: &'static str,
    /// Grouping of frames; `None` for the user's choice.
    pub granularity: Option<Granularity>,
    /// Inlined functions are always entries of their own.
    pub inlines: bool,
    /// Equal functions of different object files are different entries.
    pub objects: bool,
    /// Default number of entries shown; 0 for all, `None` if the format is never trimmed.
    pub trim: Option<usize>,
    /// Order of the entries; `None` for the user's choice.
    pub order: Option<Order>,
    /// Variances are computed even if no error bars were requested.
    pub variance: bool,
    /// Need for function names.
    pub symbols: Symbols,
    /// Treatment of several dumps and of a base.
    pub dumps: Dumps,
    /// Equal stacks are merged, for formats that list each stack once.
    pub merged_stacks: bool,
    /// Only heap profiles are supported.
    pub heap_only: bool,
    /// A CPU profile of the same process may be combined with a heap profile.
    pub accepts_cpu_profile: bool,
}

/// Need for function names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// Names are shown. It is an error if there is no program to find them in.
    Required,
    /// Names are shown if they are found.
    Optional,
    /// No names are shown.
    Unused,
}

/// Treatment of several dumps and of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dumps {
    /// Added up, and the base subtracted.
    Sum,
    /// Added up, and the base kept separate.
    SeparateBase,
    /// Kept separate as dumps of one session, in order of time. A base is an early dump.
    Series,
    /// One dump only.
    Single,
}

impl Needs {
    /// Requirements of a table: all entries, in the user's order.
    pub const TABLE: Self = Self {
        flag: "top",
        granularity: None,
        inlines: false,
        objects: false,
        trim: Some(0),
        order: None,
        variance: false,
        symbols: Symbols::Required,
        dumps: Dumps::Sum,
        merged_stacks: false,
        heap_only: false,
        accepts_cpu_profile: false,
    };

    /// Requirements of a drawn graph: the entries that contribute most to a picture.
    pub const GRAPH: Self = Self {
        trim: Some(80),
        order: Some(Order::Entropy),
        ..Self::TABLE
    };
}

/// The requested output.
#[derive(Clone, Debug)]
pub struct Output {
    format: &'static Format,
    pattern: Option<Regex>,
}

impl Output {
    /// Creates an output. `pattern` matches the functions shown by a format with
    /// [`takes_pattern`](Format::takes_pattern).
    pub fn new(format: &'static Format, pattern: Option<Regex>) -> Self {
        Self { format, pattern }
    }

    /// Returns the format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// Returns the pattern of functions.
    pub fn pattern(&self) -> Option<&Regex> {
        self.pattern.as_ref()
    }

    /// Returns the requirements of the format, completed by the user's choices.
    pub fn needs(&self, options: &Options) -> Needs {
        let needs = self.format.needs;
        Needs {
            flag: self.format.flag,
            granularity: needs.granularity.or(Some(options.granularity)),
            inlines: needs.inlines || options.inlines,
            trim: needs.trim.filter(|_| options.trim),
            order: needs.order.or(Some(options.order)),
            variance: needs.variance || options.error_bars,
            ..needs
        }
    }
}
