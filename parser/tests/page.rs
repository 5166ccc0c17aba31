//! The page as it is used: tooltips, keys, first views, and tabs that have nothing to show.

use std::fs;
use std::path::Path;
use std::process::Command;

use helpers::browser;

const SHOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/shop.heap");

/// Returns the output of a command line.
fn output(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .args(arguments)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the state that the script `probe` reports on the page of a file.
fn probe(file: &str, probe: &str) -> String {
    let page = browser::open_page(&output(&["-f", file, "--html"]));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("probe.html");
    fs::write(&path, browser::with_probe(&page, probe, "</body>")).unwrap();
    browser::state(&path, "")
}

/// Writes a profile of functions whose file has a hostile name.
fn hostile(directory: &Path) -> String {
    let folded = "main;f 10\nmain;g 5\n";
    let mut profile = profile::read(folded.as_bytes(), "test").unwrap();
    for function in &mut profile.functions {
        function.file = "/x/</title><script>window.pwned=1</script>\u{1b}\u{202e}.c".into();
    }
    profile.lines.iter_mut().for_each(|line| line.line = 7);
    let path = directory.join("x.pb.gz");
    let file = fs::File::create(&path).unwrap();
    profile::pprof::write(&profile, &mut &file).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn tooltips_of_pictures_have_name_place_and_values() {
    for (format, values) in [("-s", "flat "), ("--flame", "")] {
        let svg = output(&["-f", SHOP, format]);
        let title = svg.split("<title>Shelf::add\n").nth(1).expect("a tooltip");
        let mut lines = title.lines();
        let place = lines.next().unwrap();
        let (file, line) = place.rsplit_once(':').expect(place);
        assert!(file.ends_with("/shop.cpp"), "{place}");
        assert!(line.parse::<u32>().is_ok_and(|line| line > 0), "{place}");
        let next = lines.next().unwrap();
        assert!(next.starts_with(values) && next.contains("KiB"), "{next}");
    }
}

#[test]
fn file_names_are_only_text() {
    let directory = tempfile::tempdir().unwrap();
    let file = hostile(directory.path());
    for format in ["-s", "--flame"] {
        let svg = output(&["-f", &file, format]);
        assert!(svg.contains("&lt;script&gt;window.pwned"), "{svg}");
        assert!(!svg.contains("<script>window"), "{svg}");
        assert!(!svg.contains(['\u{1b}', '\u{202e}']), "{svg}");
    }
    let page = output(&["-f", &file, "--html"]);
    assert!(page.contains("\\u003cscript\\u003ewindow.pwned"), "{page}");
    assert!(!page.contains("<script>window"), "{page}");
    assert!(!page.contains(['\u{1b}', '\u{202e}']), "{page}");
}

/// Tooltips in the flame graph and the table, then the box of keys, from a key and from its button.
const KEYS_PROBE: &str = r##"
const state = {};
const $ = (s) => document.querySelector(s);
const key = (name) => document.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const frame = [...document.querySelectorAll("#flame .frame")].find((g) => g.textContent === "Shelf::add");
frame.querySelector("rect").dispatchEvent(new PointerEvent("pointermove", { bubbles: true, clientX: 300, clientY: 300 }));
state.caption = $(".what").lastChild.data.trim();
state.tip = [...$(".flame-tip").children].map((line) => line.textContent).slice(0, 3).join("|");
$("#to-functions").click();
const row = [...document.querySelectorAll("#functions tbody tr")].find((tr) => tr.lastElementChild.textContent === "Shelf::add");
state.title = row.lastElementChild.title.replaceAll("\n", "|");

key("?");
const box = $(".help-sheet");
state.keys = ["Page", "Flame graph", "Call graph"].every((h) => [...box.querySelectorAll("h2")].some((el) => el.textContent === h));
const b = box.getBoundingClientRect();
state.fits = b.top >= 0 && b.left >= 0 && b.right <= innerWidth && b.bottom <= innerHeight && box.scrollTop === 0;
state.top = document.elementFromPoint(innerWidth / 2, innerHeight / 2).closest(".help") !== null;
key("Escape");
state.escaped = !$(".help");
$("#ask").click();
state.asked = Boolean($(".help"));
$(".help").click();
state.clicked = !$(".help");
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn tooltips_have_places_and_help_lists_the_keys() {
    let state = probe(SHOP, KEYS_PROBE);
    let line = "/shop.cpp:";
    let text = |key: &str| {
        let rest = state.split(&format!("\"{key}\":\"")).nth(1).expect(key);
        rest.split('"').next().unwrap().to_owned()
    };
    // The captions are those of the buttons above.
    assert_eq!(text("caption"), "Live bytes");
    for (key, values) in [("tip", "KiB ("), ("title", "flat 0 (0%), cum ")] {
        let message = text(key);
        let parts: Vec<&str> = message.split('|').collect();
        assert_eq!(parts[0], "Shelf::add", "{state}");
        assert!(parts[1].contains(line), "{state}");
        assert!(parts[2].contains(values), "{state}");
    }
    for flag in ["keys", "fits", "top", "escaped", "asked", "clicked"] {
        browser::assert_state(&state, flag, "true");
    }
}

/// Reports the positions of the root, the legend and the heaviest box of the call graph in its
/// frame.
const GRAPH_PROBE: &str = r##"
const state = {};
document.querySelector("#to-graph").click();
document.querySelector("#graph iframe").addEventListener("load", (event) => {
  const { contentWindow: view, contentDocument: graph } = event.target;
  const boxes = [...graph.querySelectorAll(".node")].sort((a, b) => b.dataset.flat - a.dataset.flat);
  const inside = (el) => {
    const r = el.querySelector("rect").getBoundingClientRect();
    return r.left >= 0 && r.top >= 0 && r.right <= view.innerWidth && r.bottom <= view.innerHeight;
  };
  const box = (name) => boxes.find((el) => el.textContent.includes(name));
  state.root = inside(box("deep0"));
  graph.dispatchEvent(new view.KeyboardEvent("keydown", { key: "m" }));
  state.heaviest = inside(boxes[0]);
  state.letters = boxes[0].querySelector("text").getBoundingClientRect().height;
  graph.dispatchEvent(new view.KeyboardEvent("keydown", { key: "a" }));
  state.whole = boxes.every(inside);
  graph.dispatchEvent(new view.KeyboardEvent("keydown", { key: "?" }));
  state.keys = Boolean(graph.querySelector(".help"));
});
addEventListener("load", () => document.documentElement.setAttribute("data-state", JSON.stringify(state)));
"##;

#[test]
fn the_start_view_shows_the_root_and_a_key_the_largest_boxes() {
    let directory = tempfile::tempdir().unwrap();
    let deep: Vec<String> = (0..60).map(|i| format!("deep{i}")).collect();
    let path = directory.path().join("deep.folded");
    fs::write(&path, format!("{} 90\n_start;other 10\n", deep.join(";"))).unwrap();
    let state = probe(path.to_str().unwrap(), GRAPH_PROBE);
    assert!(browser::number(&state, "letters") > 9.0, "{state}");
    for flag in ["root", "heaviest", "whole", "keys"] {
        browser::assert_state(&state, flag, "true");
    }
}

/// Reports the text of each tab.
const TABS_PROBE: &str = r##"
const state = {};
const says = (tab) => {
  document.querySelector(`#to-${tab}`).click();
  return document.getElementById(tab).textContent;
};
state.flame = says("flame").includes("Nothing to show");
state.graph = says("graph").includes("Nothing to show");
state.functions = says("functions").includes("Nothing to show");
state.source = says("source").includes("No source lines");
state.allocator = says("allocator").includes("has no figures");
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn empty_tabs_have_an_explanation() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("x.folded");
    fs::write(&path, "main;f 0\n").unwrap();
    let state = probe(path.to_str().unwrap(), TABS_PROBE);
    for flag in ["flame", "graph", "functions", "source", "allocator"] {
        browser::assert_state(&state, flag, "true");
    }
}

/// The page in a narrow window: rows stay rows, and raw figures have their unit.
const NARROW_PROBE: &str = r##"
const state = {};
document.body.style.width = "700px";
document.querySelector("#to-leaks").click();
const rows = [...document.querySelectorAll("#leaks tr")];
state.highest = Math.max(...rows.map((row) => row.getBoundingClientRect().height));
state.head = document.querySelector("#ask").getBoundingClientRect().top < 20;
document.querySelector("#to-functions").click();
const field = document.querySelector("#functions input");
field.value = "no function has this name";
field.dispatchEvent(new Event("input"));
state.filtered = document.querySelector("#functions tbody").textContent;
document.querySelector("#to-allocator").click();
const figures = [...document.querySelectorAll("#allocator table:last-child tr")];
state.figures = figures.length > 0 && figures.every((row) => / B$/.test(row.children[1].textContent));
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn narrow_windows_keep_rows_readable_and_figures_have_units() {
    let state = probe(SHOP, NARROW_PROBE);
    assert!(browser::number(&state, "highest") < 120.0, "{state}");
    for flag in ["head", "figures"] {
        browser::assert_state(&state, flag, "true");
    }
    assert!(state.contains("No row matches the filter."), "{state}");
}

/// Reports the beginnings of the stacks.
const SUSPECTS_PROBE: &str = r##"
document.querySelector("#to-leaks").click();
const state = { stacks: [...document.querySelectorAll("#leaks summary")].map((el) => el.textContent) };
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn stacks_of_suspects_begin_with_the_users_own_function() {
    let state = probe(SHOP, SUSPECTS_PROBE);
    assert!(state.contains("\"rate ← "), "{state}");
    assert!(!state.contains("\"std::"), "{state}");
}
