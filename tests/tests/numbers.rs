//! Dumps of real programs read by us, by `go tool pprof` and by google-pprof: equal numbers
//! for every function, in every report and column, and in comparisons.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use mem_tests::session::tool;
use mem_tests::{Scratch, Session, run, wait};

const COLUMNS: [&str; 4] = [
    "inuse_space",
    "inuse_objects",
    "alloc_space",
    "alloc_objects",
];

/// Our reports and pprof's.
const REPORTS: [(&str, &str); 8] = [
    ("-t", "-top"),
    ("-t --cum", "-top -cum"),
    ("-t --lines", "-top -lines"),
    ("-t --files", "-top -files"),
    ("-t --addresses", "-top -addresses"),
    ("--tree", "-tree"),
    ("--traces", "-traces"),
    ("--peek .", "-peek ."),
];

/// A program that was profiled, and its dumps: at the high-water mark and at the end.
struct Profiled {
    program: PathBuf,
    dumps: Vec<PathBuf>,
}

/// Runs a program to its end under the profiler, with its input from a file.
fn profile(scratch: &Scratch, interval: &str, program: &[&str], input: &Path) -> Vec<PathBuf> {
    let mut command = scratch.profiler();
    command
        .args(["run", "-c", interval, "--peak", "-o", "p_", "--"])
        .args(program)
        .env("PYTHONMALLOC", "malloc")
        .stdin(File::open(input).expect("the input"));
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    dumps(scratch)
}

/// All dumps in the folder, in order of their names.
fn dumps(scratch: &Scratch) -> Vec<PathBuf> {
    let entries = fs::read_dir(scratch.files()).expect("the folder");
    let paths = entries.flatten().map(|entry| entry.path());
    let mut dumps: Vec<_> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "heap"))
        .collect();
    dumps.sort();
    assert!(!dumps.is_empty());
    dumps
}

fn ours(scratch: &Scratch, arguments: &[&str]) -> String {
    let outcome = run(scratch.parser().args(arguments).env("TZ", "UTC"));
    assert_eq!(outcome.code, Some(0), "{arguments:?}: {outcome:?}");
    outcome.stdout
}

fn pprof(scratch: &Scratch, arguments: &[&str]) -> String {
    let mut command = Command::new("go");
    command
        .args(["tool", "pprof", "-symbolize=none"])
        .args(arguments)
        .current_dir(scratch.files())
        .env("TZ", "UTC")
        .stdin(Stdio::null());
    let outcome = run(&mut command);
    assert_eq!(outcome.code, Some(0), "{command:?}: {outcome:?}");
    outcome.stdout
}

/// The dump with names, as pprof reads it.
fn with_names(scratch: &Scratch, profiled: &Profiled, number: usize) -> String {
    let name = format!("{number}.pb.gz");
    let program = profiled.program.to_str().expect("a path");
    let dump = profiled.dumps[number].to_str().expect("a path");
    ours(
        scratch,
        &["-p", program, "-f", dump, "--proto", "-o", &name],
    );
    name
}

/// A report whose order is not all chance: pprof leaves equal calls in the order of a hash
/// table. In comparisons it also lists calls to what has cancelled out, as zeros.
fn settled(report: &str, compared: bool) -> Vec<Vec<&str>> {
    let zero = |line: &&str| {
        let (number, _) = line.split_once(" |   ").unwrap_or_default();
        compared && number.split_whitespace().eq(["0", "0%"])
    };
    let sorted = |block: &'_ _| -> Vec<&str> {
        let block: &&str = block;
        let mut lines: Vec<&str> = block.lines().filter(|line| !zero(line)).collect();
        lines.sort_unstable();
        lines
    };
    let blocks: Vec<&str> = report.split("----------+-------------\n").collect();
    blocks.iter().map(sorted).collect()
}

