//! Options that google-pprof has under the same names: the same rows, exactly, on a dump that
//! gperftools' heap profiler made, which counts every allocation.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use mem_tests::peers::{Row, calls, ours, rows};
use mem_tests::session::tool;
use mem_tests::{Scratch, run};

/// A program and its dump.
struct Stage {
    scratch: Scratch,
    program: PathBuf,
    dump: PathBuf,
}

impl Stage {
    fn new() -> Self {
        let scratch = Scratch::new();
        let source = "../../parser/tests/data/shop.cpp";
        let program = scratch.compile_as(source, "shop", &["-O1", "-fno-inline"]);
        let mut command = Command::new(&program);
        command.env("LD_PRELOAD", "libtcmalloc.so.4");
        command.env("HEAPPROFILE", "tc").stdin(Stdio::null());
        let outcome = run(command.current_dir(scratch.files()));
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        let dump = scratch.file("tc.0001.heap");
        assert!(dump.exists(), "{outcome:?}");
        Self {
            scratch,
            program,
            dump,
        }
    }

    fn paths(&self) -> [&str; 2] {
        [&self.program, &self.dump].map(|path| path.to_str().expect("a path"))
    }

    /// Returns the output of the parser in bytes; `options` are separated by blanks.
    fn ours(&self, options: &str) -> String {
        let [program, dump] = self.paths();
        let of = ["-p", program, "-f", dump, "--unit", "B"];
        let options = options.split(' ');
        ours(&self.scratch, &options.chain(of).collect::<Vec<_>>())
    }

    /// Returns the output of google-pprof in bytes.
    fn theirs(&self, options: &str) -> String {
        let options = options.split(' ').chain(["--show_bytes"]);
        tool("google-pprof", options.chain(self.paths()))
    }
}

/// Returns what is of the program and the C++ library: the C library's files have other names in
/// the debug information of one instruction than in that of another.
fn own(name: &str) -> bool {
    !["libc", "_start", "csu/", "nptl/", "[shop]"]
        .iter()
        .any(|part| name.contains(part))
}

fn table(text: &str, unit: &str) -> BTreeMap<String, Row> {
    let name = |words: &[&str]| {
        let name = words.join(" ").replace(" (inline)", "");
        name.replace("/tests/programs/../../", "/")
    };
    let mut rows = rows(text, unit, name);
    // The innermost return address may be of the line after its call's.
    rows.retain(|name, _| own(name) && !name.contains("new_allocator.h:"));
    rows
}

/// Compares the tables of every kind of values with these options.
fn compare(stage: &Stage, options: &str, at_least: usize) {
    for column in [
        "inuse_space",
        "inuse_objects",
        "alloc_space",
        "alloc_objects",
    ] {
        let ours = stage.ours(&format!("-t --trim=false --{column} {options}"));
        let theirs = stage.theirs(&format!("--text --{column} {options}"));
        let (ours, theirs) = (table(&ours, "B"), table(&theirs, ""));
        assert!(ours.len() >= at_least, "{options}: {ours:?}");
        assert_eq!(ours, theirs, "{column} {options}");
    }
}

#[test]
fn granularities() {
    let stage = Stage::new();
    compare(&stage, "--functions", 15);
    compare(&stage, "--lines", 18);
    compare(&stage, "--files", 7);
}

#[test]
fn filters() {
    let stage = Stage::new();
    for pattern in ["Shelf", "Room|rate", "^std::vector", "stl_vector.h"] {
        compare(&stage, &format!("--focus={pattern}"), 4);
        compare(&stage, &format!("--ignore={pattern}"), 4);
    }
    compare(&stage, "--focus=Shelf --ignore=basic_string", 3);
}

#[test]
fn order_by_cum() {
    let stage = Stage::new();
    let values = |text: &str, unit: &str| -> Vec<i64> {
        let number = |word: &str| word.strip_suffix(unit).unwrap_or(word).parse::<i64>().ok();
        let cum = |line: &str| number(line.split_whitespace().nth(3)?);
        text.lines().filter_map(cum).collect()
    };
    let ours = values(&stage.ours("-t --trim=false --cum"), "B");
    let theirs = values(&stage.theirs("--text --cum"), "");
    assert!(
        ours.len() > 15 && ours.is_sorted_by(|a, b| a >= b),
        "{ours:?}"
    );
    // One of the C library's functions is inlined into another; only one of both shows it.
    let longer = ours.len().max(theirs.len());
    assert!(
        longer - ours.len().min(theirs.len()) <= 1,
        "{ours:?} {theirs:?}"
    );
    let smallest = |values: &[i64]| values[values.len() - 12..].to_vec();
    assert_eq!(smallest(&ours), smallest(&theirs));
}

#[test]
fn graphs_are_cut_at_the_same_shares() {
    let stage = Stage::new();
    let all = "--nodecount=1000 --nodefraction=0 --edgefraction=0";
    let edges = |share: &str| {
        let options = all.replace("edgefraction=0", &format!("edgefraction={share}"));
        let ours = calls(&stage.ours(&format!("--dot {options}")));
        let theirs = calls(&stage.theirs(&format!("--dot --maxdegree=1000 {options}")));
        let keep = |mut calls: BTreeMap<(String, String), i64>| {
            calls.retain(|(from, to), _| own(from) && own(to));
            calls
        };
        (keep(ours), keep(theirs))
    };
    let (all_ours, all_theirs) = edges("0");
    assert!(all_ours.len() > 12, "{all_ours:?}");
    assert_eq!(all_ours, all_theirs);
    let (ours, mut theirs) = edges("0.4");
    assert!((3..all_ours.len()).contains(&ours.len()), "{ours:?}");
    // The other keeps one call to each function, however small.
    let total: i64 = table(&stage.theirs("--text --inuse_space"), "")["main"].1;
    theirs.retain(|_, value| *value * 10 > total * 4);
    assert_eq!(ours, theirs);
    let nodes = |text: &str| -> usize {
        let node = |line: &&str| line.starts_with('N') && !line.contains(" -> ");
        text.lines().filter(node).filter(|line| own(line)).count()
    };
    let options = "--nodecount=1000 --nodefraction=0.4 --edgefraction=0";
    let ours = nodes(&stage.ours(&format!("--dot {options}")));
    let theirs = nodes(&stage.theirs(&format!("--dot {options}")));
    assert!(ours > 4, "{options}");
    assert_eq!(ours, theirs);
}
