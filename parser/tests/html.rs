//! The page: complete, offline, and nothing in it but text and our own script.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use profile::{Detail, Facts, Profile, ProfileBuilder, dump};
use tempfile::TempDir;

use helpers::browser;

const HOSTILE: &str = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=2>";

fn page(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .current_dir(directory)
        .args(arguments)
        .arg("--html")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn profile(folded: &str) -> Profile {
    profile::read(folded.as_bytes(), "test").unwrap()
}

fn directory(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

fn folded(scale: u64) -> String {
    format!(
        "main;serve;read_query;allocate {}\nmain;serve;{};allocate {}\nmain;start 75\n",
        4000 * scale,
        HOSTILE.replace(';', ":"),
        250
    )
}

/// Writes a dump with ages, figures of the allocator and facts, without symbols.
fn write_dump(directory: &TempDir) -> PathBuf {
    let mut builder = ProfileBuilder::new(1024);
    let figures = [
        ("allocated", 900_000),
        ("active", 1_000_000),
        ("resident", 1_500_000),
    ];
    builder.facts(Facts {
        process: Some(HOSTILE.into()),
        duration_ns: Some(60_000_000_000),
        allocator: figures.map(|(k, v)| (k.to_owned(), v)).into(),
        ..Facts::default()
    });
    let detail = Detail {
        alloc_samples: 100,
        alloc_objects: 1000.0,
        alloc_bytes: 640_000.0,
        live_age_ms_sum: 30_000.0 * 1000.0,
        live_variance: 1e6,
        ..Detail::default()
    };
    builder.stack([0x1001, 0x2001], &detail);
    let path = directory.path().join("x.heap");
    dump::write(&builder.finish(), &mut fs::File::create(&path).unwrap()).unwrap();
    path
}

/// Returns the JSON in a script element.
fn json<'a>(page: &'a str, id: &str) -> &'a str {
    let start = format!("<script type=\"application/json\" id=\"{id}\">");
    let (_, rest) = page.split_once(&start).unwrap();
    rest.split_once("</script>").unwrap().0
}

#[test]
fn the_page_needs_nothing_from_outside() {
    let directory = directory(&[("x.folded", &folded(1))]);
    let page = page(directory.path(), &["-f", "x.folded"]);
    let policy = page
        .split("Content-Security-Policy\" content=\"")
        .nth(1)
        .unwrap();
    let policy = policy.split('"').next().unwrap();
    assert!(
        policy.starts_with("default-src 'none'; script-src 'sha256-"),
        "{policy}"
    );
    assert_eq!(
        policy.matches("'sha256-").count(),
        2,
        "the page's and the call graph's: {policy}"
    );
    let urls = ["http://www.w3.org/2000/svg", "http://www.w3.org/1999/xhtml"];
    let rest = urls
        .iter()
        .fold(page.clone(), |page, url| page.replace(url, ""));
    let data = [json(&rest, "profile"), json(&rest, "graphs")];
    let own = data
        .iter()
        .fold(rest.clone(), |page, data| page.replace(data, ""));
    assert!(own.len() > 20_000, "the page's own part is looked at");
    for outside in [
        "http:", "https:", "url(", "@import", " src=", " href=", "<link",
    ] {
        assert!(!own.contains(outside), "{outside}");
    }
}

#[test]
fn hostile_names_cannot_leave_the_data() {
    let directory = directory(&[("x.folded", &folded(1))]);
    let page = page(directory.path(), &["-f", "x.folded"]);
    for id in ["profile", "graphs"] {
        let json = json(&page, id);
        assert!(!json.contains(['<', '>', '&']), "{json}");
        assert!(json.contains("pwned"), "{json}");
    }
    assert_eq!(page.matches("</script>").count(), 3);
    assert_eq!(
        page,
        self::page(directory.path(), &["-f", "x.folded"]),
        "the same bytes each time"
    );
}

