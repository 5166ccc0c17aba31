//! The command line.

use clap::{Parser, Subcommand};

/// Serve and send the profiles of processes that carry the agent.
#[derive(Debug, Parser)]
#[command(name = "mem_server", version, max_term_width = 100)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// For the server itself: names the code of a profile
    #[command(hide = true)]
    Names,
}
