//! Options of sessions and of similar commands.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mem_agents::options::{IntervalArgs, SelectArgs};
use mem_agents::values;

use super::{PushArgs, TriggerArgs};

/// Default prefix of the names of dumps.
pub const DEFAULT_PREFIX: &str = "./custom_prof";

/// Where dumps go.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// How dumps are named: PREFIX<name>.<pid>.<number>.heap
    #[arg(short, long, value_name = "PREFIX", default_value = DEFAULT_PREFIX)]
    pub output: PathBuf,
}

/// A session's options.
#[derive(Clone, Debug, Args)]
pub struct SessionArgs {
    /// How long to sample: seconds, or with a unit (90s, 5m, 2h); without it, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds)]
    pub seconds: Option<Duration>,

    #[command(flatten)]
    pub interval: IntervalArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub select: SelectArgs,

    /// All processes of this user (as root, of all users); the default if no process is named
    #[arg(long, conflicts_with = "processes")]
    pub all: bool,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub triggers: TriggerArgs,

    #[command(flatten)]
    pub push: PushArgs,
}

/// How much is printed.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct QuietArgs {
    /// Print only what goes wrong
    #[arg(short, long, conflicts_with_all = ["html", "open"])]
    pub quiet: bool,

    /// Print one JSON array of the files that were written, for programs
    #[arg(long)]
    pub json: bool,
}

/// Options for the files that a command writes.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PageArgs {
    /// Also make a page of each process's last profile, with mem_parser: FILE.html beside it
    #[arg(long)]
    pub html: bool,

    /// Make the pages, and open the one of the largest profile in a browser
    #[arg(long)]
    pub open: bool,
}
