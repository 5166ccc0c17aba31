//! CPU profiles in every output: units, headings, and CPU and heap on one page.
//!
//! `tests/data/shop.cpu` is made by hand: a CPU profile of the process of `shop.heap`, with two
//! threads, functions of the kernel, a truncated stack, and time without samples.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use helpers::browser;
mod expected;

/// Runs the parser in the directory with the data.
fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .current_dir(expected::data(""))
        .args(arguments)
        .args(["--source_path", "."])
        .env("TZ", "UTC")
        .output()
        .unwrap()
}

fn output(arguments: &[&str]) -> String {
    let output = run(arguments);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the error message of a command line that must be refused.
fn refusal(arguments: &[&str]) -> String {
    let output = run(arguments);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn check(name: &str, arguments: &[&str]) {
    let shop = ["-f", "shop.cpu"];
    expected::compare(name, &output(&[&shop, arguments].concat()));
}

#[test]
fn call_graphs_show_how_often_time_was_sampled() {
    for arguments in [&["-f", "shop.cpu", "-s"][..], &["-f", "shop.cpu", "--html"]] {
        let text = output(arguments);
        assert!(text.contains("Sampling: 99 samples per second of CPU time"));
        assert!(!text.contains("Interval: 10101010"));
    }
    // On a page with both, each flame graph shows its own sampling.
    let both = output(&["-f", "shop.heap", "shop.cpu", "--html"]);
    assert!(both.contains("Sampling: 99 samples per second of CPU time"));
    assert!(both.contains("Interval: 512 bytes"));
}

#[test]
fn tables_have_times_and_sampling_details() {
    check("cpu_top.txt", &["-t"]);
    check(
        "cpu_top_samples.txt",
        &["-t", "--sample_index", "samples", "--cum"],
    );
    check("cpu_tree.txt", &["--tree"]);
    check("cpu_peek.txt", &["--peek", "^malloc$"]);
    check("cpu_list.txt", &["--list", "visit|count"]);
    check("cpu_threads.txt", &["--threads"]);
    check("cpu_top_thread.txt", &["-t", "--tagfocus", "thread=till"]);
    check("cpu_top_change.txt", &["-t", "--diff_base", "shop.cpu"]);
}

#[test]
fn formats_for_other_programs_have_times() {
    check("cpu_folded.txt", &["--folded"]);
    check("cpu_callgrind.out", &["--callgrind"]);
    check("cpu_table.csv", &["--csv"]);
    check("cpu_raw.txt", &["--raw"]);
    let json = output(&["-f", "shop.cpu", "--json"]);
    let facts = json
        .split("\"cpu\":{")
        .nth(1)
        .expect("facts of the sampling");
    let facts = facts.split('}').next().unwrap();
    let expected = [
        "\"engine\":\"perf_event\"",
        "\"mode\":\"cpu\"",
        "\"rate\":99",
        "\"process_ns\":3038000000",
        "\"lost\":2",
        "\"kernel_hidden\":null",
        "\"samples\":297",
        "\"not_sampled_ns\":19242972",
    ];
    for fact in expected {
        assert!(facts.contains(fact), "{fact} in {facts}");
    }
}

/// Returns the part of a picture between our styles and our scripts.
fn own_part(svg: &str) -> &str {
    let from = svg.find("<g class=\"plain\">").unwrap();
    let to = svg.find("<script><![CDATA[").unwrap();
    &svg[from..to]
}

#[test]
fn the_flame_graph_distinguishes_kernel_and_program() {
    let svg = output(&["-f", "shop.cpu", "--flame"]);
    expected::compare("cpu_flame.svg", own_part(&svg));
    let class = |name: &str| {
        let at = svg.find(&format!("<title>{name}\n")).expect(name);
        let start = svg[..at].rfind("class=\"frame ").unwrap();
        svg[start + 13..].split('"').next().unwrap().to_owned()
    };
    assert!(class("clear_page_erms_[k]").starts_with('k'));
    assert!(class("malloc").starts_with('w'));
    assert_eq!(class("[not sampled]"), "g");
    assert!(svg.contains("Colours: blue is the kernel<"), "{svg}");
}

#[test]
fn symbolizing_does_not_change_a_profile() {
    let once = output(&["-f", "shop.cpu", "--symbolize"]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("again.cpu");
    fs::write(&file, &once).unwrap();
    let file = file.to_str().unwrap();
    assert_eq!(output(&["-f", file, "--symbolize"]), once);
    assert_eq!(
        output(&["-f", file, "-t"]),
        output(&["-f", "shop.cpu", "-t"])
    );
}

#[test]
fn outputs_of_memory_are_refused_by_name() {
    for flag in ["--leaks", "--sizes", "--temporary", "--timeline", "--rss"] {
        let message = refusal(&["-f", "shop.cpu", flag]);
        let expected = format!("{flag} is for memory, but this is a profile of CPU time");
        assert!(message.contains(&expected), "{message}");
    }
    let message = refusal(&["-f", "shop.cpu", "-t", "--inuse_space"]);
    assert!(message.contains("only samples, cpu"), "{message}");
    let message = refusal(&["-f", "shop.heap", "--gperftools"]);
    assert!(message.contains("no column of nanoseconds"), "{message}");
}

/// Returns the rows of a table: name without the mark of kernel functions, flat and cum in
/// nanoseconds.
fn rows(table: &str) -> Vec<(String, i64, i64)> {
    let rows = table.lines().skip_while(|line| !line.contains("flat%"));
    rows.skip(1)
        .map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let ns = |word: &str| word.trim_end_matches("ns").parse().unwrap();
            let name = words[5..].join(" ").replace("_[k]", "");
            (name, ns(words[0]), ns(words[3]))
        })
        .collect()
}

#[test]
fn pprof_reads_our_numbers() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.pb.gz");
    let file = file.to_str().unwrap();
    output(&["-f", "shop.cpu", "--proto", "-o", file]);
    let arguments = [
        "tool",
        "pprof",
        "-top",
        "-unit=ns",
        "-nodefraction=0",
        "-symbolize=none",
        file,
    ];
    let theirs = Command::new("go").args(arguments).output();
    let theirs = theirs.expect("go cannot be run: install golang-go");
    assert!(theirs.status.success());
    let theirs = String::from_utf8(theirs.stdout).unwrap();
    let ours = output(&[
        "-f",
        "shop.cpu",
        "-t",
        "--unit",
        "ns",
        "--nodefraction",
        "0",
    ]);
    let mut our_rows = rows(&ours);
    let mut their_rows = rows(&theirs);
    our_rows.sort();
    their_rows.sort();
    assert!(our_rows.len() > 20, "{ours}");
    assert_eq!(our_rows, their_rows);
}

