//! Pythons with packages from PyPI. The first run needs PyPI.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::session::tool;

/// Returns the Python of a virtual environment with these packages, which is made once for a build
/// directory. `name` contains the versions.
pub fn python(name: &str, packages: &[&str]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let exe = std::env::current_exe().expect("a running test has a path");
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let made = target.join(name);
    if !made.join("bin/python").exists() {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let half = target.join(format!("{name}-{}-{number}", std::process::id()));
        tool(
            "python3",
            ["-m".as_ref(), "venv".as_ref(), half.as_os_str()],
        );
        let python = half.join("bin/python");
        let python = python.to_str().expect("a path of ours");
        tool(python, [&["-m", "pip", "-q", "install"], packages].concat());
        // Another test may have been faster.
        let _ = fs::rename(&half, &made);
    }
    made.join("bin/python")
}
