//! Dumps of processes in which not all sampled objects could be followed.

use std::fs;
use std::path::Path;

mod invoke;

use invoke::{parser, stderr, stdout};

#[test]
fn every_view_says_that_values_in_use_are_too_small() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let whole = fs::read_to_string(data.join("shop.heap")).unwrap();
    let samples = "# counter 1476 samples\n";
    let none = "# counter 0 untracked\n";
    assert!(whole.contains(samples) && whole.contains(none));
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("limited.heap");
    fs::write(&file, whole.replace(none, "# counter 380 untracked\n")).unwrap();
    let reported = "25% of the samples have no place in the range of sampled objects";
    for view in [
        "-t",
        "-s",
        "--html",
        "--leaks",
        "--flame",
        "--raw",
        "--folded",
        "--json",
        "--proto",
        "--temporary",
        "--sizes",
        "--threads",
        "--rss",
        "--timeline",
        "--symbolize",
        "--csv",
    ] {
        let output = parser(&["-f", file.to_str().unwrap(), view]);
        let message = stderr(&output);
        assert_eq!(message.matches(reported).count(), 1, "{view}: {message}");
        let shown = String::from_utf8_lossy(&output.stdout);
        let expected = match view {
            // Among the facts, and beside the suspects.
            "--html" => 2,
            "--leaks" => 1,
            _ => 0,
        };
        assert_eq!(shown.matches(reported).count(), expected, "{view}");
    }
    let shop = data.join("shop.heap");
    let output = parser(&["-f", shop.to_str().unwrap(), "--leaks"]);
    assert_eq!(stderr(&output), "");
    assert!(!stdout(&output).contains("Not followed"));
}
