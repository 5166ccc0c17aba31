//! What the caller wants.

use std::path::{Path, PathBuf};

use super::demangle::Style;

/// Files and services that symbols are looked up in.
pub struct Options<'a> {
    /// The program that was profiled, wherever it is now.
    pub binary: Option<&'a Path>,
    /// Use files although their build ids differ.
    pub force: bool,
    /// Style of C++ and Rust names.
    pub demangle: Style,
    /// Directories with the files of another machine, or with debug files.
    pub directories: &'a [PathBuf],
    /// Ask `debuginfod-find` for what is not here.
    pub debuginfod: bool,
    /// Names of JIT code.
    pub perf_map: Option<&'a Path>,
}