/// Every report of every column, and comparisons where there are two dumps.
fn compare_reports(scratch: &Scratch, profiled: &Profiled) {
    let file = with_names(scratch, profiled, 0);
    for column in COLUMNS {
        for (our_report, report) in REPORTS {
            same(scratch, &file, column, (our_report, report), &[]);
        }
    }
    if profiled.dumps.len() < 2 {
        return;
    }
    let base = with_names(scratch, profiled, 1);
    for column in COLUMNS {
        for (our_report, report) in REPORTS {
            for option in ["base", "diff_base"] {
                same(
                    scratch,
                    &file,
                    column,
                    (our_report, report),
                    &[option, &base],
                );
            }
        }
    }
}

/// Compares one report of one column.
fn same(scratch: &Scratch, file: &str, column: &str, report: (&str, &str), base: &[&str]) {
    let (our_column, column) = (format!("--{column}"), format!("-sample_index={column}"));
    let mut our: Vec<&str> = report
        .0
        .split(' ')
        .chain(["-f", file, &our_column])
        .collect();
    let mut their: Vec<&str> = report.1.split(' ').chain([&*column]).collect();
    let option = base
        .first()
        .map(|option| (format!("--{option}"), format!("-{option}")));
    if let (Some((ours, theirs)), [_, base]) = (&option, base) {
        our.extend([ours.as_str(), base]);
        their.extend([theirs.as_str(), base]);
    }
    their.push(file);
    let theirs = pprof(scratch, &their);
    if report.0.starts_with("--peek") && !theirs.contains('|') {
        // Nothing is left of the difference; we say so.
        let outcome = run(scratch.parser().args(&our));
        return outcome.refused(1, &["no function matches"]);
    }
    let ours = ours(scratch, &our);
    assert!(theirs.lines().count() > 4, "{their:?}: {theirs}");
    if ours != theirs {
        let compared = option.is_some();
        let (ours, theirs) = (settled(&ours, compared), settled(&theirs, compared));
        assert_eq!(ours, theirs, "{our:?} differs from {their:?}");
    }
}

/// Flat and cum of a row, exactly.
type Row = (i64, i64);

/// The rows of a table whose numbers have no unit but `suffix`, by their last word or words.
fn rows(table: &str, suffix: &str, name: impl Fn(&[&str]) -> String) -> BTreeMap<String, Row> {
    let number = |word: &str| word.trim_end_matches(suffix).parse::<i64>().ok();
    let row = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [flat, _, _, cum, _, rest @ ..] = &words[..] else {
            return None;
        };
        Some((name(rest), (number(flat)?, number(cum)?)))
    };
    table.lines().filter_map(row).collect()
}

/// The dump itself, by address: what each program makes of the text.
fn compare_addresses(scratch: &Scratch, profiled: &Profiled) {
    let (program, dump) = (&profiled.program, &profiled.dumps[0]);
    let (program, dump) = (
        program.to_str().expect("a path"),
        dump.to_str().expect("a path"),
    );
    let stacks = heap_format::open(&profiled.dumps[0])
        .expect("a dump")
        .stacks
        .len() as i64;
    let address = |words: &[&str]| words.first().copied().unwrap_or_default().to_owned();
    for column in COLUMNS {
        let (our_column, index) = (format!("--{column}"), format!("-sample_index={column}"));
        let ours = ours(
            scratch,
            &[
                "-p",
                program,
                "-f",
                dump,
                "-t",
                "--addresses",
                "--noinlines",
                "--trim=false",
                "--unit",
                "B",
                &our_column,
            ],
        );
        let theirs = pprof(
            scratch,
            &["-top", "-addresses", "-trim=false", "-unit=B", &index, dump],
        );
        let (ours, theirs) = (rows(&ours, "B", address), rows(&theirs, "B", address));
        assert!(
            ours.len() > 5 && ours.keys().eq(theirs.keys()),
            "{column}: {ours:?} {theirs:?}"
        );
        for (address, (flat, cum)) in ours {
            let (their_flat, their_cum) = theirs[&address];
            close(
                &format!("{column} of {address}"),
                (flat, their_flat),
                stacks,
            );
            close(
                &format!("{column} through {address}"),
                (cum, their_cum),
                stacks,
            );
        }
    }
}

