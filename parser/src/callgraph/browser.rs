//! Drives the picture's script in headless Chromium: real events in, the state of the document
//! out. Ignored by default, since it needs a browser; `cargo test -- --ignored` runs it.

use super::render;
use super::synthetic;
use std::path::PathBuf;
use std::process::Command;

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
state.executed = "pwned" in window;
const inside = [...root.querySelectorAll(".node")].every((g) => {
  const r = g.querySelector("rect").getBBox();
  return [...g.querySelectorAll("text")].every((t) => {
    const b = t.getBBox();
    return b.x >= r.x && b.x + b.width <= r.x + r.width && b.y >= r.y && b.y + b.height <= r.y + r.height;
  });
});
state.inside = inside;
root.setAttribute("data-state", JSON.stringify(state));
"#;

#[test]
#[ignore = "needs chromium"]
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
    let svg = render(&graph);
    let probe = format!("<script><![CDATA[{PROBE}]]></script>\n</svg>");
    let file = Scratch::new("callgraph-probe");
    let path = file.0.join("probe.svg");
    std::fs::write(&path, svg.replace("</svg>", &probe)).expect("writing the probe");
    let output = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
        ])
        .args(["--disable-sync", "--window-size=1000,700", "--dump-dom"])
        .arg(format!(
            "--user-data-dir={}",
            file.0.join("profile").display()
        ))
        .arg(format!("file://{}", path.display()))
        .output()
        .expect("chromium must be installed for this test");
    let dom = String::from_utf8_lossy(&output.stdout);
    let state = dom
        .split("data-state=\"")
        .nth(1)
        .and_then(|s| s.split('"').next());
    let state = state.unwrap_or_else(|| panic!("the probe did not finish: {dom}"));
    let state = state.replace("&quot;", "\"");
    let number = |key: &str| -> f64 {
        let rest = state.split(&format!("\"{key}\":")).nth(1).unwrap_or("");
        let end = rest.find([',', '}']).unwrap_or(0);
        rest[..end].parse().unwrap_or(f64::NAN)
    };
    assert!(number("zoomed") > 1.3 * number("start"), "{state}");
    assert_eq!(number("reset"), number("start"), "{state}");
    assert_eq!(number("hits"), 3.0, "{state}");
    assert!(
        state.contains(&format!("3 of {}", graph.nodes.len())),
        "{state}"
    );
    assert_eq!(number("callees"), callees as f64, "{state}");
    for flag in [
        "bad", "cleared", "lit", "dragged", "paper", "back", "inside",
    ] {
        assert!(
            state.contains(&format!("\"{flag}\":true")),
            "{flag}: {state}"
        );
    }
    for flag in ["dark", "executed"] {
        assert!(
            state.contains(&format!("\"{flag}\":false")),
            "{flag}: {state}"
        );
    }
}

/// A folder that goes away with the test.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder for temporary files");
        Scratch(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // What is left behind in the folder for temporary files harms nobody.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
