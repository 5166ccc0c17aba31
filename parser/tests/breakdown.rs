//! Sizes, threads and lives of objects, in text and on the page.

use helpers::browser;
mod expected;
mod invoke;

use std::fs::{self, File};
use std::path::Path;

use invoke::{parser, stderr, stdout};
use profile::{Detail, Facts, Function, Line, Profile, ProfileBuilder, Thread, dump};

/// Name of a thread, which its process chose.
const HOSTILE: &str = "</script><b>w\u{1b}[31m\u{202e}";

/// Returns the objects of one size: how many were allocated, are live, were short-lived.
fn objects(bytes: f64, [allocated, live, short]: [f64; 3]) -> Detail {
    let freed = allocated - live;
    Detail {
        alloc_samples: allocated as u64,
        free_samples: freed as u64,
        alloc_objects: allocated,
        alloc_bytes: allocated * bytes,
        freed_objects: freed,
        freed_bytes: freed * bytes,
        freed_lifetime_ms_sum: (freed - short) * 90_000.0,
        short_lived_objects: short,
        ..Detail::default()
    }
}

/// Returns the profile of a server with three threads that have names and others that have none.
/// `tables` are the counts of its first objects, of 1000 bytes.
fn server(tables: [f64; 3]) -> Profile {
    let mut builder = ProfileBuilder::new(1);
    let thread = |name: &str| Thread {
        tid: 41,
        name: name.to_owned(),
    };
    builder.facts(Facts {
        threads: vec![thread("server"), thread(HOSTILE), thread("")],
        ..Facts::default()
    });
    let parse = 0x1001;
    let load = 0x2001;
    let main = 0x9001;
    for (function, thread, bytes, counts) in [
        (load, 1, 1000.0, tables),
        (load, 1, 70_000.0, [20.0, 20.0, 0.0]),
        (load, 2, 1000.0, [10.0, 4.0, 0.0]),
        (parse, 2, 20.0, [90_000.0, 0.0, 90_000.0]),
        (parse, 2, 90.0, [6000.0, 100.0, 5000.0]),
        (parse, 3, 20.0, [1000.0, 10.0, 990.0]),
        (parse, 0, 0.0, [7.0, 7.0, 0.0]),
        (parse, 0, 3e9, [2.0, 1.0, 0.0]),
    ] {
        builder.stack([function, main], &objects(bytes, counts));
        builder.thread(thread);
    }
    let mut profile = builder.finish();
    for (number, location) in profile.locations.iter_mut().enumerate() {
        profile.functions.push(Function {
            name: ["load_tables", "main", "parse_request"][number].into(),
            ..Function::default()
        });
        profile.lines.push(Line {
            function: number as u32,
            ..Line::default()
        });
        location.first_line = number as u32;
        location.line_count = 1;
    }
    profile
}

fn write(directory: &Path) -> String {
    write_as(directory, "server.heap", [500.0, 500.0, 0.0])
}

fn write_as(directory: &Path, name: &str, tables: [f64; 3]) -> String {
    let path = directory.join(name);
    dump::write(&server(tables), &mut File::create(&path).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn report(arguments: &[&str]) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path());
    let output = parser(&[&["-f", &file], arguments].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stderr(&output));
    stdout(&output)
}

#[test]
fn reports_match_the_golden_files() {
    for (name, arguments) in [
        ("sizes.txt", &["--sizes"][..]),
        (
            "sizes_objects.txt",
            &["--sizes", "--sample_index", "alloc_objects", "-n", "1"],
        ),
        ("threads.txt", &["--threads"]),
        ("temporary.txt", &["--temporary"]),
    ] {
        let text = report(arguments);
        assert!(
            text.lines().all(|line| line.chars().count() <= 80),
            "{text}"
        );
        expected::compare(name, &text);
    }
}

#[test]
fn no_table_without_short_lived_objects() {
    let text = report(&["--temporary", "--focus", "load_tables"]);
    assert!(text.contains("No short-lived objects"), "{text}");
    assert!(
        !text.contains("-0") && !text.contains("function\n"),
        "{text}"
    );
}