/// Returns the page of these profiles.
fn page(files: &[&str]) -> String {
    output(&[files, &["--html"]].concat())
}

/// Returns the keys of the tabs that the page's scripts add.
fn tabs(page: &str) -> Vec<&str> {
    let labels = page.split("TABS.push({ key: \"").skip(1);
    labels.map(|rest| rest.split('"').next().unwrap()).collect()
}

#[test]
fn pages_have_the_tabs_of_their_kind() {
    let cpu = [
        "flame",
        "graph",
        "functions",
        "source",
        "threads",
        "cost",
        "about",
    ];
    assert_eq!(tabs(&page(&["shop.cpu"])), cpu);
    let heap = tabs(&page(&["shop.heap"])).join(" ");
    assert!(heap.contains("leaks") && !heap.contains("cost"), "{heap}");
    let both = page(&["shop.heap", "shop.cpu"]);
    let all = tabs(&both).join(" ");
    assert!(all.contains("leaks") && all.contains("cost"), "{all}");
    assert!(both.contains("<title>shop - heap and CPU profile</title>"));
    assert!(page(&["shop.cpu"]).contains("<title>shop - CPU profile</title>"));
}

#[test]
fn heap_and_cpu_are_combined_only_on_pages() {
    let message = refusal(&["shop.heap", "shop.cpu", "-t"]);
    assert!(
        message.contains("shop.heap is of memory and shop.cpu of time: only --html"),
        "{message}"
    );
    let message = refusal(&[
        "shop.cpu",
        "shop.heap",
        "--html",
        "--base",
        "shop_before.heap",
    ]);
    assert!(message.contains("only without a base"), "{message}");
    let (_directory, other) = of_another_process();
    let other = other.to_str().unwrap();
    let message = refusal(&["shop.heap", other, "--html"]);
    assert!(
        message.contains("not of one process: processes "),
        "{message}"
    );
    page(&["shop.heap", other, "--force"]);
}

