//! Definition of the command line, which completions and man pages are generated from.

pub mod documents;
mod report;
mod usage;
mod values;

use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::error::ErrorKind;
use clap::{ArgGroup, Args, CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use mem_parser::Options;
use mem_parser::files::Sources;
use mem_parser::filters::{Filters, TagFilter, pattern};
use mem_parser::graph::Order;
use mem_parser::load::{self, Missing};
use mem_parser::nodes::Granularity;
use mem_parser::program;
use mem_parser::python::FrameSelection;
use mem_parser::stdin;
use profile::merge::Base;
use profile::printable;
use symbols::demangle::Style;

use report::Report;
pub use usage::fail;
use values::{divisor, granularities, label, share, styles, unit};

const USAGE: &str = "mem_parser [OPTIONS] DUMP...
       mem_parser -p BINARY -f DUMP OUTPUT [-o FILE]";

const EXAMPLES: &str = "Examples:
  mem_parser x.heap                             table of functions
  mem_parser x.heap --html -o page.html         page for a browser
  mem_parser x.heap --base early.heap --cum     what has grown since
  mem_parser -p bin/app -f x.heap -s -o x.svg   with another copy of the program
  perf script | mem_parser --flame -            from a pipe";

/// Reads heap and CPU profiles: tables, call graphs, and conversions.
///
/// Reads this project's dumps (.heap) and CPU profiles (.cpu), what jemalloc,
/// gperftools, pprof, perf and V8 (node) write, and folded stacks, also
/// compressed (gzip, zstd), and recognises them by their content. Without an
/// output, prints the table.
#[derive(Parser, Debug)]
#[command(name = "mem_parser", version, max_term_width = 80)]
#[command(override_usage = USAGE, after_help = EXAMPLES)]
#[command(args_conflicts_with_subcommands = true)]
#[command(group(ArgGroup::new("output_kind")))]
pub struct Cli {
    /// The command, which reads no dump.
    #[command(subcommand)]
    pub command: Option<Document>,

    /// The dump to read, as with -f; - is standard input
    #[arg(value_name = "DUMP")]
    bare: Vec<PathBuf>,

    /// The program that was profiled
    /// [default: the file that the dump names, if it is on this machine]
    #[arg(short = 'p', long = "program", value_name = "BINARY")]
    pub binary: Option<PathBuf>,

    /// The dump to read. Several are added up; of several from one session, only the last is used
    #[arg(short = 'f', id = "dump", long = "file", value_name = "DUMP", num_args = 1..)]
    named: Vec<PathBuf>,

    /// Write to this file; - is standard output
    ///
    /// Without an output option, the file name's extension chooses the output: .html, .svg,
    /// .flame.svg, .pb.gz (--proto), .prof (--gperftools), or an output's name (.json, .csv, .dot).
    ///
    /// Without -o, results go to standard output. If that is a terminal, pictures, the page,
    /// --proto and --gperftools go to a file named after the dump instead: x.html, x.svg,
    /// x.flame.svg, x.pb.gz, x.prof.
    #[arg(short = 'o', long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Continue even if dumps or binaries do not belong together
    ///
    /// Use binaries although their build ids differ from the profiled ones, do without the names of
    /// a missing program, subtract dumps of other programs and sessions, and add up those of one
    /// session.
    #[arg(long)]
    pub force: bool,

    /// Options of finding symbols.
    #[command(flatten)]
    pub symbols: SymbolOptions,

    /// The output.
    #[command(flatten)]
    pub report: Report,

    /// Options of values.
    #[command(flatten)]
    pub values: Values,

    /// Options of the view.
    #[command(flatten)]
    pub view: ViewOptions,

    /// Filters.
    #[command(flatten)]
    pub filters: FilterOptions,

    /// Options of comparing.
    #[command(flatten)]
    pub base: BaseOptions,
}

/// What the program can say about itself.
#[derive(Subcommand, Debug)]
pub enum Document {
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Write man pages into a directory (a dump called man: ./man)
    Man {
        /// The directory
        directory: PathBuf,
    },
}

/// Options of finding symbols.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Symbols")]
pub struct SymbolOptions {
    /// Root of another machine's file system, or a directory with binaries or debug files
    #[arg(long, value_name = "DIRECTORY", alias = "symbol_path")]
    pub symbol_path: Vec<PathBuf>,

    /// Ask debuginfod-find for symbols that are not on this machine
    #[arg(long)]
    pub debuginfod: bool,

    /// Names of JIT code, instead of /tmp/perf-PID.map
    #[arg(long, value_name = "FILE", alias = "perf_map")]
    pub perf_map: Option<PathBuf>,

    /// Show code without a symbol as its file only, without the address where its function begins
    #[arg(long, alias = "module_names")]
    pub module_names: bool,
}

/// The column to show.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Values", rename_all = "snake_case")]
#[group(multiple = false)]
pub struct Values {
    /// Bytes that are in use (default)
    #[arg(long, alias = "inuse-space")]
    pub inuse_space: bool,

    /// Objects that are in use
    #[arg(long, alias = "inuse-objects")]
    pub inuse_objects: bool,

    /// Bytes that were allocated, freed ones included
    #[arg(long, alias = "alloc-space")]
    pub alloc_space: bool,

    /// Objects that were allocated, freed ones included
    #[arg(long, alias = "alloc-objects")]
    pub alloc_objects: bool,

    /// Any column by its name or number, for profiles of other kinds
    #[arg(long, value_name = "NAME", alias = "sample-index")]
    pub sample_index: Option<String>,
}

/// Options of the view.
#[derive(Args, Debug)]
#[command(next_help_heading = "View", rename_all = "snake_case")]
pub struct ViewOptions {
    /// Show at most this many functions [default: all in tables, 80 in graphs]
    #[arg(short = 'n', long, value_name = "N")]
    pub nodecount: Option<usize>,

    /// Hide functions below this share of the total
    #[arg(long, value_name = "SHARE", default_value_t = 0.005, value_parser = share)]
    pub nodefraction: f64,

    /// Hide edges below this share of the total
    #[arg(long, value_name = "SHARE", default_value_t = 0.001, value_parser = share)]
    pub edgefraction: f64,

    /// Sort by what a function and its callees hold
    #[arg(long)]
    pub cum: bool,

    /// Leave out functions below zero in a comparison
    #[arg(long)]
    pub drop_negative: bool,

    /// Apply -n, --nodefraction and --edgefraction; --trim=false shows everything
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
          num_args = 0..=1, default_missing_value = "true")]
    pub trim: bool,

    /// What makes up one entry [default: functions; for Python, lines]
    #[arg(long, value_parser = granularities())]
    pub granularity: Option<Granularity>,

    /// Same as --granularity=functions
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub functions: bool,

    /// Same as --granularity=lines
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub lines: bool,

    /// Same as --granularity=files
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub files: bool,

    /// Same as --granularity=addresses
    #[arg(long, group = "grain", conflicts_with = "granularity")]
    pub addresses: bool,

    /// Attribute inlined functions to the function they were inlined into
    #[arg(long)]
    pub noinlines: bool,

    /// Show all native frames of stacks with Python, including the interpreter's
    #[arg(long, group = "python")]
    pub native: bool,

    /// Show only Python's frames
    #[arg(long, group = "python", alias = "python-only")]
    pub python_only: bool,

    /// Show functions of libraries as pprof does, without your own code above the table or in
    /// their place
    #[arg(long, alias = "all-frames")]
    pub all_frames: bool,

    /// Show the 95 % confidence interval of each value
    #[arg(long)]
    pub ci: bool,

    /// How C++ and Rust names are shown
    #[arg(long, value_parser = styles(), default_value = "simple")]
    pub demangle: Style,

    /// Unit to print: B, KiB, MiB and so on (kB, MB are the same, as in pprof), or the best one
    #[arg(long, default_value = "minimum", value_parser = unit)]
    pub unit: String,

    /// Divide all values by this before showing them
    #[arg(long, value_name = "N", default_value_t = 1.0, alias = "divide-by",
          value_parser = divisor)]
    pub divide_by: f64,

    /// Leave program and type out of the legend
    #[arg(long, alias = "compact-labels")]
    pub compact_labels: bool,

    /// Directories to search for source files
    #[arg(long, value_name = "DIRECTORY", alias = "source-path")]
    pub source_path: Vec<PathBuf>,

    /// A label for --clickhouse: service and host have columns of their own; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = label)]
    pub label: Vec<(String, String)>,
}

