//! Options of `self-profile`, which the agent starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of `self-profile`.
#[derive(Debug, Args)]
pub struct SelfProfileArgs {
    /// The process that asks
    #[arg(long)]
    pub pid: i32,

    /// What it requests
    #[arg(long, value_enum)]
    pub action: Action,

    /// The dump's name, or the prefix of the dumps' names
    #[arg(long, required_if_eq_any([("action", "dump"), ("action", "watch")]),
          allow_hyphen_values = true)]
    pub file: Option<PathBuf>,

    /// Why it wants a dump
    #[arg(long, default_value = "", allow_hyphen_values = true)]
    pub reason: String,

    /// Descriptor of the socket for the result
    #[arg(long)]
    pub socket: i32,
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Action {
    /// A session from now on
    Start,
    /// Its end
    Stop,
    /// A dump
    Dump,
    /// A dump as the answer
    Text,
    /// Dumps until the process exits
    Watch,
}