/// Each stack may be one off: numbers are made whole stack by stack.
fn close(what: &str, (ours, theirs): Row, stacks: i64) {
    let slack = stacks + ours / 500;
    assert!(
        (ours - theirs).abs() <= slack,
        "{what}: ours {ours}, theirs {theirs}"
    );
}

/// By function, names and all, as google-pprof or jeprof tells it. They look the innermost
/// return address up as it is, not one less: with code inlined there, another function may be
/// found. Functions of libraries without names are called after the nearest one that has one.
fn compare_functions(scratch: &Scratch, viewer: &str, program: &Path, dump: &Path) {
    let stacks = heap_format::open(dump).expect("a dump").stacks.len() as i64;
    let (program, dump) = (program.to_str(), dump.to_str());
    let (program, dump) = (program.expect("a path"), dump.expect("a path"));
    let name = |words: &[&str]| words.join(" ").replace(" (inline)", "");
    for column in COLUMNS.map(|column| format!("--{column}")) {
        let arguments = [
            "-p",
            program,
            "-f",
            dump,
            "-t",
            "--trim=false",
            "--unit",
            "B",
            &column,
        ];
        let ours = rows(&ours(scratch, &arguments), "B", name);
        let all = ["--nodecount=100000", "--nodefraction=0"];
        let arguments = [
            "--text",
            "--show_bytes",
            all[0],
            all[1],
            &column,
            program,
            dump,
        ];
        let theirs = rows(&tool(viewer, arguments), "B", name);
        let known: Vec<&String> = ours.keys().filter(|n| theirs.contains_key(*n)).collect();
        assert!(
            known.len() > 8 && known.len() + 2 >= ours.len(),
            "{ours:?} {theirs:?}"
        );
        for function in known {
            let ((flat, cum), (their_flat, their_cum)) = (ours[function], theirs[function]);
            close(
                &format!("{viewer} {column} of {function}"),
                (flat, their_flat),
                2 * stacks,
            );
            close(
                &format!("{viewer} {column} through {function}"),
                (cum, their_cum),
                2 * stacks,
            );
        }
    }
}

fn write(scratch: &Scratch, name: &str, content: &str) -> PathBuf {
    let path = scratch.file(name);
    fs::write(&path, content).expect("to be written");
    path
}

const SQL: &str = "
create table t(a integer primary key, b text, c text);
with recursive n(i) as (select 1 union all select i + 1 from n where i < 9000)
    insert into t select i, hex(i * 7919), hex(randomblob(40)) from n;
create index x on t(b); create index y on t(c, b);
select count(*) from (select b, c, count(*) from t group by substr(b, 1, 3));
";

#[test]
fn sqlite3() {
    let scratch = Scratch::new();
    let input = write(&scratch, "work.sql", SQL);
    let dumps = profile(&scratch, "512", &["sqlite3", ":memory:"], &input);
    let program = PathBuf::from("/usr/bin/sqlite3");
    let profiled = Profiled { program, dumps };
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}

const PYTHON: &str = "
import json, decimal, email
books = [json.loads(json.dumps({'a': [i] * 20, 'b': str(i) * 9})) for i in range(2000)]
";

#[test]
fn python3() {
    let scratch = Scratch::new();
    let input = write(&scratch, "work.py", PYTHON);
    let dumps = profile(&scratch, "4096", &["/usr/bin/python3", "-"], &input);
    let program = fs::canonicalize("/usr/bin/python3").expect("a program");
    let profiled = Profiled { program, dumps };
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}

/// The program of the parser's golden files, nothing of it inlined.
fn shop(scratch: &Scratch) -> PathBuf {
    let source = "../../parser/tests/data/shop.cpp";
    scratch.compile_as(source, "shop", &["-O1", "-fno-inline"])
}

