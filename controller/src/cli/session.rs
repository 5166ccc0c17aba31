//! Options of sessions, and of what resembles them.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use nix::sys::signal::Signal;

use super::{PushArgs, values};
use crate::governor;
use crate::select::Selection;
use crate::target::Density;
use crate::triggers::{Threshold, Triggers};

/// Selection of processes.
#[derive(Clone, Debug, Default, Args)]
pub struct SelectArgs {
    /// Process, by pid, name or pattern (redis*); may be given several times
    /// [default: all of this user; as root, of all users]
    #[arg(short, long = "process", value_name = "PID|NAME", value_parser = values::process)]
    pub processes: Vec<String>,

    /// Processes of this control group and those below it
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<PathBuf>,

    /// Processes of this user
    #[arg(long, value_name = "USER", value_parser = values::user)]
    pub user: Option<u32>,
}

impl From<SelectArgs> for Selection {
    fn from(args: SelectArgs) -> Self {
        Self {
            names: args.processes,
            cgroup: args.cgroup,
            user: args.user,
        }
    }
}

/// Where dumps go.
#[derive(Clone, Debug, Args)]
pub struct OutputArgs {
    /// How dumps are named: PREFIX<name>.<pid>.<number>.heap
    #[arg(short, long, value_name = "PREFIX", default_value = "./custom_prof")]
    pub output: PathBuf,
}

/// How densely to sample.
#[derive(Clone, Debug, Args)]
pub struct IntervalArgs {
    /// Mean bytes between samples; 1 samples every allocation; K and M are accepted as suffixes
    #[arg(short = 'c', long, value_name = "BYTES", allow_negative_numbers = true, default_value = "1024",
          default_value_if("leak_check", clap::builder::ArgPredicate::IsPresent, "1"), value_parser = values::interval)]
    pub interval: u64,

    /// Limit on the share of each process's CPU time that sampling takes, 0.01% to 50%: the
    /// interval starts at -c, and is widened or narrowed to keep to it
    #[arg(long, value_name = "PERCENT", value_parser = values::overhead)]
    pub max_overhead: Option<f64>,

    /// Take as few as one in eight samples of objects that are freed at once, where enough is known
    /// about their call sites; each counts correspondingly more. Cheaper, and hardly less accurate
    /// where memory is held
    #[arg(long)]
    pub thin: bool,
}

impl IntervalArgs {
    /// How densely a session samples at its beginning.
    pub fn first(&self) -> Density {
        let interval = match self.max_overhead {
            Some(_) => self.interval.clamp(governor::FLOOR, governor::CEILING),
            None => self.interval,
        };
        Density {
            interval,
            thinning: if self.thin { Density::THINNED } else { 0 },
        }
    }
}

/// Given to each option: a heading of the group would also apply to what follows it.
const DUMPS: &str = "Dumps during the session";

/// When to write a dump besides the one at the end. All may be combined.
#[derive(Clone, Debug, Default, Args)]
pub struct TriggerArgs {
    /// At this interval
    #[arg(help_heading = DUMPS, long, value_name = "TIME", value_parser = values::seconds)]
    pub every: Option<Duration>,

    /// Each time this much has been allocated
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = values::amount)]
    pub every_alloc: Option<u64>,

    /// Each time the live heap has grown by this much
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = values::amount)]
    pub every_growth: Option<u64>,

    /// Write the profile of the live heap's high-water mark, too, at the end
    #[arg(help_heading = DUMPS, long)]
    pub peak: bool,

    /// When the resident memory exceeds this
    #[arg(help_heading = DUMPS, long, value_name = "BYTES", value_parser = values::amount)]
    pub on_rss: Option<u64>,

    /// When the control group's memory exceeds this, or this share of its limit (90%)
    #[arg(help_heading = DUMPS, long, value_name = "BYTES|PERCENT", value_parser = values::threshold)]
    pub on_cgroup: Option<Threshold>,

    /// When this signal is sent to mem_profiler
    #[arg(help_heading = DUMPS, long, value_name = "SIGNAL", value_parser = values::dump_signal)]
    pub signal: Option<Signal>,

    /// Keep at most this many dumps of each process; the oldest are removed
    #[arg(help_heading = DUMPS, long, value_name = "N", value_parser = values::count)]
    pub keep: Option<usize>,
}

impl From<TriggerArgs> for Triggers {
    fn from(args: TriggerArgs) -> Self {
        Self {
            every: args.every,
            every_alloc: args.every_alloc,
            every_growth: args.every_growth,
            peak: args.peak,
            on_rss: args.on_rss,
            on_cgroup: args.on_cgroup,
            signal: args.signal,
            keep: args.keep,
        }
    }
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

    /// Print only what goes wrong
    #[arg(short, long, conflicts_with_all = ["html", "open"])]
    pub quiet: bool,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub triggers: TriggerArgs,

    #[command(flatten)]
    pub push: PushArgs,
}

/// What to do with the dumps of a session's end.
#[derive(Clone, Copy, Debug, Default, Args)]
pub struct PageArgs {
    /// Also make a page of each process's last dump, with mem_parser: FILE.html for FILE.heap
    #[arg(long)]
    pub html: bool,

    /// Make the pages, and open the one of the largest heap in a browser
    #[arg(long)]
    pub open: bool,
}
