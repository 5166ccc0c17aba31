//! Headless Chromium, for tests that look at what a page becomes. Needs the package chromium.
//!
//! A document's probe runs while it loads, so nothing is waited for but the end of loading, and
//! that has a deadline. Each call has a profile of its own: calls do not see each other, nor the
//! user's browser.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Time limit for loading a document, in seconds; a second is usual.
const DEADLINE: &str = "180";

/// Exit status of `timeout` when the deadline has come.
const TIMED_OUT: i32 = 124;

/// Returns what Chromium prints of a document: the elements on standard output, the messages of its
/// console on standard error.
///
/// # Panics
/// If Chromium is missing or does not finish.
#[must_use]
pub fn open(path: &Path, anchor: &str) -> Output {
    let profile = tempfile::tempdir().expect("a directory for the browser's profile");
    let home = profile.path();
    // The browser is many processes; `timeout` ends all of them.
    let output = Command::new("timeout")
        .args(["--kill-after=10", DEADLINE, "chromium", "--headless"])
        .args(["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"])
        .args(["--no-first-run", "--no-default-browser-check"])
        .args(["--disable-background-networking", "--disable-breakpad"])
        .args(["--disable-component-update", "--disable-extensions"])
        .args(["--disable-sync", "--disable-quic", "--lang=en-US"])
        .args(["--password-store=basic", "--window-size=1200,800"])
        .args(["--enable-logging=stderr", "--dump-dom"])
        .arg(format!("--user-data-dir={}", home.join("data").display()))
        .arg(format!("file://{}{anchor}", path.display()))
        .env("HOME", home)
        .env("XDG_CONFIG_HOME", home.join("config"))
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env_remove("DISPLAY")
        .env_remove("WAYLAND_DISPLAY")
        .env_remove("DBUS_SESSION_BUS_ADDRESS")
        .stdin(Stdio::null())
        .output()
        .expect("timeout (coreutils) must be installed for this test");
    let console = String::from_utf8_lossy(&output.stderr);
    match output.status.code() {
        Some(0) => output,
        Some(TIMED_OUT) => panic!("chromium did not finish in {DEADLINE} s: {console}"),
        _ => panic!(
            "chromium must be installed for this test, and start ({}): {console}",
            output.status
        ),
    }
}

/// Adds a script to the end of a document, after its own. `end`: the tag that closes the document.
///
/// # Panics
/// If the document has no such tag.
#[must_use]
pub fn with_probe(document: &str, probe: &str, end: &str) -> String {
    let at = document.rfind(end).expect("a document with an end");
    let (start, end) = document.split_at(at);
    let (open, close) = if end.starts_with("</svg") {
        ("<![CDATA[", "]]>")
    } else {
        ("", "")
    };
    format!("{start}<script>{open}{{{probe}}}{close}</script>\n{end}")
}

/// Removes from a page of ours what keeps a probe from running and from looking into the frame of
/// the call graph.
///
/// # Panics
/// If the page has nothing of that.
#[must_use]
pub fn open_page(page: &str) -> String {
    let free = page.replace("Content-Security-Policy", "X-None");
    let seen = free.replace(
        "sandbox: \"allow-scripts\"",
        "sandbox: \"allow-scripts allow-same-origin\"",
    );
    assert!(free != page && seen != free, "the page has changed");
    seen
}

/// Returns what a probe in the document wrote into `data-state`.
///
/// # Panics
/// If the probe did not finish.
#[must_use]
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

/// Returns a number of the state.
#[must_use]
pub fn number(state: &str, key: &str) -> f64 {
    let rest = state.split(&format!("\"{key}\":")).nth(1).unwrap_or("");
    let end = rest.find([',', '}']).unwrap_or(0);
    rest[..end].parse().unwrap_or(f64::NAN)
}

/// Checks that the state holds `"key":value`, as JSON writes it.
///
/// # Panics
/// If it does not.
#[track_caller]
pub fn assert_state(state: &str, key: &str, value: &str) {
    let expected = format!("\"{key}\":{value}");
    let ends = [",", "}"].map(|end| format!("{expected}{end}"));
    assert!(
        ends.iter().any(|e| state.contains(e)),
        "not {expected}: {state}"
    );
}
