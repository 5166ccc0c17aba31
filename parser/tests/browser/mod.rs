//! Headless Chromium, for tests that look at what a page becomes.
#![allow(dead_code)]

use std::path::Path;
use std::process::{Command, Output};

/// What Chromium prints of a document: the elements on standard output, what
/// its console says on standard error.
pub fn open(path: &Path, anchor: &str) -> Output {
    let profile = tempfile::tempdir().expect("a folder for the browser's profile");
    Command::new("chromium")
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
        .args(["--disable-sync", "--disable-quic", "--window-size=1200,800"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("file://{}{anchor}", path.display()))
        .output()
        .expect("chromium must be installed for this test")
}

/// What a probe in the document wrote into `data-state`.
pub fn state(path: &Path, anchor: &str) -> String {
    let output = open(path, anchor);
    let dom = String::from_utf8_lossy(&output.stdout);
    let state = dom.split("data-state=\"").nth(1);
    let state = state.and_then(|s| s.split('"').next()).unwrap_or_else(|| {
        let console = String::from_utf8_lossy(&output.stderr);
        panic!("the probe did not finish: {console}\n{dom}")
    });
    let texts = [
        ("&quot;", "\""),
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&amp;", "&"),
    ];
    texts
        .iter()
        .fold(state.to_owned(), |s, (from, to)| s.replace(from, to))
}

/// A number of the state.
pub fn number(state: &str, key: &str) -> f64 {
    let rest = state.split(&format!("\"{key}\":")).nth(1).unwrap_or("");
    let end = rest.find([',', '}']).unwrap_or(0);
    rest[..end].parse().unwrap_or(f64::NAN)
}
