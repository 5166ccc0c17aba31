//! `mem_parser`: reads heap profiles, prints tables and draws call graphs.
//!
//! Glue only: arguments, reading, symbols, one report, output. Results go to
//! standard output, talk to standard error. Exit codes: 0 ok, 1 failed, 2 bad
//! usage.

mod callgraph;
mod cli;
mod demangle;
mod elf;
mod graph;
mod measure;
mod nodes;
mod output;
mod report;
mod symbols;
mod view;

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use clap::{CommandFactory, Parser, error::ErrorKind};
use heap_format::Profile;

use cli::Cli;
use graph::{Order, Trim};
use nodes::Nodes;
use view::View;

fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(&cli) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mem_parser: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<()> {
    if let Some(output) = &cli.output {
        output::check(output)?;
    }
    let profile = load(cli)?;
    let program = program(cli, &profile);
    let mut view = View::new(profile, cli.values.wanted())?;
    view.drop_allocator_frames()?;
    let nodes = Nodes::new(&view, cli.view.granularity, !cli.view.noinlines);
    let context = report::Context {
        view: &view,
        nodes: &nodes,
        trim: trim(cli),
        unit: cli.view.unit.clone(),
        program: program.as_deref(),
        files: &cli.files,
    };
    let text = if cli.report.svg {
        report::svg::render(&context)
    } else {
        report::top::render(&context)
    };
    output::write(cli.output.as_deref(), text.as_bytes())
}

/// Reads the dump and gives it symbols.
fn load(cli: &Cli) -> Result<Profile> {
    let file = &cli.files[0];
    let read = heap_format::open(file);
    let self_contained = |p: &Profile| p.locations.iter().any(|l| l.line_count > 0);
    if cli.binary.is_none() && !read.as_ref().is_ok_and(self_contained) {
        let message = "the program that was profiled is needed to name its functions: -p BINARY";
        Cli::command()
            .error(ErrorKind::MissingRequiredArgument, message)
            .exit();
    }
    let mut profile = read?;
    if let (Some(binary), false) = (&cli.binary, cli.force) {
        symbols::check_binary(&profile, binary, &file.display().to_string())
            .map_err(|message| anyhow!(message))?;
    }
    let options = symbols::Options {
        binary: cli.binary.as_deref(),
        force: cli.force,
        demangle: cli.view.demangle,
    };
    for warning in symbols::symbolize(&mut profile, &options) {
        eprintln!("mem_parser: warning: {warning}");
    }
    Ok(profile)
}

/// The program: as given, otherwise as the dump names it.
fn program(cli: &Cli, profile: &Profile) -> Option<std::path::PathBuf> {
    let recorded = || symbols::main_mapping(profile).map(|i| profile.mappings[i].path.as_path());
    cli.binary
        .as_deref()
        .or_else(recorded)
        .map(Path::to_path_buf)
}

fn trim(cli: &Cli) -> Trim {
    let view = &cli.view;
    let order = match (cli.report.svg, view.cum) {
        (true, _) => Order::Entropy,
        (false, true) => Order::Cum,
        (false, false) => Order::Flat,
    };
    let default_count = if cli.report.svg { 80 } else { 0 };
    Trim {
        node_count: view.nodecount.unwrap_or(default_count),
        node_fraction: view.nodefraction,
        edge_fraction: view.edgefraction,
        order,
    }
}
