//! Drives the picture's script in headless Chromium: real events in, the state of the document
//! out.

use crate::render;
use crate::synthetic;

#[path = "../../parser/tests/browser/mod.rs"]
mod chromium;

/// Sends events and writes what became of them into the document, which Chromium then prints.
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
[...root.querySelectorAll("button")].find((b) => b.textContent === "1:1").click();
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
// By then images have failed to load, too.
addEventListener("load", () => {
  state.executed = "pwned" in window;
  root.setAttribute("data-state", JSON.stringify(state));
});
"#;

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
