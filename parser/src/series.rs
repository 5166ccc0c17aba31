//! Orders several dumps of one process by time.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::path::PathBuf;

use anyhow::{Result, bail};
use profile::elapsed::Clock;
use profile::{BuildId, Profile, history, maps, numbering, printable};

use crate::stdin;

/// Times of several dumps, and their totals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Series {
    /// Seconds since the first dump, ascending; indices if the dumps have no times. Empty if there
    /// is only one dump, or no order.
    pub moments: Vec<f64>,
    /// Set if `moments` are seconds.
    pub timed: bool,
    /// Totals of the dumps, in order; empty without a base.
    pub dump_totals: Vec<Totals>,
    /// Totals of the bases.
    pub base_totals: Vec<Totals>,
}

/// Totals of one dump, by the name of the column.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals(BTreeMap<String, i64>);

impl Totals {
    /// Sums up the columns of a profile.
    pub fn new(profile: &Profile) -> Self {
        let columns = profile.sample_types.len();
        let sum = |column: usize| {
            let values = profile.values.iter().skip(column).step_by(columns);
            values.fold(0i64, |sum, value| sum.saturating_add(*value))
        };
        let kinds = profile.sample_types.iter().enumerate();
        Self(
            kinds
                .map(|(column, kind)| (kind.kind.clone(), sum(column)))
                .collect(),
        )
    }

    /// Returns the total of a column.
    pub fn of_column(&self, kind: &str) -> Option<i64> {
        self.0.get(kind).copied()
    }
}

impl Series {
    /// Sorts dumps and their files by time. Returns an error, unless `force`, if they are not of
    /// one session of one process: each session counts from zero.
    pub fn sort(profiles: &mut [Profile], files: &mut [PathBuf], force: bool) -> Result<Self> {
        if !force {
            for i in 1..profiles.len() {
                if let Some(what) = session_difference(&profiles[0], &profiles[i]) {
                    let a = stdin::display_name(&files[0]);
                    let b = stdin::display_name(&files[i]);
                    bail!(
                        "{a} and {b} are not of one session: {what}; growth needs several dumps \
                         of one session (mem_profiler --every 60s), or --force"
                    );
                }
            }
        }
        let Some(ends) = end_times(profiles) else {
            sort_by_numbers(profiles, files);
            let numbers = (0..profiles.len()).map(|i| i as f64);
            return Ok(Self {
                moments: numbers.collect(),
                ..Self::default()
            });
        };
        let mut order: Vec<usize> = (0..ends.len()).collect();
        // Dumps of an ended session may have the same time, because it can be dumped again.
        order.sort_by_key(|&i| (ends[i], profiles[i].facts.sequence, i));
        permute(profiles, &order);
        permute(files, &order);
        let first = ends[order[0]];
        let seconds = |&i: &usize| (ends[i] - first) as f64 / 1e9;
        Ok(Self {
            moments: order.iter().map(seconds).collect(),
            timed: true,
            ..Self::default()
        })
    }

    /// Returns the times of an early and a late dump; empty if they are not of one session, or in
    /// reverse order.
    pub fn of_pair(early: &Profile, late: &Profile) -> Self {
        let clock = Clock::common_to([&early.facts, &late.facts].into_iter());
        let end = |profile: &Profile| clock?.end_ns(&profile.facts);
        match end(early).zip(end(late)) {
            Some((from, to)) if from < to && session_difference(early, late).is_none() => Self {
                moments: vec![0.0, (to - from) as f64 / 1e9],
                timed: true,
                ..Self::default()
            },
            _ => Self::default(),
        }
    }
}

/// Returns the time of each dump, in ns of the best clock that all have; `None` if one has no time.
fn end_times(profiles: &[Profile]) -> Option<Vec<u64>> {
    let facts = profiles.iter().map(|profile| &profile.facts);
    let clock = Clock::common_to(facts.clone())?;
    facts.map(|facts| clock.end_ns(facts)).collect()
}

/// Sorts dumps without times by the numbers in their names, if the names differ only in these, as
/// with gperftools and jemalloc. A shell sorts 10000 before 9999. Other dumps keep their order.
fn sort_by_numbers(profiles: &mut [Profile], files: &mut [PathBuf]) {
    let keys: Vec<_> = files.iter().map(|file| numbering::key(file)).collect();
    if keys.iter().all(|key| key.differs_only_in_numbers(&keys[0])) {
        let mut order: Vec<usize> = (0..files.len()).collect();
        order.sort_by_key(|&i| (&keys[i], i));
        permute(profiles, &order);
        permute(files, &order);
    }
}

