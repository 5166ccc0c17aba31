//! pprof's options: each exists as pprof spells it, with one dash, and does what pprof does with
//! it, on a dump of a real program. Needs the package golang-go.

mod expected;
mod units;

use std::path::Path;
use std::process::Command;

use units::{one_space, with_their_units};

/// As pprof spells them, with one dash.
const OPTIONS: [&str; 28] = [
    "-lines",
    "-functions",
    "-files",
    "-addresses",
    "-noinlines",
    "-focus=Shelf",
    "-ignore=Shelf",
    "-hide=std::",
    "-show=Room|Shelf|main",
    "-show_from=Shelf",
    "-prune_from=Shelf",
    "-tagfocus=100b:",
    "-tagfocus=:100b",
    "-tagignore=:100b",
    "-nodecount=3",
    "-nodefraction=0.3",
    "-edgefraction=0.5",
    "-trim=false",
    "-divide_by=7",
    "-unit=kb",
    "-compact_labels",
    "-cum",
    "-relative_percentages",
    "-inuse_space",
    "-inuse_objects",
    "-alloc_space",
    "-alloc_objects",
    "-sample_index=1",
];

fn run(command: &mut Command) -> String {
    let output = command.output().expect("both programs must be there");
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // pprof does not state the sampling error.
    let is_ours = |line: &&str| line.starts_with("Sampling error: ");
    let lines = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !is_ours(line));
    lines.collect::<Vec<_>>().join("\n")
}

fn ours(file: &Path, arguments: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    run(command.arg("-f").arg(file).args(arguments))
}

#[test]
fn every_option_does_what_it_does_in_pprof() {
    let directory = tempfile::tempdir().unwrap();
    // The profile contains symbols, so that both tools show the same names.
    let profile = directory.path().join("shop.pb.gz");
    let written = ["--proto", "-o", profile.to_str().unwrap()];
    ours(&expected::data("shop.heap"), &written);
    for option in OPTIONS {
        for output in ["-top", "-tree", "-traces"] {
            let mut pprof = Command::new("go");
            pprof.args(["tool", "pprof", "-symbolize=none", output, option]);
            let theirs = run(pprof.arg(&profile).env("PPROF_TMPDIR", directory.path()));
            // Excludes the lines of user code, which pprof does not print.
            let ours = ours(&profile, &[output, option, "--all-frames"]);
            assert!(theirs.lines().count() > 2, "{output} {option}: {theirs}");
            let (named, spaced) = (with_their_units(&ours), one_space(&theirs));
            assert_eq!(named, spaced, "{output} {option}");
        }
    }
}