#[test]
fn a_cpp_program() {
    let scratch = Scratch::new();
    let program = shop(&scratch);
    let input = write(&scratch, "nothing", "");
    let path = program.to_str().expect("a path");
    let dumps = profile(&scratch, "512", &[path], &input);
    let profiled = Profiled { program, dumps };
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
    for viewer in ["google-pprof", "jeprof"] {
        compare_functions(&scratch, viewer, &profiled.program, &profiled.dumps[0]);
    }
}

/// Runs a program with another allocator and its profiler; gives the last dump.
fn other_profiler(scratch: &Scratch, program: &Path, library: &str, how: (&str, &str)) -> PathBuf {
    let mut command = Command::new(program);
    command.env("LD_PRELOAD", library).env(how.0, how.1);
    let outcome = run(command.current_dir(scratch.files()).stdin(Stdio::null()));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    dumps(scratch).pop().expect("a dump")
}

#[test]
fn jemallocs_own_dump() {
    let scratch = Scratch::new();
    let program = shop(&scratch);
    let how = "prof:true,prof_final:true,prof_prefix:je,lg_prof_sample:9,prof_accum:true";
    let how = ("MALLOC_CONF", how);
    let dump = other_profiler(&scratch, &program, "libjemalloc.so.2", how);
    compare_functions(&scratch, "jeprof", &program, &dump);
}

#[test]
fn gperftools_own_dump() {
    let scratch = Scratch::new();
    let program = shop(&scratch);
    let dump = other_profiler(
        &scratch,
        &program,
        "libtcmalloc.so.4",
        ("HEAPPROFILE", "tc"),
    );
    compare_functions(&scratch, "google-pprof", &program, &dump);
    let profiled = Profiled {
        program,
        dumps: vec![dump],
    };
    compare_reports(&scratch, &profiled);
}

#[test]
fn cc1plus() {
    let scratch = Scratch::new();
    let program = tool("g++", ["-print-prog-name=cc1plus"]);
    let source = "#include <map>\n#include <string>\n\
        int main() { std::map<std::string, int> m; return m[\"x\"]; }\n";
    let input = write(&scratch, "x.cpp", source);
    // What the driver would tell the compiler proper stays out of it.
    let ready = scratch.file("x.ii");
    let (path, ready) = (
        input.to_str().expect("a path"),
        ready.to_str().expect("a path"),
    );
    tool("g++", ["-E", path, "-o", ready]);
    let program = program.trim();
    let arguments = [
        program,
        "-quiet",
        "-fpreprocessed",
        "-O1",
        ready,
        "-o",
        "/dev/null",
    ];
    let dumps = profile(&scratch, "16384", &arguments, &input);
    let program = PathBuf::from(program);
    let profiled = Profiled { program, dumps };
    // Not by address: it has allocating functions that reports leave out once they have names.
    compare_reports(&scratch, &profiled);
}

#[test]
fn redis_server() {
    let scratch = Scratch::new();
    let free = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("a port").port().to_string();
    drop(free);
    let mut command = scratch.profiler();
    command
        .args([
            "run",
            "-c",
            "1024",
            "--peak",
            "-o",
            "p_",
            "--",
            "redis-server",
        ])
        .args(["--port", &port, "--bind", "127.0.0.1", "--save", ""]);
    let server = Session::start(&mut command);
    wait::until("redis-server to answer", || {
        let mut ping = Command::new("redis-cli");
        let outcome = run(ping.args(["-p", &port, "ping"]).stdin(Stdio::null()));
        (outcome.stdout.trim() == "PONG").then_some(())
    });
    let load = [
        "-p",
        &port,
        "-q",
        "-t",
        "set,lpush,hset,zadd",
        "-n",
        "5000",
        "-r",
        "900",
    ];
    tool("redis-benchmark", load);
    let stopped = run(Command::new("redis-cli").args(["-p", &port, "shutdown", "nosave"]));
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert_eq!(server.wait().code, Some(0));
    let program = PathBuf::from("/usr/bin/redis-server");
    let dumps = dumps(&scratch);
    let profiled = Profiled { program, dumps };
    compare_reports(&scratch, &profiled);
    compare_addresses(&scratch, &profiled);
}
