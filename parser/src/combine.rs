//! Combines several profiles into one.

use std::path::PathBuf;

use anyhow::Result;
use profile::elapsed::{self, Clock};
use profile::merge::{self, Base};
use profile::{Facts, Format, IntervalPeriod, LabelValue, Profile, printable, variance};

use crate::measure;
use crate::report::format::{Dumps, Needs};
use crate::series::{Series, Totals};

/// A profile of one or several dumps.
#[derive(Debug)]
pub struct Combined {
    /// Combination of all dumps.
    pub profile: Profile,
    /// Times of the dumps, if the profile has them side by side.
    pub series: Series,
    /// Requested treatment of a base. A format may always keep the base separate, but percentages
    /// follow this rule.
    pub base_rule: Base,
}

impl Combined {
    /// Wraps a single dump.
    pub fn single(profile: Profile) -> Self {
        Self {
            profile,
            series: Series::default(),
            base_rule: Base::Difference,
        }
    }
}

/// Prepares a profile that was just read: makes unit names printable, and computes variances if
/// needed.
pub fn prepare(profile: &mut Profile, needs: &Needs) {
    clean_units(profile);
    if needs.variance {
        variance::fill(profile);
    }
}

/// Gives the values of folded stacks with fractions one unit, so that files whose fractions have
/// different numbers of digits can be combined. The unit is the finest of all files, or a coarser
/// one if that would make the values of a file too large; finer fractions are then rounded.
pub fn align_fractions(dumps: &mut [Profile], bases: &mut [Profile]) {
    /// Largest sum of a file's values. Below it, `f64` is exact.
    const MAX_SUM: u128 = 1 << 53;
    let divisor = |profile: &Profile| {
        let unit = profile.sample_types.first().map(|kind| kind.unit.as_str());
        unit.and_then(measure::count_divisor).unwrap_or(1)
    };
    let is_folded = |profile: &&Profile| profile.format == Format::Folded;
    let all = || dumps.iter().chain(bases.iter()).filter(is_folded);
    let mut common = all().map(divisor).max().unwrap_or(1);
    let is_too_large = |common: u64, profile: &Profile| {
        let factor = u128::from(common / divisor(profile));
        let sum: u128 = profile
            .values
            .iter()
            .map(|v| u128::from(v.unsigned_abs()))
            .sum();
        factor > 1 && sum.saturating_mul(factor) > MAX_SUM
    };
    while all().any(|profile| is_too_large(common, profile)) {
        common /= 10;
    }
    for profile in dumps.iter_mut().chain(bases) {
        let own = divisor(profile);
        if profile.format != Format::Folded || own == common {
            continue;
        }
        for value in &mut profile.values {
            *value = match common.checked_div(own) {
                Some(factor) if factor > 0 => *value * factor as i64,
                _ => (*value as f64 / (own / common) as f64).round() as i64,
            };
        }
        for kind in &mut profile.sample_types {
            kind.unit = if common > 1 {
                format!("count/{common}")
            } else {
                "count".to_owned()
            };
        }
    }
}

/// Escapes the names of units, which come from the file and are printed in every output.
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

/// Adds up `dumps`, and subtracts `bases` or keeps them separate, as `rule` and the format require.
pub fn sum(
    mut dumps: Vec<Profile>,
    bases: &[Profile],
    rule: Base,
    needs: &Needs,
) -> Result<Combined> {
    let remarks = remarks(&dumps);
    if bases.is_empty() && dumps.len() == 1 && !needs.merged_stacks {
        let mut profile = dumps.swap_remove(0);
        profile.comments.extend(remarks);
        return Ok(Combined::single(profile));
    }
    let keeps_base = needs.dumps == Dumps::SeparateBase;
    let subtracted = if keeps_base { Base::Comparison } else { rule };
    let mut series = match (bases, dumps.as_slice()) {
        ([early], [late]) => Series::of_pair(early, late),
        _ => Series::default(),
    };
    if !bases.is_empty() {
        series.dump_totals = dumps.iter().map(Totals::new).collect();
        series.base_totals = bases.iter().map(Totals::new).collect();
    }
    let mut profile = match (bases, dumps.as_slice()) {
        ([early], [late]) if series.timed => merge::change_within_session(early, late, subtracted)?,
        _ => merge::subtract(&dumps, bases, subtracted)?,
    };
    let remark = elapsed::remark(facts_of(bases, &dumps));
    let reversed = match (bases, dumps.as_slice()) {
        ([base], [dump]) => reversed(base, dump),
        _ => None,
    };
    let all = remark.into_iter().chain(reversed).chain(remarks);
    profile.comments.extend(all);
    if !bases.is_empty() {
        set_time(&mut profile.facts, &dumps, bases, keeps_base);
    }
    if !bases.is_empty() && !keeps_base {
        // Details are not subtracted, so they would not be those of the difference.
        profile.details.clear();
    }
    Ok(Combined {
        profile,
        series,
        base_rule: rule,
    })
}

