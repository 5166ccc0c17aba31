//! The command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use mem_agents::options::{IntervalArgs, SelectArgs};

use crate::address::Address;
use crate::push::PushArgs;
use crate::writing::WriteArgs;

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
    /// Serve the processes' profiles over HTTP: a live page, pprof, Prometheus
    Serve(ServeArgs),
    /// Send the processes' profiles to a receiver at regular intervals
    Push(PushArgs),
    /// For the server itself: names the code of a profile
    #[command(hide = true)]
    Names,
    /// For the server itself: writes the profile of a process
    #[command(hide = true)]
    Write(WriteArgs),
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write man pages into a directory
    Man {
        /// The directory
        directory: PathBuf,
    },
}

/// Options of `serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to listen: ADDRESS:PORT, or unix:PATH for a socket of this user alone
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:4040")]
    pub listen: Address,

    /// File with the token that clients must send; required except on loopback or a socket
    #[arg(long, value_name = "FILE")]
    pub token_file: Option<PathBuf>,

    /// Sample every process all the time, not only while a client requests its profile
    #[arg(long)]
    pub sample: bool,

    /// Print only what goes wrong
    #[arg(short, long)]
    pub quiet: bool,

    /// How densely its sessions sample.
    #[command(flatten)]
    pub interval: IntervalArgs,

    /// Which processes are served.
    #[command(flatten)]
    pub select: SelectArgs,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_reference_is_current() {
        helpers::reference::check(Cli::command());
    }
}
