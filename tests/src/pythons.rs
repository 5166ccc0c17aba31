//! The interpreters of Python that are tried: Debian's, those that `tests/pythons` downloads, and
//! those that `MEM_TESTS_PYTHONS` names.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// Downloaded once for a build directory.
static DOWNLOADED: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let exe = std::env::current_exe().expect("a running test has a path");
    let target = exe.ancestors().nth(3).expect("cargo's directories");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("pythons");
    let mut command = Command::new(&script);
    let output = command.arg(target.join("pythons")).output();
    let output = output.expect("a script of ours");
    let complaint = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {complaint}", script.display());
    let paths = String::from_utf8(output.stdout).expect("paths of ours");
    paths.lines().map(PathBuf::from).collect()
});

/// All of them.
///
/// # Panics
/// If one cannot be downloaded.
#[must_use]
pub fn all() -> Vec<PathBuf> {
    let more = std::env::var_os("MEM_TESTS_PYTHONS").unwrap_or_default();
    let more = std::env::split_paths(&more).filter(|path| !path.as_os_str().is_empty());
    let own = std::iter::once(PathBuf::from("/usr/bin/python3"));
    own.chain(DOWNLOADED.iter().cloned()).chain(more).collect()
}
