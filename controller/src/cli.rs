//! Definition of the command line, from which help, completions and man pages are generated.

mod cpu;
mod go;
mod leaks;
mod push;
mod rss;
mod self_check;
mod self_cpu;
mod self_profile;
mod session;
mod triggers;
mod usage;

pub use self_check::{SelfCheckArgs, Style};
pub use self_cpu::{CpuAction, SelfCpuArgs};
pub use self_profile::{Action, SelfProfileArgs};
pub use session::{OutputArgs, PageArgs, QuietArgs, SessionArgs};
pub use triggers::TriggerArgs;

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::builder::PossibleValue;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};
use mem_agents::options::{IntervalArgs, SelectArgs};
use mem_agents::text;
use mem_agents::values;
use symbols::interpreter::FrameSelection;

use crate::top::sort::Sort;

pub use clap_complete::Shell;
pub use cpu::{BothArgs, CpuArgs, CpuCommand, CpuFormat, CpuSamplingArgs, EngineName};
pub use go::GoArgs;
pub use leaks::{LeakMode, LeaksArgs, SearchArgs, SuppressionArgs};
pub use push::PushArgs;
pub use rss::{RssArgs, RssCommand, RssSamplingArgs};

/// Profile the heap of running processes that carry the agent.
///
/// Without a command: samples the processes for some time, then writes one dump of each.
#[derive(Debug, Parser)]
#[command(name = "mem_profiler", version, max_term_width = 100)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Cli {
    /// Command; `None` runs one session of running processes.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Options of a session without a command.
    #[command(flatten)]
    pub session: SessionArgs,
}

impl Cli {
    /// Parses a command line that consists of this word alone.
    fn try_parse_word(word: &str) -> Result<Self, clap::Error> {
        Self::try_parse_from(["mem_profiler", word])
    }

    /// Returns true if the command writes files and is to name them as JSON.
    pub fn names_files_as_json(&self) -> bool {
        let quiet = match &self.command {
            None => &self.session.quiet,
            Some(Command::Run(args)) => &args.quiet,
            Some(Command::Dump(args) | Command::Stop(args) | Command::Recover(args)) => &args.quiet,
            Some(Command::Cpu(args)) => match &args.command {
                Some(CpuCommand::Run { sampling, .. }) => &sampling.quiet,
                None => &args.sampling.quiet,
            },
            Some(Command::Rss(args)) => match &args.command {
                Some(RssCommand::Run { sampling, .. }) => &sampling.quiet,
                None => &args.sampling.quiet,
            },
            Some(Command::Go(args)) => &args.quiet,
            Some(Command::Both(args)) => &args.quiet,
            Some(_) => return false,
        };
        quiet.json
    }

