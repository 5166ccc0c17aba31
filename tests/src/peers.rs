//! Compares reports of the parser with those of other programs on the same profiles: the `pprof`
//! that comes with Go, google-pprof and jeprof.
//!
//! # Promises
//! - Each comparison requires exact numbers, or documents by how much they may differ.
//! - A report in which nothing was compared fails.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::scratch::Scratch;
use crate::session::{Outcome, run, tool};

/// The columns of a heap profile.
pub const HEAP: [&str; 4] = [
    "inuse_space",
    "inuse_objects",
    "alloc_space",
    "alloc_objects",
];

/// Columns of a profile that has only live bytes, or only growth of the heap.
pub const PLAIN: [&str; 2] = ["space", "objects"];

/// The columns of a CPU profile.
pub const CPU: [&str; 2] = ["cpu", "samples"];

/// Our reports with the corresponding reports of pprof.
pub const REPORTS: [(&str, &str); 8] = [
    ("-t", "-top"),
    ("-t --cum", "-top -cum"),
    ("-t --lines", "-top -lines"),
    ("-t --files", "-top -files"),
    ("-t --addresses", "-top -addresses"),
    ("--tree", "-tree"),
    ("--traces", "-traces"),
    ("--peek .", "-peek ."),
];

/// A program that was profiled, and its dumps. The second dump, if there is one, is the base of
/// comparisons.
pub struct Profiled {
    /// The program.
    pub program: PathBuf,
    /// The dumps.
    pub dumps: Vec<PathBuf>,
    /// Values that the columns count.
    pub columns: &'static [&'static str],
}

impl Profiled {
    /// Returns the heap dumps of a program.
    pub fn heap(program: PathBuf, dumps: Vec<PathBuf>) -> Self {
        Self {
            program,
            dumps,
            columns: &HEAP,
        }
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path in UTF-8")
}

/// Returns the output of the parser.
pub fn ours(scratch: &Scratch, arguments: &[&str]) -> String {
    good(run(scratch.parser().args(arguments).env("TZ", "UTC")))
}

/// Returns the output of pprof.
fn pprof(scratch: &Scratch, arguments: &[&str]) -> String {
    good(outcome_of_pprof(scratch, arguments))
}

fn outcome_of_pprof(scratch: &Scratch, arguments: &[&str]) -> Outcome {
    let mut command = Command::new("go");
    command
        .args(["tool", "pprof", "-symbolize=none"])
        .args(arguments)
        .current_dir(scratch.files())
        .env("TZ", "UTC")
        .stdin(Stdio::null());
    run(&mut command)
}

fn good(outcome: Outcome) -> String {
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome.stdout
}

/// Returns the dump with names, in the form that pprof reads.
fn with_names(scratch: &Scratch, profiled: &Profiled, number: usize) -> String {
    let name = format!("{number}.pb.gz");
    let (program, dump) = (text(&profiled.program), text(&profiled.dumps[number]));
    let arguments = ["-p", program, "-f", dump, "--proto", "-o", &name];
    ours(scratch, &arguments);
    name
}

/// Returns a report without its line on the sampling error, which pprof does not have.
fn without_error(report: &str) -> String {
    let lines = report.split_inclusive('\n');
    lines
        .filter(|line| !line.starts_with("Sampling error: "))
        .collect()
}

/// Returns a report with pprof's names of units, and with one space between words: columns may be
/// wider than pprof's.
fn with_its_units(report: &str) -> String {
    let mut text = report.to_owned();
    for (ours, theirs) in [("KiB", "kB"), ("MiB", "MB"), ("GiB", "GB")] {
        text = text.replace(ours, theirs);
    }
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ") + "\n";
    text.lines().map(words).collect()
}

/// Returns the lines of a report in an order that does not depend on chance. pprof leaves equal
/// calls in the order of a hash table.
fn settled(report: &str) -> Vec<Vec<&str>> {
    let sorted = |block: &'_ _| -> Vec<&str> {
        let block: &&str = block;
        let mut lines: Vec<&str> = block.lines().collect();
        lines.sort_unstable();
        lines
    };
    let blocks: Vec<&str> = report.split("----------+-------------\n").collect();
    blocks.iter().map(sorted).collect()
}