#[test]
fn ages_and_figures_of_a_dump_are_on_the_page() {
    let directory = directory(&[]);
    let dump = write_dump(&directory);
    let own = std::env::current_exe().unwrap();
    let arguments = [
        "-p",
        own.to_str().unwrap(),
        "-f",
        dump.to_str().unwrap(),
        "--force",
    ];
    let page = page(directory.path(), &arguments);
    let data = json(&page, "profile");
    assert!(data.contains("\"duration\":60,"), "{data}");
    assert!(
        data.contains("\"score\":640000,\"bytes\":640000,\"error\":1960,\"objects\":1000"),
        "{data}"
    );
    assert!(
        data.contains("\"kept\":1,\"age\":30000,\"age_error\":null,\"lifetime\":null"),
        "{data}"
    );
    assert!(data.contains("[\"allocated\",900000]"), "{data}");
    assert!(
        data.contains("\"inuse_objects\"") && data.contains("\"alloc_space\""),
        "{data}"
    );
}

#[test]
fn a_base_is_not_mixed_with_the_dumps() {
    let directory = directory(&[("after", &folded(3)), ("before", &folded(1))]);
    let page = page(directory.path(), &["-f", "after", "--base", "before"]);
    let data = json(&page, "profile");
    assert!(data.contains("\"compared\":true"), "{data}");
    let totals = "\"totals\":{\"change\":8000,\"larger\":4325,\"now\":12325,\"base\":4325}";
    assert!(data.contains(totals), "{data}");
    let graphs = json(&page, "graphs");
    let null = "\"change\":null";
    assert!(!graphs.contains(null), "{graphs}");
}

#[test]
fn percentages_refer_to_the_tables_totals() {
    let directory = directory(&[
        ("after", "main;a 100\nmain;b 50\nmain;c;d 7\n"),
        ("before", "main;a 50\nmain;b 100\nmain;c;d 7\n"),
    ]);
    // Totals: the change for --base, the base for --diff_base.
    for (option, change) in [("--base", 100), ("--diff_base", 157)] {
        let page = page(directory.path(), &["-f", "after", option, "before"]);
        let totals =
            format!("\"totals\":{{\"change\":{change},\"larger\":157,\"now\":157,\"base\":157}}");
        assert!(json(&page, "profile").contains(&totals), "{option}: {page}");
        let title = format!("Total: {change} ");
        assert!(json(&page, "graphs").contains(&title), "{option}: {page}");
        let shown = ["--focus", "^a$", "--relative_percentages"];
        let arguments = [&["-f", "after", option, "before"], &shown[..]].concat();
        let page = self::page(directory.path(), &arguments);
        let total = "\"totals\":{\"change\":50,";
        assert!(json(&page, "profile").contains(total), "{option}: {page}");
    }
}

#[test]
fn source_is_shown_of_source_files_only() {
    let directory = directory(&[
        ("a.c", "int a;\nint f(void) {\n  return g(\"<b>\");\n}\n"),
        ("secret.key", "s3cret\n"),
    ]);
    let mut proto = profile("main;f 10\nmain;g 5\n");
    for (i, name) in ["a.c", "secret.key"].iter().enumerate() {
        let path = directory.path().join(name);
        let wanted = ["f", "g"][i];
        let function = proto
            .functions
            .iter()
            .position(|f| f.name == wanted)
            .unwrap();
        proto.functions[function].file = path.display().to_string();
        for line in proto
            .lines
            .iter_mut()
            .filter(|l| l.function as usize == function)
        {
            line.line = if i == 0 { 3 } else { 1 };
        }
    }
    let file = fs::File::create(directory.path().join("x.pb.gz")).unwrap();
    profile::pprof::write(&proto, &mut &file).unwrap();
    let page = page(directory.path(), &["-f", "x.pb.gz"]);
    let data = json(&page, "profile");
    assert!(
        data.contains("return g(\\\"\\u003cb\\u003e\\\");"),
        "{data}"
    );
    assert!(data.contains("\"weights\":[[[3,10,10]]]"), "{data}");
    assert!(!data.contains("s3cret"), "{data}");
}