/// Drops all but the last dump of each session, whose counts and moments include those of the
/// earlier ones. Keeps dumps that belong to no session. `files` are their names for `warn`.
pub fn keep_last_of_sessions(
    mut profiles: Vec<Profile>,
    files: &[PathBuf],
    warn: &mut dyn FnMut(String),
) -> Vec<Profile> {
    let mut sessions: BTreeMap<Session, Vec<usize>> = BTreeMap::new();
    for (at, profile) in profiles.iter().enumerate() {
        if let Some(session) = session(profile) {
            sessions.entry(session).or_default().push(at);
        }
    }
    let mut kept = vec![true; profiles.len()];
    for (session, members) in sessions.iter().filter(|(_, all)| all.len() > 1) {
        let newest = newest_dump(&profiles, members);
        members.iter().for_each(|&at| kept[at] = at == newest);
        join_moments(&mut profiles, newest, members);
        warn(format!(
            "{} dumps are of one session of process {}: the last, {}, counts \
             (--force adds them up)",
            members.len(),
            session.pid,
            stdin::display_name(&files[newest])
        ));
    }
    let all = profiles.into_iter().zip(kept);
    all.filter(|(_, kept)| *kept)
        .map(|(profile, _)| profile)
        .collect()
}

/// Returns the last of a session's dumps.
fn newest_dump(profiles: &[Profile], members: &[usize]) -> usize {
    let facts = |&at: &usize| &profiles[at].facts;
    let clock = Clock::common_to(members.iter().map(facts)).unwrap_or(Clock::System);
    let rank = |at: &usize| (clock.end_ns(facts(at)), facts(at).sequence, *at);
    let newest = members.iter().copied().max_by_key(rank);
    newest.unwrap_or_default()
}

/// Adds the moments of a session's other dumps to those of the last one.
fn join_moments(profiles: &mut [Profile], newest: usize, members: &[usize]) {
    if members.iter().all(|&at| profiles[at].moments.is_empty()) {
        return;
    }
    let mut last = std::mem::take(&mut profiles[newest]);
    let others = members.iter().filter(|&&at| at != newest);
    history::join(&mut last, others.map(|&at| &profiles[at]));
    profiles[newest] = last;
}

/// Identity of a session.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Session {
    pid: u32,
    start_unix_ns: u64,
    boot_id: Option<String>,
}

/// Returns the session of a dump, if the dump has a session and a time.
fn session(profile: &Profile) -> Option<Session> {
    let facts = Some(&profile.facts).filter(|facts| facts.cpu.is_none())?;
    facts.end_unix_ns?;
    Some(Session {
        pid: facts.pid?,
        start_unix_ns: facts.start_unix_ns?,
        boot_id: facts.boot_id.clone(),
    })
}

/// Profiles with the paths of their files.
pub struct FileProfiles<'a> {
    /// Profiles.
    pub profiles: &'a [Profile],
    /// Path of each profile.
    pub files: &'a [PathBuf],
}

/// Checks that each base belongs to the session of a dump; for CPU profiles, to its program. A
/// difference between unrelated values is meaningless.
///
/// # Errors
/// Names the files that differ, and the difference.
pub fn check_base(dumps: FileProfiles, bases: FileProfiles) -> Result<()> {
    for (base, base_file) in bases.profiles.iter().zip(bases.files) {
        let differences: Vec<_> = dumps
            .profiles
            .iter()
            .map(|dump| base_difference(dump, base))
            .collect();
        let Some(Some(what)) = differences.first() else {
            continue;
        };
        if differences.iter().all(Option::is_some) {
            let a = stdin::display_name(&dumps.files[0]);
            let b = stdin::display_name(base_file);
            bail!(
                "{a} and {b} are not of one session: {what}; a difference needs two dumps of one \
                 session, or --force"
            );
        }
    }
    Ok(())
}

/// Returns the difference between a dump and a base that makes a subtraction meaningless.
fn base_difference(dump: &Profile, base: &Profile) -> Option<String> {
    // Each CPU session starts from zero, so profiles of different sessions, and even of different
    // builds, can be compared.
    let are_cpu_profiles = dump.facts.cpu.is_some() && base.facts.cpu.is_some();
    if let (Some(program), Some(base_program)) = (Program::of(dump), Program::of(base)) {
        let name = printable::path(program.name.as_ref());
        let base_name = printable::path(base_program.name.as_ref());
        let has_ids = !program.build_id.is_empty() && !base_program.build_id.is_empty();
        let is_same_name = program.name == base_program.name;
        let is_same = if are_cpu_profiles || !has_ids {
            is_same_name
        } else {
            program.build_id == base_program.build_id
        };
        if !is_same {
            return Some(if is_same_name {
                format!("two builds of {name}")
            } else {
                format!("programs {name} and {base_name}")
            });
        }
    }
    if are_cpu_profiles {
        return None;
    }
    session_difference(dump, base)
}