/// Compares every report of every column, and differences if there are two dumps.
pub fn compare_reports(scratch: &Scratch, profiled: &Profiled) {
    let file = with_names(scratch, profiled, 0);
    let base = (profiled.dumps.len() > 1).then(|| with_names(scratch, profiled, 1));
    compare_files(scratch, profiled.columns, &file, base.as_deref(), &[]);
}

/// Like [`compare_reports`], but compares files as they are. `extra`: options that tell the parser
/// where to look for names.
pub fn compare_files(
    scratch: &Scratch,
    columns: &[&str],
    file: &str,
    base: Option<&str>,
    extra: &[&str],
) {
    for column in columns {
        for (ours, theirs) in REPORTS {
            same(scratch, file, column, ours, theirs, None, extra);
            for option in ["base", "diff_base"] {
                if let Some(base) = base {
                    same(
                        scratch,
                        file,
                        column,
                        ours,
                        theirs,
                        Some((option, base)),
                        extra,
                    );
                }
            }
        }
    }
}

/// Compares one report of one column.
fn same(
    scratch: &Scratch,
    file: &str,
    column: &str,
    our_report: &str,
    their_report: &str,
    base: Option<(&str, &str)>,
    extra: &[&str],
) {
    let index = format!("-sample_index={column}");
    let option = base.map(|(option, _)| format!("--{option}"));
    let mut our: Vec<&str> = our_report.split(' ').chain(["-f", file]).collect();
    our.extend(["--sample_index", column].iter().chain(extra));
    let mut their: Vec<&str> = their_report.split(' ').chain([&*index]).collect();
    if let (Some(option), Some((_, base))) = (&option, base) {
        our.extend([option, base]);
        their.extend([&option[1..], base]);
    }
    their.push(file);
    let outcome = outcome_of_pprof(scratch, &their);
    let empty = outcome.code == Some(1) && outcome.stderr.contains("no matches found");
    let empty = empty || !outcome.stdout.contains('|');
    if our_report.starts_with("--peek") && base.is_some() && empty {
        // The difference is empty, and the parser reports that.
        let outcome = run(scratch.parser().args(&our));
        return outcome.refused(1, &["no function matches"]);
    }
    let theirs = good(outcome);
    if our_report.starts_with("-t") {
        // Drops the lines of own code, which pprof does not have.
        our.push("--all-frames");
    }
    let ours = with_its_units(&without_error(&ours(scratch, &our)));
    let theirs = with_its_units(&theirs);
    assert!(theirs.lines().count() > 4, "{their:?}: {theirs}");
    if ours != theirs {
        let (ours, theirs) = (settled(&ours), settled(&theirs));
        assert_eq!(ours, theirs, "{our:?} differs from {their:?}");
    }
}

/// Flat and cum of a row, exactly.
pub type Row = (i64, i64);

/// Returns the rows of a table, by name. Numbers have no unit except `suffix`.
pub fn rows(table: &str, suffix: &str, name: impl Fn(&[&str]) -> String) -> BTreeMap<String, Row> {
    let number = |word: &str| word.trim_end_matches(suffix).parse::<i64>().ok();
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [flat, _, _, cum, _, rest @ ..] = &words[..] else {
            return None;
        };
        let row = (number(flat)?, number(cum)?);
        Some((name(rest), row))
    };
    table.lines().filter_map(row).collect()
}

/// Returns the smallest unit of a column.
fn unit(column: &str) -> &'static str {
    if column == "cpu" { "ns" } else { "B" }
}

