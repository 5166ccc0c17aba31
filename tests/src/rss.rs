//! Profiles of resident memory that `mem_profiler rss` wrote.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use profile::rss::KIND_LABEL;
use profile::{LabelValue, Profile, marker_at};

use crate::code::{self, Code};
use crate::{Outcome, Scratch, Session, wait};

/// Bytes of a row, in the order of the columns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Row {
    /// Resident memory.
    pub resident: i64,
    /// Memory that is swapped out.
    pub swapped: i64,
    /// Memory that was touched.
    pub touched: i64,
}

/// Starts a session in a process, and waits until it samples.
pub fn attached(scratch: &Scratch, pid: u32, options: &[&str]) -> Session {
    let mut command = scratch.profiler();
    command
        .args(["rss", "-p", &pid.to_string(), "-o"])
        .arg(scratch.file("r_"));
    let mut session = Session::start(command.args(options));
    wait_for_sampling(&mut session);
    session
}

/// Waits until a session has begun, which is when it starts a thread that prints.
pub fn wait_for_sampling(session: &mut Session) {
    let directory = format!("/proc/{}/task", session.pid());
    wait::until("the session to begin", || {
        let threads = std::fs::read_dir(&directory).map_or(0, Iterator::count);
        (threads > 1 || session.is_over()).then_some(())
    });
}

/// Returns the profiles that a session printed, in order.
pub fn files(outcome: &Outcome) -> Vec<PathBuf> {
    let lines = outcome.stdout.lines();
    lines
        .filter(|line| line.ends_with(".rss"))
        .map(PathBuf::from)
        .collect()
}

/// Returns the only profile of a session that must have succeeded.
pub fn only(outcome: &Outcome) -> Profile {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    let files = files(outcome);
    assert_eq!(files.len(), 1, "{outcome:?}");
    profile::open(&files[0]).expect("a profile that can be read")
}

/// Sums by the function of a program whose name starts with `prefix`, the nearest to the leaf, by
/// the pseudo-frame, or by an empty name.
pub fn by_function(profile: &Profile, program: &Path, prefix: &str) -> BTreeMap<String, Row> {
    let binaries = [Code::of(program)];
    sums(profile, |_, frames| {
        let names = code::names(profile, frames, &binaries);
        let name = names.iter().find(|name| name.starts_with(prefix));
        let first = profile.locations[frames[0] as usize].address;
        let marker = marker_at(first).map(|marker| marker.name);
        name.copied().or(marker).unwrap_or_default().to_owned()
    })
}

/// Sums by kind of mapping.
pub fn by_kind(profile: &Profile) -> BTreeMap<String, Row> {
    let mut kinds = BTreeMap::new();
    for label in &profile.labels {
        if let (KIND_LABEL, LabelValue::Text(kind)) = (&label.key[..], &label.value) {
            kinds.insert(label.stack, kind.clone());
        }
    }
    sums(profile, |stack, _| {
        kinds.get(&stack).cloned().unwrap_or_default()
    })
}

fn sums(profile: &Profile, name: impl Fn(u32, &[u32]) -> String) -> BTreeMap<String, Row> {
    let mut sums: BTreeMap<String, Row> = BTreeMap::new();
    for (stack, frames) in profile.stacks.iter().enumerate() {
        let row = sums.entry(name(stack as u32, frames)).or_default();
        let &[resident, swapped, touched] = profile.values_of(stack) else {
            panic!("three columns: {:?}", profile.sample_types);
        };
        row.resident += resident;
        row.swapped += swapped;
        row.touched += touched;
    }
    sums
}
