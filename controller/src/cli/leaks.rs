//! Arguments of the checks for leaks, of live processes and at a program's exit.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mem_agents::options::SelectArgs;
use mem_agents::values;
use mem_leaks::{LsanOptions, Options, Scope, Suppressions};

use super::refuse;
use super::session::{DEFAULT_PREFIX, PageArgs};

/// Options of `leaks`.
#[derive(Debug, Args)]
pub struct LeaksArgs {
    #[command(flatten)]
    pub select: SelectArgs,

    /// Also write the lost objects as a dump, whose name begins with this [default with --html:
    /// ./custom_prof]
    #[arg(short, long, value_name = "PREFIX")]
    pub output: Option<PathBuf>,

    /// Report only what was lost since the check that wrote this dump (with -o)
    #[arg(long, value_name = "DUMP")]
    pub base: Option<PathBuf>,

    /// Make no copy: search the process while it is stopped
    #[arg(long)]
    pub stop: bool,

    /// Do not stop the process at all: search it N times while it runs, and report only what every
    /// search finds lost. Registers are unknown in this mode
    #[arg(long, value_name = "N", num_args = 0..=1, require_equals = true,
          default_missing_value = "5", conflicts_with = "stop",
          value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub gentle: Option<u32>,

    /// Show instead what keeps an object alive, given an address in it or a function that allocated
    /// it: the chain of pointers from a root, and what that root alone keeps alive
    #[arg(long, value_name = "ADDRESS|FUNCTION",
          value_parser = clap::builder::NonEmptyStringValueParser::new(),
          conflicts_with_all = ["output", "exit_code", "suppressions", "base", "html", "open"])]
    pub path: Option<String>,

    /// Maximum number of stacks to show
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub max: usize,

    /// Exit with 1 if there are leaks
    #[arg(long)]
    pub exit_code: bool,

    /// Print one JSON array, for programs
    #[arg(long)]
    pub json: bool,

    /// Print only what goes wrong; with --exit-code, the exit code is the answer
    #[arg(short, long, conflicts_with_all = ["html", "open", "json", "path"])]
    pub quiet: bool,

    #[command(flatten)]
    pub page: PageArgs,

    #[command(flatten)]
    pub suppression: SuppressionArgs,

    #[command(flatten)]
    pub search: SearchArgs,
}

impl LeaksArgs {
    /// Returns the start of the dumps' names, if dumps are to be written. Pages are made of dumps.
    pub fn prefix(&self) -> Option<PathBuf> {
        let is_paged = self.page.html || self.page.open;
        let default = || is_paged.then(|| PathBuf::from(DEFAULT_PREFIX));
        self.output.clone().or_else(default)
    }
}

/// Options that suppress known leaks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct SuppressionArgs {
    /// Do not report leaks whose stacks match a suppression in this file, in LeakSanitizer's
    /// format; may be given several times. LSAN_OPTIONS may name one more (suppressions=FILE)
    #[arg(long, value_name = "FILE")]
    pub suppressions: Vec<PathBuf>,
}

impl SuppressionArgs {
    /// Reads the suppressions of the given files, and of the file that the variable `LSAN_OPTIONS`
    /// names. Exits with an error if one cannot be read.
    pub fn read(&self) -> Suppressions {
        let variable = std::env::var("LSAN_OPTIONS").unwrap_or_default();
        self.read_with(&LsanOptions::read([&*variable]))
    }

    /// Reads the suppressions of the given files, and of the file that `options` name. Exits with
    /// an error if one cannot be read.
    pub fn read_with(&self, options: &LsanOptions) -> Suppressions {
        let mut suppressions = Suppressions::default();
        let file_of_variable = options.suppressions.as_ref().map(PathBuf::from);
        for file in self.suppressions.iter().chain(&file_of_variable) {
            suppressions
                .add_file(file)
                .unwrap_or_else(|error| refuse(error));
        }
        suppressions
    }
}

/// Help heading of the search options. Set on each option, because the heading of a group would
/// also apply to the options that follow it.
const SEARCH: &str = "The search for pointers";

/// Options for the roots of a search, and for what counts as a pointer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
pub struct SearchArgs {
    /// Pointers may lie at any address, not only at multiples of 8
    #[arg(help_heading = SEARCH, long)]
    pub unaligned: bool,

    /// A pointer counts if it points at most this many bytes into an object
    /// [default: anywhere in it]
    #[arg(help_heading = SEARCH, long, value_name = "BYTES", value_parser = values::byte_count)]
    pub max_pointer_offset: Option<u64>,

    /// Ignore the top N bits of each pointer: they hold a tag
    #[arg(help_heading = SEARCH, long, value_name = "N", default_value_t = 0, hide_default_value = true,
          value_parser = clap::value_parser!(u32).range(0..=MAX_TAG_BITS))]
    pub tag_bits: u32,

    /// Start only from registers and stacks: not from variables, mappings, or data that the kernel
    /// stores
    #[arg(help_heading = SEARCH, long)]
    pub no_globals: bool,

    /// Do not start from registers and stacks
    #[arg(help_heading = SEARCH, long)]
    pub no_threads: bool,
}

/// Maximum number of tag bits in a pointer, since user-space addresses have at least 47 bits.
const MAX_TAG_BITS: i64 = 17;

impl SearchArgs {
    /// Returns `options`, overridden by what was given on the command line.
    pub fn apply_to(&self, mut options: Options) -> Options {
        if self.unaligned {
            options.alignment = 1;
        }
        options.max_offset = self.max_pointer_offset.or(options.max_offset);
        options.tag_bits = self.tag_bits;
        options.globals &= !self.no_globals;
        options.stacks &= !self.no_threads;
        options.registers &= !self.no_threads;
        options.thread_variables &= !self.no_threads;
        options
    }
}

/// What counts as a leak at a program's exit: gperftools' modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum LeakMode {
    /// What no pointer leads to
    Minimal,
    /// The same
    Normal,
    /// The same
    Strict,
    /// Everything that is not freed
    Draconian,
    /// What no pointer leads to from the roots that --no-globals and --no-threads leave, or
    /// HEAP_CHECK_IGNORE_GLOBAL_LIVE and HEAP_CHECK_IGNORE_THREAD_LIVE
    AsIs,
    /// Nothing at exit: only what the program's own HeapLeakCheckers find
    Local,
}

impl LeakMode {
    /// Returns the mode's name on the command line.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Returns the criterion by which objects count as lost.
    pub fn scope(self) -> Scope {
        match self {
            Self::Minimal | Self::Normal | Self::Strict | Self::AsIs | Self::Local => {
                Scope::Unreachable
            }
            Self::Draconian => Scope::Unfreed,
        }
    }
}