/// Compares the tables that both programs print for the first dump, by address. The value of each
/// stack may differ by 1, see [`close`].
pub fn compare_addresses(scratch: &Scratch, profiled: &Profiled) {
    let (program, dump) = (text(&profiled.program), text(&profiled.dumps[0]));
    let stacks = stacks(&profiled.dumps[0]);
    let address = |words: &[&str]| words.first().copied().unwrap_or_default().to_owned();
    for column in profiled.columns {
        let unit = unit(column);
        let whole = ["--addresses", "--noinlines", "--trim=false", "--unit", unit];
        let of = ["-p", program, "-f", dump, "-t", "--sample_index", column];
        let ours = ours(scratch, &[&of[..], &whole].concat());
        let (index, in_unit) = (format!("-sample_index={column}"), format!("-unit={unit}"));
        let whole = ["-top", "-addresses", "-trim=false", &in_unit, &index, dump];
        let theirs = pprof(scratch, &whole);
        let (ours, theirs) = (rows(&ours, unit, address), rows(&theirs, unit, address));
        assert!(
            ours.len() > 5 && ours.keys().eq(theirs.keys()),
            "{column}: {ours:?} {theirs:?}"
        );
        for (address, (flat, cum)) in ours {
            let (their_flat, their_cum) = theirs[&address];
            let what = format!("{column} of {address}");
            close(&what, (flat, their_flat), stacks);
            close(&what, (cum, their_cum), stacks);
        }
    }
}

/// Returns the number of stacks, and of objects in stacks with a mean size below 8 bytes. pprof
/// scales a stack's samples by their mean size; in the smallest size class, sizes differ eightfold.
fn stacks(dump: &Path) -> i64 {
    /// Bytes of the objects of the smallest size class.
    const SMALLEST_CLASS: i64 = 8;
    let profile = profile::open(dump).expect("a dump");
    let mut tiny = 0;
    for values in profile.values.chunks(profile.sample_types.len()) {
        for pair in values.chunks_exact(2) {
            if pair[1] < pair[0].saturating_mul(SMALLEST_CLASS) {
                tiny += pair[0];
            }
        }
    }
    profile.stacks.len() as i64 + tiny
}

/// Checks that two rows are close. Each stack may be off by one, because numbers are rounded stack
/// by stack.
pub fn close(what: &str, (ours, theirs): Row, stacks: i64) {
    let slack = stacks + ours.abs() / 500;
    assert!(
        (ours - theirs).abs() <= slack,
        "{what}: ours {ours}, theirs {theirs}"
    );
}

/// Returns the report of google-pprof or jeprof about a column: everything, in bytes.
fn perl(viewer: &str, report: &str, column: &str, profiled: &Profiled, more: &[&str]) -> String {
    let of = match column {
        "space" => "--inuse_space".to_owned(),
        "objects" => "--inuse_objects".to_owned(),
        column if CPU.contains(&column) => String::new(),
        column => format!("--{column}"),
    };
    let all = "--show_bytes --nodecount=100000 --nodefraction=0 --edgefraction=0 \
               --maxdegree=100000";
    let files = [text(&profiled.program), text(&profiled.dumps[0])];
    let options = [report, &of].into_iter().filter(|o| !o.is_empty());
    let options = options.chain(all.split_whitespace());
    tool(viewer, options.chain(more.iter().copied()).chain(files))
}

/// Returns the arguments of the parser for a report on the first dump: everything, in the smallest
/// unit.
fn whole(report: &str, column: &str, profiled: &Profiled) -> Vec<String> {
    let (program, dump) = (text(&profiled.program), text(&profiled.dumps[0]));
    let of = ["-p", program, "-f", dump, report, "--sample_index", column];
    // In these programs, code without a symbol has no name of its own.
    let all = ["--trim=false", "--module-names", "--unit", unit(column)];
    of.iter().chain(&all).map(|&word| word.to_owned()).collect()
}