fn of_another_process() -> (tempfile::TempDir, PathBuf) {
    let text = fs::read_to_string(expected::data("shop.cpu")).unwrap();
    let pid = text.lines().find(|l| l.starts_with("# pid ")).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("other.cpu");
    fs::write(&file, text.replace(pid, "# pid 99")).unwrap();
    (directory, file)
}

/// Compares a page of a heap profile with a page that also has a CPU profile.
#[test]
fn a_cpu_profile_does_not_change_the_heap_columns() {
    let part = |page: &str, key: &str| {
        let start = format!("\n\"{key}\":");
        let rest = page
            .split(&start)
            .nth(1)
            .unwrap_or_else(|| panic!("no {key}"));
        rest.split('\n')
            .next()
            .unwrap()
            .trim_end_matches(',')
            .to_owned()
    };
    let heap = page(&["shop.heap"]);
    let both = page(&["shop.heap", "shop.cpu"]);
    for key in ["suspects", "allocator", "time"] {
        assert_eq!(part(&heap, key), part(&both, key), "{key}");
    }
}

/// Sorts, filters and switches the tab of costs.
const COST_PROBE: &str = r##"
const state = {};
const $ = (s) => document.querySelector(s);
$("#to-cost").click();
state.sum = $("#cost-sum").textContent;
const heads = [...document.querySelectorAll("#cost th button")];
state.heads = heads.map((b) => b.textContent).join("|");
const rows = () => [...document.querySelectorAll("#cost tbody tr")].map((tr) => [...tr.children].map((td) => td.textContent));
const row = (name) => (rows().find((r) => r[r.length - 1] === name) || []).join("|");
state.first = rows()[0].join("|");
state.visit = row("visit");
heads[heads.length - 1].click();
state.sorted = rows()[0][heads.length - 1];
[...document.querySelectorAll("#cost .group button")].find((b) => b.textContent === "With callees").click();
state.main = row("main");
const field = $("#cost input");
field.value = "^Room";
field.dispatchEvent(new Event("input"));
state.found = rows().length;
[...document.querySelectorAll("#cost tbody button")][0].click();
state.flame = !$("#flame").hidden && $("#flame input").value;
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

fn probe(page: &str, script: &str) -> String {
    let page = browser::open_page(page);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("probe.html");
    fs::write(&path, browser::with_probe(&page, script, "</body>")).unwrap();
    browser::state(&path, "")
}

#[test]
fn the_cost_of_malloc_is_shown_by_caller() {
    let state = probe(&page(&["shop.heap", "shop.cpu"]), COST_PROBE);
    let text = |key: &str, text: &str| browser::assert_state(&state, key, &format!("\"{text}\""));
    text(
        "sum",
        "malloc, free and what they call: 994.17 ms, 32.81% of 3.03 s.",
    );
    text(
        "heads",
        "CPU time|CPU%|In malloc|In malloc%|Allocated|Objects|Live|Function",
    );
    assert!(
        state.contains("\"visit\":\"606.06 ms|20.00%|192.47 ms|6.35%|"),
        "{state}"
    );
    assert!(state.contains("|994.17 ms|32.81%|"), "{state}");
    text("flame", "^Room::Room$");
    let cpu = probe(&page(&["shop.cpu"]), COST_PROBE);
    browser::assert_state(
        &cpu,
        "heads",
        "\"CPU time|CPU%|In malloc|In malloc%|Function\"",
    );
}

/// Determines for each column whether its flame graph has the note on the sampling of CPU time.
const NOTE_PROBE: &str = r##"
const state = {};
const $ = (s) => document.querySelector(s);
$("#to-flame").click();
const choose = (text) => [...document.querySelectorAll("header button")].find((b) => b.textContent === text).click();
const note = () => [...document.querySelectorAll("#flame *")].some((el) => el.textContent.includes("Engine: "));
for (const [key, text] of [["bytes", "Live bytes"], ["cpu", "CPU time"], ["samples", "Samples"], ["objects", "Allocated objects"]]) {
  choose(text);
  state[key] = note();
}
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;

#[test]
fn the_engine_is_shown_above_cpu_time_only() {
    let state = probe(&page(&["shop.heap", "shop.cpu"]), NOTE_PROBE);
    for (key, reported) in [
        ("bytes", "false"),
        ("cpu", "true"),
        ("samples", "true"),
        ("objects", "false"),
    ] {
        browser::assert_state(&state, key, reported);
    }
}

