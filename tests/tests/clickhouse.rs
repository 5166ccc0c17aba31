//! `mem_parser --clickhouse` with ClickHouse's own engine: the schema, the queries, and totals that
//! equal those of the table. Needs access to PyPI the first time.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use mem_tests::session::tool;
use mem_tests::{Scratch, Session, Target, run, venv};
use profile::Profile;
use serde_json::Value;

/// Returns a Python with chdb.
fn python() -> PathBuf {
    venv::python("chdb-26.9.0", &["chdb-core==26.9.0"])
}

/// Returns three dumps of a program that allocates more and more.
fn dumps(scratch: &Scratch, program: &Path) -> Vec<PathBuf> {
    let mut target = Target::start(&mut scratch.preloaded(program));
    assert_eq!(target.hear(), "ready");
    let session = Session::of(scratch, target.pid(), "1");
    let mut dumps = Vec::new();
    for _ in 0..2 {
        target.say("go 200 4 1024");
        target.hear_until("done");
        let pid = target.pid().to_string();
        let prefix = scratch.file("between_");
        let mut dump = scratch.profiler();
        dump.args(["dump", "-p", &pid, "-o"]).arg(prefix);
        dumps.extend(run(&mut dump).dumps());
    }
    target.say("go 200 4 1024");
    target.hear_until("done");
    dumps.extend(session.stop().dumps().pop());
    target.finish_well();
    assert_eq!(dumps.len(), 3, "{dumps:?}");
    dumps
}

/// Returns the rows of dumps, as those of a host.
fn rows(scratch: &Scratch, dumps: &[PathBuf], host: &str, file: &str) -> PathBuf {
    let file = scratch.file(file);
    let mut all = String::new();
    for dump in dumps {
        let mut parser = scratch.parser();
        parser.arg(dump).args(["--clickhouse", "--label"]);
        parser.args(["service=che'ck", "--label"]);
        parser
            .arg(format!("host={host}"))
            .args(["--label", "version=1.2"]);
        let outcome = run(&mut parser);
        assert_eq!(outcome.code, Some(0), "{outcome:?}");
        all += &outcome.stdout;
    }
    fs::write(&file, all).expect("a file of ours");
    file
}

/// Returns the totals and queries of the rows in ClickHouse.
fn ask(scratch: &Scratch, rows: &[&Path]) -> Value {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut ask = Command::new(python());
    ask.arg(here.join("clickhouse/ask"));
    ask.arg(here.join("../deploy/clickhouse"));
    ask.arg(scratch.file("database"));
    let today = tool("date", ["-u", "+%F"]);
    ask.args([
        "service=che'ck",
        "hours=1",
        "function=site_",
        "from=2020-01-01 00:00:00",
    ]);
    ask.args(["to=2100-01-01 00:00:00", "before=2020-01-01"]);
    ask.arg(format!("after={}", today.trim()))
        .arg("--")
        .args(rows);
    let outcome = run(&mut ask);
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    serde_json::from_str(&outcome.stdout).expect("JSON")
}

/// Returns a cell of an answer as a number: ClickHouse writes large ones as text.
fn number(cell: &Value) -> i64 {
    match cell {
        Value::String(text) => text.parse().expect("a number"),
        cell => cell.as_f64().expect("a number") as i64,
    }
}

#[test]
fn sums_are_those_of_the_table_and_every_query_answers() {
    let scratch = Scratch::new();
    let program = scratch.compile("truth.cpp", &[]);
    let dumps = dumps(&scratch, &program);
    let one = rows(&scratch, &dumps, "web-1", "one");
    let two = rows(&scratch, &dumps[..2], "web-2", "two");
    let aside = scratch.file("aside");
    fs::rename(&program, &aside).expect("a file of ours");
    let bare = rows(&scratch, &dumps[..2], "web-2", "bare");
    fs::rename(&aside, &program).expect("a file of ours");
    // Read in twice, it counts once; without names first, or later, it has those that it came with.
    let answer = ask(&scratch, &[&bare, &one, &two, &two, &bare]);

    let read = |dump: &PathBuf| profile::open(dump).expect("a dump");
    let profiles: Vec<Profile> = dumps.iter().chain(&dumps[..2]).map(read).collect();
    for kind in [
        "alloc_objects",
        "alloc_space",
        "inuse_objects",
        "inuse_space",
    ] {
        let total = |p: &Profile| p.total(p.type_index(kind).expect("a column"));
        let ours: i64 = profiles.iter().map(total).sum();
        assert!(ours > 0);
        assert_eq!(number(&answer["totals"][kind]), ours, "{kind}");
    }
    let [named, distinct, all, bare] = [0, 1, 2, 3].map(|n| number(&answer["stacks"][n]));
    assert_eq!(named, distinct);
    assert!(
        all >= 2 * distinct && bare >= distinct,
        "nothing came twice: {all}, {bare}"
    );
    let functions = answer["02-top-functions"].as_array().expect("rows");
    assert!(functions.iter().all(|row| row[0] != ""), "{functions:?}");
    answers(&answer, &profiles);
}

/// Checks what the queries tell.
fn answers(answer: &Value, profiles: &[Profile]) {
    let rows = |query: &str| {
        answer[query]
            .as_array()
            .unwrap_or_else(|| panic!("{query}"))
    };
    let last = |p: &Profile| p.total(p.type_index("inuse_space").expect("a column"));
    let held = |query: &str, column: usize, name: &str| {
        let row = rows(query).iter().find(|row| row[0] == name);
        number(&row.unwrap_or_else(|| panic!("{name} in {query}: {answer}"))[column])
    };
    assert!(
        rows("01-hosts-that-grew").is_empty(),
        "nothing is a day old"
    );
    let flat: i64 = rows("02-top-functions")
        .iter()
        .map(|row| number(&row[1]))
        .sum();
    let all: i64 = profiles.iter().map(last).sum();
    let mean = all / profiles.len() as i64;
    // The sum of the first rows, each of which is rounded.
    let off = rows("02-top-functions").len() as i64;
    assert!(0 < flat && flat <= mean + off, "{flat}, {mean}");
    let most = number(&rows("03-cumulative")[0][1]);
    assert!(flat < most && most <= all, "{most} of {all}");
    assert_eq!(held("04-by-version", 1, "1.2"), 2);
    assert!(!rows("05-diff-of-two-days").is_empty());
    assert_eq!(number(&rows("06-leak-suspects")[0][0]), 1, "{answer}");
    assert!(number(&rows("06-leak-suspects")[0][1]) > 0);
    assert_eq!(held("07-services", 1, "che'ck"), 2);
    assert_eq!(held("08-who-uses-a-function", 2, "che'ck"), 2);
    // The host with the third dump may hold that much more.
    assert!(rows("09-outliers").len() <= 1, "{answer}");
    let folded = rows("10-flame-graph").iter().map(|row| {
        let line = row[0].as_str().expect("text");
        let (stack, value) = line.rsplit_once(' ').expect("a value");
        assert!(stack.contains(';'), "{line}");
        value.parse::<i64>().expect("a number")
    });
    assert_eq!(folded.sum::<i64>(), all);
}
