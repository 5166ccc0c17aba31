//! Finds the other programs of this project, which are installed in the same directory.

use std::path::PathBuf;

/// Returns the path of program `name` in this program's directory, or else its bare name, to be
/// found in `PATH`.
pub fn program(name: &str) -> PathBuf {
    let exe = std::env::current_exe().ok();
    let path = exe.map(|exe| exe.with_file_name(name));
    path.filter(|path| path.is_file())
        .unwrap_or_else(|| name.into())
}
