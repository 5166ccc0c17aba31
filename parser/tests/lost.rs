//! The dump of a check for leaks: headings, filters and the page's first tab.

use std::fs::{self, File};
use std::path::Path;

use profile::{
    Detail, Facts, Function, LeakCheck, Line, Loss, Lost, Profile, ProfileBuilder, Suppressed, dump,
};

use helpers::browser;
mod expected;

const SECOND: u64 = 1_000_000_000;
const START: u64 = 1_795_235_047 * SECOND;

/// Functions' names. The last one would run a script if the page did not escape it.
const NAMES: [&str; 6] = [
    "open_session",
    "main",
    "std::string::_M_create",
    "link_ring",
    "fill_ring",
    "</script><script>window.pwned=1</script>",
];

/// Stack: its function, kind of loss, group, number of objects and size of each.
type Stack = (usize, Option<Loss>, u32, f64, f64);

const STACKS: [Stack; 6] = [
    (0, Some(Loss::Direct), 11, 1000.0, 64.0),
    (2, Some(Loss::Indirect), 11, 1000.0, 300.0),
    (3, Some(Loss::Cycle), 12, 50.0, 48.0),
    (4, Some(Loss::Cycle), 12, 50.0, 480.0),
    // The same stack in another group.
    (2, Some(Loss::Indirect), 12, 10.0, 300.0),
    (5, Some(Loss::Indirect), 0, 3.0, 4096.0),
];

/// Returns the profile of a leak check that found the losses in [`STACKS`] by sampling.
fn check() -> Profile {
    let mut builder = ProfileBuilder::new(1024);
    let note = "</script>5 parts of its memory cannot be read: what only they point to is lost";
    builder.facts(Facts {
        pid: Some(7),
        process: Some("server".into()),
        start_unix_ns: Some(START),
        end_unix_ns: Some(START + 61 * SECOND),
        duration_ns: Some(61 * SECOND),
        trigger: Some("leak check".into()),
        leak_check: Some(LeakCheck {
            live_bytes: 1 << 20,
            pause_ns: Some(3_140_000),
            searches: 1,
            searched_bytes: 9 << 20,
            notes: vec![note.into()],
            suppressed: vec![Suppressed {
                objects: 12,
                bytes: 34_567,
                template: "<b>*known*</b>".into(),
            }],
        }),
        ..Facts::default()
    });
    for (function, kind, group, objects, size) in STACKS {
        let variance = objects * size * 1024.0;
        let detail = Detail {
            alloc_samples: objects as u64,
            alloc_objects: objects,
            alloc_bytes: objects * size,
            live_age_ms_sum: objects * 30_000.0,
            alloc_variance: variance,
            live_variance: variance,
            ..Detail::default()
        };
        builder.stack([0x1001 + 0x100 * function as u64, 0x1101], &detail);
        builder.lost(Lost { how: kind, group });
    }
    named(builder.finish())
}

/// Gives each location the function that its address stands for.
fn named(mut profile: Profile) -> Profile {
    for name in NAMES {
        profile.functions.push(Function {
            name: name.into(),
            system_name: name.into(),
            ..Function::default()
        });
    }
    for (number, location) in profile.locations.iter_mut().enumerate() {
        profile.lines.push(Line {
            function: (location.address as u32 - 0x1000) / 0x100,
            ..Line::default()
        });
        location.first_line = number as u32;
        location.line_count = 1;
    }
    profile
}

fn write_dump(directory: &Path, profile: &Profile) -> String {
    let path = directory.join("lost.heap");
    dump::write(profile, &mut File::create(&path).unwrap()).unwrap();
    path.to_str().unwrap().to_owned()
}

fn output(arguments: &[&str]) -> String {
    // Files are named by their complete paths.
    expected::printed(Path::new("/"), arguments)
}

#[test]
fn every_view_mentions_the_leak_check() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_dump(directory.path(), &check());
    for format in ["-t", "--tree", "--traces", "-s", "--flame", "--dot"] {
        let text = output(&["-f", &file, format]);
        for part in ["Leak check: what no pointer led to, while ", " was live"] {
            assert!(text.contains(part), "{format}: {text}");
        }
    }
    let plain = output(&["-f", expected::data("shop.heap").to_str().unwrap(), "-t"]);
    assert!(!plain.contains("Leak check"), "{plain}");
}