    /// Returns true if the command line has no arguments at all.
    pub fn is_bare() -> bool {
        std::env::args_os().len() <= 1
    }
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start a program with the agent and sample it from its first allocation
    ///
    /// Children and programs that it executes are sampled too and get a dump each. Signals
    /// are forwarded; the exit code is the program's.
    Run(RunArgs),
    /// List every process with the agent, and the profiles of dead ones
    List(ListArgs),
    /// Write a snapshot of a running session; the session continues
    Dump(DumpArgs),
    /// End sessions and write their dumps
    Stop(DumpArgs),
    /// Write the profiles of processes that died in a session, and remove their segments
    Recover(DumpArgs),
    /// Remove the segments of dead processes
    Clean(CleanArgs),
    /// Explain the resident memory of a process
    Why(WhyArgs),
    /// Find the objects of a live process that no pointer leads to any more
    ///
    /// The process is stopped while its page tables are copied, some 30 milliseconds per gigabyte
    /// of small pages; then it continues, and the copy is searched. The check knows the objects
    /// that a session has sampled: with -c 1, all that were allocated since the session began.
    Leaks(LeaksArgs),
    /// For the agent: the leak check that a program requests itself
    #[command(hide = true)]
    SelfCheck(SelfCheckArgs),
    /// For the agent: the CPU profile that a program requests itself
    #[command(hide = true)]
    SelfCpu(SelfCpuArgs),
    /// For the agent: what a program requests by gperftools' functions
    #[command(hide = true)]
    SelfProfile(SelfProfileArgs),
    /// Sample where processes spend CPU time; any process, with or without the agent
    ///
    /// Stacks are unwound outside the process, by the unwind tables of its files: nothing is loaded
    /// into it. Running threads are stopped, for a few microseconds each, only if the kernel's perf
    /// events may not be used. Each process gets a file, which mem_parser turns into tables, flame
    /// graphs and pages.
    Cpu(CpuArgs),
    /// Sample which stacks touch memory that stays resident; any process, without the agent
    ///
    /// The kernel's perf events sample page faults, with their stacks. At the end, the page table
    /// shows which pages are still there: each counts for the stack that touched it first. Nothing
    /// is loaded into the process, and nothing is stopped. Each process gets a file for mem_parser.
    Rss(RssArgs),
    /// Write the heap profile that the runtime of a Go program keeps; without the agent
    ///
    /// Go's runtime samples allocations, if the program uses runtime.MemProfile, as net/http/pprof
    /// does. Its counts are read from the process's memory: nothing is loaded, called, stopped or,
    /// without --enable, written. The dump is what the program itself would write, as of its last
    /// garbage collection.
    Go(GoArgs),
    /// Sample the heap and the CPU time of processes with the agent, for one page of both
    ///
    /// Each process gets a dump (.heap) and a CPU profile (.cpu) of the same period. Their page
    /// shows, for each function, its CPU time, how much of that is spent in malloc and free, what
    /// it allocates, and what it holds.
    Both(BothArgs),
    /// Show a session as a live table: functions and stacks by live bytes, growth, rate, age; or
    /// where CPU time goes now
    Top(TopArgs),
    /// Serve the processes' profiles over HTTP: a live page, pprof, Prometheus; by mem_server
    #[command(disable_help_flag = true)]
    Serve {
        /// The options of mem_server serve
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "OPTIONS"
        )]
        args: Vec<OsString>,
    },
    /// Send the processes' profiles to Pyroscope, Parca or an OTLP receiver; by mem_server
    #[command(disable_help_flag = true)]
    Push {
        /// The options of mem_server push
        #[arg(
            trailing_var_arg = true,
            allow_hyphen_values = true,
            value_name = "OPTIONS"
        )]
        args: Vec<OsString>,
    },
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write man pages into a directory
    Man {
        /// The directory
        directory: PathBuf,
    },
}

/// Options of `run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// End the session after this long; the program continues
    #[arg(short, long, value_name = "SECONDS", allow_negative_numbers = true,
          value_parser = values::seconds)]
    pub seconds: Option<Duration>,

    #[command(flatten)]
    pub interval: IntervalArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    #[command(flatten)]
    pub triggers: TriggerArgs,

    /// Check for leaks at the program's exit, and its children's: print them, and exit with 1 if
    /// there are any. Samples every allocation unless -c says otherwise
    #[arg(long, value_name = "MODE", value_enum, num_args = 0..=1, require_equals = true,
          default_missing_value = "normal", conflicts_with = "seconds")]
    pub leak_check: Option<LeakMode>,

    #[command(flatten)]
    pub suppression: SuppressionArgs,

    #[command(flatten)]
    pub search: SearchArgs,

    /// The agent [default: libmem_agent.so beside mem_profiler, or in ../lib]
    #[arg(long, value_name = "FILE", env = "MEM_AGENT_LIB")]
    pub agent: Option<PathBuf>,

    /// For Python: show small objects, too, by setting PYTHONMALLOC=malloc for the program
    #[arg(long)]
    pub python_malloc: bool,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub push: PushArgs,

    /// Leave out processes that allocated less than this, except the program itself
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = values::byte_count)]
    pub min: u64,

    /// Write dumps of processes of this name or pattern only; may be given several times
    #[arg(long, value_name = "NAME")]
    pub only: Vec<String>,

    #[command(flatten)]
    pub program: ProgramArgs,
}

/// Program to start.
#[derive(Debug, Args)]
pub struct ProgramArgs {
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "COMMAND"
    )]
    pub command: Vec<OsString>,
}

/// Options of `list`.
#[derive(Debug, Default, Args)]
pub struct ListArgs {
    #[command(flatten)]
    pub select: SelectArgs,

    /// Also show dead processes that left no profile
    #[arg(long)]
    pub all: bool,

    /// Print one JSON array, for programs
    #[arg(long)]
    pub json: bool,
}

/// Options of `why`.
#[derive(Debug, Args)]
pub struct WhyArgs {
    #[command(flatten)]
    pub select: SelectArgs,

    /// Print one JSON array, for programs
    #[arg(long)]
    pub json: bool,
}