/// Compares functions, with their names, with the tables and graphs of google-pprof or jeprof, and
/// with their differences if there is a second dump. These programs look up the innermost return
/// address as it is, not minus one, so if code is inlined there, they may find another function.
/// Unnamed functions of libraries get the name of the nearest named function.
pub fn compare_functions(scratch: &Scratch, viewer: &str, profiled: &Profiled) {
    let slack = 2 * profiled.dumps.iter().map(|dump| stacks(dump)).sum::<i64>();
    // These programs know only the samples of a CPU profile.
    let columns = profiled.columns.iter().filter(|column| **column != "cpu");
    for column in columns {
        compare_tables(scratch, viewer, profiled, column, slack, false);
        if profiled.dumps.len() > 1 {
            compare_tables(scratch, viewer, profiled, column, slack, true);
        }
        compare_calls(scratch, viewer, profiled, column, slack);
        // jemalloc's own frames end every stack of its dumps, and have no names.
        if viewer == "google-pprof" {
            compare_stacks(scratch, viewer, profiled, column, slack);
        }
    }
}

/// Compares all stacks by their names, except for those with functions that only one of the two
/// programs names.
fn compare_stacks(scratch: &Scratch, viewer: &str, profiled: &Profiled, column: &str, slack: i64) {
    let mut arguments = whole("--folded", column, profiled);
    arguments.extend(["--demangle", "full"].map(str::to_owned));
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let ours = folded(&ours(scratch, &arguments));
    let theirs = folded(&perl(viewer, "--collapsed", column, profiled, &[]));
    let named: Vec<_> = ours.iter().filter(|(s, _)| !s.contains('[')).collect();
    let known: Vec<_> = named
        .iter()
        .filter(|(stack, _)| theirs.contains_key(*stack))
        .collect();
    assert!(
        known.len() > 4 && known.len() + 3 >= named.len(),
        "{column}: {:?}",
        unknown(&ours, &theirs)
    );
    for (stack, value) in known {
        let what = format!("{viewer} {column} of the stack {stack}");
        close(&what, (**value, theirs[*stack]), slack);
    }
}

/// Returns a name without everything in brackets (such as parameters), without the return type, and
/// without the address that the other programs append to some names.
fn bare(name: &str) -> String {
    let name = name.trim_end_matches("[inline]");
    let mut depth = 0;
    let outside = |c: &char| {
        depth += i32::from(matches!(c, '<' | '('));
        let keep = depth == 0;
        depth -= i32::from(matches!(c, '>' | ')'));
        keep
    };
    let name: String = name.chars().filter(outside).collect();
    let name = name.trim_end_matches(" const");
    unversioned(name.rsplit(' ').next().unwrap_or(name))
}

/// Returns the folded stacks with [`bare`] names, except for those with operators, whose brackets
/// have another meaning.
fn folded(text: &str) -> BTreeMap<String, i64> {
    let mut stacks = BTreeMap::new();
    for line in text.lines().filter(|line| !line.contains("operator")) {
        let (stack, value) = line.rsplit_once(' ').expect("a stack and its value");
        let names: Vec<String> = stack.split(';').map(bare).collect();
        let value: i64 = value.parse().expect("a whole number");
        *stacks.entry(names.join(";")).or_default() += value;
    }
    stacks
}

/// Returns the rows that only one of the two reports has.
fn unknown<'a, K: Ord, V, W>(
    ours: &'a BTreeMap<K, V>,
    theirs: &'a BTreeMap<K, W>,
) -> (Vec<&'a K>, Vec<&'a K>) {
    let ours_only = ours.keys().filter(|key| !theirs.contains_key(*key));
    let theirs_only = theirs.keys().filter(|key| !ours.contains_key(*key));
    (ours_only.collect(), theirs_only.collect())
}

/// Returns a name without the version that symbols of libraries have.
fn unversioned(name: &str) -> String {
    let bare = name.split_once("@@").map_or(name, |(bare, _)| bare);
    bare.to_owned()
}

