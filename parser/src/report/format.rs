//! Output formats: the flag that selects each, what it needs from the stages before it, and
//! the function that renders it.

use anyhow::Result;
use heap_format::Profile;
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
    /// Suffix of the output file if standard output is a terminal, which could not show the
    /// output; `None` for text.
    pub ending: Option<&'static str>,
    /// Whether the flag takes a pattern of functions.
    pub takes_pattern: bool,
    /// How values are written: as pprof writes them where the layout is pprof's.
    pub style: Style,
    /// Needs from the stages before rendering.
    pub needs: Needs,
    /// The renderer.
    pub render: Render,
}

/// A renderer, by its input.
#[derive(Clone, Copy, Debug)]
pub enum Render {
    /// Text made of functions, lines, files or addresses.
    Report(fn(&Context) -> Result<String>),
    /// A conversion of the filtered profile.
    Conversion(fn(&Profile) -> Result<Vec<u8>>),
}

impl Format {
    /// A report without short flag, alias or pattern, and with no special needs.
    pub const fn report(
        flag: &'static str,
        help: &'static str,
        render: fn(&Context) -> Result<String>,
    ) -> Self {
        Self::new(flag, help, Render::Report(render))
    }

    /// A report with a layout of our own, of one dump, that is not trimmed.
    pub const fn breakdown(
        flag: &'static str,
        help: &'static str,
        render: fn(&Context) -> Result<String>,
    ) -> Self {
        Self {
            style: Style::Own,
            needs: Needs {
                dumps: Dumps::Single,
                ..Needs::TABLE
            },
            ..Self::report(flag, help, render)
        }
    }

    /// The same format, which shows what only profiles of memory have.
    pub const fn of_memory(mut self) -> Self {
        self.needs.memory = true;
        self
    }

    /// The same as [`report`](Self::report) for a conversion of the whole profile.
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
            ending: None,
            takes_pattern: false,
            style: Style::Pprof,
            needs: Needs::TABLE,
            render,
        }
    }
}

/// What a format needs from the stages before rendering.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Flag of the format, for messages.
    pub flag: &'static str,
    /// Grouping of frames; `None` for the caller's choice.
    pub granularity: Option<Granularity>,
    /// Whether inlined functions are kept separate, whatever the caller chose.
    pub inlines: bool,
    /// Whether equal functions of different object files are kept separate.
    pub objects: bool,
    /// Entries shown unless the caller chose a number, 0 for all; `None` if the format is
    /// never trimmed.
    pub trim: Option<usize>,
    /// Order of the entries; `None` for the caller's choice.
    pub order: Option<Order>,
    /// Whether variances of all values are computed, even if no error bars were requested.
    pub variance: bool,
    /// Whether function names are needed.
    pub symbols: Symbols,
    /// How several dumps and a base are treated.
    pub dumps: Dumps,
    /// Whether equal stacks are merged, for formats that list each stack once.
    pub merged_stacks: bool,
    /// Whether the format shows what only profiles of memory have.
    pub memory: bool,
    /// Whether a CPU profile of the same process may stand beside a heap profile.
    pub beside: bool,
}

/// Need for function names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// The format shows names: it is refused if there is no program to find them in.
    Required,
    /// Names that are found are shown.
    Optional,
    /// The format shows no names.
    Unused,
}

/// Treatment of several dumps and of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dumps {
    /// Added up, and the base subtracted.
    Sum,
    /// Added up, and the base kept separate.
    BaseApart,
    /// Kept separate as dumps of one session, in chronological order; a base is an early one.
    Series,
    /// One dump only.
    Single,
}

impl Needs {
    /// Needs of a table: all entries, in the caller's order.
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
        memory: false,
        beside: false,
    };

    /// Needs of a drawn graph: the entries that add most to a picture.
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
    /// An output; the pattern is that of the functions which a format with
    /// [`takes_pattern`](Format::takes_pattern) shows.
    pub fn new(format: &'static Format, pattern: Option<Regex>) -> Self {
        Self { format, pattern }
    }

    /// The format.
    pub fn format(&self) -> &'static Format {
        self.format
    }

    /// The pattern of functions.
    pub fn pattern(&self) -> Option<&Regex> {
        self.pattern.as_ref()
    }

    /// The needs of the format, with the caller's choices where it leaves them.
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