/// Program of a profile.
struct Program<'a> {
    build_id: &'a BuildId,
    /// Name of the file.
    name: &'a OsStr,
}

impl<'a> Program<'a> {
    fn of(profile: &'a Profile) -> Option<Self> {
        let mapping = &profile.mappings[symbols::main_mapping(profile)?];
        Some(Self {
            build_id: &mapping.build_id,
            name: maps::strip_deleted(&mapping.path).0.file_name()?,
        })
    }
}

/// Returns the difference that proves that two dumps are not of one session.
fn session_difference(a: &Profile, b: &Profile) -> Option<String> {
    let start = |profile: &Profile| profile.facts.start_unix_ns;
    process_difference(a, b)
        .or_else(|| differ(&start(a), &start(b)).then(|| "they started at different times".into()))
}

fn differ<T: PartialEq>(a: &Option<T>, b: &Option<T>) -> bool {
    a.is_some() && b.is_some() && a != b
}

/// Returns the difference that proves that two profiles are not of one process.
pub fn process_difference(a: &Profile, b: &Profile) -> Option<String> {
    let a = &a.facts;
    let b = &b.facts;
    if differ(&a.pid, &b.pid) {
        let id = |pid: Option<u32>| pid.unwrap_or_default();
        return Some(format!("processes {} and {}", id(a.pid), id(b.pid)));
    }
    differ(&a.boot_id, &b.boot_id).then(|| "different machines, or a restart between them".into())
}

