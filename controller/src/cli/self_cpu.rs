//! Options of `self-cpu`, which the agent starts.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Options of `self-cpu`.
#[derive(Debug, Args)]
pub struct SelfCpuArgs {
    /// The process that asks
    #[arg(long)]
    pub pid: i32,

    /// What it requests
    #[arg(long, value_enum)]
    pub action: CpuAction,

    /// The profile's file
    #[arg(long, allow_hyphen_values = true)]
    pub file: PathBuf,

    /// Descriptor of the socket for the result
    #[arg(long)]
    pub socket: i32,
}

/// What is requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CpuAction {
    /// A profile from now on
    Start,
    /// The same, of samples that the process takes itself: it leaves some out
    StartFiltered,
}
