//! `mem_parser`: reads heap and CPU profiles, prints tables and draws call graphs.
//!
//! Connects the command line, the library and the output. Results go to standard output, warnings
//! and errors to standard error. Exit codes: 0 for success, 1 for failure, 2 for invalid usage.

mod cli;
mod destination;

use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, anyhow};
use mem_parser::load::{self, Missing};
use mem_parser::program::NoProgram;
use profile::{locale, numbering, printable};

use cli::Cli;
use destination::Destination;

fn main() -> ExitCode {
    let cli = Cli::of_process();
    let result = match &cli.command {
        Some(document) => cli::documents::execute(document),
        None => run(&cli),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.is::<NoProgram>() || error.is::<BadUsage>() => {
            cli::fail(&error.to_string())
        }
        Err(error) => {
            say(&format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

/// Prints a message. Escapes it, because it may contain names from untrusted files.
fn say(message: &str) {
    // If standard error cannot be written, the message is lost.
    let _ = writeln!(
        std::io::stderr(),
        "mem_parser: {}",
        printable::text(message)
    );
}

fn warn(warning: String) {
    say(&format!("warning: {warning}"));
}

/// Error for an invalid value of an option.
#[derive(Debug, thiserror::Error)]
#[error("{0:#}\nFor all options, try 'mem_parser --help'.")]
struct BadUsage(anyhow::Error);

fn run(cli: &Cli) -> Result<()> {
    let options = cli.options().map_err(BadUsage)?;
    let output = cli.report.output().map_err(BadUsage)?;
    cli.check_output().map_err(BadUsage)?;
    cli.check_input().map_err(BadUsage)?;
    cli.missing_directories().for_each(warn);
    let destination = destination(cli);
    destination.check()?;
    let sources = cli.sources();
    destination.check_differs_from(sources.files())?;
    let loaded = load::load(&sources, &output.needs(&options), &mut warn);
    let combined = loaded.map_err(|error| with_suggestion(cli, error))?;
    let selection = mem_parser::select(combined, &options)?;
    selection.warnings().iter().cloned().for_each(warn);
    if let Some(hint) = selection.hint(&output, &options) {
        say(&format!("hint: {hint}"));
    }
    let mut content = mem_parser::render(&selection, &output, &options)?;
    if matches!(destination, Destination::Stdout) && locale::is_ascii_terminal(&io::stdout()) {
        content = mem_parser::report::in_ascii(output.format(), content);
    }
    destination.write(&content)?;
    if let Destination::Named(file) = &destination {
        say(&format!("{}: written", printable::path(file)));
    }
    // The process exits, so freeing the memory would only take time.
    std::mem::forget(selection);
    Ok(())
}

fn destination(cli: &Cli) -> Destination {
    match (
        cli.file(),
        cli.report.extension(),
        naming_dump(&cli.dumps()).cloned(),
    ) {
        (Some(file), _, _) => Destination::File(file.to_path_buf()),
        (None, Some(extension), Some(dump))
            if cli.output.is_none() && io::stdout().is_terminal() =>
        {
            Destination::Named(destination::name_for(&dump, extension))
        }
        _ => Destination::Stdout,
    }
}

/// Returns the dump that the output is named after: the last one. If the names differ only in
/// numbers, returns the one with the highest number, because a shell sorts 10000 before 9999.
fn naming_dump(dumps: &[PathBuf]) -> Option<&PathBuf> {
    let last = dumps.last()?;
    let key = numbering::key(last);
    let alike = dumps.iter().map(|dump| (numbering::key(dump), dump));
    let alike = alike.filter(|(other, _)| other.differs_only_in_numbers(&key));
    alike.max_by(|a, b| a.0.cmp(&b.0)).map(|(_, dump)| dump)
}

/// Extends the error for a missing dump if its name was probably meant as an option or a command.
fn with_suggestion(cli: &Cli, error: anyhow::Error) -> anyhow::Error {
    match error
        .downcast_ref::<Missing>()
        .and_then(|missing| cli.suggestion_for(missing))
    {
        Some(suggestion) => anyhow!("{error}; did you mean {suggestion}?"),
        None => error,
    }
}
