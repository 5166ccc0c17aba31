//! Options of a lookup.

use std::path::{Path, PathBuf};

use super::demangle::Style;

/// Files and services to look up symbols in.
pub struct Options<'a> {
    /// The profiled program, if it is no longer at its recorded path.
    pub binary: Option<&'a Path>,
    /// Use files even if their build ids differ.
    pub force: bool,
    /// Style of C++ and Rust names.
    pub demangle: Style,
    /// Directories to search first: the root of another machine's filesystem, or directories
    /// with debug files.
    pub directories: &'a [PathBuf],
    /// Ask `debuginfod-find` for files that are not on this machine.
    pub debuginfod: bool,
    /// List of JIT-compiled functions, instead of the process's own `/tmp/perf-PID.map`.
    pub perf_map: Option<&'a Path>,
}
