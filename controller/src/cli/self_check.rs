//! Options of `self-check`, which the agent starts.

use clap::{Args, ValueEnum};

/// Options of `self-check`.
#[derive(Debug, Args)]
pub struct SelfCheckArgs {
    /// The process that asks
    #[arg(long)]
    pub pid: i32,

    /// Its `HEAPCHECK`
    #[arg(long, allow_hyphen_values = true)]
    pub mode: String,

    /// What the program calls the check
    #[arg(long, allow_hyphen_values = true)]
    pub name: String,

    /// How the result is reported
    #[arg(long, value_enum)]
    pub style: Style,

    /// Descriptor of the socket for what was lost before, and for the result
    #[arg(long)]
    pub socket: i32,
}

/// How the result is reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Style {
    /// With gperftools' first line
    Gperftools,
    /// With LeakSanitizer's last line
    Sanitizer,
    /// Not at all
    Silent,
}
