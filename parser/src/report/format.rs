//! Formats of output: the flag that asks for each, what it needs of the stages before it, and
//! the function that renders it.

use anyhow::Result;
use heap_format::Profile;
use regex::Regex;

use super::context::Context;
use crate::graph::Order;
use crate::nodes::Granularity;
use crate::options::Options;

/// A format of output, described by a constant of the file that renders it.
#[derive(Debug)]
pub struct Format {
    /// Long flag, without dashes.
    pub flag: &'static str,
    /// Short flag.
    pub short: Option<char>,
    /// Second long flag.
    pub alias: Option<&'static str>,
    /// Line of `--help`.
    pub help: &'static str,
    /// Ending of the file that the output goes to where standard output is a terminal, which
    /// could not show it; `None` for text.
    pub ending: Option<&'static str>,
    /// The flag takes a pattern of functions.
    pub takes_pattern: bool,
    /// Demands on the stages before rendering.
    pub needs: Needs,
    /// The renderer.
    pub render: Render,
}

/// A renderer, by what it is given.
#[derive(Clone, Copy, Debug)]
pub enum Render {
    /// Text made of functions, lines, files or addresses.
    Report(fn(&Context) -> Result<String>),
    /// A conversion of the profile, without what filters left out.
    Conversion(fn(&Profile) -> Result<Vec<u8>>),
}

impl Format {
    /// A report without a short flag, an alias and a pattern, that needs nothing in particular.
    pub const fn report(
        flag: &'static str,
        help: &'static str,
        render: fn(&Context) -> Result<String>,
    ) -> Self {
        Self::new(flag, help, Render::Report(render))
    }

    /// Likewise, a conversion of the whole profile.
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
            needs: Needs::TABLE,
            render,
        }
    }
}

/// Demands of a format on the stages before rendering.
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// Grouping of frames; `None` for the caller's choice.
    pub granularity: Option<Granularity>,
    /// Inlined functions are kept apart, whatever the caller chose.
    pub inlines: bool,
    /// Equal functions of different object files are kept apart.
    pub objects: bool,
    /// Entries shown unless the caller chose a number, 0 for all; `None` if the format is
    /// never trimmed.
    pub trim: Option<usize>,
    /// Order of the entries; `None` for the caller's choice.
    pub order: Option<Order>,
    /// Variances of all values are computed, also where no error bars were asked for.
    pub variance: bool,
    /// Names of functions.
    pub symbols: Symbols,
    /// Treatment of several dumps and of a base.
    pub dumps: Dumps,
    /// Equal stacks are merged, as formats that list stacks show them once.
    pub merged_stacks: bool,
}

/// Need for the names of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbols {
    /// The format shows names: it is refused where no program is given to find them in.
    Required,
    /// Names that are found are shown.
    Optional,
    /// The format shows none.
    Unused,
}

/// Treatment of several dumps and of a base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dumps {
    /// Added up, and the base subtracted.
    Sum,
    /// Added up, and the base kept apart.
    BaseApart,
    /// Kept apart as dumps of one session, in the order of time; a base is an early one.
    Series,
    /// One dump only.
    Single,
}

impl Needs {
    /// Needs of a table: all entries, in the caller's order.
    pub const TABLE: Self = Self {
        granularity: None,
        inlines: false,
        objects: false,
        trim: Some(0),
        order: None,
        variance: false,
        symbols: Symbols::Required,
        dumps: Dumps::Sum,
        merged_stacks: false,
    };

    /// Needs of a drawn graph: the entries that add most to a picture.
    pub const GRAPH: Self = Self {
        trim: Some(80),
        order: Some(Order::Entropy),
        ..Self::TABLE
    };
}

/// The output that was asked for.
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
            granularity: needs.granularity.or(Some(options.granularity)),
            inlines: needs.inlines || options.inlines,
            trim: needs.trim.filter(|_| options.trim),
            order: needs.order.or(Some(options.order)),
            variance: needs.variance || options.error_bars,
            ..needs
        }
    }
}