/// Works the page as a reader would, and then the call graph in its frame.
const PROBE: &str = r##"
const state = {};
const $ = (s) => document.querySelector(s);
const visible = () => [...document.querySelectorAll(".tab")].filter((t) => !t.hidden).map((t) => t.id).join();
const press = (text) => [...document.querySelectorAll("button")].find((b) => b.textContent === text).click();
const frames = () => [...document.querySelectorAll("#flame .frames .frame")];
const rows = () => [...document.querySelectorAll("#functions tbody tr")].map((tr) => [...tr.children].map((td) => td.textContent));
const type = (field, text) => { field.value = text; field.dispatchEvent(new Event("input")); };

state.start = visible();
const named = (name) => frames().find((g) => g.textContent === name);
const width = (g) => Number(g.querySelector("rect").getAttribute("width"));
const share = () => width(named("read_query")) / width(named("all"));
state.narrow = share();
named("read_query").querySelector("rect").dispatchEvent(new MouseEvent("click", { bubbles: true }));
state.zoomed = share();
state.othersGone = !frames().some((g) => g.textContent.includes("script"));
press("Reset");
state.reset = share();
type($("#flame input"), "read_query");
state.matched = $("#flame .count").textContent;
press("Functions");
state.tab = visible();
state.first = rows()[0].join(" ");
press("Function");
state.sorted = rows().map((r) => r[4].slice(0, 10)).join("|");
type($("#functions input"), "^main$");
state.filtered = rows().length + " " + rows()[0][4];
press("Now");
state.now = rows()[0].join(" ");
press("Base");
state.base = rows()[0].join(" ");
press("Change");
state.change = rows()[0].join(" ");
press("main");
state.found = visible() + " " + $("#flame input").value;
for (const name of ["Source", "Leak suspects", "Allocator", "About"]) press(name);
state.last = visible();
press("Now");
press("Call graph");
$("#graph iframe").addEventListener("load", (event) => {
  const view = event.target.contentWindow, graph = event.target.contentDocument;
  const scale = () => Number(/scale\(([\d.e-]+)\)/.exec(graph.querySelector(".view").getAttribute("transform"))[1]);
  const start = scale();
  const wheel = { deltaY: -200, clientX: 100, clientY: 100, cancelable: true };
  graph.querySelector("svg").dispatchEvent(new view.WheelEvent("wheel", wheel));
  state.graphZoom = scale() / start;
  const field = graph.querySelector("input");
  field.value = "read_query";
  field.dispatchEvent(new view.Event("input"));
  state.graphHits = graph.querySelectorAll(".node.hit").length;
  state.graphBoxes = graph.querySelectorAll(".node").length;
  state.graphExecuted = "pwned" in view;
  state.graphImages = graph.querySelectorAll("img,image").length;
});
// A frame and images load before the page has loaded.
addEventListener("load", () => {
  state.executed = "pwned" in window;
  state.images = document.querySelectorAll("img").length;
  document.documentElement.setAttribute("data-state", JSON.stringify(state));
});
"##;

#[test]
fn page_interaction_works_and_no_name_is_executed() {
    let now = folded(3).replace("main;start", &format!("main;{HOSTILE};start"));
    let directory = directory(&[("after", &now), ("before", &folded(1))]);
    let page = page(directory.path(), &["-f", "after", "--base", "before"]);
    let path = directory.path().join("probe.html");
    let page = browser::with_probe(&browser::open_page(&page), PROBE, "</body>");
    fs::write(&path, page).unwrap();
    let state = browser::state(&path, "");
    let text = |key: &str, expected: &str| {
        browser::assert_state(&state, key, &format!("\"{expected}\""));
    };
    let narrow = browser::number(&state, "narrow");
    let zoomed = browser::number(&state, "zoomed");
    assert!(narrow < 0.99 && zoomed > 0.99, "{state}");
    assert_eq!(browser::number(&state, "reset"), narrow, "{state}");
    text("start", "flame");
    text("tab", "functions");
    text("matched", "98.16% matched, 1 frame");
    text("first", "+8000 98.16% +8000 98.16% allocate");
    text("sorted", "</script><|allocate|main|read_query|serve");
    text("filtered", "1 main");
    text("now", "0 0% 12325 100% main");
    text("base", "0 0% 4325 100% main");
    text("change", "0 0% +8000 98.16% main");
    text("found", "flame ^main$");
    text("last", "about");
    assert!(browser::number(&state, "graphZoom") > 1.3, "{state}");
    assert_eq!(browser::number(&state, "graphHits"), 1.0, "{state}");
    assert!(browser::number(&state, "graphBoxes") >= 6.0, "{state}");
    for flag in ["executed", "graphExecuted"] {
        browser::assert_state(&state, flag, "false");
    }
    for count in ["images", "graphImages"] {
        browser::assert_state(&state, count, "0");
    }
}

