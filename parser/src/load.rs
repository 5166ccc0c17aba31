//! From files to one symbolized profile.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use heap_format::merge::Base;
use heap_format::{Profile, ReadError, maps, printable};
use symbols::demangle::Style;

use crate::combine::{self, Combined};
use crate::report::format::{Dumps, Needs, Symbols};
use crate::series;

/// Files that a profile is made of.
#[derive(Debug)]
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
    /// `debuginfod-find` is asked for what is not here.
    pub debuginfod: bool,
    /// Names of JIT code.
    pub perf_map: Option<PathBuf>,
}

/// The error that no program was given to find names in.
#[derive(Debug, thiserror::Error)]
#[error(
    "the program that was profiled is needed to name its functions: -p BINARY \
     (or --symbol-path DIRECTORY)"
)]
pub struct NoProgram;

/// Reads the dumps, combines them as the format needs it and finds symbols. Warnings go to
/// `warn`, also before an error.
pub fn load(sources: &Sources, needs: &Needs, warn: &mut dyn FnMut(String)) -> Result<Combined> {
    let read = open_all(&sources.dumps, needs);
    if needs.symbols == Symbols::Required && !can_name(sources, &read) {
        return Err(NoProgram.into());
    }
    let dumps = read?;
    if needs.symbols == Symbols::Unused {
        return combined(sources, needs, dumps, warn);
    }
    if let Some(binary) = sources.binary.as_ref().filter(|_| !sources.force) {
        for (profile, file) in dumps.iter().zip(&sources.dumps) {
            check(profile, binary, file, warn)?;
        }
    }
    let mut combined = combined(sources, needs, dumps, warn)?;
    let options = symbols::Options {
        binary: sources.binary.as_deref(),
        force: sources.force,
        demangle: sources.demangle,
        directories: &sources.symbol_directories,
        debuginfod: sources.debuginfod,
        perf_map: sources.perf_map.as_deref(),
    };
    let warnings = symbols::symbolize(&mut combined.profile, &options);
    warnings.into_iter().for_each(warn);
    if let Some(binary) = &sources.binary {
        rename_program(&mut combined.profile, binary);
    }
    Ok(combined)
}

fn open_all(files: &[PathBuf], needs: &Needs) -> Result<Vec<Profile>, ReadError> {
    let open = |file: &PathBuf| {
        let mut profile = heap_format::open(file)?;
        combine::prepare(&mut profile, needs);
        Ok(profile)
    };
    files.iter().map(open).collect()
}

/// Whether there is anything to find names in.
fn can_name(sources: &Sources, read: &Result<Vec<Profile>, ReadError>) -> bool {
    let symbolized = |p: &Profile| p.locations.iter().any(|l| l.line_count > 0);
    let elsewhere = !sources.symbol_directories.is_empty() || sources.debuginfod;
    let self_contained = || read.as_ref().is_ok_and(|all| all.iter().all(symbolized));
    sources.binary.is_some() || elsewhere || self_contained()
}

fn combined(
    sources: &Sources,
    needs: &Needs,
    mut dumps: Vec<Profile>,
    warn: &mut dyn FnMut(String),
) -> Result<Combined> {
    let mut bases = open_all(&sources.base, needs)?;
    match needs.dumps {
        Dumps::Series => {
            // A base is just an earlier dump.
            bases.append(&mut dumps);
            let files = sources.base.iter().chain(&sources.dumps);
            combine::in_order(bases, files.cloned().collect(), sources.force)
        }
        Dumps::Single if dumps.len() + bases.len() > 1 => {
            bail!("--rss shows one moment: give it one dump")
        }
        Dumps::Single | Dumps::Sum | Dumps::BaseApart => {
            if !sources.force {
                series::check_base((&dumps, &sources.dumps), (&bases, &sources.base))?;
                dumps = series::last_of_each(dumps, &sources.dumps, warn);
                bases = series::last_of_each(bases, &sources.base, warn);
            }
            combine::sum(dumps, &bases, sources.base_rule, needs)
        }
    }
}

fn check(
    profile: &Profile,
    binary: &Path,
    file: &Path,
    warn: &mut dyn FnMut(String),
) -> Result<()> {
    if let Some(warning) = symbols::doubt_binary(profile, binary) {
        warn(warning);
    }
    symbols::check_binary(profile, binary, &printable::path(file))?;
    Ok(())
}

/// Calls the program what the user calls it.
fn rename_program(profile: &mut Profile, binary: &Path) {
    let Some(main) = symbols::main_mapping(profile) else {
        return;
    };
    let path = maps::strip_deleted(&profile.mappings[main].path)
        .0
        .to_path_buf();
    for mapping in &mut profile.mappings {
        if maps::strip_deleted(&mapping.path).0 == path {
            mapping.path = binary.to_path_buf();
        }
    }
    move_to_front(profile, main);
}

/// Puts a mapping first: readers of pprof's format take that for the program.
fn move_to_front(profile: &mut Profile, mapping: usize) {
    profile.mappings.swap(0, mapping);
    let mapping = mapping as u32;
    for location in &mut profile.locations {
        location.mapping = match location.mapping {
            0 => mapping,
            m if m == mapping => 0,
            m => m,
        };
    }
}