/// Maximum number of processes named in a remark.
const MAX_NAMED: usize = 4;

/// Returns remarks on which dumps were added up, and on sessions without samples.
fn remarks(dumps: &[Profile]) -> Vec<String> {
    if !dumps.iter().all(is_of_process) {
        return Vec::new();
    }
    sum_remark(dumps)
        .into_iter()
        .chain(unsampled_remark(dumps))
        .collect()
}

/// Returns a remark if the base is the later one of two dumps of a session.
fn reversed(base: &Profile, dump: &Profile) -> Option<String> {
    let session = |profile: &Profile| (profile.facts.pid, profile.facts.start_unix_ns);
    let is_one = is_of_process(base) && is_of_process(dump) && session(base) == session(dump);
    let (early, late) = (dump.facts.duration_ns?, base.facts.duration_ns?);
    (is_one && early < late)
        .then(|| "The base is the later one of the two dumps: what grew is negative".to_owned())
}

fn is_of_process(dump: &Profile) -> bool {
    dump.format == Format::Dump && dump.facts.pid.is_some()
}

/// Returns a remark if sessions of memory took no sample.
fn unsampled_remark(dumps: &[Profile]) -> Option<String> {
    let is_unsampled = |dump: &Profile| {
        let samples = dump.facts.counters.get("samples");
        samples == Some(&0) && dump.is_memory_profile() && dump.facts.leak_check.is_none()
    };
    let all_unsampled = dumps.iter().all(is_of_process) && dumps.iter().all(is_unsampled);
    (!dumps.is_empty() && all_unsampled).then(|| {
        "No sample was taken: the session saw next to no allocations, and a dump has nothing that was \
         allocated before its session"
            .to_owned()
    })
}

/// Describes the processes whose dumps are added up.
fn sum_remark(dumps: &[Profile]) -> Option<String> {
    let process = |dump: &Profile| {
        let name = dump.facts.process.as_deref().unwrap_or("?");
        let pid = dump.facts.pid.unwrap_or_default();
        format!("{} ({pid})", printable::printable(name))
    };
    let mut processes: Vec<String> = dumps.iter().map(process).collect();
    let count = processes.len();
    processes.dedup();
    let process_count = processes.len();
    processes.truncate(MAX_NAMED);
    let names = processes.join(", ");
    let more = match process_count.saturating_sub(MAX_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    (count > 1).then(|| format!("{SUM}{count} dumps: {names}{more}"))
}

/// Beginning of the remark on a sum of dumps.
const SUM: &str = "Sum of ";

/// Returns true if a profile is the sum of several dumps.
pub fn is_sum(profile: &Profile) -> bool {
    profile.comments.iter().any(|text| text.starts_with(SUM))
}

/// Returns the facts of all dumps.
fn facts_of<'a>(
    bases: &'a [Profile],
    dumps: &'a [Profile],
) -> impl Iterator<Item = &'a Facts> + Clone {
    bases.iter().chain(dumps).map(|profile| &profile.facts)
}

