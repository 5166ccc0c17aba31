//! Files that a command has written, for `--json`: one array, printed when the command ends.
//!
//! Other results are not printed then, so that stdout holds the array alone.

use std::path::Path;
use std::sync::Mutex;

use mem_agents::dump;
use mem_agents::text;
use serde_json::{Value, json};

use crate::terminal;
use crate::{cpu_session, rss_session};

/// Files written so far; `None` if they are not collected.
static FILES: Mutex<Option<Vec<Value>>> = Mutex::new(None);

/// Starts to collect files, and suppresses other results.
pub fn collect() {
    terminal::suppress_results();
    with_files(|files| *files = Some(Vec::new()));
}

/// Prints the collected files, and stops collecting.
pub fn print() {
    let mut collected = None;
    with_files(|files| collected = files.take());
    if let Some(files) = collected {
        // Strings and numbers are always serializable.
        let _ = terminal::json(&files);
    }
}

/// Adds a dump.
pub fn add_dump(written: &dump::Written) {
    add(json!({
        "kind": "heap",
        "file": text::path(&written.path),
        "pid": written.pid,
        "process": written.title,
        "ended": written.ended.label(),
        "last": written.is_last,
        "samples": written.samples,
        "exact": written.is_exact,
        "alloc_bytes": written.alloc_bytes,
        "live_bytes": written.live_bytes,
        "peak_bytes": written.peak_bytes,
        "warnings": written.warnings,
    }));
}

/// Adds a CPU profile.
pub fn add_cpu(written: &cpu_session::Written) {
    add(json!({
        "kind": "cpu",
        "file": text::path(&written.path),
        "pid": written.pid,
        "process": written.title,
        "samples": written.samples,
        "ns": written.ns,
        "remark": written.remark,
    }));
}

/// Adds a profile of resident memory.
pub fn add_rss(written: &rss_session::Written) {
    add(json!({
        "kind": "rss",
        "file": text::path(&written.path),
        "pid": written.pid,
        "process": written.title,
        "resident_bytes": written.resident,
        "remark": written.remark,
    }));
}

/// Adds the page of a profile.
pub fn add_page(page: &Path, profile: &Path) {
    add(json!({
        "kind": "page",
        "file": text::path(page),
        "of": text::path(profile),
    }));
}

fn add(value: Value) {
    with_files(|files| {
        if let Some(files) = files {
            files.push(value);
        }
    });
}

fn with_files(action: impl FnOnce(&mut Option<Vec<Value>>)) {
    let mut files = FILES
        .lock()
        .unwrap_or_else(|poisoned| poisoned.into_inner());
    action(&mut files);
}