/// Filters of stacks and frames. Patterns are matched against the name of
/// the function, its source file and its object file.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Filters", rename_all = "snake_case")]
pub struct FilterOptions {
    /// Only stacks through a matching frame
    #[arg(long, value_name = "PATTERN")]
    pub focus: Option<String>,

    /// Only stacks through no matching frame
    #[arg(long, value_name = "PATTERN")]
    pub ignore: Option<String>,

    /// Leave out matching frames
    #[arg(long, value_name = "PATTERN")]
    pub hide: Option<String>,

    /// Leave out all other frames
    #[arg(long, value_name = "PATTERN")]
    pub show: Option<String>,

    /// Leave out the frames above the outermost matching one
    #[arg(long, value_name = "PATTERN", alias = "show-from")]
    pub show_from: Option<String>,

    /// Leave out the frames below the innermost matching one
    #[arg(long, value_name = "PATTERN", alias = "prune-from")]
    pub prune_from: Option<String>,

    /// Only stacks with a matching label, or one in a range: 1kb:10kb
    #[arg(long, value_name = "[KEY=]VALUE")]
    pub tagfocus: Option<String>,

    /// Only stacks without such a label
    #[arg(long, value_name = "[KEY=]VALUE")]
    pub tagignore: Option<String>,

    /// Show percentages of what the filters leave, not of everything
    #[arg(long, alias = "relative-percentages")]
    pub relative_percentages: bool,
}

