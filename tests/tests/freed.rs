//! Programs that free everything: the first view is not empty.

use std::path::{Path, PathBuf};

use mem_tests::{Outcome, Scratch, run};
use serde_json::Value;

fn sampled(scratch: &Scratch, options: &[&str]) -> Outcome {
    let program = scratch.compile("tidy.cpp", &["-pthread"]);
    let outcome = run(scratch
        .profiler()
        .args(["run", "-o", "p_"])
        .args(options)
        .arg("--")
        .arg(program));
    assert_eq!(outcome.code, Some(0), "{outcome:?}");
    outcome
}

fn file(scratch: &Scratch, extension: &str) -> PathBuf {
    let files = std::fs::read_dir(scratch.files()).expect("files").flatten();
    let mut paths = files.map(|file| file.path());
    let found = paths.find(|path| path.extension().is_some_and(|e| e == extension));
    found.unwrap_or_else(|| panic!("no .{extension}"))
}

/// Returns the data of a page.
fn data(page: &Path) -> Value {
    let text = std::fs::read_to_string(page).expect("a page");
    let (_, data) = text.split_once("id=\"profile\">").expect("data");
    let (data, _) = data.split_once("</script>").expect("an end");
    serde_json::from_str(data).expect("JSON")
}

#[test]
fn the_page_opens_on_what_was_allocated_and_names_the_peak() {
    let scratch = Scratch::new();
    sampled(&scratch, &["--html"]);
    let data = data(&file(&scratch, "html"));
    let note = data["note"].as_str().expect("a note");
    for part in [
        "Nearly everything was freed: of ",
        " allocated, ",
        "at the peak ",
    ] {
        assert!(note.contains(part), "{note}");
    }
    let column = data["column"].as_u64().expect("a column") as usize;
    assert_eq!(data["flame"]["columns"][column]["kind"], "alloc_space");
}

#[test]
fn the_next_command_shows_the_functions_that_allocated() {
    let scratch = Scratch::new();
    let outcome = sampled(&scratch, &[]);
    let next = outcome.stderr.lines();
    let mut next = next.filter_map(|line| line.split_once("next: mem_parser "));
    let (_, rest) = next.next().unwrap_or_else(|| panic!("{outcome:?}"));
    let command: Vec<&str> = rest.split(" (").next().expect("words").split(' ').collect();
    assert_eq!(command[0], "--alloc_space", "{rest}");
    let table = run(scratch.parser().args(&command));
    assert_eq!(table.code, Some(0), "{table:?}");
    assert!(table.stdout.contains("Cache::fill"), "{table:?}");
    // The table of live bytes leads there.
    let live = run(scratch.parser().args(&command[1..]));
    assert!(live.stderr.contains("--alloc_space shows"), "{live:?}");
    // A program without names of the C++ library is not told to install some.
    assert!(!live.stderr.contains("code without names"), "{live:?}");
}
