//! Generates completions and man pages from the definition of the command line.

use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::CommandFactory;
use profile::printable;

use super::{Cli, Document};
use crate::destination;

/// Prints or writes the requested document.
pub fn execute(document: &Document) -> Result<()> {
    match document {
        Document::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "mem_parser", &mut text);
            destination::to_stdout(&text)
        }
        Document::Man { directory } => man(directory),
    }
}

fn man(directory: &Path) -> Result<()> {
    let path_text = printable::path(directory);
    if !directory.is_dir() {
        bail!("the directory {path_text} does not exist; create it first: mkdir -p {path_text}");
    }
    clap_mangen::generate_to(Cli::command(), directory)
        .with_context(|| format!("{path_text}: man pages cannot be written there"))
}
