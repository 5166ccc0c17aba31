//! The interpreters of Python that are tested: Debian's, those that `tests/pythons` downloads, and
//! those that `MEM_TESTS_PYTHONS` names.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use profile::Profile;

use crate::{Scratch, run};

/// Downloaded once for a build directory.
static DOWNLOADED: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let exe = std::env::current_exe().expect("a running test has a path");
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pythons");
    let mut command = Command::new(&script);
    let output = command.arg(target.join("pythons")).output();
    let output = output.expect("a script of ours");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", script.display());
    let paths = String::from_utf8(output.stdout).expect("paths of ours");
    paths.lines().map(PathBuf::from).collect()
});

/// Returns all interpreters that are tested.
///
/// # Panics
/// If an interpreter cannot be downloaded.
#[must_use]
pub fn all() -> Vec<PathBuf> {
    let more = std::env::var_os("MEM_TESTS_PYTHONS").unwrap_or_default();
    let more = std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty());
    let own = std::iter::once(PathBuf::from("/usr/bin/python3"));
    own.chain(DOWNLOADED.iter().cloned()).chain(more).collect()
}

/// Returns the dump of a script, profiled from its start; each allocation is sampled.
///
/// # Panics
/// If it fails.
pub fn profiled(scratch: &Scratch, python: &Path, arguments: &[&Path]) -> Profile {
    profiled_by(scratch.profiler(), scratch, python, arguments)
}

/// Like `profiled`, but runs a command with its own environment.
///
/// # Panics
/// If it fails.
pub fn profiled_by(
    mut command: Command,
    scratch: &Scratch,
    python: &Path,
    arguments: &[&Path],
) -> Profile {
    command
        .args(["run", "-c", "1", "-o"])
        .arg(scratch.file("p_"));
    command.arg("--").arg(python).args(arguments);
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    profile::open(&the_dump(scratch)).expect("a dump that can be read")
}

/// Returns the dump that was written.
///
/// # Panics
/// If there is no dump.
pub fn the_dump(scratch: &Scratch) -> PathBuf {
    let mut files = fs::read_dir(scratch.files()).expect("the files");
    let dump = files.find_map(|file| {
        let path = file.expect("a file").path();
        path.extension()
            .is_some_and(|e| e == "heap")
            .then_some(path)
    });
    dump.expect("a dump")
}

/// Returns the live bytes by stack of Python, innermost first, as the program writes them.
pub fn by_stack(profile: &Profile) -> BTreeMap<String, f64> {
    let mut sums = BTreeMap::new();
    for (index, detail) in profile.details.iter().enumerate() {
        let frames = profile.stacks.get(index).iter();
        let locations = frames.map(|frame| &profile.locations[*frame as usize]);
        let names: Vec<String> = locations.filter_map(|l| profile.python_name(l)).collect();
        *sums.entry(names.join(";")).or_default() += detail.live_bytes();
    }
    sums
}

/// Compares live bytes by stack with those that the program has written, for at least `least`
/// stacks.
///
/// # Panics
/// If they differ.
pub fn compare(profile: &Profile, truth: &Path, least: usize) {
    let found = by_stack(profile);
    let said = profile.facts.python.as_deref().unwrap_or_default();
    let text = fs::read_to_string(truth).expect("what the program wrote");
    assert!(text.lines().count() >= least, "{said}: {text}");
    for line in text.lines() {
        let (bytes, stack) = line.split_once(' ').expect("a number and a stack");
        let bytes: f64 = bytes.parse().expect("a number");
        let live = found.get(stack).copied().unwrap_or(0.0);
        // The line that allocates may allocate a little more than the block.
        let few = bytes * 0.02 + 4096.0;
        assert!(
            (bytes..bytes + few).contains(&live),
            "{said}: {live} of {bytes} at {stack}"
        );
    }
}
