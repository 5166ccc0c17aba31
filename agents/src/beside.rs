//! The other programs of this project, installed next to this one.

use std::path::PathBuf;

/// The program of this name next to this one, or else the one in the search path.
pub fn program(name: &str) -> PathBuf {
    let beside = std::env::current_exe().ok();
    let beside = beside.map(|exe| exe.with_file_name(name));
    beside
        .filter(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}
