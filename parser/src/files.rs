//! The files that are read, and how.

use std::path::{Path, PathBuf};

use heap_format::merge::Base;
use symbols::demangle::Style;

use crate::python::Shown;

/// Files that a profile is made of.
#[derive(Clone, Debug)]
pub struct Sources {
    /// The dumps. Several are added up, but those of one session, of which the last counts.
    pub dumps: Vec<PathBuf>,
    /// Dumps that are subtracted.
    pub base: Vec<PathBuf>,
    /// Rule of the subtraction.
    pub base_rule: Base,
    /// The program that was profiled.
    pub binary: Option<PathBuf>,
    /// Files are used although they seem to be of another program or session.
    pub force: bool,
    /// Style of C++ and Rust names.
    pub demangle: Style,
    /// Directories with the files of another machine, or with debug files.
    pub symbol_directories: Vec<PathBuf>,
    /// `debuginfod-find` supplies what is not on this machine.
    pub debuginfod: bool,
    /// Names of JIT code.
    pub perf_map: Option<PathBuf>,
    /// Code without a symbol is called after its file alone.
    pub module_names: bool,
    /// Which frames of stacks with Python are shown.
    pub python: Shown,
}

impl Sources {
    /// The files that are named one by one.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let dumps = self.dumps.iter().chain(&self.base);
        let others = self.binary.iter().chain(&self.perf_map);
        dumps.chain(others).map(PathBuf::as_path)
    }
}