/// Sets start and duration of the combination of heap dumps with bases. A difference covers the
/// time between the ends of both. If the base is kept separate, a single dump keeps its own times.
/// CPU profiles and those of other profilers keep the sum of all durations, as in pprof.
fn set_time(facts: &mut Facts, dumps: &[Profile], bases: &[Profile], keeps_base: bool) {
    let is_dump = |profile: &Profile| profile.format == Format::Dump;
    if !dumps.iter().chain(bases).all(is_dump) {
        return;
    }
    let clock = Clock::common_to(facts_of(bases, dumps)).unwrap_or(Clock::System);
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    struct End {
        clock_ns: u64,
        unix_ns: u64,
    }
    let last_end = |all: &[Profile]| {
        let ends = all.iter().filter_map(|profile| {
            let facts = &profile.facts;
            Some(End {
                clock_ns: clock.end_ns(facts)?,
                unix_ns: facts.end_unix_ns?,
            })
        });
        ends.max()
    };
    if keeps_base {
        if let [dump] = dumps {
            facts.start_unix_ns = dump.facts.start_unix_ns;
            facts.end_unix_ns = dump.facts.end_unix_ns;
            facts.end_boot_ns = dump.facts.end_boot_ns;
            facts.duration_ns = dump.facts.duration_ns;
        }
    } else if let (Some(base_end), Some(dump_end)) = (last_end(bases), last_end(dumps)) {
        let from = base_end.min(dump_end);
        let to = base_end.max(dump_end);
        let duration_ns = to.clock_ns - from.clock_ns;
        let start_unix_ns = to.unix_ns.saturating_sub(duration_ns);
        facts.start_unix_ns = Some(start_unix_ns);
        facts.end_unix_ns = Some(to.unix_ns);
        facts.duration_ns = Some(duration_ns);
        set_sampling(facts, dumps, bases, start_unix_ns);
    }
}

/// Limits the intervals and the cost of a difference to the time since its start. A difference
/// between sessions has no cost.
fn set_sampling(facts: &mut Facts, dumps: &[Profile], bases: &[Profile], start_unix_ns: u64) {
    let before = |period: &IntervalPeriod| period.from_unix_ns <= start_unix_ns;
    let ended = facts.intervals.iter().filter(|p| before(p)).count();
    facts.intervals.drain(..ended.saturating_sub(1));
    if let Some(first) = facts.intervals.first_mut() {
        first.from_unix_ns = first.from_unix_ns.max(start_unix_ns);
    }
    facts.cost = match (bases, dumps) {
        ([early], [late]) if Series::of_pair(early, late).timed => {
            let costs = late.facts.cost.zip(early.facts.cost);
            costs.map(|(late, early)| late.since(&early))
        }
        _ => None,
    };
}

/// Combines dumps of one process side by side, in order of time. `files` are their names for
/// messages; `force` accepts dumps of different sessions.
pub fn in_order(
    mut profiles: Vec<Profile>,
    mut files: Vec<PathBuf>,
    force: bool,
) -> Result<Combined> {
    let unsampled_remark = unsampled_remark(&profiles);
    if profiles.len() == 1 {
        let mut profile = profiles.swap_remove(0);
        profile.comments.extend(unsampled_remark);
        return Ok(Combined::single(profile));
    }
    let exit = leave_out_exit(&mut profiles, &mut files);
    let series = Series::sort(&mut profiles, &mut files, force)?;
    let mut profile = merge::side_by_side(&profiles)?;
    let remark = elapsed::remark(facts_of(&profiles, &[]));
    let remarks = remark.into_iter().chain(exit).chain(unsampled_remark);
    profile.comments.extend(remarks);
    if let Some(last) = profiles.pop() {
        profile.facts = last.facts;
    }
    Ok(Combined {
        profile,
        series,
        base_rule: Base::Difference,
    })
}

