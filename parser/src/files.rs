//! The input files of a profile, and how to read them.

use std::path::{Path, PathBuf};

use profile::merge::Base;
use symbols::demangle::Style;

use crate::python::FrameSelection;

/// Input files, and options for reading them.
#[derive(Clone, Debug)]
pub struct Sources {
    /// Dumps to add up. Of several dumps of one session, only the last one is used.
    pub dumps: Vec<PathBuf>,
    /// Dumps to subtract.
    pub base: Vec<PathBuf>,
    /// Treatment of `base`.
    pub base_rule: Base,
    /// Binary of the profiled program, if given.
    pub binary: Option<PathBuf>,
    /// Use files that seem to belong to another program or session.
    pub force: bool,
    /// Style of C++ and Rust names.
    pub demangle: Style,
    /// Directories to search first: the root of another machine's filesystem, or directories with
    /// debug files.
    pub symbol_directories: Vec<PathBuf>,
    /// Ask `debuginfod-find` for files that are not on this machine.
    pub debuginfod: bool,
    /// Perf map with the names of JIT code, if given.
    pub perf_map: Option<PathBuf>,
    /// Name code without a symbol after its file only.
    pub module_names: bool,
    /// Selection of the frames of Python stacks.
    pub python: FrameSelection,
}

impl Sources {
    /// Returns the files that are named individually.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let dumps = self.dumps.iter().chain(&self.base);
        let others = self.binary.iter().chain(&self.perf_map);
        dumps.chain(others).map(PathBuf::as_path)
    }
}
