//! From files to one symbolized profile.

use std::path::{Path, PathBuf};

use anyhow::{Result, anyhow};
use clap::{CommandFactory, error::ErrorKind};
use heap_format::merge::{self, Base};
use heap_format::{LabelValue, Profile, maps, printable, variance};

use crate::cli::Cli;
use crate::series::Series;

/// What was read.
pub struct Loaded {
    /// All dumps as one profile, with symbols.
    pub profile: Profile,
    /// The moments of its dumps, where the profile keeps these apart.
    pub series: Series,
}

/// Reads the dumps, adds them up, subtracts the base and finds symbols.
/// Warnings go to standard error.
pub fn load(cli: &Cli) -> Result<Loaded> {
    let read = open_all(cli, &cli.dumps);
    let symbolized = |p: &Profile| p.locations.iter().any(|l| l.line_count > 0);
    let self_contained = |all: &Vec<Profile>| all.iter().all(symbolized) || cli.report.symbolize;
    if cli.report.rss {
        // Nothing in it has a name.
        let (profile, series) = combine(cli, read?)?;
        return Ok(Loaded { profile, series });
    }
    let elsewhere = !cli.symbols.symbol_path.is_empty() || cli.symbols.debuginfod;
    if cli.binary.is_none() && !elsewhere && !read.as_ref().is_ok_and(self_contained) {
        let message = "the program that was profiled is needed to name its functions: -p BINARY \
                       (or --symbol-path FOLDER)";
        Cli::command()
            .error(ErrorKind::MissingRequiredArgument, message)
            .exit();
    }
    let profiles = read?;
    if let Some(binary) = &cli.binary {
        for (profile, file) in profiles.iter().zip(&cli.dumps) {
            check(cli, profile, binary, file)?;
        }
    }
    let (mut profile, series) = if cli.report.leaks {
        in_order(cli, profiles)?
    } else {
        combine(cli, profiles)?
    };
    let options = symbols::Options {
        binary: cli.binary.as_deref(),
        force: cli.force,
        demangle: cli.view.demangle,
        folders: &cli.symbols.symbol_path,
        debuginfod: cli.symbols.debuginfod,
        perf_map: cli.symbols.perf_map.as_deref(),
    };
    for warning in symbols::symbolize(&mut profile, &options) {
        crate::say(&format!("warning: {warning}"));
    }
    if let Some(binary) = &cli.binary {
        rename_program(&mut profile, binary);
    }
    Ok(Loaded { profile, series })
}

/// Reads files; with error bars, where the output shows them.
fn open_all(cli: &Cli, files: &[PathBuf]) -> Result<Vec<Profile>, heap_format::ReadError> {
    let kind = &cli.report;
    let varied = cli.view.ci || kind.leaks || kind.rss || kind.svg || kind.flame || kind.html;
    let open = |file: &PathBuf| {
        let mut profile = heap_format::open(file)?;
        clean_units(&mut profile);
        if varied {
            variance::fill(&mut profile);
        }
        Ok(profile)
    };
    files.iter().map(open).collect()
}

/// What values count is named by the file, and is part of lines of every output.
fn clean_units(profile: &mut Profile) {
    let types = profile.sample_types.iter_mut();
    for kind in types.chain(&mut profile.period_type) {
        for text in [&mut kind.kind, &mut kind.unit] {
            *text = printable::printable(text).into_owned();
        }
    }
    for label in &mut profile.labels {
        if let LabelValue::Number(_, unit) = &mut label.value {
            *unit = printable::printable(unit).into_owned();
        }
    }
}

/// The dumps of one process beside each other, earliest first.
fn in_order(cli: &Cli, mut profiles: Vec<Profile>) -> Result<(Profile, Series)> {
    let mut files = cli.dumps.clone();
    for base in [&cli.base.base, &cli.base.diff_base] {
        // A base is just an earlier dump.
        profiles.splice(0..0, open_all(cli, base)?);
        files.splice(0..0, base.iter().cloned());
    }
    if profiles.len() == 1 {
        return Ok((profiles.swap_remove(0), Series::default()));
    }
    let series = Series::sort(&mut profiles, &mut files, cli.force)?;
    let mut profile = merge::side_by_side(&profiles)?;
    if let Some(last) = profiles.pop() {
        profile.facts = last.facts;
    }
    Ok((profile, series))
}

fn check(cli: &Cli, profile: &Profile, binary: &Path, file: &Path) -> Result<()> {
    if cli.force {
        return Ok(());
    }
    if let Some(warning) = symbols::doubt_binary(profile, binary) {
        crate::say(&format!("warning: {warning}"));
    }
    symbols::check_binary(profile, binary, &printable::path(file))
        .map_err(|message| anyhow!(message))
}

fn combine(cli: &Cli, mut profiles: Vec<Profile>) -> Result<(Profile, Series)> {
    // The page shows before and after too, so it needs both apart.
    let (files, base) = if cli.base.diff_base.is_empty() && cli.report.html {
        (&cli.base.base, Base::Comparison)
    } else if cli.base.diff_base.is_empty() {
        (&cli.base.base, Base::Difference)
    } else {
        (&cli.base.diff_base, Base::Comparison)
    };
    let bases = open_all(cli, files)?;
    // Outputs that list stacks show equal ones once.
    let lists_stacks = cli.report.traces || cli.report.raw || cli.report.proto;
    if bases.is_empty() && profiles.len() == 1 && !lists_stacks {
        return Ok((profiles.swap_remove(0), Series::default()));
    }
    let mut profile = merge::subtract(&profiles, &bases, base)?;
    let series = match (bases.as_slice(), profiles.as_slice()) {
        ([early], [late]) => Series::of_two(early, late),
        _ => Series::default(),
    };
    if !bases.is_empty() && !cli.report.html {
        // What a base knows of its stacks is no part of a difference.
        profile.details.clear();
    }
    Ok((profile, series))
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