/// Leaves out dumps of the exit if others show growth: what a program frees as it ends would hide
/// its growth. Returns a remark if it did.
fn leave_out_exit(profiles: &mut Vec<Profile>, files: &mut Vec<PathBuf>) -> Option<String> {
    let is_exit = |profile: &Profile| {
        let ended = profile.facts.ended.as_deref().unwrap_or_default();
        profile.facts.peak_ns.is_none() && ended.starts_with("target exited")
    };
    let kept: Vec<bool> = profiles.iter().map(|profile| !is_exit(profile)).collect();
    let kept_count = kept.iter().filter(|kept| **kept).count();
    if kept_count < 2 || kept_count == kept.len() || files.len() != kept.len() {
        return None;
    }
    let mut kept_profiles = kept.iter();
    profiles.retain(|_| kept_profiles.next().is_some_and(|kept| *kept));
    let mut kept_files = kept.iter();
    files.retain(|_| kept_files.next().is_some_and(|kept| *kept));
    Some(
        "Left out: the dump of the exit, as programs free memory then; alone, it shows what they did not"
            .to_owned(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::{Cost, ValueType};

    fn dump(start: u64, end: u64) -> Profile {
        let mut profile = Profile {
            format: Format::Dump,
            ..Profile::default()
        };
        profile.facts.start_unix_ns = Some(start);
        profile.facts.end_unix_ns = Some(end);
        profile.facts.duration_ns = Some(end - start);
        profile
    }

    fn time(dumps: &[Profile], bases: &[Profile], keeps_base: bool) -> Option<(u64, u64)> {
        let mut facts = Facts::default();
        set_time(&mut facts, dumps, bases, keeps_base);
        facts.start_unix_ns.zip(facts.duration_ns)
    }

    #[test]
    fn a_base_that_is_later_is_called_so() {
        let dump_of = |pid: u32, start, end| {
            let mut profile = dump(start, end);
            profile.facts.pid = Some(pid);
            profile
        };
        let early = dump_of(7, 10, 20);
        let late = dump_of(7, 10, 30);
        assert!(reversed(&late, &early).is_some());
        assert_eq!(reversed(&early, &late), None);
        assert_eq!(reversed(&late, &late), None);
        assert_eq!(reversed(&dump_of(8, 10, 30), &early), None);
        assert_eq!(reversed(&dump_of(7, 11, 40), &early), None);
    }

    #[test]
    fn sums_are_labelled() {
        let dump_of = |pid: u32| {
            let mut profile = dump(1, 2);
            profile.facts.pid = Some(pid);
            profile.facts.process = Some("app".to_owned());
            profile
        };
        assert_eq!(remarks(&[dump_of(7)]), [""; 0]);
        assert_eq!(
            remarks(&[dump_of(7), dump_of(8)]),
            ["Sum of 2 dumps: app (7), app (8)"]
        );
        assert_eq!(
            remarks(&[dump_of(7), dump_of(7)]),
            ["Sum of 2 dumps: app (7)"]
        );
        let many: Vec<Profile> = (1..=7).map(dump_of).collect();
        assert!(remarks(&many)[0].ends_with("app (4) and 3 more"));
    }

    #[test]
    fn a_difference_has_the_sampling_between_the_dumps() {
        let cost = |cpu_ns, spent_ns| {
            Some(Cost {
                cpu_ns,
                spent_ns,
                error_ns: spent_ns / 10,
            })
        };
        let period = |from_unix_ns, interval| IntervalPeriod {
            from_unix_ns,
            interval,
            overhead: None,
        };
        let mut early = dump(10, 16);
        early.facts.cost = cost(1000, 500);
        early.facts.intervals = vec![period(10, 1024), period(12, 4096)];
        let mut late = dump(10, 22);
        late.facts.cost = cost(3000, 600);
        late.facts.intervals = vec![period(10, 1024), period(12, 4096), period(20, 2048)];
        for profile in [&mut early, &mut late] {
            profile.sample_types = vec![ValueType::new("inuse_space", "bytes")];
        }
        let bases = [early];
        let both = sum(vec![late], &bases, Base::Difference, &Needs::GRAPH).unwrap();
        let facts = &both.profile.facts;
        assert_eq!(facts.intervals, [period(16, 4096), period(20, 2048)]);
        let cost = facts.cost.unwrap();
        assert_eq!((cost.cpu_ns, cost.spent_ns, cost.error_ns), (2000, 100, 10));
        // What two sessions cost together is not known.
        let mut other = dump(90, 99);
        other.sample_types = vec![ValueType::new("inuse_space", "bytes")];
        let apart = sum(vec![other], &bases, Base::Difference, &Needs::GRAPH).unwrap();
        assert_eq!(apart.profile.facts.cost, None);
    }

    #[test]
    fn a_difference_has_the_time_between_the_dumps() {
        let early = dump(10, 16);
        let late = dump(10, 22);
        let early = &[early][..];
        let late = &[late][..];
        assert_eq!(time(late, early, false), Some((16, 6)));
        assert_eq!(time(early, late, false), Some((16, 6)), "the other way");
        assert_eq!(time(late, early, true), Some((10, 12)), "kept apart");
        // Two sessions with a pause between them.
        assert_eq!(time(&[dump(90, 99)], early, false), Some((16, 83)));
        // A profile without times has no duration, as in pprof.
        assert_eq!(time(&[Profile::default()], early, false), None);
    }
}
