//! Memory over time, in the terminal, as JSON and on the page.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use profile::{Detail, Facts, Function, Line, Moment, Profile, ProfileBuilder, StackBytes, dump};
use tempfile::TempDir;

use helpers::browser;
mod expected;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;
/// A name that would be markup.
const HOSTILE: &str = "<img src=x onerror=window.pwned=1>";

/// Writes a dump of three stacks with their live bytes at the end, and the session's moments.
fn profile(live: [u64; 3], moments: Vec<Moment>) -> Profile {
    let mut builder = ProfileBuilder::new(1);
    let end = moments.last().map_or(SECOND, |m| m.at_ns);
    builder.facts(Facts {
        pid: Some(7),
        start_unix_ns: Some(1_795_239_949 * SECOND),
        end_unix_ns: Some(1_795_239_949 * SECOND + end),
        duration_ns: Some(end),
        ..Facts::default()
    });
    for (leaf, bytes) in [0x10, 0x20, 0x30].into_iter().zip(live) {
        let detail = Detail {
            alloc_samples: 2,
            free_samples: 1,
            alloc_objects: 2.0,
            alloc_bytes: 100.0 * MIB as f64,
            freed_objects: 1.0,
            freed_bytes: 100.0 * MIB as f64 - bytes as f64,
            ..Detail::default()
        };
        builder.stack([leaf, 0x1000], &detail);
    }
    let mut profile = builder.finish();
    let name = |name: &str| Function {
        name: name.into(),
        ..Function::default()
    };
    profile.functions = ["load_index", HOSTILE, "parse", "main"].map(name).into();
    // In order of first occurrence: the first leaf, its caller, the other leaves.
    for (location, function) in [0, 3, 1, 2].into_iter().enumerate() {
        profile.lines.push(Line {
            function,
            line: 1,
            column: 0,
        });
        profile.locations[location].first_line = location as u32;
        profile.locations[location].line_count = 1;
    }
    profile.moments = moments;
    profile
}

fn at(tenths: u64, live: u64, stacks: Option<[u64; 3]>) -> Moment {
    let held = |(stack, bytes): (u32, u64)| StackBytes { stack, bytes };
    Moment {
        at_ns: tenths * SECOND / 10,
        live,
        allocated: tenths * MIB,
        resident: (tenths > 0).then_some(live + 8 * MIB),
        stacks: stacks.map(|all| (0..).zip(all).map(held).collect()),
    }
}

/// Returns the moments of twelve seconds: live memory grows up to a peak at six seconds, of which
/// the stacks are known, and then shrinks.
fn session() -> Vec<Moment> {
    let moment = |tenths: u64| match tenths {
        0..=39 => at(
            tenths,
            tenths * MIB / 4,
            (tenths == 20).then_some([2 * MIB, 3 * MIB, 0]),
        ),
        60 => at(tenths, 25 * MIB, Some([5 * MIB, 18 * MIB, MIB])),
        40..=79 => at(tenths, 20 * MIB, None),
        _ => at(tenths, 6 * MIB, None),
    };
    (0..=120).map(moment).collect()
}

const END: [u64; 3] = [5 * MIB, 0, MIB];

fn write(directory: &TempDir, name: &str, profile: &Profile) -> PathBuf {
    let path = directory.path().join(name);
    dump::write(profile, &mut fs::File::create(&path).unwrap()).unwrap();
    path
}

fn parser(files: &[&Path], options: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mem_parser"));
    files.iter().for_each(|file| {
        command.arg("-f").arg(file);
    });
    command.args(options).output().unwrap()
}

fn shown(files: &[&Path], options: &[&str]) -> String {
    let output = parser(files, options);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn the_terminal_shows_curves_and_the_peak_against_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write(&directory, "x.heap", &profile(END, session()));
    let text = shown(&[&dump], &["--timeline"]);
    expected::compare("timeline.txt", &text);
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    assert_eq!(text, shown(&[&dump], &["--time"]));
    let short = shown(&[&dump], &["--timeline", "-n", "1"]);
    assert!(short.contains("(all others)"), "{short}");
}

