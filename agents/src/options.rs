//! Options of the command line that `mem_profiler` and `mem_server` share: which processes, and how
//! densely their sessions sample.

use std::path::PathBuf;

use clap::Args;

use crate::governor;
use crate::select::Selection;
use crate::target::Density;
use crate::values;

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

/// How densely to sample.
#[derive(Clone, Debug, Args)]
pub struct IntervalArgs {
    /// Mean bytes between samples; 1 samples every allocation; K and M are accepted as suffixes
    /// [default: 1024, and --max-overhead 5%]
    #[arg(short = 'c', long, value_name = "BYTES", allow_negative_numbers = true,
          default_value_if("leak_check", clap::builder::ArgPredicate::IsPresent, "1"), value_parser = values::interval)]
    pub interval: Option<u64>,

    /// Limit on the share of each process's CPU time that sampling takes, 0.01% to 50%: the
    /// interval starts at -c, and is widened to keep to it
    #[arg(long, value_name = "PERCENT", value_parser = values::overhead)]
    pub max_overhead: Option<f64>,

    /// Take as few as one in eight samples of objects that are freed at once, where enough is known
    /// about their call sites; each counts correspondingly more. Cheaper, and hardly less accurate
    /// where memory is held
    #[arg(long)]
    pub thin: bool,
}

impl IntervalArgs {
    /// Returns the limit on sampling, as a fraction of the CPU time. Without `-c` and
    /// `--max-overhead`, there is a default limit.
    pub fn overhead_limit(&self) -> Option<f64> {
        let is_default = self.interval.is_none() && self.max_overhead.is_none();
        is_default
            .then_some(governor::DEFAULT_MAX_OVERHEAD)
            .or(self.max_overhead)
    }

    /// Returns the sampling density at the beginning of a session.
    pub fn initial_density(&self) -> Density {
        let interval = self.interval.unwrap_or(governor::DEFAULT_INTERVAL);
        let interval = match self.overhead_limit() {
            Some(_) => interval.clamp(governor::MIN_INTERVAL, governor::MAX_INTERVAL),
            None => interval,
        };
        Density {
            interval,
            thinning: if self.thin { Density::THINNED } else { 0 },
        }
    }
}
