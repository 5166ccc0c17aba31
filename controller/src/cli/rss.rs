//! Options of `rss`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mem_agents::values;

use super::{PageArgs, QuietArgs};

/// Options of `rss`.
#[derive(Debug, Args)]
pub struct RssArgs {
    /// Process, by pid, name or pattern (redis*), or a control group by its path or name; may be
    /// given several times
    #[arg(short, long = "process", value_name = "PID|NAME|CGROUP", value_parser = values::process,
          required = true)]
    pub processes: Vec<String>,

    /// How long to sample: seconds, or with a unit (90s, 5m, 2h); without it, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds)]
    pub seconds: Option<Duration>,

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