/// Reorders items: `order` has for each new index the old one.
fn permute<T>(items: &mut [T], order: &[usize]) {
    let mut target: Vec<usize> = vec![0; order.len()];
    for (to, &from) in order.iter().enumerate() {
        target[from] = to;
    }
    for i in 0..target.len() {
        while target[i] != i {
            let to = target[i];
            items.swap(i, to);
            target.swap(i, to);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use profile::Facts;

    fn dump(pid: u32, start: u64, end: Option<u64>) -> Profile {
        Profile {
            facts: Facts {
                pid: Some(pid),
                start_unix_ns: Some(start),
                end_unix_ns: end,
                ..Facts::default()
            },
            ..Profile::default()
        }
    }

    fn files(count: usize) -> Vec<PathBuf> {
        (0..count)
            .map(|i| PathBuf::from(format!("{i}.heap")))
            .collect()
    }

    #[test]
    fn dumps_are_sorted_by_time() {
        let ends = [5_000_000_000, 2_000_000_000, 9_000_000_000, 3_000_000_000];
        let mut dumps = ends.map(|end| dump(1, 1, Some(end)));
        let mut names = files(4);
        let series = Series::sort(&mut dumps, &mut names, false).unwrap();
        assert_eq!(series.moments, [0.0, 1.0, 3.0, 7.0]);
        let order: Vec<&str> = names.iter().map(|n| n.to_str().unwrap()).collect();
        assert_eq!(order, ["1.heap", "3.heap", "0.heap", "2.heap"]);
        assert_eq!(dumps[3].facts.end_unix_ns, Some(ends[2]));
    }

    #[test]
    fn dumps_of_different_sessions_are_refused_by_name() {
        let refusal = |a, b| {
            let error = Series::sort(&mut [a, b], &mut files(2), false).unwrap_err();
            error.to_string()
        };
        let message = refusal(dump(1, 1, Some(2)), dump(7, 1, Some(3)));
        assert!(message.contains("0.heap and 1.heap"), "{message}");
        assert!(message.contains("processes 1 and 7"), "{message}");
        let message = refusal(dump(1, 1, Some(2)), dump(1, 2, Some(3)));
        assert!(message.contains("started at different times"), "{message}");
        let mut dumps = [dump(1, 1, Some(2)), dump(7, 1, Some(3))];
        assert!(Series::sort(&mut dumps, &mut files(2), true).is_ok());
    }

    #[test]
    fn dumps_without_times_keep_their_order() {
        let mut dumps = [dump(1, 1, None), dump(1, 1, Some(3))];
        let series = Series::sort(&mut dumps, &mut files(2), false).unwrap();
        assert_eq!((series.moments, series.timed), (vec![0.0, 1.0], false));
    }

    #[test]
    fn a_base_is_sorted_first_only_if_it_is_earlier() {
        let early = dump(1, 1, Some(2_000_000_000));
        let late = dump(1, 1, Some(4_500_000_000));
        assert_eq!(Series::of_pair(&early, &late).moments, [0.0, 2.5]);
        assert_eq!(Series::of_pair(&late, &early), Series::default());
        let other = dump(2, 1, Some(4_500_000_000));
        assert_eq!(Series::of_pair(&early, &other), Series::default());
    }

    #[test]
    fn ten_thousand_is_after_9999() {
        // The order in which a shell expands `*`.
        let names = ["app.1.10000.heap", "app.1.9998.heap", "app.1.9999.heap"];
        let ordered = ["app.1.9998.heap", "app.1.9999.heap", "app.1.10000.heap"];
        // The session is over, so all dumps have the same end; then without times.
        for end in [Some(5), None] {
            let mut dumps = [10_000, 9998, 9999].map(|number| {
                let mut dump = dump(1, 1, end);
                dump.facts.sequence = Some(number);
                dump
            });
            let mut files = names.map(PathBuf::from);
            Series::sort(&mut dumps, &mut files, false).unwrap();
            assert_eq!(files, ordered.map(PathBuf::from), "{end:?}");
            dumps.swap(0, 2);
            let kept = keep_last_of_sessions(dumps.to_vec(), &files, &mut |_| {});
            if end.is_some() {
                assert_eq!(kept.len(), 1);
                assert_eq!(kept[0].facts.sequence, Some(10_000));
            }
        }
        // Names without an order.
        let mut files = ["late.heap", "early.heap"].map(PathBuf::from);
        let given = files.clone();
        Series::sort(&mut [dump(1, 1, None), dump(1, 1, None)], &mut files, false).unwrap();
        assert_eq!(files, given);
    }

    fn last(dumps: Vec<Profile>) -> (Vec<Option<u64>>, Vec<String>) {
        let names = files(dumps.len());
        let mut warnings = Vec::new();
        let kept = keep_last_of_sessions(dumps, &names, &mut |warning| warnings.push(warning));
        (kept.iter().map(|p| p.facts.end_unix_ns).collect(), warnings)
    }

    #[test]
    fn the_last_dump_of_each_session_is_used() {
        let dumps = vec![
            dump(1, 1, Some(5)),
            dump(2, 1, Some(6)),
            dump(1, 1, Some(9)),
            dump(1, 1, Some(7)),
            dump(1, 8, Some(8)),
        ];
        let (ends, warnings) = last(dumps);
        assert_eq!(ends, [Some(6), Some(9), Some(8)]);
        assert_eq!(
            warnings,
            [
                "3 dumps are of one session of process 1: the last, 2.heap, counts (--force adds them up)"
            ]
        );
    }

    #[test]
    fn dumps_without_a_session_number_are_all_used() {
        let mut dumps = vec![dump(1, 1, Some(5)), dump(1, 1, Some(6))];
        for dump in &mut dumps {
            dump.facts.start_unix_ns = None;
        }
        assert_eq!(last(dumps), (vec![Some(5), Some(6)], vec![]));
        // A dump without an end does not change the order of the others.
        let (ends, warnings) = last(vec![
            dump(1, 1, Some(5)),
            dump(1, 1, None),
            dump(1, 1, Some(6)),
        ]);
        assert_eq!((ends, warnings.len()), (vec![None, Some(6)], 1));
    }

    #[test]
    fn a_base_must_be_of_a_dumps_session() {
        let check = |dumps: &[Profile], base: Profile| {
            let names = files(2);
            let dumps = FileProfiles {
                profiles: dumps,
                files: &names,
            };
            let bases = FileProfiles {
                profiles: &[base],
                files: &names[1..],
            };
            check_base(dumps, bases).map_err(|e| e.to_string())
        };
        let two = [dump(1, 1, Some(5)), dump(2, 1, Some(6))];
        assert_eq!(check(&two, dump(2, 1, Some(4))), Ok(()));
        let refusal = check(&two, dump(2, 3, Some(4))).unwrap_err();
        assert!(
            refusal.starts_with("0.heap and 1.heap are not of one session"),
            "{refusal}"
        );
        assert_eq!(check(&two, Profile::default()), Ok(()));
    }
}
