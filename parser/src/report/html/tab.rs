//! Tabs of the page.

use profile::{Format, Profile};

use crate::report::context::Context;

/// A tab: a script, and the part of the profile that it draws.
pub struct Tab {
    /// Profiles that have the tab.
    pub profiles: ProfileKind,
    /// Script that adds the tab to `TABS`.
    pub script: &'static str,
    /// Data of the script; `None` if they are not in the page's JSON.
    pub data: Option<Data>,
}

/// Kinds of profiles that have a tab.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProfileKind {
    /// All profiles.
    All,
    /// Heap profiles.
    Memory,
    /// CPU profiles.
    Time,
}

impl ProfileKind {
    /// Returns true if a profile is of this kind.
    pub fn includes(self, profile: &Profile) -> bool {
        match self {
            Self::All => true,
            // Folded stacks may count anything.
            Self::Memory => profile.is_memory_profile() || profile.format == Format::Folded,
            Self::Time => profile.time_column().is_some(),
        }
    }
}

/// A part of the page's JSON.
pub struct Data {
    /// Key of the part.
    pub key: &'static str,
    /// Function that generates the JSON.
    pub json: fn(&PageContext) -> String,
}

/// Input of the page.
pub struct PageContext<'a> {
    /// Input of every report.
    pub context: &'a Context<'a>,
    /// Columns of the profile that the page shows.
    pub columns: &'a [usize],
    /// Set if the profile keeps a base separate, so that the page shows before, after and change.
    pub compared: bool,
}

/// Returns true for a flag that is not set, which serde then omits from the page.
pub fn is_false(is_set: &bool) -> bool {
    !is_set
}

/// Rounds a share to four decimals.
pub fn share(part: f64) -> f64 {
    (part * 1e4).round() / 1e4
}
