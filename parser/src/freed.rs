//! Recognises dumps of processes that freed nearly everything before they exited. Outputs show live
//! bytes by default, but hardly any are left in such a dump. So a hint names the outputs that show
//! what the process allocated and what it held at its peak.

// Decision 85: what is shown first.
use profile::Profile;
use profile::merge::BASE_LABEL;

use crate::measure::Style;

/// At the end, at most 1 / `LIVE_RATIO` of the peak may be live.
const LIVE_RATIO: i64 = 20;
/// Live bytes that may be left from the start of a C++ program and its threads: the C++ library's
/// emergency pool for exceptions takes 71 KiB.
const RUNTIME_BYTES: i64 = 128 << 10;

/// Sums of a process that freed nearly everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Freed {
    /// Column of the allocated bytes.
    pub column: usize,
    /// Live bytes at the end.
    live: i64,
    /// Allocated bytes.
    allocated: i64,
    /// Live bytes at the peak, if recorded.
    peak: Option<i64>,
}

impl Freed {
    /// Returns the sums of a profile whose process freed nearly everything, or `None` if it did
    /// not, if it still runs, or if the profile is a difference or of a leak check.
    pub fn find(profile: &Profile) -> Option<Self> {
        let facts = &profile.facts;
        let has_exited = |ended: &String| ended.starts_with("target exited");
        let is_at_end = facts.peak_ns.is_none() && facts.ended.as_ref().is_none_or(has_exited);
        let is_difference = profile.labels.iter().any(|label| label.key == BASE_LABEL);
        if !is_at_end || is_difference || facts.leak_check.is_some() {
            return None;
        }
        let live = sum(profile, profile.type_index("inuse_space")?);
        let column = profile.type_index("alloc_space")?;
        let allocated = sum(profile, column);
        let peaks = profile.moments.iter().map(|moment| moment.live);
        let peak = peaks
            .max()
            .map(|peak| i64::try_from(peak).unwrap_or(i64::MAX));
        let highest = peak.unwrap_or(live).max(live);
        let is_freed = match facts.ended {
            Some(_) => live < highest / LIVE_RATIO || live < RUNTIME_BYTES && live < highest / 2,
            // Other projects' dumps do not say whether the process has exited.
            None => live == 0,
        };
        (is_freed && allocated > 0).then_some(Self {
            column,
            live,
            allocated,
            peak,
        })
    }

    /// Describes the sums in a clause, without capital and full stop.
    pub fn text(&self) -> String {
        let bytes = |value: i64| Style::Own.label(value, "bytes", "minimum");
        let peak = self.peak.map_or(String::new(), |peak| {
            format!("; at the peak {} were", bytes(peak))
        });
        format!(
            "of {} allocated, {} were live at the end{peak}",
            bytes(self.allocated),
            bytes(self.live)
        )
    }

    /// Returns the hint for outputs that show live bytes.
    pub fn hint(&self) -> String {
        let peak = match self.peak {
            Some(_) => ", --timeline the peak",
            None => "",
        };
        format!(
            "{}: --alloc_space shows what was allocated{peak}",
            self.text()
        )
    }
}

fn sum(profile: &Profile, column: usize) -> i64 {
    let values = profile.values.iter().skip(column);
    let values = values.step_by(profile.sample_types.len().max(1));
    values.fold(0, |sum, value| sum.saturating_add(*value))
}