#[test]
fn labels_select_kinds_of_loss() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_dump(directory.path(), &check());
    let total = |focus: &str| {
        let csv = output(&["-f", &file, "--folded", "--tagfocus", focus]);
        let values = csv.lines().filter_map(|line| line.rsplit_once(' '));
        let sum: i64 = values.map(|(_, value)| value.parse::<i64>().unwrap()).sum();
        sum
    };
    assert_eq!(total("leak=^direct$"), 64_000);
    assert_eq!(total("leak=indirect"), 303_000 + 12_288);
    assert_eq!(total("leak=cycle"), 26_400);
    assert_eq!(total("leak_group=12"), 29_400);
}

/// A base is subtracted separately from each kind of loss.
#[test]
fn a_base_is_subtracted_by_kind_of_loss() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_dump(directory.path(), &check());
    let other = tempfile::tempdir().unwrap();
    let mut early = check();
    early.facts.end_unix_ns = Some(START + 30 * SECOND);
    let base = write_dump(other.path(), &early);
    let none = output(&["-f", &file, "--base", &base, "--folded"]);
    assert_eq!(none, "");
}

#[test]
fn the_page_begins_with_the_leaks() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_dump(directory.path(), &check());
    let page = output(&["-f", &file, "--html"]);
    let start = page.find("\"lost\":").expect("the data of the tab");
    let end = page[start..].find(",\n\"flame\"").expect("the next tab");
    let data = page[start..start + end].replace("},{", "},\n{");
    expected::compare("lost.json", &(data + "\n"));
    let shop = expected::data("shop.heap");
    let plain = output(&["-f", shop.to_str().unwrap(), "--html"]);
    assert!(plain.contains("\"lost\":null"));
}

const PROBE: &str = r##"
const state = {};
const texts = (selector) => [...document.querySelectorAll(selector)].map((el) => el.textContent);
state.tabs = texts("nav button").slice(0, 3).join("|");
state.suspects = texts("nav button").includes("Leak suspects");
state.shown = !document.getElementById("lost").hidden;
state.title = document.title;
state.values = texts("header .group")[0];
const rows = [...document.querySelectorAll("#lost > table:first-of-type tbody tr")];
state.first = [...rows[0].children].slice(0, 6).map((td) => td.textContent).join("|");
state.second = [...rows[1].children].slice(0, 6).map((td) => td.textContent).join("|");
state.rows = rows.length;
const more = [...rows[0].querySelectorAll("summary")].map((el) => el.textContent);
state.more = more.join("|");
const details = rows[0].querySelector("details.with");
details.open = true;
state.opens = details.querySelector("li").getBoundingClientRect().height > 0;
state.hostile = rows.some((r) => r.textContent.includes("<script>window.pwned"));
state.pwned = Boolean(window.pwned);
state.note = texts("#lost .note")[0].slice(0, 20);
state.suppressed = texts("#lost > table:last-of-type tbody td").join("|");
document.querySelector("#to-flame").click();
state.flame = texts("#flame .frame").includes("open_session");
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn the_tab_shows_what_each_loss_keeps() {
    let directory = tempfile::tempdir().unwrap();
    let file = write_dump(directory.path(), &check());
    let page = browser::open_page(&output(&["-f", &file, "--html"]));
    let path = directory.path().join("probe.html");
    fs::write(&path, browser::with_probe(&page, PROBE, "</body>")).unwrap();
    let state = browser::state(&path, "");
    for (key, value) in [
        ("tabs", "\"Leaks|Flame graph|Call graph\""),
        ("suspects", "false"),
        ("shown", "true"),
        ("title", "\"server - leak check\""),
        ("values", "\"Lost bytesLost objects\""),
        ("rows", "3"),
        ("opens", "true"),
        ("hostile", "true"),
        ("pwned", "false"),
        ("note", "\"</script>5 parts of \""),
        ("suppressed", "\"33.76 KiB|12|<b>*known*</b>\""),
        ("flame", "true"),
    ] {
        browser::assert_state(&state, key, value);
    }
    for part in [
        "\"first\":\"355.47 KiB|62.50 KiB ± ",
        "|1,000|292.97 KiB ± ",
        " in 1,000|30.0 s|Direct\"",
        "\"second\":\"28.71 KiB|25.78 KiB ± ",
        "|100|2.93 KiB ± ",
        " in 10|30.0 s|Cycle\"",
        "\"more\":\"open_session ← main|lost with it: 1 stack|292.97 KiB ± ",
    ] {
        assert!(state.contains(part), "{part}: {state}");
    }
}