fn compare_tables(
    scratch: &Scratch,
    viewer: &str,
    profiled: &Profiled,
    column: &str,
    slack: i64,
    compared: bool,
) {
    let name = |words: &[&str]| unversioned(&words.join(" ").replace(" (inline)", ""));
    let base = if compared {
        text(&profiled.dumps[1])
    } else {
        ""
    };
    let mut arguments = whole("-t", column, profiled);
    let mut more = Vec::new();
    if compared {
        arguments.extend(["--base".to_owned(), base.to_owned()]);
        more.push(format!("--base={base}"));
    }
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let more: Vec<&str> = more.iter().map(String::as_str).collect();
    let mut ours = rows(&ours(scratch, &arguments), unit(column), name);
    let theirs = rows(&perl(viewer, "--text", column, profiled, &more), "", name);
    // These programs take what follows the word for brackets.
    ours.retain(|name, _| !name.contains("operator"));
    let known: Vec<&String> = ours.keys().filter(|n| theirs.contains_key(*n)).collect();
    // These programs leave out rows of zero.
    let zeros = ours.values().filter(|row| **row == (0, 0)).count();
    assert!(
        known.len() > 7 && known.len() + zeros + 2 >= ours.len(),
        "{column}: {:?}",
        unknown(&ours, &theirs)
    );
    for function in known {
        let ((flat, cum), (their_flat, their_cum)) = (ours[function], theirs[function]);
        let what = format!("{viewer} {column} of {function}, compared: {compared}");
        close(&what, (flat, their_flat), slack);
        close(&what, (cum, their_cum), slack);
    }
}

/// Compares the edges of both graphs: callers, callees and values.
fn compare_calls(scratch: &Scratch, viewer: &str, profiled: &Profiled, column: &str, slack: i64) {
    let arguments = whole("--dot", column, profiled);
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let mut ours = calls(&ours(scratch, &arguments));
    let known_to_one = |name: &str| name.contains("operator") || name.starts_with('[');
    ours.retain(|(from, to), _| !known_to_one(from) && !known_to_one(to));
    let theirs = calls(&perl(viewer, "--dot", column, profiled, &[]));
    let known: Vec<_> = ours.keys().filter(|n| theirs.contains_key(*n)).collect();
    assert!(
        known.len() > 6 && known.len() + 4 >= ours.len(),
        "{column}: {:?}",
        unknown(&ours, &theirs)
    );
    for call in known {
        let what = format!("{viewer} {column} through {call:?}");
        close(&what, (ours[call], theirs[call]), slack);
    }
}

/// Returns the edges of a graph for graphviz, by the names of their ends. Drops edges of a function
/// to itself.
pub fn calls(graph: &str) -> BTreeMap<(String, String), i64> {
    let mut names = BTreeMap::new();
    let mut calls = BTreeMap::new();
    for line in graph.lines().filter(|line| line.starts_with('N')) {
        let Some((id, rest)) = line.split_once(' ') else {
            continue;
        };
        let Some(label) = rest.split_once("label=").map(|(_, label)| label) else {
            continue;
        };
        if let Some(to) = rest.strip_prefix("-> ") {
            let to = to.split_once(' ').map_or(to, |(to, _)| to);
            let label = label.trim_start_matches([' ', '"']);
            let digits = label.find(|c: char| !c.is_ascii_digit() && c != '-');
            let value = label[..digits.unwrap_or(label.len())].parse().ok();
            if let (Some(value), true) = (value, id != to) {
                calls.insert((id.to_owned(), to.to_owned()), value);
            }
        } else if let Some(label) = label.strip_prefix('"') {
            let end = label.find('"').unwrap_or(label.len());
            names.insert(id.to_owned(), label_name(&label[..end]));
        }
    }
    let named = |((from, to), value): ((String, String), i64)| {
        Some(((names.get(&from)?.clone(), names.get(&to)?.clone()), value))
    };
    calls.into_iter().filter_map(named).collect()
}

/// Returns the name in a label. It takes several lines, above the numbers.
fn label_name(label: &str) -> String {
    let parts = label.split("\\n").map(|part| part.trim());
    let is_number = |part: &&str| {
        let part = part.strip_prefix("of ").unwrap_or(part);
        part.starts_with(|c: char| c.is_ascii_digit() || c == '-')
    };
    let words: Vec<&str> = parts
        .take_while(|part| !is_number(part))
        .filter(|part| *part != "(inline)")
        .collect();
    unversioned(&words.join("::"))
}