/// Where the agent is the allocator, no frame may have the name of `malloc`.
#[test]
fn the_agents_own_functions_are_malloc() {
    let profile = fs::read_to_string(expected::data("shop.cpu")).unwrap();
    let profile = profile.replace("\toperator ", "\tmake ");
    let directory = tempfile::tempdir().unwrap();
    let sum = |module: &str, function: &str| {
        let mut text = profile.replace("/libc.so.6", module);
        for name in ["malloc", "free", "_int_malloc"] {
            let renamed = format!("# function 0\t{}\t", function.replace("NAME", name));
            text = text.replace(&format!("# function 0\t{name}\t"), &renamed);
        }
        let path = directory.path().join("shop.cpu");
        fs::write(&path, text).unwrap();
        let state = probe(&page(&[path.to_str().unwrap()]), COST_PROBE);
        let (_, sum) = state
            .split_once("malloc, free and what they call: ")
            .unwrap();
        let digits = sum.find(|c: char| !c.is_ascii_digit()).unwrap();
        sum[..digits].parse::<u64>().unwrap()
    };
    let expected = sum("/libc.so.6", "NAME");
    assert!(expected > 900, "{expected}");
    let agent = "/libmem_agent.so";
    assert_eq!(sum(agent, "mem_agent::sample::NAME"), expected);
    // The agent's loader runs initializers of modules that the program loads, which are not
    // allocations.
    assert_eq!(sum(agent, "mem_agent::entry::loader::NAME"), 0);
    assert_eq!(sum("/libc.so.6", "mem_agent::sample::NAME"), 0);
}

#[test]
fn the_page_describes_the_sampling() {
    let script = r##"
const state = {};
const note = document.querySelector(".flame-note").title;
state.engine = note.includes("Engine: perf_event, 99 samples per second of CPU time");
state.samples = note.includes("Samples: 297, lost 2 (");
state.columns = [...document.querySelectorAll("header .group button")].map((b) => b.textContent).join("|");
document.documentElement.setAttribute("data-state", JSON.stringify(state));
"##;
    let state = probe(&page(&["shop.cpu"]), script);
    browser::assert_state(&state, "engine", "true");
    browser::assert_state(&state, "samples", "true");
    browser::assert_state(&state, "columns", "\"CPU time|Samples\"");
}

/// The output of `perf script` of a program under `cpu-clock`.
const PERF: &str = "prog 7 [000] 12.5:   10101010 cpu-clock:uhpppH: \n\
    \tffffffff81000010 do_fault+0x10 ([kernel.kallsyms])\n\
    \t  55d0 work+0x1 (/usr/bin/prog)\n\
    \t  55e0 main+0x1 (/usr/bin/prog)\n\n\
    prog 7 [000] 12.6:   10101010 cpu-clock:uhpppH: \n\
    \t  55e0 main+0x1 (/usr/bin/prog)\n\n";

#[test]
fn a_perf_script_is_a_cpu_profile() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("perf.txt");
    fs::write(&file, PERF).unwrap();
    let file = file.to_str().unwrap();
    let top = output(&[file, "-t"]);
    assert!(top.contains("Type: cpu"), "{top}");
    assert!(top.contains("100% of 20.20ms total"), "{top}");
    assert!(top.contains(" do_fault_[k]"), "{top}");
    let folded = output(&[file, "--folded", "--sample_index", "samples"]);
    assert_eq!(folded, "prog;main 1\nprog;main;work;do_fault_[k] 1\n");
    let message = refusal(&[file, "--gperftools"]);
    assert!(message.contains("names without addresses"), "{message}");
}

#[test]
fn a_written_gperftools_file_is_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.prof");
    let path = file.to_str().unwrap();
    output(&["-f", "shop.cpu", "--gperftools", "-o", path]);
    // That format has no build ids, so a program must be given. This test does not depend on which.
    let raw = output(&["-p", env!("CARGO_BIN_EXE_mem_parser"), "-f", path, "--raw"]);
    assert!(
        raw.contains("PeriodType: cpu nanoseconds\nPeriod: 10101000\n"),
        "{raw}"
    );
    assert!(Path::new(path).metadata().unwrap().len() < 20_000);
}