/// Options of `top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    pub select: SelectArgs,

    #[command(flatten)]
    pub interval: IntervalArgs,

    #[command(flatten)]
    pub output: OutputArgs,

    /// Print one table and exit; the default if stdout is no terminal, or a dumb one
    #[arg(long)]
    pub once: bool,

    /// Print one JSON object, for programs, and exit
    #[arg(long)]
    pub json: bool,

    /// Show CPU time instead of the heap; needs no agent
    #[arg(long, conflicts_with_all = ["interval", "max_overhead", "thin", "cgroup", "user"])]
    pub cpu: bool,

    /// Samples per second of CPU time, 1 to 10000
    #[arg(short = 'F', long, value_name = "HZ", allow_negative_numbers = true,
          default_value = "99", value_parser = values::rate, requires = "cpu")]
    pub frequency: u32,

    /// Use only this engine, and fail if it is not available [default: the best that is allowed]
    #[arg(long, value_enum, requires = "cpu")]
    pub engine: Option<EngineName>,

    /// Order of the rows, largest first [default: live; for CPU time: now]
    #[arg(long, value_enum)]
    pub sort: Option<Sort>,

    /// Only functions whose names contain this
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true
    )]
    pub filter: String,

    /// Show all native frames of stacks with Python, including the interpreter's
    #[arg(long)]
    pub native: bool,

    /// Show only Python's frames
    #[arg(long, alias = "python_only", conflicts_with = "native")]
    pub python_only: bool,

    /// Time between refreshes [default: 1s]
    #[arg(short, long, value_name = "TIME", value_parser = values::seconds)]
    pub delay: Option<Duration>,
}

impl TopArgs {
    /// Returns which frames of a stack with Python are shown.
    pub fn shown_frames(&self) -> FrameSelection {
        match (self.native, self.python_only) {
            (true, _) => FrameSelection::Native,
            (_, true) => FrameSelection::PythonOnly,
            _ => FrameSelection::Usual,
        }
    }
}

impl ValueEnum for Sort {
    fn value_variants<'a>() -> &'a [Self] {
        &Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Live => ("live", "Live bytes, callees included"),
            Self::Flat => (
                "flat",
                "Live bytes of the function itself; with --cpu its CPU time",
            ),
            Self::Growth => ("growth", "Growth of the live bytes"),
            Self::Rate => ("rate", "Rate of allocation"),
            Self::Age => ("age", "Mean age of the live objects"),
            Self::Now => (
                "now",
                "With --cpu: CPU time since the last refresh, callees included",
            ),
            Self::FlatNow => ("flat-now", "With --cpu: the same, of the function itself"),
            Self::Cpu => (
                "cpu",
                "With --cpu: CPU time since the beginning, callees included",
            ),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

/// Options of the commands that write dumps at once.
#[derive(Debug, Args)]
pub struct DumpArgs {
    #[command(flatten)]
    pub output: OutputArgs,

    /// Also write the profile of the live heap's high-water mark
    #[arg(long)]
    pub peak: bool,

    #[command(flatten)]
    pub quiet: QuietArgs,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub select: SelectArgs,
}

/// Options of `clean`.
#[derive(Debug, Args)]
pub struct CleanArgs {
    #[command(flatten)]
    pub select: SelectArgs,

    /// Also remove profiles that have not been written yet, and segments left by other versions
    #[arg(long)]
    pub all: bool,

    /// Print one JSON object, for programs
    #[arg(long)]
    pub json: bool,

    /// Print only what goes wrong
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,
}

/// Exits with a usage error if the program after `run`, `cpu run` or `rss run` begins with a hyphen: it is a
/// misspelt option.
pub fn refuse_option(command: &[&str], program: &OsStr) {
    if program.as_encoded_bytes().starts_with(b"-") {
        let similar = usage::similar_option(command, program);
        let hint = program
            .to_str()
            .and_then(|option| usage::alternative_to(command[0], option));
        let question = match (hint, similar) {
            (Some(hint), _) => format!(": {hint}"),
            (None, Some(option)) => format!("; did you mean {option}?"),
            (None, None) => String::new(),
        };
        let words = command.join(" ");
        let typed = text::path(program);
        let message = format!("{words} has no option {typed}{question}");
        usage::command_of(command)
            .error(ErrorKind::UnknownArgument, message)
            .exit();
    }
}

/// Exits with a usage error: the message and the command's usage on stderr, and exit code 2.
pub fn refuse(message: impl std::fmt::Display) -> ! {
    let words: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    usage::command_of(&words)
        .error(ErrorKind::ValueValidation, message)
        .exit()
}

/// Parses the command line. Exits with a usage error if it is invalid.
pub fn parse() -> Cli {
    let parsed = Cli::try_parse().map_err(usage::add_hint);
    let cli = parsed.unwrap_or_else(|error| mem_agents::stdout::answer("mem_profiler", &error));
    if let Some(Command::Run(args)) = &cli.command {
        refuse_option(&["run"], &args.program.command[0]);
        let search = SearchArgs::default();
        let suppression = SuppressionArgs::default();
        if args.leak_check.is_none() && (&args.search, &args.suppression) != (&search, &suppression)
        {
            refuse("suppressions and options of the search for pointers need --leak-check");
        }
    }
    cli
}

/// Returns the completion script for a shell.
pub fn completions(shell: Shell) -> String {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mem_profiler", &mut text);
    String::from_utf8_lossy(&text).into_owned()
}

/// Writes a man page for each command into a directory.
pub fn man_pages(directory: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Cli::command(), directory)
}

#[cfg(test)]
mod tests {
    use super::*;
    use mem_agents::governor;

