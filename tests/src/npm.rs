//! Packages of npm, which must be in reach the first time.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::session::tool;

/// Installs these packages once for a build directory, and returns the directory that has them. The
/// name stands for their versions.
pub fn packages(name: &str, packages: &[&str]) -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let exe = std::env::current_exe().expect("a running test has a path");
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let made = target.join(name);
    if !made.exists() {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let half = target.join(format!("{name}-{}-{number}", std::process::id()));
        let prefix = half.to_str().expect("a path of ours");
        let install = ["install", "--no-audit", "--no-fund", "--prefix", prefix];
        tool("npm", install.iter().chain(packages));
        // Another test may have been faster.
        let _ = fs::rename(&half, &made);
    }
    made.join("node_modules")
}