/// Reports the state of the page while it is printed, and afterwards.
const PRINT_PROBE: &str = r##"
const state = {};
const $ = (s) => document.querySelector(s);
const flame = $("#flame > svg");
const levels = () => new Set([...flame.querySelectorAll(".frame rect")].map((r) => r.getAttribute("y"))).size;
state.screen = levels();
dispatchEvent(new Event("beforeprint"));
const [, , width, height] = flame.getAttribute("viewBox").split(" ").map(Number);
state.paper = levels();
state.inside = [...flame.querySelectorAll(".frame rect")].every((rect) => {
  const [x, y, w, h] = ["x", "y", "width", "height"].map((key) => Number(rect.getAttribute(key)));
  return x >= 0 && y >= 0 && x + w <= width && y + h <= height;
});
dispatchEvent(new Event("afterprint"));
state.again = levels();
state.scaled = flame.hasAttribute("viewBox");

$("#to-graph").click();
dispatchEvent(new Event("beforeprint"));
const copy = $(".on-paper").shadowRoot;
state.boxes = copy.querySelectorAll(".node").length;
state.scripts = copy.querySelectorAll("script, foreignObject").length;
dispatchEvent(new Event("afterprint"));
state.kept = document.querySelectorAll(".on-paper").length;
addEventListener("load", () => {
  state.executed = "pwned" in window;
  document.documentElement.setAttribute("data-state", JSON.stringify(state));
});
"##;

#[test]
fn paper_shows_the_whole_flame_graph_and_call_graph() {
    let deep: Vec<String> = (0..90).map(|i| format!("f{i}")).collect();
    let folded = format!("{}{} 500\n", folded(1), deep.join(";"));
    let directory = directory(&[("x", &folded)]);
    let page = page(directory.path(), &["-f", "x", "--nodecount", "200"]);
    let path = directory.path().join("probe.html");
    let page = browser::with_probe(&browser::open_page(&page), PRINT_PROBE, "</body>");
    fs::write(&path, page).unwrap();
    let state = browser::state(&path, "");
    let number = |key: &str| browser::number(&state, key);
    assert!(number("screen") < 60.0, "{state}");
    assert_eq!(number("paper"), 91.0, "{state}");
    assert_eq!(number("again"), number("screen"), "{state}");
    assert!(number("boxes") > 90.0, "{state}");
    assert_eq!(number("scripts"), 0.0, "{state}");
    assert_eq!(number("kept"), 0.0, "{state}");
    browser::assert_state(&state, "inside", "true");
    for flag in ["scaled", "executed"] {
        browser::assert_state(&state, flag, "false");
    }
}

