//! Tests the picture's script in headless Chromium: sends events and checks the state of the
//! document.

use crate::graph::{Edge, Graph, Node};
use crate::render;
use crate::synthetic;
use helpers::browser as chromium;

/// Sends events and writes the resulting state into the document, which Chromium then prints.
const PROBE: &str = r#"
const root = document.documentElement, view = root.querySelector(".view");
const state = {};
const hits = () => root.querySelectorAll(".node.hit").length;
const scale = () => Number(/scale\(([\d.e-]+)\)/.exec(view.getAttribute("transform"))[1]);
const field = root.querySelector("input"), count = root.querySelector(".count");
const type = (text) => { field.value = text; field.dispatchEvent(new Event("input")); };
const fire = (el, type, init) => el.dispatchEvent(new PointerEvent(type, {
  bubbles: true, pointerId: 1, button: 0, ...init }));

state.start = scale();
root.dispatchEvent(new WheelEvent("wheel", { deltaY: -200, clientX: 100, clientY: 100, cancelable: true }));
state.zoomed = scale();
[...root.querySelectorAll("button")].find((b) => b.textContent === "start").click();
state.reset = scale();

type("hostile");
state.hits = hits();
state.count = count.textContent;
type("(");
state.bad = field.hasAttribute("data-bad") && hits() === 0;
type("");
state.cleared = hits() === 0 && !root.classList.contains("seek");

const node = root.querySelector('.node[data-node="0"]');
fire(node, "pointerenter");
state.lit = root.classList.contains("focus") && node.classList.contains("on");
state.callees = root.querySelectorAll(".edge.out").length;
fire(node, "pointerleave");
state.dark = root.classList.contains("focus");

const before = view.getAttribute("transform");
fire(root, "pointerdown", { clientX: 200, clientY: 200 });
fire(root, "pointermove", { clientX: 260, clientY: 230 });
fire(root, "pointerup", { clientX: 260, clientY: 230 });
state.dragged = before !== view.getAttribute("transform");

dispatchEvent(new Event("beforeprint"));
state.paper = root.hasAttribute("viewBox") && !view.hasAttribute("transform") && !root.querySelector("input");
dispatchEvent(new Event("afterprint"));
state.back = !root.hasAttribute("viewBox") && !!root.querySelector("input");
const inside = [...root.querySelectorAll(".node")].every((g) => {
  const r = g.querySelector("rect").getBBox();
  return [...g.querySelectorAll("text")].every((t) => {
    const b = t.getBBox();
    return b.x >= r.x && b.x + b.width <= r.x + r.width && b.y >= r.y && b.y + b.height <= r.y + r.height;
  });
});
state.inside = inside;
// By then, an injected image has also failed to load and run its `onerror`.
addEventListener("load", () => {
  state.executed = "pwned" in window;
  root.setAttribute("data-state", JSON.stringify(state));
});
"#;

/// Checks which boxes are visible in the start view, in the whole picture, and in the start view
/// again; then the keys.
const VIEW_PROBE: &str = r#"
const root = document.documentElement;
const state = {};
const box = (i) => root.querySelector(`.node[data-node="${i}"]`);
const inside = (i) => {
  const r = box(i).querySelector("rect").getBoundingClientRect();
  return r.left >= 0 && r.top >= 0 && r.right <= innerWidth && r.bottom <= innerHeight;
};
const key = (name, from) => (from || document).dispatchEvent(new KeyboardEvent("keydown", { key: name, bubbles: true, cancelable: true }));
const button = (text) => [...root.querySelectorAll("button")].find((b) => b.textContent === text);
const HEAVY = 59, SECOND = 55;
const legend = () => {
  const r = root.querySelector(".legend rect").getBoundingClientRect();
  return r.left >= 0 && r.top >= 0 && r.right <= innerWidth && r.bottom <= innerHeight;
};
state.entry = inside(0) && legend();
state.both = inside(0) && inside(HEAVY);
key("m");
state.heavy = inside(HEAVY) && inside(SECOND) && !inside(0);
state.letters = box(HEAVY).querySelector("text").getBoundingClientRect().height;
key("a");
state.whole = inside(0) && inside(HEAVY);
key("0");
state.again = inside(0) && legend() && !inside(HEAVY);
button("all").click();
state.button = inside(0) && inside(HEAVY);

