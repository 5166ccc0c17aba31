//! Options of `go`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use mem_agents::values;

use super::{PageArgs, QuietArgs};

/// Options of `go`.
#[derive(Debug, Args)]
pub struct GoArgs {
    /// Process, by pid, name or pattern (prometheus*), or a control group by its path or name; may
    /// be given several times
    #[arg(short, long = "process", value_name = "PID|NAME|CGROUP", value_parser = values::process,
          required = true)]
    pub processes: Vec<String>,

    /// If the program samples nothing: switch that on for the session, by writing 524288 to its
    /// runtime.MemProfileRate, and off again at the end
    #[arg(long)]
    pub enable: bool,

    /// With --enable: length of the session, in seconds or with a unit (90s, 5m, 2h); without it,
    /// until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds, requires = "enable")]
    pub seconds: Option<Duration>,

    /// How dumps are named: PREFIX<name>.<pid>.<number>.heap
    #[arg(short, long, value_name = "PREFIX", default_value = "./go_")]
    pub output: PathBuf,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,
}