/// Opens the line of the worst suspect.
const LINE_PROBE: &str = r##"
const state = {};
document.querySelector("#to-leaks").click();
const link = document.querySelector("#leaks button.link");
state.where = link.textContent;
link.click();
state.shown = [...document.querySelectorAll(".tab")].filter((t) => !t.hidden).map((t) => t.id).join();
const row = document.querySelector("#source tr.sought");
state.number = row.querySelector("td.number").textContent;
state.title = document.querySelector("#source h2").firstChild.textContent;
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn a_click_on_a_suspect_shows_its_source() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let page = page(&data, &["-f", "shop.heap", "--source_path", "."]);
    let directory = directory(&[]);
    let path = directory.path().join("probe.html");
    let page = browser::with_probe(&browser::open_page(&page), LINE_PROBE, "</body>");
    fs::write(&path, page).unwrap();
    let state = browser::state(&path, "");
    for (key, value) in [("where", "shop.cpp:"), ("shown", "source")] {
        assert!(
            state.contains(&format!("\"{key}\":\"{value}")),
            "{key}: {state}"
        );
    }
    let part = |key: &str| {
        let rest = state.split(&format!("\"{key}\":\"")).nth(1).unwrap();
        rest.split('"').next().unwrap().to_owned()
    };
    assert_eq!(
        part("where"),
        format!("shop.cpp:{}", part("number")),
        "{state}"
    );
    assert!(!part("title").starts_with("std::"), "{state}");
}

#[test]
fn a_name_that_was_executed_would_be_noticed() {
    let directory = directory(&[("x", &folded(1)), ("y", &folded(1))]);
    let page = page(directory.path(), &["-f", "x", "--base", "y"]);
    let path = directory.path().join("probe.html");
    let probe = r#"addEventListener("load", () => {
        const state = { executed: window.pwned };
        document.documentElement.setAttribute("data-state", JSON.stringify(state));
    });"#;
    let image = "<img src=x onerror=window.pwned=2></body>";
    let page = browser::open_page(&page).replace("</body>", image);
    fs::write(&path, browser::with_probe(&page, probe, "</body>")).unwrap();
    let state = browser::state(&path, "");
    browser::assert_state(&state, "executed", "2");
}

#[test]
fn the_policy_allows_only_our_scripts() {
    let directory = directory(&[("x.folded", &folded(1))]);
    let page = page(directory.path(), &["-f", "x.folded"]);
    let path = directory.path().join("x.html");
    fs::write(&path, &page).unwrap();
    let refusals = |path: &Path| {
        let output = browser::open(path, "#graph");
        let console = String::from_utf8_lossy(&output.stderr).into_owned();
        let dom = String::from_utf8_lossy(&output.stdout).into_owned();
        (
            console.matches("Content Security Policy").count(),
            dom,
            console,
        )
    };
    let (refused, dom, console) = refusals(&path);
    assert!(dom.contains("<nav") && dom.contains("<iframe"), "{dom}");
    assert_eq!(refused, 0, "{console}");
    // The same check finds a script that is not ours, in the page and in the call graph.
    let foreign = page.replace("</body>", "<script>document.title='pwned'</script></body>");
    fs::write(&path, foreign).unwrap();
    let (refused, dom, console) = refusals(&path);
    assert!(refused > 0 && !dom.contains("<title>pwned"), "{console}");
    let changed = page.replace("Makes the picture a map", "Makes the picture a cap");
    assert_ne!(changed, page);
    fs::write(&path, changed).unwrap();
    let (refused, _, console) = refusals(&path);
    assert!(refused > 0, "{console}");
}

/// The functions of the source tab, in its order.
const SOURCE_PROBE: &str = r##"
document.querySelector("#to-source").click();
const names = [...document.querySelectorAll("#source .list button")].map((b) => b.firstChild.textContent);
const title = document.querySelector("#source h2").firstChild.textContent;
document.documentElement.setAttribute("data-state", JSON.stringify({ title, names: names.join() }));
"##;

#[test]
fn the_source_opens_at_the_user_function_nearest_to_the_allocations() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    // Neither these functions nor main call malloc directly; the standard library does.
    let focus = ["--alloc_space", "--focus", "^(rate|visit)$"];
    let dump = ["-f", "shop.heap", "--source_path", "."];
    let page = page(&data, &[&dump[..], &focus[..]].concat());
    let directory = directory(&[]);
    let path = directory.path().join("probe.html");
    let page = browser::with_probe(&browser::open_page(&page), SOURCE_PROBE, "</body>");
    fs::write(&path, page).unwrap();
    let state = browser::state(&path, "");
    browser::assert_state(&state, "title", "\"visit\"");
    assert!(state.contains("\"names\":\"visit,rate,main"), "{state}");
}
