//! Options of `cpu`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use mem_agents::options::{IntervalArgs, SelectArgs};
use mem_agents::values;

use super::{PageArgs, ProgramArgs, QuietArgs};

/// Options of `cpu`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct CpuArgs {
    /// Alternative to sampling processes that run
    #[command(subcommand)]
    pub command: Option<CpuCommand>,

    /// Process, by pid, name or pattern (redis*), or a control group by its path or name; may be
    /// given several times
    #[arg(short, long = "process", value_name = "PID|NAME|CGROUP", value_parser = values::process)]
    pub processes: Vec<String>,

    #[command(flatten)]
    pub sampling: CpuSamplingArgs,
}

/// Alternatives of `cpu` to sampling processes that run.
#[derive(Debug, Subcommand)]
pub enum CpuCommand {
    /// Start a program and sample it and its children; the exit code is the program's
    Run {
        #[command(flatten)]
        sampling: CpuSamplingArgs,

        #[command(flatten)]
        program: ProgramArgs,
    },
}

/// How to sample CPU time.
#[derive(Clone, Debug, Args)]
pub struct CpuSamplingArgs {
    /// How long to sample: seconds, or with a unit (90s, 5m, 2h); without it, until Ctrl-C or the
    /// end of the processes
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds)]
    pub seconds: Option<Duration>,

    /// Samples per second of CPU time, 1 to 10000
    #[arg(short = 'F', long, value_name = "HZ", allow_negative_numbers = true,
          default_value = "99", value_parser = values::rate)]
    pub frequency: u32,

    /// How profiles are named: PREFIX<name>.<pid>.<number>.cpu
    #[arg(short, long, value_name = "PREFIX", default_value = "./cpu_")]
    pub output: PathBuf,

    /// Sample waiting threads, too: elapsed time
    #[arg(long, conflicts_with = "offcpu")]
    pub wall: bool,

    /// Sample only waiting threads: which ones wait, and for what
    #[arg(long, conflicts_with = "engine")]
    pub offcpu: bool,

    /// Use only this engine, and fail if it is not available [default: the best that is allowed]
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,

    /// Format of the profiles; gperftools: PREFIX<name>.<pid>.<number>.prof, for google-pprof and
    /// go tool pprof
    #[arg(long, value_enum, default_value_t)]
    pub format: CpuFormat,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,
}

/// Formats of CPU profiles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CpuFormat {
    /// mem_profiler's own: times, threads, the kernel's functions and the engine
    #[default]
    Cpu,
    /// gperftools' binary CPU profile: whole samples, addresses only
    Gperftools,
}

/// Options of `both`.
#[derive(Debug, Args)]
pub struct BothArgs {
    /// How long to sample: seconds, or with a unit (90s, 5m, 2h); without it, until Ctrl-C
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds)]
    pub seconds: Option<Duration>,

    #[command(flatten)]
    pub interval: IntervalArgs,

    /// Samples per second of CPU time, 1 to 10000
    #[arg(short = 'F', long, value_name = "HZ", allow_negative_numbers = true,
          default_value = "99", value_parser = values::rate)]
    pub frequency: u32,

    /// How the files are named: PREFIX<name>.<pid>.<number>.heap and .cpu
    #[arg(short, long, value_name = "PREFIX", default_value = "./both_")]
    pub output: PathBuf,

    /// Use only this engine, and fail if it is not available [default: the best that is allowed]
    #[arg(long, value_enum)]
    pub engine: Option<EngineName>,

    #[command(flatten)]
    pub select: SelectArgs,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,
}

/// The ways to sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum EngineName {
    /// The kernel's perf events: exact, with kernel functions where that is allowed
    Perf,
    /// The agent in the process, by a timer for each thread: for processes that carry it; no
    /// permission to trace them is needed
    Timers,
    /// Each thread is stopped for a few microseconds each time it has run long enough
    Ptrace,
}
