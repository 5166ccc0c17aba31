//! CPU profiles that `mem_profiler cpu` wrote, and `split`, a program that measures the CPU time of
//! its own functions.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use profile::cpu::Sampling;
use profile::{Profile, TRUNCATED_ADDRESS};

use crate::code::{self, Code};
use crate::{Outcome, Target};

/// Returns the profiles that a session printed, in order.
pub fn files(outcome: &Outcome) -> Vec<PathBuf> {
    let lines = outcome.stdout.lines().chain(outcome.stderr.lines());
    let files = lines.filter_map(|line| Some(&line[..line.find(".cpu")? + 4]));
    let path = |text: &str| PathBuf::from(text.trim_start_matches("mem_profiler: "));
    let mut files: Vec<PathBuf> = files.map(path).filter(|path| path.exists()).collect();
    files.dedup();
    files
}

/// A profile, and sums over it.
pub struct Read {
    /// Stacks and names.
    pub profile: Profile,
    /// Way in which the profile was sampled.
    pub sampling: Sampling,
}

impl Read {
    /// Reads a file, which must be a CPU profile.
    pub fn of(path: &Path) -> Self {
        let profile = profile::open(path).expect("a profile that can be read");
        let sampling = profile.facts.cpu.clone().expect("facts of its sampling");
        Self { profile, sampling }
    }

    /// Returns the only profile of a session that must have succeeded.
    pub fn only(outcome: &Outcome) -> Self {
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let files = files(outcome);
        assert_eq!(files.len(), 1, "{outcome:?}");
        Self::of(&files[0])
    }

    /// Returns the stacks with their samples and nanoseconds.
    pub fn stacks(&self) -> impl Iterator<Item = (&[u32], i64, i64)> {
        let stacks = self.profile.stacks.iter().enumerate();
        stacks.map(|(at, stack)| {
            let values = self.profile.values_of(at);
            (stack, values[0], values[1])
        })
    }

    /// Returns the time of all stacks, in nanoseconds.
    pub fn total(&self) -> f64 {
        self.profile.total(1) as f64
    }

    /// Returns the time that samples stand for, in nanoseconds. It depends on the machine.
    pub fn sampled(&self) -> f64 {
        let stacks = self.stacks().filter(|(_, samples, _)| *samples > 0);
        stacks.map(|(_, _, ns)| ns as f64).sum()
    }

    /// Checks that at least this share of samples has complete stacks. One truncated stack is
    /// always allowed: short sessions have about fifty samples, and any of them may be in code
    /// without an unwind table (a PLT entry, a function of the compiler's runtime).
    pub fn assert_complete(&self, least: f64) {
        let (mut all, mut cut) = (0, 0);
        for (stack, samples, _) in self.stacks() {
            all += samples;
            if self.is_cut(stack) {
                cut += samples;
            }
        }
        assert!(all > 0, "samples");
        let most = ((1.0 - least) * all as f64).max(1.0);
        assert!(cut as f64 <= most, "{cut} of {all} are cut short");
    }

    /// Returns the time of truncated stacks, in nanoseconds.
    pub fn cut(&self) -> f64 {
        let cut = self.stacks().filter(|(stack, ..)| self.is_cut(stack));
        cut.map(|(_, _, ns)| ns as f64).sum()
    }

    fn is_cut(&self, stack: &[u32]) -> bool {
        let last = stack.last();
        let last = last.map(|id| self.profile.locations[*id as usize].address);
        last == Some(TRUNCATED_ADDRESS - 1)
    }

    /// Returns the time of the functions of a program whose name begins with `start`, in
    /// nanoseconds. Of several in a stack, the one nearest to the leaf counts.
    pub fn by_function(&self, program: &Path, start: &str) -> BTreeMap<String, f64> {
        let binaries = [Code::of(program)];
        let mut sums = BTreeMap::new();
        for (stack, _, ns) in self.stacks() {
            let names = code::names(&self.profile, stack, &binaries);
            let name = names.iter().find(|name| name.starts_with(start));
            *sums
                .entry(name.copied().unwrap_or_default().to_owned())
                .or_default() += ns as f64;
        }
        sums
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> i64 {
        self.profile.total(0)
    }
}

/// Parses what `split` prints about itself. Returns nanoseconds of CPU time by name.
pub fn truth(lines: &str) -> BTreeMap<String, f64> {
    let line = |line: &str| {
        let (name, ns) = line.split_once(' ')?;
        Some((name.to_owned(), ns.parse().ok()?))
    };
    lines.lines().filter_map(line).collect()
}

/// Minimum fraction of complete stacks.
pub const COMPLETE: f64 = 0.99;
/// Minimum fraction of complete stacks in short runs with deep stacks. Copies have to grow first,
/// and the time until then depends on the machine's load.
pub const COMPLETE_DEEP: f64 = 0.85;

/// Starts `split`, which waits for a line of input before it works.
pub fn waiting_split(program: &Path, arguments: &[&str]) -> Target {
    let mut target = Target::plain(program, arguments);
    assert_eq!(target.hear(), "ready");
    target
}

/// Returns the seconds of a function and its callees according to google-pprof, which counts
/// samples of a hundredth of a second.
pub fn seconds(program: &Path, profile: &Path, function: &str) -> f64 {
    let output = Command::new("google-pprof")
        .args(["--text", "--cum"])
        .args([program, profile])
        .output()
        .expect("google-pprof");
    let text = String::from_utf8_lossy(&output.stdout);
    let row = text.lines().find(|line| line.ends_with(function));
    let samples = row.map_or("0", |row| row.split_whitespace().nth(3).expect("a sum"));
    samples.parse::<f64>().expect("a number") / 100.0
}
