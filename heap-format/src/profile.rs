//! The profile data model, which every reader fills and every report consumes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::detail::Detail;
use crate::leaks::{LeakCheck, Lost};
use crate::moment::Moment;
use crate::sampling::{KERNEL, Sampling};
use crate::stacks::Stacks;
use crate::value_type::ValueType;

/// Index value that means "no mapping" in [`Location::mapping`].
pub const NO_MAPPING: u32 = u32::MAX;

/// The format that a profile was read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// This project's dump, with its section of exact values and facts.
    #[default]
    Dump,
    /// This project's CPU profile.
    Cpu,
    /// gperftools or tcmalloc heap text, or a dump whose section was removed.
    HeapText,
    /// jemalloc's own `heap_v2` text.
    Jemalloc,
    /// pprof's protobuf, gzipped or not.
    Pprof,
    /// gperftools' binary CPU profile.
    CpuProfile,
    /// Folded stacks.
    Folded,
    /// The text that `perf script` prints.
    PerfScript,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Dump => "heap dump",
            Format::Cpu => "CPU profile",
            Format::HeapText => "gperftools heap text",
            Format::Jemalloc => "jemalloc heap text",
            Format::Pprof => "pprof protobuf",
            Format::CpuProfile => "gperftools CPU profile",
            Format::Folded => "folded stacks",
            Format::PerfScript => "perf script text",
        })
    }
}

/// A GNU build id. Empty means unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(pub Vec<u8>);

impl BuildId {
    /// Parses lower- or upper-case hex; `None` for anything else.
    pub fn from_hex(text: &str) -> Option<Self> {
        let digits = text.as_bytes();
        if !digits.len().is_multiple_of(2) || digits.len() > 128 {
            return None;
        }
        let nibble = |c: u8| char::from(c).to_digit(16).map(|d| d as u8);
        let bytes: Option<Vec<u8>> = digits
            .chunks(2)
            .map(|pair| Some(nibble(pair[0])? << 4 | nibble(pair[1])?))
            .collect();
        bytes.map(Self)
    }

    /// Whether no build id is known.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for BuildId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// An executable range of the target's address space.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// First address after it.
    pub end: u64,
    /// Offset in the file that `start` corresponds to.
    pub file_offset: u64,
    /// Build id of the file; empty when unknown.
    pub build_id: BuildId,
    /// The file as the target named it; empty for anonymous memory.
    pub path: PathBuf,
    /// Unmapped before the dump was taken (`dlclose`).
    pub past: bool,
}

impl Mapping {
    /// Whether the range holds `address`.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// An address in the code, with the source lines that it stands for.
///
/// `address` is the *lookup address*: for a return address, the address minus
/// one, so that it lies inside the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Lookup address; 0 when the format carries names only.
    pub address: u64,
    /// Index into [`Profile::mappings`], or [`NO_MAPPING`].
    pub mapping: u32,
    /// First of this location's entries in [`Profile::lines`].
    pub first_line: u32,
    /// Number of entries; more than one when functions were inlined, innermost
    /// first. 0 when the location is not symbolized.
    pub line_count: u32,
}

/// One source-level frame of a symbolized location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line {
    /// Index into [`Profile::functions`].
    pub function: u32,
    /// Line number; 0 when unknown.
    pub line: u32,
    /// Column; 0 when unknown.
    pub column: u32,
}

/// A function of the target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Name for people, demangled.
    pub name: String,
    /// Name in the symbol table; may be empty.
    pub system_name: String,
    /// Source file; may be empty.
    pub file: String,
    /// Line that the function starts at; 0 when unknown.
    pub start_line: u32,
}

impl Function {
    /// Whether it has no symbol, and is called after its file and where it begins there:
    /// `cc1plus+0x5a1230`.
    pub fn is_unnamed(&self) -> bool {
        let start = self.name.rsplit_once("+0x").map(|(_, start)| start);
        let is_hex =
            |start: &str| !start.is_empty() && start.bytes().all(|b| b.is_ascii_hexdigit());
        self.system_name.is_empty() && self.file.is_empty() && start.is_some_and(is_hex)
    }
}

/// A label on a stack, as pprof profiles carry them.
#[derive(Clone, Debug, PartialEq)]
pub struct Label {
    /// Index of the stack.
    pub stack: u32,
    /// Name of the label.
    pub key: String,
    /// The value.
    pub value: LabelValue,
}

/// The value of a [`Label`].
#[derive(Clone, Debug, PartialEq)]
pub enum LabelValue {
    /// Text.
    Text(String),
    /// A number and its unit.
    Number(i64, String),
}

/// One interval of a session that had several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalPeriod {
    /// Start, Unix time in nanoseconds.
    pub from_unix_ns: u64,
    /// Mean bytes between samples.
    pub interval: u64,
    /// Share of the process's CPU time that sampling took during it, in
    /// millionths, if it was measured.
    pub overhead: Option<u32>,
}

