//! Tabs of the page.

use heap_format::{Format, Profile};

use crate::report::context::Context;

/// A tab: a script, and the part of the profile that it draws.
pub struct Tab {
    /// The profiles that have it.
    pub of: Of,
    /// The script, which adds the tab to `TABS`.
    pub script: &'static str,
    /// The data of the script; `None` if they are not in the page's JSON.
    pub data: Option<Data>,
}

/// Profiles that a tab is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    /// All.
    All,
    /// Those of memory.
    Memory,
    /// Those of time.
    Time,
}

impl Of {
    /// Whether a profile is one of these.
    pub fn holds(self, profile: &Profile) -> bool {
        match self {
            Self::All => true,
            // Folded stacks do not say what they count.
            Self::Memory => profile.is_of_memory() || profile.format == Format::Folded,
            Self::Time => profile.time_column().is_some(),
        }
    }
}

/// A part of the page's JSON.
pub struct Data {
    /// Key of the part.
    pub key: &'static str,
    /// The part.
    pub json: fn(&PageContext) -> String,
}

/// The material of the page.
pub struct PageContext<'a> {
    /// The material of every report.
    pub context: &'a Context<'a>,
    /// Columns of the profile that the page has.
    pub columns: &'a [usize],
    /// The profile keeps a base apart: the page shows before, after and change.
    pub compared: bool,
}

/// A share as shown on the page: four decimals.
pub fn share(part: f64) -> f64 {
    (part * 1e4).round() / 1e4
}