    #[test]
    fn the_reference_is_current() {
        helpers::reference::check(Cli::command());
    }

    #[test]
    fn definitions_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults() {
        let session = Cli::try_parse_from(["mem_profiler"]).unwrap().session;
        assert_eq!(session.interval.initial_density().interval, 1024);
        assert_eq!(session.interval.overhead_limit(), Some(0.05));
        assert_eq!(session.output.output, PathBuf::from("./custom_prof"));
        assert!(session.seconds.is_none() && session.select.processes.is_empty());
    }

    #[test]
    fn bad_values_are_usage_errors() {
        for bad in [
            ["-c", "0"],
            ["-c", "x"],
            ["-c", "-5"],
            ["-c", "1.5Q"],
            ["-c", "99999999999999999999"],
            ["-s", "-1"],
            ["-s", "0"],
            ["-s", "abc"],
            ["-s", "nan"],
            ["-s", "1e99"],
            ["-s", "101d"],
            ["-p", "0"],
            ["-p", ""],
            ["-p", "99999999999"],
            ["--keep", "0"],
            ["--on-cgroup", "0%"],
            ["--max-overhead", "0"],
            ["--max-overhead", "0%"],
            ["--max-overhead", "0.0001%"],
            ["--max-overhead", "100%"],
            ["--max-overhead", "-2%"],
            ["--max-overhead", "nan"],
            ["--max-overhead", "%"],
            ["--max-overhead", "2 bytes"],
        ] {
            let error = Cli::try_parse_from(["mem_profiler", bad[0], bad[1]]).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
        for bad in [
            &["stray"][..],
            &["run"],
            &["-s", "1", "list"],
            &["dump", "-s", "1"],
        ] {
            let error = Cli::try_parse_from([&["mem_profiler"], bad].concat()).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{bad:?}");
        }
    }

    #[test]
    fn only_a_session_without_an_interval_is_limited_by_default() {
        let limit = |line: &[&str]| {
            let line = [&["mem_profiler"], line].concat();
            Cli::try_parse_from(line)
                .unwrap()
                .session
                .interval
                .overhead_limit()
        };
        assert_eq!(limit(&[]), Some(0.05));
        assert_eq!(limit(&["--max-overhead", "2%"]), Some(0.02));
        assert_eq!(limit(&["-c", "4096"]), None);
        assert_eq!(limit(&["-c", "4096", "--max-overhead", "2%"]), Some(0.02));
        assert_eq!(limit(&["-c", "1"]), None);
    }

    #[test]
    fn with_max_overhead_the_first_interval_is_within_the_governors_bounds() {
        let first = |line: &[&str]| {
            let line = [&["mem_profiler"], line].concat();
            Cli::try_parse_from(line)
                .unwrap()
                .session
                .interval
                .initial_density()
                .interval
        };
        assert_eq!(first(&["-c", "1"]), 1);
        assert_eq!(
            first(&["-c", "1", "--max-overhead", "2%"]),
            governor::MIN_INTERVAL
        );
        assert_eq!(first(&["--max-overhead", "2%"]), 1024);
        assert_eq!(
            first(&["-c", "1T", "--max-overhead", "2"]),
            governor::MAX_INTERVAL
        );
    }

    #[test]
    fn options_after_the_program_belong_to_it() {
        let line = [
            "mem_profiler",
            "run",
            "-c",
            "1",
            "--",
            "ls",
            "-c",
            "--every",
        ];
        let Some(Command::Run(run)) = Cli::try_parse_from(line).unwrap().command else {
            panic!()
        };
        assert_eq!(
            (
                run.interval.initial_density().interval,
                run.program.command.len()
            ),
            (1, 3)
        );
    }
}