/// A thread whose stacks are kept apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Its number in the process's own pid namespace.
    pub tid: u32,
    /// Its name; empty when unknown.
    pub name: String,
}

impl Thread {
    /// Its name, or its number where that is not known.
    pub fn title(&self) -> String {
        match self.name.is_empty() {
            true => format!("thread {}", self.tid),
            false => self.name.clone(),
        }
    }
}

/// Key of the label with the name of a stack's thread.
pub const THREAD_LABEL: &str = "thread";
/// Value of [`THREAD_LABEL`] of stacks of a thread that is none of [`Facts::threads`].
pub const OTHER_THREADS: &str = "[other threads]";

/// Dump metadata: process, times, counters, mappings. Every fact is optional.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Process id of the target.
    pub pid: Option<u32>,
    /// Short name of the process.
    pub process: Option<String>,
    /// Path of the executable.
    pub exe: Option<PathBuf>,
    /// Build id of the executable; empty when unknown.
    pub exe_build_id: BuildId,
    /// Command line; empty when unknown.
    pub command_line: Vec<String>,
    /// Boot id of the host.
    pub boot_id: Option<String>,
    /// Start of the session, Unix time in nanoseconds.
    pub start_unix_ns: Option<u64>,
    /// End of the session, Unix time in nanoseconds.
    pub end_unix_ns: Option<u64>,
    /// End of the session, in nanoseconds since the boot that [`boot_id`](Self::boot_id) names,
    /// including the time for which the machine was suspended.
    pub end_boot_ns: Option<u64>,
    /// Length of the session.
    pub duration_ns: Option<u64>,
    /// Time of the live heap's maximum, from the session's start, if the profile is of that moment.
    pub peak_ns: Option<u64>,
    /// The intervals in chronological order, if the interval changed; the
    /// profile's period is then the smallest.
    pub intervals: Vec<IntervalPeriod>,
    /// For well-known call sites one due sample in up to this many was taken; `None`: each one.
    pub thinning: Option<u64>,
    /// The Python interpreter in the process, and whether its lines are in the stacks.
    pub python: Option<String>,
    /// Whether that interpreter takes small objects from an allocator of its own, where the agent
    /// does not see them.
    pub python_hides: Option<bool>,
    /// The threads whose stacks are kept apart.
    pub threads: Vec<Thread>,
    /// Stacks that allocated objects before which the program has written: lookup addresses, innermost
    /// first; at most [`MAX_OVERWRITTEN`](crate::overwritten::MAX_OVERWRITTEN).
    pub overwritten: Vec<Vec<u64>>,
    /// Number of this dump among those of its process.
    pub sequence: Option<u64>,
    /// Cause of the dump.
    pub trigger: Option<String>,
    /// End of the session: `live`, `target died`, …
    pub ended: Option<String>,
    /// Counters of the agent by name.
    pub counters: BTreeMap<String, u64>,
    /// Statistics of the allocator by name.
    pub allocator: BTreeMap<String, u64>,
    /// When the statistics were taken, in ns since the Unix epoch.
    pub allocator_unix_ns: Option<u64>,
    /// The kernel's counts of the process's memory, by name.
    pub memory: BTreeMap<String, u64>,
    /// The check for leaks that the dump is of, if it is of one: its stacks are what was lost.
    pub leak_check: Option<LeakCheck>,
    /// The text of `/proc/PID/maps`, or its replacement.
    pub maps_text: Vec<u8>,
    /// For a CPU profile of this project: how it was taken.
    pub cpu: Option<Sampling>,
}

/// A profile: stacks with values, and the known facts about their addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Format of the file.
    pub format: Format,
    /// Columns of values.
    pub sample_types: Vec<ValueType>,
    /// The column that reports show by default.
    pub default_type: usize,
    /// Sampling interval in the unit of `period_type`; 0 when unknown.
    pub period: i64,
    /// Kind and unit of `period`.
    pub period_type: Option<ValueType>,
    /// Distinct addresses in the code.
    pub locations: Vec<Location>,
    /// Source-level frames of symbolized locations.
    pub lines: Vec<Line>,
    /// Functions that `lines` refer to.
    pub functions: Vec<Function>,
    /// Executable ranges, in the order in which the dump lists them.
    pub mappings: Vec<Mapping>,
    /// The stacks.
    pub stacks: Stacks,
    /// Values, `sample_types.len()` for each stack.
    pub values: Vec<i64>,
    /// Details, one for each stack, or empty.
    pub details: Vec<Detail>,
    /// Variances of the values, in the same order, or empty; see
    /// [`variance::fill`](crate::variance::fill).
    pub variances: Vec<f64>,
    /// Size of the objects of each stack, or empty: pprof's label
    /// `bytes` of heap text.
    pub block_sizes: Vec<i64>,
    /// The thread of each stack, or empty: from 1 on its place in [`Facts::threads`], 0 for
    /// another one.
    pub threads: Vec<u32>,
    /// How the objects of each stack are lost, or empty.
    pub losses: Vec<Lost>,
    /// Whether the objects of a stack are of one size class, and short-lived ones are counted: a
    /// stack with several classes is there several times.
    pub sizes_apart: bool,
    /// Labels, in ascending order of stack.
    pub labels: Vec<Label>,
    /// Regular expression of frames that reports leave out together with all
    /// their callees, as pprof defines it; empty for none.
    pub drop_frames: String,
    /// Exceptions from `drop_frames`; empty for none.
    pub keep_frames: String,
    /// Comments.
    pub comments: Vec<String>,
    /// Moments of the session, in order of time; empty if none were recorded.
    pub moments: Vec<Moment>,
    /// Dump metadata.
    pub facts: Facts,
}