/// Options of comparing.
#[derive(Args, Debug, Default)]
#[command(next_help_heading = "Comparison", rename_all = "snake_case")]
#[group(multiple = false)]
pub struct BaseOptions {
    /// Subtract this dump
    #[arg(long, value_name = "DUMP")]
    pub base: Vec<PathBuf>,

    /// Subtract this dump, and show percentages of it
    #[arg(long, value_name = "DUMP", alias = "diff-base")]
    pub diff_base: Vec<PathBuf>,
}

impl Cli {
    /// Parses the command line of this process. Exits if it is invalid, and after help.
    pub fn of_process() -> Self {
        usage::reject_foreign_options(usage::arguments());
        let mut cli = Self::try_parse_from(usage::with_two_dashes())
            .unwrap_or_else(|error| usage::exit_with(error));
        cli.take_program();
        if let Some(file) = cli.file().map(Path::to_path_buf) {
            cli.report.choose_for(&file);
        }
        // Without any argument, a pipe on standard input may be inherited by accident.
        let has_arguments = std::env::args_os().len() > 1;
        if cli.command.is_none()
            && cli.dumps().is_empty()
            && has_arguments
            && stdin::may_have_profile()
        {
            cli.bare.push(stdin::PATH.into());
        }
        if cli.command.is_none() && cli.dumps().is_empty() {
            let missing = "no dump was given; name one: mem_parser x.heap (- is standard input)";
            usage::exit_with(Self::command().error(ErrorKind::MissingRequiredArgument, missing));
        }
        cli
    }

    /// Takes the first of several positional arguments for the program if it is an executable or a
    /// script, as in `jeprof --text PROGRAM DUMP`.
    fn take_program(&mut self) {
        let dumps = self.named.len() + self.bare.len();
        let is_program = |file: &PathBuf| {
            let file = program::locate(file);
            load::is_program(&file) || load::is_script(&file)
        };
        if self.binary.is_none() && dumps > 1 && self.bare.first().is_some_and(is_program) {
            self.binary = Some(self.bare.remove(0));
        }
        self.binary = self.binary.as_deref().map(program::locate);
    }

    /// Returns the dumps, those of -f first.
    pub fn dumps(&self) -> Vec<PathBuf> {
        self.named.iter().chain(&self.bare).cloned().collect()
    }

    /// Returns the output file; `None` for `-`.
    pub fn file(&self) -> Option<&Path> {
        self.output
            .as_deref()
            .filter(|file| *file != Path::new("-"))
    }

    /// Returns the option or command that the user probably meant by the name of a missing dump.
    pub fn suggestion_for(&self, missing: &Missing) -> Option<String> {
        let word = missing.file.to_str()?;
        if word.starts_with("http://") || word.starts_with("https://") {
            return Some(format!("curl -s {word} | mem_parser -"));
        }
        let is_word = self.bare.contains(&missing.file)
            && word
                .chars()
                .all(|c| c.is_ascii_alphanumeric() || "-_".contains(c));
        let meant = usage::command_of_another(word)
            .or_else(|| usage::command_like(word))
            .or_else(|| usage::option_like(word));
        meant.filter(|_| is_word && missing.near.is_none())
    }

    /// Returns the files to read.
    pub fn sources(&self) -> Sources {
        let BaseOptions { base, diff_base } = &self.base;
        let (base, base_rule) = match diff_base.as_slice() {
            [] => (base, Base::Difference),
            _ => (diff_base, Base::Comparison),
        };
        Sources {
            dumps: self.dumps(),
            base: base.clone(),
            base_rule,
            binary: self.binary.clone(),
            force: self.force,
            demangle: self.view.demangle,
            symbol_directories: self.symbols.symbol_path.clone(),
            debuginfod: self.symbols.debuginfod,
            perf_map: self.symbols.perf_map.clone(),
            module_names: self.symbols.module_names,
            python: match (self.view.native, self.view.python_only) {
                (true, _) => FrameSelection::Native,
                (_, true) => FrameSelection::PythonOnly,
                _ => FrameSelection::Usual,
            },
        }
    }