#[test]
fn json_has_the_moments() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write(&directory, "x.heap", &profile(END, session()));
    let json: serde_json::Value = serde_json::from_str(&shown(&[&dump], &["--json"])).unwrap();
    let moments = json["moments"].as_array().unwrap();
    assert_eq!(moments.len(), 121);
    assert_eq!(moments[60]["live"], 25 * MIB);
    assert_eq!(moments[60]["stacks"][1]["bytes"], 18 * MIB);
    assert_eq!(moments[0].get("resident"), None);
    // Stacks have other numbers if a filter excludes some.
    let json = shown(&[&dump], &["--json", "--ignore", "load_index"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let stacks = json["moments"][60]["stacks"].as_array().unwrap();
    assert_eq!((stacks.len(), &stacks[0]["stack"]), (2, &0.into()));
    assert_eq!(stacks[0]["bytes"], 18 * MIB);
}

#[test]
fn dumps_of_one_session_have_one_timeline() {
    let directory = tempfile::tempdir().unwrap();
    let early = vec![at(0, 0, None), at(1, 7 * MIB, None), at(13, 9 * MIB, None)];
    let early = write(&directory, "a.heap", &profile([MIB, 8 * MIB, 0], early));
    let late = write(&directory, "b.heap", &profile(END, session()));
    let json = shown(&[&late, &early], &["--json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let moments = json["moments"].as_array().unwrap();
    assert_eq!(moments.len(), 121);
    // The early dump is itself a moment of which the stacks are known.
    assert_eq!(moments[13]["stacks"][1]["bytes"], 8 * MIB);
}

#[test]
fn a_profile_without_a_timeline_gets_an_explanation_and_advice() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write(&directory, "x.heap", &profile(END, Vec::new()));
    let folded = directory.path().join("x.folded");
    fs::write(&folded, "main;f 5\n").unwrap();
    for (file, hint) in [
        (&dump, "mem_profiler -s 60"),
        (&folded, "only dumps of mem_profiler"),
    ] {
        let output = parser(&[file], &["--timeline"]);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        assert!(stderr.contains(hint), "{stderr}");
        let page = shown(&[file], &["--html"]);
        assert!(page.contains(hint), "the page says so too");
    }
}

/// Each dump has a timeline, but there is none of both together.
#[test]
fn dumps_of_two_processes_have_no_timeline_in_common() {
    let directory = tempfile::tempdir().unwrap();
    let mut other = profile(END, session());
    other.facts.pid = Some(8);
    let files = [
        write(&directory, "a.heap", &profile(END, session())),
        write(&directory, "b.heap", &other),
    ];
    let output = parser(&[&files[0], &files[1]], &["--timeline"]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(stderr.contains("no timeline in common"), "{stderr}");
}

/// Works the tab as a reader would.
const PROBE: &str = r##"
const state = {};
const $ = (s) => document.querySelector(s);
const all = (s) => [...document.querySelectorAll(s)];
const press = (text) => all("button").find((b) => b.textContent === text).click();
const rows = () => all("#time div:not([hidden]) > table tbody tr").map((tr) => [...tr.children].map((td) => td.textContent));
const row = (name) => { const r = rows().find((r) => r[r.length - 1].startsWith(name)); return r ? r.join(" ") : ""; };
const key = (key) => $("#time svg").dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const clickAt = (circle) => {
  const box = circle.getBoundingClientRect();
  $("#time svg").dispatchEvent(new MouseEvent("click", { bubbles: true, clientX: box.left + box.width / 2, clientY: box.top }));
};
press("Time");
state.circles = all("#time circle").length;
state.curves = all("#time polyline").length;
state.peak = row("<img");
state.said = $("#time .moment").textContent;
clickAt(all("#time circle")[0]);
state.early = row("<img");
state.picked = all("#time circle").findIndex((c) => c.getAttribute("class") === "picked");
key("ArrowRight");
state.stepped = row("<img");
state.rest = row("(smaller");
key("End");
state.end = row("load_index");
key("ArrowRight");
state.stays = $("#time svg").getAttribute("aria-valuenow");
clickAt(all("#time circle")[1]);
press("Stacks");
state.stack = rows()[0][4];
press("Resident");
state.hidden = all("#time polyline").length;
state.scripts = all("#time img").length + (window.pwned || 0);
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn a_click_on_a_moment_shows_its_stacks() {
    let directory = tempfile::tempdir().unwrap();
    let dump = write(&directory, "x.heap", &profile(END, session()));
    let page = shown(&[&dump], &["--html"]);
    let path = directory.path().join("x.html");
    // The page's policy would forbid the probe's script.
    let (start, rest) = page.split_once("<meta http-equiv").unwrap();
    let page = format!("{start}{}", rest.split_once('>').unwrap().1);
    fs::write(&path, browser::with_probe(&page, PROBE, "</body>")).unwrap();
    let state = browser::state(&path, "");
    let check = |key: &str, value: &str| browser::assert_state(&state, key, value);
    check("circles", "3");
    check("curves", "2");
    let number = |text: &str| state.contains(text);
    assert!(number("\"peak\":\"18") && number("72.00%"), "{state}");
    assert!(number("\"said\":\"6 s after the start: 25"), "{state}");
    assert!(number("\"early\":\"3"), "{state}");
    check("picked", "0");
    assert!(number("\"stepped\":\"18"), "{state}");
    assert!(number("\"rest\":\"1"), "{state}");
    assert!(number("\"end\":\"5"), "{state}");
    check("stays", "\"2\"");
    assert!(number(" ← main"), "{state}");
    check("hidden", "1");
    check("scripts", "0");
}

/// Reports the table of functions, and where the stacks begin.
const OWN_PROBE: &str = r##"
const cells = (rows, name) => [...document.querySelectorAll(rows)].map((tr) => tr.querySelector(name).textContent);
document.querySelector("#to-time").click();
const state = { functions: cells("#time div:not([hidden]) > table tbody tr", "td:last-child") };
state.stacks = [...document.querySelectorAll("#time summary")].map((el) => el.textContent);
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

/// What a function of the user allocates through a library is the user's, as in the other views.
#[test]
fn the_tab_goes_by_the_users_own_functions() {
    let directory = tempfile::tempdir().unwrap();
    let mut profile = profile(END, session());
    // The first and the third stack allocate through a library.
    profile.functions[0].name = "std::allocate".into();
    profile.functions[2].name = "std::allocate".into();
    for function in [1, 3] {
        profile.functions[function].file = "/src/app.cpp".into();
    }
    profile.functions[1].name = "parse".into();
    let page = shown(&[&write(&directory, "own.heap", &profile)], &["--html"]);
    let path = directory.path().join("own.html");
    let probed = browser::with_probe(&browser::open_page(&page), OWN_PROBE, "</body>");
    fs::write(&path, probed).unwrap();
    let state = browser::state(&path, "");
    assert!(state.contains(r#""functions":["parse","main","#), "{state}");
    let stacks = state.split("\"stacks\":").nth(1).expect("the stacks");
    assert!(stacks.contains(r#""main""#), "{state}");
    assert!(!stacks.contains("std::allocate"), "{state}");
}

#[test]
fn what_was_held_at_a_moment_has_its_error() {
    // 1 % of the objects were sampled: a variance of 100 MiB times a MiB in each stack.
    let moments = vec![
        at(0, 0, None),
        at(50, 40 * MIB, Some([30 * MIB, 10 * MIB, 0])),
        at(60, 20 * MIB, None),
    ];
    let mut sampled = profile([20 * MIB, 0, 0], moments);
    sampled.period = 1024;
    for detail in &mut sampled.details {
        detail.alloc_variance = 100.0 * MIB as f64 * MIB as f64;
        detail.live_variance = 20.0 * MIB as f64 * MIB as f64;
    }
    let directory = tempfile::tempdir().unwrap();
    let dump = write(&directory, "sampled.heap", &sampled);
    let text = shown(&[&dump], &["--timeline"]);
    // 1.96 standard errors of the square root of 40 MiB, with the correction for few samples.
    assert!(
        text.contains("Live: 40 MiB \u{b1} 12.69 MiB at most, at 5 s; 20 MiB"),
        "{text}"
    );
    let row = text
        .lines()
        .find(|line| line.ends_with("load_index"))
        .unwrap();
    let expected = "30 MiB \u{b1} 11.07 MiB       20 MiB \u{b1} 9.18 MiB";
    assert!(row.contains(expected), "{row}");
    // 30 MiB may have been freed, and 20 be new.
    assert!(row.contains("-10 MiB \u{b1} 14.12 MiB"), "{row}");
}
