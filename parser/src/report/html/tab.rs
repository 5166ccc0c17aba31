//! Tabs of the page.

use crate::report::context::Context;

/// A tab: a script, and the part of the profile that it draws.
pub struct Tab {
    /// The script, which adds the tab to `TABS`.
    pub script: &'static str,
    /// The data of the script; `None` if they are not in the page's JSON.
    pub data: Option<Data>,
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

/// A share as the page has it: four decimals.
pub fn share(part: f64) -> f64 {
    (part * 1e4).round() / 1e4
}
