//! Every output of the parser on the same small dumps, compared with golden
//! files.
//!
//! `tests/data/shop.heap` and `shop_before.heap` are dumps of `shop.cpp` that contain symbols;
//! CONTRIBUTING.md describes how to make new ones. The flame graph's golden files are compared in
//! `flame.rs`.

use std::fs;

mod expected;

/// Returns the parser's output for files in `tests/data`.
fn output(arguments: &[&str]) -> String {
    let arguments = [arguments, &["--source_path", "."]].concat();
    expected::printed(&expected::data(""), &arguments)
}

/// Compares an output of the one dump.
fn check(name: &str, arguments: &[&str]) {
    let shop = ["-f", "shop.heap"];
    expected::compare(name, &output(&[&shop, arguments].concat()));
}

/// Compares an output of the change from the other dump.
fn check_change(name: &str, arguments: &[&str]) {
    let shop = ["-f", "shop.heap", "--force", "--base", "shop_before.heap"];
    expected::compare(name, &output(&[&shop, arguments].concat()));
}

/// Removes all parts of a text between the markers `start` and `end`.
fn without(text: &str, start: &str, end: &str) -> String {
    let mut parts = text.split(start);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (_, after) = part.split_once(end).expect("an end to each start");
        kept += start;
        kept += end;
        kept += after;
    }
    kept
}

/// Returns a picture or page without our scripts and styles, which are source files.
fn content(text: &str) -> String {
    let scripts = without(text, "<script><![CDATA[", "]]></script>");
    without(&scripts, "<style>", "</style>")
}

#[test]
fn tables() {
    check("top.txt", &["-t"]);
    check(
        "top_alloc_objects_cum.txt",
        &["-t", "--alloc_objects", "--cum"],
    );
    check("top_lines.txt", &["-t", "--lines", "-n", "8"]);
    check("tree.txt", &["--tree"]);
    check("peek.txt", &["--peek", "push_back"]);
    check("traces.txt", &["--traces"]);
    check("list.txt", &["--list", "Room|Shelf"]);
}

#[test]
fn tables_of_a_change() {
    check_change("top_change.txt", &["-t"]);
    check_change("tree_change.txt", &["--tree"]);
    check_change("folded_change.txt", &["--folded"]);
}

/// Returns the dump as if its session's interval had been changed twice.
fn governed() -> (tempfile::TempDir, String) {
    let dump = fs::read_to_string(expected::data("shop.heap")).unwrap();
    let end = 1_795_239_949_573_587_031u64;
    let history: String = [(4_000_000, "512 14.6378%"), (3_000_000, "2048 4.2184%")]
        .map(|(before, rest)| format!("# interval {} {rest}\n", end - before))
        .concat();
    let history = format!("{history}# interval {} 9253\n# counter", end - 2_500_000);
    assert!(dump.contains(&format!("# end_unix_ns {end}\n")));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("governed.heap");
    fs::write(&file, dump.replacen("# counter", &history, 1)).unwrap();
    let file = file.to_str().unwrap().to_owned();
    (directory, file)
}

#[test]
fn an_interval_that_changed_is_shown_with_its_history() {
    let (_directory, file) = governed();
    expected::compare("top_governed.txt", &output(&["-f", &file, "-t", "-n", "3"]));
    let page = output(&["-f", &file, "--html"]);
    let line = "512 bytes (14.64% of CPU time) for 1ms, 2048 (4.22%) for 500us, 9253 for 2.69ms";
    assert!(page.contains(&format!("[\"Intervals\",\"{line}\"]")));
    let json = output(&["-f", &file, "--json"]);
    let first = "\"intervals\":[{\"from_unix_ns\":1795239949569587031,\"interval\":512,\
                 \"overhead\":0.146378},";
    assert!(json.contains(first), "{json}");
    // The sum of two sessions has no common history.
    let sum = output(&["-f", &file, "-f", "shop_before.heap", "-t"]);
    assert!(!sum.contains("Interval"), "{sum}");
}

#[test]
fn formats_for_other_programs() {
    check("graph.dot", &["--dot"]);
    check("callgrind.out", &["--callgrind"]);
    check("raw.txt", &["--raw"]);
    check("folded.txt", &["--folded"]);
    check("table.csv", &["--csv"]);
    check(
        "clickhouse.tsv",
        &[
            "--clickhouse",
            "--label",
            "host=board-1",
            "--label",
            "site=a\tb",
        ],
    );
    check("symbolized.heap", &["--symbolize"]);
}

#[test]
fn json() {
    let json = output(&["-f", "shop.heap", "--json"]);
    // Writes one entry per line, so that a diff is readable.
    expected::compare("profile.json", &json.replace("},{", "},\n{"));
}

#[test]
fn proto_decoded() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("shop.pb.gz");
    let file = file.to_str().unwrap();
    output(&["-f", "shop.heap", "--proto", "-o", file]);
    expected::compare("proto.txt", &output(&["-f", file, "--raw"]));
}

#[test]
fn call_graph() {
    let picture = output(&["-f", "shop.heap", "-s"]);
    expected::compare("callgraph.svg", &content(&picture));
    let picture = output(&[
        "-f",
        "shop.heap",
        "--force",
        "--base",
        "shop_before.heap",
        "-s",
    ]);
    expected::compare("callgraph_change.svg", &content(&picture));
}

#[test]
fn page() {
    let page = output(&[
        "-f",
        "shop.heap",
        "--force",
        "--base",
        "shop_before.heap",
        "--html",
    ]);
    // The pictures are compared above, and the fingerprints are those of scripts.
    let page = without(&page, "'sha256-", "'");
    let page = without(&page, "id=\"graphs\">", "</script>");
    let page = without(&content(&page), "<script>", "</script>");
    expected::compare("page.html", &page.replace("},{", "},\n{"));
}

#[test]
fn golden_files_are_all_compared() {
    let sources = [
        include_str!("golden.rs"),
        include_str!("flame.rs"),
        include_str!("breakdown.rs"),
        include_str!("cpu.rs"),
        include_str!("leaks.rs"),
        include_str!("lost.rs"),
        include_str!("resident.rs"),
        include_str!("timeline.rs"),
    ];
    let sources = sources.concat();
    for entry in fs::read_dir(expected::data("../golden")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(
            sources.contains(&format!("\"{name}\"")),
            "nothing is compared with golden/{name}: remove it"
        );
    }
}