const help = () => root.querySelector(".help");
state.before = Boolean(help());
key("?");
state.opened = help().textContent.includes("the whole picture") && help().textContent.includes("wheel");
const view = root.querySelector(".view").getAttribute("transform");
help().dispatchEvent(new WheelEvent("wheel", { deltaY: -200, bubbles: true, cancelable: true }));
state.still = root.querySelector(".view").getAttribute("transform") === view;
const area = help().getBoundingClientRect();
state.covers = area.width >= innerWidth && area.height >= innerHeight;
key("Escape");
state.escaped = !help();
key("?", root.querySelector("input"));
state.typed = Boolean(help());
button("?").click();
state.asked = Boolean(help());
dispatchEvent(new Event("beforeprint"));
state.printed = Boolean(help());
dispatchEvent(new Event("afterprint"));

// A window of 320 pixels wraps the bar.
root.setAttribute("width", "320");
dispatchEvent(new Event("resize"));
const field = root.querySelector("input");
field.value = "function";
field.dispatchEvent(new Event("input"));
state.reached = [...root.querySelectorAll(".bar > :not(:empty), .bar > input")].every((el) => {
  const r = el.getBoundingClientRect();
  return r.left >= 0 && r.right <= 320 && r.bottom <= root.querySelector(".hud").getBoundingClientRect().bottom;
});
root.setAttribute("data-state", JSON.stringify(state));
"#;

/// Builds a long chain of calls, as an interpreter makes, with the memory at its end.
fn chain() -> Graph {
    const HEAVY: usize = 59;
    const SECOND: usize = 55;
    let node = |i: usize| Node {
        name: format!("function{i}"),
        flat: match i {
            HEAVY => 90.0,
            SECOND => 10.0,
            _ => 0.0,
        },
        cum: 100.0,
        ..Node::default()
    };
    let edge = |i: usize| Edge {
        from: i,
        to: i + 1,
        weight: 100.0,
        ..Edge::default()
    };
    Graph {
        title: vec!["Total MB: 100.0 (inuse_space)".to_owned()],
        nodes: (0..60).map(node).collect(),
        edges: (0..59).map(edge).collect(),
        total: 100.0,
    }
}

#[test]
fn the_start_view_shows_legend_and_root_and_help_lists_the_keys() {
    let directory = tempfile::tempdir().expect("a directory for the picture");
    let path = directory.path().join("view.svg");
    let picture = chromium::with_probe(&render(&chain()), VIEW_PROBE, "</svg>");
    std::fs::write(&path, picture).expect("writing the probe");
    let state = chromium::state(&path, "");
    assert!(chromium::number(&state, "letters") > 9.0, "{state}");
    for flag in [
        "entry", "heavy", "whole", "again", "button", "opened", "still", "covers", "escaped",
        "asked", "reached",
    ] {
        chromium::assert_state(&state, flag, "true");
    }
    for flag in ["both", "before", "typed", "printed"] {
        chromium::assert_state(&state, flag, "false");
    }
}

#[test]
fn without_a_script_the_whole_picture_is_shown() {
    let svg = render(&chain());
    assert!(!svg.contains("transform="), "{svg}");
    let root = svg.split("<svg ").nth(1).expect("an element");
    let attribute = |name: &str| {
        let value = root.split(&format!(" {name}=\"")).nth(1).expect("a size");
        value.split('"').next().expect("a value").to_owned()
    };
    let size = format!("0 0 {} {}", attribute("width"), attribute("height"));
    assert_eq!(attribute("viewBox"), size);
}

#[test]
fn search_zoom_drag_and_print_work_and_no_name_is_executed() {
    let mut graph = synthetic::program(20, 60, 2);
    let callees = graph
        .edges
        .iter()
        .filter(|e| e.from == 0 && e.to != 0)
        .count();
    for (i, node) in graph.nodes.iter_mut().enumerate().take(3) {
        node.name = format!("hostile{i}<script>window.pwned=1</script>]]>\"'&");
        node.detail = "</title><script>window.pwned=1</script>".into();
    }
    let directory = tempfile::tempdir().expect("a directory for the picture");
    let path = directory.path().join("probe.svg");
    let picture = chromium::with_probe(&render(&graph), PROBE, "</svg>");
    std::fs::write(&path, picture).expect("writing the probe");
    let state = chromium::state(&path, "");
    let number = |key: &str| chromium::number(&state, key);
    assert!(number("zoomed") > 1.3 * number("start"), "{state}");
    assert_eq!(number("reset"), number("start"), "{state}");
    assert_eq!(number("hits"), 3.0, "{state}");
    let count = format!("\"count\":\"3 of {}, flat ", graph.nodes.len());
    assert!(state.contains(&count), "{state}");
    assert_eq!(number("callees"), callees as f64, "{state}");
    for flag in [
        "bad", "cleared", "lit", "dragged", "paper", "back", "inside",
    ] {
        chromium::assert_state(&state, flag, "true");
    }
    for flag in ["dark", "executed"] {
        chromium::assert_state(&state, flag, "false");
    }
}
