//! The flame graph: the same bytes each time, bounded whatever the profile,
//! and names that stay names.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

use helpers::browser;
mod expected;

use expected::compare;

fn parser(directory: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .current_dir(directory)
        .args(arguments)
        .output()
        .unwrap()
}

fn flame(directory: &Path, arguments: &[&str]) -> String {
    let output = parser(directory, &[arguments, &["--flame"]].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

const PROFILE: &str = "\
main;serve;read_query;allocate 4000
main;serve;read_query;Parser::parse<T, U>;allocate 2500
main;serve;write 300
main;start;load_tables;allocate 1200
main;start 75
";

/// Returns the parts that depend on the profile: the picture without its styles, and the data.
fn own_part(svg: &str) -> &str {
    let from = svg.find("<g class=\"plain\">").unwrap();
    let to = svg.find("<script><![CDATA[").unwrap();
    &svg[from..to]
}

#[test]
fn the_picture_matches_the_golden_file() {
    let directory = directory(&[("x.folded", PROFILE)]);
    let svg = flame(directory.path(), &["-f", "x.folded"]);
    compare("flame.svg", own_part(&svg));
    assert_eq!(svg, flame(directory.path(), &["-f", "x.folded"]));
}

#[test]
fn a_comparison_is_coloured_by_the_change() {
    let after = "main;grows 30\nmain;shrinks 10\nmain;stays 7\n";
    let before = "main;grows 10\nmain;shrinks 20\nmain;stays 7\n";
    let directory = directory(&[("after", after), ("before", before)]);
    let svg = flame(directory.path(), &["-f", "after", "--base", "before"]);
    compare("flame_base.svg", own_part(&svg));
    let of = |svg: &str, name: &str| {
        let title = svg
            .find(&format!("<title>{name}\n"))
            .unwrap_or_else(|| panic!("{name}: {svg}"));
        let start = svg[..title].rfind("<g ").unwrap();
        let end = title + svg[title..].find("</title>").unwrap();
        svg[start..end].to_owned()
    };
    assert!(of(&svg, "grows").contains("frame p8"));
    assert!(of(&svg, "grows").contains("+20"));
    assert!(of(&svg, "shrinks").contains("frame m8"));
    assert!(
        !svg.contains("<title>stays"),
        "what did not change has no width"
    );
    let kept = flame(directory.path(), &["-f", "after", "--diff_base", "before"]);
    assert!(of(&kept, "stays").contains("frame g\""), "{kept}");
    assert!(of(&kept, "grows").contains("frame p7"), "{kept}");
}

/// Names as a hostile dump may have them.
const HOSTILE: [&str; 6] = [
    "</script><script>window.pwned=1</script>",
    "]]></script><script>window.pwned=2</script>",
    "\"'><img src=x onerror=window.pwned=3>",
    "</title></text><foreignObject><body onload=window.pwned=4>",
    "&lt;b&gt;&#60;script&#62;",
    "a\u{1b}[31mb\u{202e}c\u{2028}d",
];

fn hostile() -> String {
    let line =
        |(i, name): (usize, &&str)| format!("main;{};leaf{i} {}\n", name.replace(';', ":"), 10 + i);
    HOSTILE.iter().enumerate().map(line).collect()
}

#[test]
fn hostile_names_are_only_text() {
    let directory = directory(&[("x.folded", &hostile())]);
    let svg = flame(directory.path(), &["-f", "x.folded"]);
    let own = own_part(&svg);
    for tag in [
        "<img",
        "<script>window",
        "<foreignObject",
        "<body",
        "\u{1b}",
        "\u{202e}",
        "]]>",
    ] {
        assert!(!own.contains(tag), "{tag}: {own}");
    }
    assert!(own.contains("&lt;script&gt;window.pwned=1"), "{own}");
    assert!(own.contains("\\u003cscript\\u003ewindow.pwned=1"), "{own}");
    assert_eq!(
        svg.matches("<script").count() - own.matches("<script").count(),
        1
    );
    assert_eq!(svg.matches("</script>").count(), 2);
}

#[test]
fn ten_thousand_frames_and_hundred_thousand_stacks_stay_small() {
    let mut folded = format!("{} 5000\n", vec!["deep"; 10_000].join(";"));
    for i in 0..100_000 {
        folded.push_str(&format!("main;work{};item{i};leaf{} 1\n", i % 7, i % 100));
    }
    let directory = directory(&[("x.folded", &folded)]);
    let svg = flame(directory.path(), &["-f", "x.folded"]);
    assert!(svg.len() < 4 << 20, "{} bytes", svg.len());
    assert!(
        svg.contains("Merged: 100000 branches narrower than 0.1 px"),
        "{}",
        &own_part(&svg)[..900]
    );
    assert!(
        svg.contains("Only 1500 of 10001 levels"),
        "{}",
        &own_part(&svg)[..900]
    );
    assert_eq!(svg.matches("<title>deep\n").count(), 1499);
}

#[test]
fn an_empty_profile_says_so() {
    let directory = directory(&[("x.folded", "main;f 0\n")]);
    let svg = flame(directory.path(), &["-f", "x.folded"]);
    assert!(svg.contains("Nothing to show"), "{svg}");
}

/// Sends events and writes what became of them into the document.
const PROBE: &str = r#"
const root = document.documentElement;
const state = {};
const frames = () => [...root.querySelectorAll(".frames .frame")];
const named = (name) => frames().find((g) => g.textContent === name);
// A frame is a group with a rectangle, or, if it is narrow and selected, just a rectangle.
const box = (g) => g.querySelector("rect") || g;
const span = (g) => Number(box(g).getAttribute("width"));
const height = (g) => Number(box(g).getAttribute("y"));
const key = (name) => document.dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const click = (g) => box(g).dispatchEvent(new MouseEvent("click", { bubbles: true }));
const button = (text) => [...root.querySelectorAll("button")].find((b) => b.textContent === text);
const field = root.querySelector("input"), count = root.querySelector(".count");
const type = (text) => { field.value = text; field.dispatchEvent(new Event("input")); };

const all = span(named("all"));
state.rootBelow = height(named("all")) > height(named("serve"));
state.before = span(named("serve")) / all;
click(named("serve"));
state.zoomed = span(named("serve")) / all;
state.callerKept = Boolean(named("main")) && named("main").classList.contains("under");
state.othersGone = !named("start");
button("Reset").click();
state.reset = span(named("serve")) / all;

type("^write$|serve");
state.count = count.textContent;
state.hits = frames().filter((g) => g.classList.contains("hit")).length;
type("(");
state.bad = field.hasAttribute("data-bad");
type("");
state.cleared = !root.classList.contains("seek") && count.textContent === "";

button("Root on top").click();
state.rootAbove = height(named("all")) < height(named("serve"));
key("i");
button("Callees first").click();
state.leaf = span(named("allocate")) / all;
state.leafDepth = Math.round((height(named("all")) - height(named("allocate"))) / 18);
key("v");

key("ArrowUp");
key("ArrowUp");
key("ArrowUp");
const picked = root.querySelector(".pick");
state.picked = picked && picked.textContent;
state.tip = root.querySelector(".flame-tip").textContent;
key("Enter");
state.entered = span(named("serve")) / all;
key("?");
const help = () => root.querySelector(".help");
state.help = help().textContent.includes("Backspace") && help().textContent.includes("click");
key("Escape");
state.helpGone = !help();
state.stillZoomed = span(named("serve")) / all;
key("Escape");
state.escaped = span(named("serve")) / all;
field.dispatchEvent(new KeyboardEvent("keydown", { key: "?", bubbles: true, cancelable: true }));
state.typed = !help();
button("?").click();
state.asked = Boolean(help());

dispatchEvent(new Event("beforeprint"));
state.paper = !help() && root.hasAttribute("viewBox") && Boolean(root.querySelector(".plain")) && !root.querySelector("input");
dispatchEvent(new Event("afterprint"));
state.back = !root.querySelector(".plain") && Boolean(root.querySelector("input"));
// By then, an injected image has also failed to load and run its `onerror`.
addEventListener("load", () => {
  state.executed = "pwned" in window;
  root.setAttribute("data-state", JSON.stringify(state));
});
"#;

#[test]
fn interaction_works_and_no_name_is_executed() {
    let directory = directory(&[("x.folded", &(PROFILE.to_owned() + &hostile()))]);
    let svg = flame(directory.path(), &["-f", "x.folded"]);
    let path = directory.path().join("probe.svg");
    fs::write(&path, browser::with_probe(&svg, PROBE, "</svg>")).unwrap();
    let state = browser::state(&path, "");
    let total = 8075.0 + 75.0;
    let near = |key: &str, expected: f64| {
        let found = browser::number(&state, key);
        assert!(
            (found - expected).abs() < 0.01,
            "{key} is {found}, not {expected}: {state}"
        );
    };
    near("before", 6800.0 / total);
    near("zoomed", 1.0);
    near("reset", 6800.0 / total);
    near("hits", 2.0);
    near("leaf", 7700.0 / total);
    near("leafDepth", 1.0);
    near("entered", 1.0);
    near("stillZoomed", 1.0);
    near("escaped", 6800.0 / total);
    assert!(state.contains("83.44% matched, 2 frames"), "{state}");
    assert!(state.contains("\"picked\":\"serve\""), "{state}");
    assert!(state.contains("serve6800 (83.44% of 8150)"), "{state}");
    for flag in [
        "rootBelow",
        "callerKept",
        "othersGone",
        "bad",
        "cleared",
        "rootAbove",
        "paper",
        "back",
        "help",
        "helpGone",
        "typed",
        "asked",
    ] {
        browser::assert_state(&state, flag, "true");
    }
    browser::assert_state(&state, "executed", "false");
}
