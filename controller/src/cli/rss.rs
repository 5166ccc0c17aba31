//! Options of `rss`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use mem_agents::values;

use super::{PageArgs, ProgramArgs, QuietArgs};

/// Options of `rss`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct RssArgs {
    /// Alternative to sampling processes that run
    #[command(subcommand)]
    pub command: Option<RssCommand>,

    /// Process, by pid, name or pattern (redis*), or a control group by its path or name; may be
    /// given several times
    #[arg(short, long = "process", value_name = "PID|NAME|CGROUP", value_parser = values::process)]
    pub processes: Vec<String>,

    #[command(flatten)]
    pub sampling: RssSamplingArgs,
}

/// Alternatives of `rss` to sampling processes that run.
#[derive(Debug, Subcommand)]
pub enum RssCommand {
    /// Start a program and sample it, but not its children; the exit code is the program's
    Run {
        #[command(flatten)]
        sampling: RssSamplingArgs,

        #[command(flatten)]
        program: ProgramArgs,
    },
}

/// How to sample page faults.
#[derive(Clone, Debug, Args)]
pub struct RssSamplingArgs {
    /// How long to sample: seconds, or with a unit (90s, 5m, 2h); without it, until Ctrl-C or the
    /// end of the processes
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds)]
    pub seconds: Option<Duration>,

    /// Write a profile of each process each time this has passed, besides the last one
    #[arg(long, value_name = "TIME", value_parser = values::seconds)]
    pub every: Option<Duration>,

    /// Page faults sampled per second and thread, 1 to 10000; if there are fewer, each is sampled
    #[arg(short = 'F', long, value_name = "HZ", allow_negative_numbers = true,
          default_value = "999", value_parser = values::rate)]
    pub frequency: u32,

    /// How profiles are named: PREFIX<name>.<pid>.<number>.rss
    #[arg(short, long, value_name = "PREFIX", default_value = "./rss_")]
    pub output: PathBuf,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,
}
