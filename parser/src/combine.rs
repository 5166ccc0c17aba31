//! Several profiles as one.

use std::path::PathBuf;

use anyhow::Result;
use heap_format::merge::{self, Base};
use heap_format::{LabelValue, Profile, printable, variance};

use crate::report::format::{Dumps, Needs};
use crate::series::Series;

/// A profile made of one or several dumps.
#[derive(Debug)]
pub struct Combined {
    /// All dumps together.
    pub profile: Profile,
    /// Moments of the dumps, where the profile keeps these apart.
    pub series: Series,
    /// The rule by which the caller subtracts a base. A format may keep the base apart
    /// whatever it is; percentages are of what it says.
    pub base_rule: Base,
}

impl Combined {
    /// A single dump.
    pub fn single(profile: Profile) -> Self {
        Self {
            profile,
            series: Series::default(),
            base_rule: Base::Difference,
        }
    }
}

/// Makes a profile that was just read ready to be combined and shown: names of units become
/// printable, and variances are computed where they are needed.
pub fn prepare(profile: &mut Profile, needs: &Needs) {
    clean_units(profile);
    if needs.variance {
        variance::fill(profile);
    }
}

/// Units are named by the file, and are part of lines of every output.
fn clean_units(profile: &mut Profile) {
    let types = profile.sample_types.iter_mut();
    for kind in types.chain(&mut profile.period_type) {
        for text in [&mut kind.kind, &mut kind.unit] {
            *text = printable::printable(text).into_owned();
        }
    }
    for label in &mut profile.labels {
        if let LabelValue::Number(_, unit) = &mut label.value {
            *unit = printable::printable(unit).into_owned();
        }
    }
}

/// Adds up `dumps` and subtracts `bases`, or keeps these apart, as `rule` and the format say.
pub fn sum(
    mut dumps: Vec<Profile>,
    bases: &[Profile],
    rule: Base,
    needs: &Needs,
) -> Result<Combined> {
    if bases.is_empty() && dumps.len() == 1 && !needs.merged_stacks {
        return Ok(Combined::single(dumps.swap_remove(0)));
    }
    let keeps_base = needs.dumps == Dumps::BaseApart;
    let subtracted = if keeps_base { Base::Comparison } else { rule };
    let mut profile = merge::subtract(&dumps, bases, subtracted)?;
    let series = match (bases, dumps.as_slice()) {
        ([early], [late]) => Series::of_two(early, late),
        _ => Series::default(),
    };
    if !bases.is_empty() && !keeps_base {
        // What a base knows of its stacks is no part of a difference.
        profile.details.clear();
    }
    Ok(Combined {
        profile,
        series,
        base_rule: rule,
    })
}

/// Keeps the dumps of one process apart, earliest first. `files` name them in messages;
/// `force` accepts dumps of different sessions.
pub fn in_order(
    mut profiles: Vec<Profile>,
    mut files: Vec<PathBuf>,
    force: bool,
) -> Result<Combined> {
    if profiles.len() == 1 {
        return Ok(Combined::single(profiles.swap_remove(0)));
    }
    let series = Series::sort(&mut profiles, &mut files, force)?;
    let mut profile = merge::side_by_side(&profiles)?;
    if let Some(last) = profiles.pop() {
        profile.facts = last.facts;
    }
    Ok(Combined {
        profile,
        series,
        base_rule: Base::Difference,
    })
}