#[test]
fn threads_are_listed_with_their_largest_functions() {
    for (column, heading) in [
        ("inuse_space", "the functions that hold most"),
        ("inuse_objects", "the functions that hold most"),
        ("alloc_space", "the functions that allocated most"),
        ("alloc_objects", "the functions that allocated most"),
    ] {
        let text = report(&["--threads", "--sample_index", column]);
        assert!(text.contains(heading), "{text}");
    }
}

#[test]
fn threads_can_be_selected_by_name() {
    let of = |focus: &str| report(&["--tagfocus", focus, "-t", "--unit", "B"]);
    assert!(
        of("thread=^server$").contains("1900000B"),
        "{}",
        of("thread=^server$")
    );
    assert!(
        of("thread=.31m").contains("13000B"),
        "{}",
        of("thread=.31m")
    );
    assert!(of("thread=^thread 41$").contains("200B"));
    assert!(of("thread=other threads").contains("3000000000B"));
}

#[test]
fn older_dumps_report_missing_information() {
    let shop = expected::data("shop.heap");
    let shop = shop.to_str().unwrap();
    for (report, what) in [
        ("--sizes", "does not tell sizes apart"),
        ("--threads", "does not tell threads apart"),
        ("--temporary", "does not count short-lived objects"),
    ] {
        let output = parser(&["-f", shop, report]);
        assert_eq!(output.status.code(), Some(1));
        assert!(stderr(&output).contains(what), "{}", stderr(&output));
    }
}

/// Returns the state that the script `probe` reports on the page of the server.
fn probe(probe: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = write(directory.path());
    probe_page(directory.path(), probe, &["-f", &file, "--html"])
}

fn probe_page(directory: &Path, probe: &str, arguments: &[&str]) -> String {
    let output = parser(arguments);
    let page = browser::open_page(&stdout(&output));
    let path = directory.join("probe.html");
    fs::write(&path, browser::with_probe(&page, probe, "</body>")).unwrap();
    browser::state(&path, "")
}

const PROBE: &str = r##"
const open = (key) => {
  document.getElementById(`to-${key}`).click();
  return [...document.querySelectorAll(`#${key} tbody tr`)];
};
const state = { rows: open("sizes").length };
const pick = document.getElementById("sized");
const parse = [...pick.options].find((o) => o.textContent.includes("parse_request"));
pick.value = parse.value;
pick.dispatchEvent(new Event("change"));
state.own = document.querySelectorAll("#sizes tbody tr").length;
state.picked = pick.selectedOptions[0] === parse;
const threads = open("threads").map((tr) => tr.children[4].textContent);
state.bold = Boolean(document.querySelector("#threads b"));
state.threads = threads.join("+");
state.short = open("temporary").map((tr) => tr.children[4].textContent).join("+");
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn the_page_has_sizes_threads_and_temporary_objects() {
    let found = probe(PROBE);
    let expected = concat!(
        "{\"rows\":6,\"own\":4,\"picked\":true,\"bold\":false,",
        "\"threads\":\"[other threads]+server+</script><b>w\\\\u001b[31m\\\\u202e+thread 41\",",
        "\"short\":\"parse_request\"}"
    );
    assert_eq!(found, expected);
}

const PROBE_OF_RULES: &str = r##"
const state = {};
document.getElementById("to-threads").click();
for (const rule of ["change", "now", "base"]) {
  document.querySelector(`header [data-key="${rule}"]`).click();
  const rows = [...document.querySelectorAll("#threads tbody tr")];
  const row = rows.find((tr) => tr.children[4].textContent === "server");
  state[rule] = `${row.children[0].textContent} ${row.querySelector("li").textContent}`;
}
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

/// The threads follow the choice between the change, the dump and the base.
#[test]
fn threads_are_compared_with_those_of_a_base() {
    let directory = tempfile::tempdir().unwrap();
    let early = write_as(directory.path(), "early.heap", [300.0, 300.0, 0.0]);
    let late = write(directory.path());
    let arguments = ["-f", &late, "--base", &early, "--html", "--force"];
    let found = probe_page(directory.path(), PROBE_OF_RULES, &arguments);
    let expected = concat!(
        "{\"change\":\"+195.31 KiB +195.31 KiB  load_tables\",",
        "\"now\":\"1.81 MiB 1.81 MiB  load_tables\",",
        "\"base\":\"1.62 MiB 1.62 MiB  load_tables\"}"
    );
    assert_eq!(found, expected);
}