impl Profile {
    /// The values of stack `index`, one for each sample type.
    pub fn values_of(&self, index: usize) -> &[i64] {
        let n = self.sample_types.len();
        &self.values[index * n..(index + 1) * n]
    }

    /// Column of the sample type called `kind`.
    pub fn type_index(&self, kind: &str) -> Option<usize> {
        self.sample_types.iter().position(|t| t.kind == kind)
    }

    /// Whether its values are of memory: bytes or objects.
    pub fn is_of_memory(&self) -> bool {
        let memory = |t: &ValueType| t.unit == "bytes" || t.kind.ends_with("objects");
        self.sample_types.iter().any(memory)
    }

    /// Column of time: that of nanoseconds.
    pub fn time_column(&self) -> Option<usize> {
        self.sample_types
            .iter()
            .position(|t| t.unit == "nanoseconds")
    }

    /// Whether a location is a function of the kernel.
    pub fn is_kernels(&self, location: &Location) -> bool {
        let mapping = self.mappings.get(location.mapping as usize);
        // Byte by byte: to compare components takes a hundred times longer.
        mapping.is_some_and(|m| m.path.as_os_str() == KERNEL)
    }

    /// Whether a location has no name from a symbol: none at all, or one that only says where its
    /// function begins.
    pub fn is_unnamed(&self, location: &Location) -> bool {
        let mut lines = self.lines_of(location).iter();
        lines.all(|line| self.functions[line.function as usize].is_unnamed())
    }

    /// The source-level frames of a location, innermost first.
    pub fn lines_of(&self, location: &Location) -> &[Line] {
        let first = location.first_line as usize;
        &self.lines[first..first + location.line_count as usize]
    }

    /// The sampling interval for people: `1024`, or `256 to 9253` if it changed.
    pub fn period_text(&self) -> String {
        let intervals = self.facts.intervals.iter().map(|p| p.interval);
        let widest = intervals.max().unwrap_or(0);
        match u64::try_from(self.period).is_ok_and(|period| widest > period) {
            true => format!("{} to {widest}", self.period),
            false => self.period.to_string(),
        }
    }

    /// Sum of a column; saturates.
    pub fn total(&self, column: usize) -> i64 {
        let n = self.sample_types.len();
        let sum: i128 = self
            .values
            .iter()
            .skip(column)
            .step_by(n)
            .map(|&v| i128::from(v))
            .sum();
        sum.clamp(i64::MIN.into(), i64::MAX.into()) as i64
    }

    /// A profile like this one, without its stacks, moments, locations and lines.
    pub fn without_stacks(&self) -> Profile {
        Profile {
            format: self.format,
            sample_types: self.sample_types.clone(),
            default_type: self.default_type,
            period: self.period,
            period_type: self.period_type.clone(),
            functions: self.functions.clone(),
            mappings: self.mappings.clone(),
            drop_frames: self.drop_frames.clone(),
            keep_frames: self.keep_frames.clone(),
            comments: self.comments.clone(),
            sizes_apart: self.sizes_apart,
            facts: self.facts.clone(),
            ..Profile::default()
        }
    }

    /// Appends stack `index` of `other`, a profile with the same columns: its
    /// values, details and labels, with these frames, which refer to this
    /// profile's locations.
    pub fn push_stack_of(&mut self, other: &Profile, index: usize, frames: &[u32]) {
        let stack = self.stacks.len() as u32;
        frames.iter().for_each(|&f| self.stacks.push_frame(f));
        self.stacks.close();
        self.values.extend_from_slice(other.values_of(index));
        self.details.extend(other.details.get(index));
        let columns = self.sample_types.len();
        let variances = other.variances.chunks(columns.max(1)).nth(index);
        self.variances.extend(variances.unwrap_or_default());
        self.block_sizes.extend(other.block_sizes.get(index));
        self.threads.extend(other.threads.get(index));
        self.losses.extend(other.losses.get(index));
        let start = other.labels.partition_point(|l| (l.stack as usize) < index);
        let own = other.labels[start..]
            .iter()
            .take_while(|l| l.stack as usize == index);
        self.labels
            .extend(own.map(|l| Label { stack, ..l.clone() }));
    }
}
