//! `mem_parser`: reads heap profiles, prints tables and draws call graphs.
//!
//! Glue only: the command line, the library, a file or standard output. Results go to standard
//! output, warnings and errors to standard error. Exit codes: 0 ok, 1 failed, 2 bad usage.

mod cli;
mod destination;

use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;
use mem_parser::load::{self, NoProgram};

use cli::Cli;

fn main() -> ExitCode {
    match run(Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<NoProgram>() => cli::missing_argument(&error.to_string()),
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a message without anything that acts on a terminal: it may hold names from anywhere.
fn say(message: &str) {
    eprintln!("mem_parser: {}", heap_format::printable::text(message));
}

fn warn(warning: String) {
    say(&format!("warning: {warning}"));
}

fn run(cli: Cli) -> Result<()> {
    if let Some(file) = &cli.output {
        destination::check(file)?;
    }
    let options = cli.options()?;
    let output = cli.report.output()?;
    let combined = load::load(&cli.sources(), &output.needs(&options), &mut warn)?;
    let selection = mem_parser::select(combined, &options)?;
    selection.warnings().iter().cloned().for_each(warn);
    let content = mem_parser::render(&selection, &output, &options)?;
    let written = destination::write(cli.output.as_deref(), &content);
    // The program ends: its memory goes as a whole, not piece by piece.
    std::mem::forget(selection);
    written
}
