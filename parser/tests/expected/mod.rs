//! Golden files: outputs that were reviewed when they were last changed.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Returns the path of a test file.
pub fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data")
        .join(name)
}

/// Returns the standard output of the parser, run in a directory with the time zone UTC.
#[track_caller]
pub fn printed(directory: &Path, arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_mem_parser"))
        .current_dir(directory)
        .args(arguments)
        .env("TZ", "UTC")
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

/// Checks that `found` is what the golden file `name` holds. With
/// `UPDATE_GOLDEN` set, the file becomes `found` instead.
#[track_caller]
pub fn compare(name: &str, found: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(name);
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        fs::write(&path, found).unwrap();
    }
    let expected = fs::read_to_string(&path).unwrap_or_default();
    if found == expected {
        return;
    }
    let mut lines = found.lines().zip(expected.lines()).enumerate();
    let (line, (new, old)) = lines
        .find(|(_, (new, old))| new != old)
        .unwrap_or((0, ("(one is longer)", "(one is longer)")));
    panic!(
        "golden/{name} differs from line {} on; if it should, run again with UPDATE_GOLDEN=1 and \
         look at the change\n  now:    {new}\n  golden: {old}",
        line + 1
    );
}