    /// Checks that only one dump comes from standard input, and nothing else.
    pub fn check_input(&self) -> Result<()> {
        let BaseOptions { base, diff_base } = &self.base;
        let dumps = self.dumps();
        let all = dumps.iter().chain(base).chain(diff_base);
        anyhow::ensure!(
            all.filter(|dump| stdin::is_stdin_path(dump)).count() < 2,
            "standard input (-) can be read only once; save the profile to a file first"
        );
        let files = [
            ("-p", "the program", &self.binary),
            ("--perf-map", "the list of names", &self.symbols.perf_map),
        ];
        for (option, what, file) in files {
            let is_stdin = file.as_deref().is_some_and(stdin::is_stdin_path);
            anyhow::ensure!(
                !is_stdin,
                "{option} -: only a dump can come from standard input; {what} must be a file"
            );
        }
        Ok(())
    }

    /// Checks that the extension of the output file fits its contents.
    pub fn check_output(&self) -> Result<()> {
        self.file().map_or(Ok(()), Report::check_name)
    }

    /// Returns warnings for search directories that do not exist. Without them, a mistyped name
    /// would look like missing symbols or sources.
    pub fn missing_directories(&self) -> impl Iterator<Item = String> {
        let symbols = self.symbols.symbol_path.iter();
        let sources = self.view.source_path.iter();
        let all = symbols
            .map(|path| ("--symbol-path", path))
            .chain(sources.map(|path| ("--source_path", path)));
        let missing = all.filter(|(_, path)| !path.is_dir());
        missing.map(|(option, path)| {
            let path = printable::path(path);
            format!("{option} {path}: there is no such directory")
        })
    }

    /// Returns the options of what to show.
    pub fn options(&self) -> Result<Options> {
        let view = &self.view;
        Ok(Options {
            column: self.values.column_name().map(str::to_owned),
            filters: self.filters.filters()?,
            relative_percentages: self.filters.relative_percentages,
            granularity: view.granularity(),
            inlines: !view.noinlines,
            order: if view.cum { Order::Cum } else { Order::Flat },
            trim: view.trim,
            node_count: view.nodecount,
            node_fraction: view.nodefraction,
            edge_fraction: view.edgefraction,
            drop_negative: view.drop_negative,
            all_frames: view.all_frames,
            error_bars: view.ci,
            unit: view.unit.clone(),
            divide_by: view.divide_by,
            compact_labels: view.compact_labels,
            program: self.binary.clone(),
            files: self
                .dumps()
                .iter()
                .map(|dump| stdin::display_name(dump).into())
                .collect(),
            base_files: self
                .base
                .base
                .iter()
                .chain(&self.base.diff_base)
                .map(|dump| stdin::display_name(dump).into())
                .collect(),
            source_directories: view.source_path.clone(),
            labels: view.label.clone(),
        })
    }
}

impl FilterOptions {
    fn filters(&self) -> Result<Filters> {
        let tag = |option: &str, text: &Option<String>| {
            text.as_deref()
                .map(|text| TagFilter::parse(option, text))
                .transpose()
        };
        Ok(Filters {
            focus: pattern("focus", self.focus.as_deref())?,
            ignore: pattern("ignore", self.ignore.as_deref())?,
            hide: pattern("hide", self.hide.as_deref())?,
            show: pattern("show", self.show.as_deref())?,
            show_from: pattern("show_from", self.show_from.as_deref())?,
            prune_from: pattern("prune_from", self.prune_from.as_deref())?,
            tag_focus: tag("tagfocus", &self.tagfocus)?,
            tag_ignore: tag("tagignore", &self.tagignore)?,
        })
    }
}

impl ViewOptions {
    fn granularity(&self) -> Granularity {
        match self {
            Self {
                functions: true, ..
            } => Granularity::Functions,
            Self { lines: true, .. } => Granularity::Lines,
            Self { files: true, .. } => Granularity::Files,
            Self {
                addresses: true, ..
            } => Granularity::Addresses,
            Self { granularity, .. } => granularity.unwrap_or_default(),
        }
    }
}

impl Values {
    /// Returns the name of the requested column.
    fn column_name(&self) -> Option<&str> {
        match self {
            Self {
                inuse_space: true, ..
            } => Some("inuse_space"),
            Self {
                inuse_objects: true,
                ..
            } => Some("inuse_objects"),
            Self {
                alloc_space: true, ..
            } => Some("alloc_space"),
            Self {
                alloc_objects: true,
                ..
            } => Some("alloc_objects"),
            Self { sample_index, .. } => sample_index.as_deref(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_reference_is_current() {
        helpers::reference::check(Cli::command());
    }
}
