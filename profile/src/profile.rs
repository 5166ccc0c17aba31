//! Data model of profiles, which every reader fills and every report consumes.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::detail::Detail;
use crate::identity::FileIdentity;
use crate::leaks::{LeakCheck, Lost};
use crate::moment::Moment;
use crate::sampling::{KERNEL, Sampling};
use crate::stacks::Stacks;
use crate::value_type::ValueType;
use crate::variance::SamplingError;

/// Value of [`Facts::runtime`] for a profile of Go's runtime.
pub const GO: &str = "go";

/// Value of [`Location::mapping`] for a location without a mapping.
pub const NO_MAPPING: u32 = u32::MAX;

/// The format that a profile was read from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Format {
    /// This project's dump, with exact values and facts.
    #[default]
    Dump,
    /// This project's CPU profile.
    Cpu,
    /// Heap text of gperftools or tcmalloc, or a dump stripped of its comments.
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
    /// V8's `.cpuprofile` or `.heapprofile`.
    V8,
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
            Format::V8 => "V8 profile",
        })
    }
}

/// A GNU build id; empty if unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BuildId(pub Vec<u8>);

impl BuildId {
    /// Parses hex in lower or upper case. Returns `None` for anything else.
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

    /// Returns true if the build id is unknown.
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
    /// First address after the range.
    pub end: u64,
    /// Offset in the file that `start` corresponds to.
    pub file_offset: u64,
    /// Build id of the file; empty if unknown.
    pub build_id: BuildId,
    /// Path of the file in the target; empty for anonymous memory.
    pub path: PathBuf,
    /// Set if the module was unloaded (`dlclose`) before the dump was taken.
    pub past: bool,
}

impl Mapping {
    /// Returns true if the range contains `address`.
    pub fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }
}

/// A code address, with its source lines if known.
///
/// `address` is the *lookup address*: for a return address, the address minus one, so that it lies
/// inside the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Lookup address; 0 if the format has names only.
    pub address: u64,
    /// Index into [`Profile::mappings`], or [`NO_MAPPING`].
    pub mapping: u32,
    /// Index of the first entry in [`Profile::lines`].
    pub first_line: u32,
    /// Number of entries in [`Profile::lines`], innermost first. More than one if functions were
    /// inlined; 0 if the location is not symbolized.
    pub line_count: u32,
}

/// One source-level frame of a symbolized location.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Line {
    /// Index into [`Profile::functions`].
    pub function: u32,
    /// Line number; 0 if unknown.
    pub line: u32,
    /// Column; 0 if unknown.
    pub column: u32,
}

/// A function of the target.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Function {
    /// Demangled name.
    pub name: String,
    /// Name in the symbol table; may be empty.
    pub system_name: String,
    /// Source file; may be empty.
    pub file: String,
    /// First line of the function; 0 if unknown.
    pub start_line: u32,
}

impl Function {
    /// Returns true if the function has no symbol, so that its name was generated from its offset
    /// in the file: `cc1plus+0x5a1230`.
    pub fn is_unnamed(&self) -> bool {
        let start = self.name.rsplit_once("+0x").map(|(_, start)| start);
        let is_hex =
            |start: &str| !start.is_empty() && start.bytes().all(|b| b.is_ascii_hexdigit());
        self.system_name.is_empty() && self.file.is_empty() && start.is_some_and(is_hex)
    }
}

/// A label on a stack, as in pprof profiles.
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

/// A period of a session with a constant sampling interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntervalPeriod {
    /// Start, Unix time in nanoseconds.
    pub from_unix_ns: u64,
    /// Mean bytes between samples.
    pub interval: u64,
    /// Share of the process's CPU time used by sampling in this period, in millionths; `None` if
    /// not measured.
    pub overhead: Option<u32>,
}

/// Measured cost of sampling in a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cost {
    /// CPU time of the process in the session, in nanoseconds.
    pub cpu_ns: u64,
    /// CPU time that sampling took, in nanoseconds, estimated.
    pub spent_ns: u64,
    /// Standard error of `spent_ns`.
    pub error_ns: u64,
}

impl Cost {
    /// Formats the share of the CPU time, with half of its 95 % confidence interval:
    /// `24.1% ± 3.0%`. An estimate of all of the CPU time or more is shown as `up to 100%`.
    pub fn share(&self) -> String {
        if self.spent_ns > 0 && self.spent_ns >= self.cpu_ns {
            return "up to 100%".to_owned();
        }
        let percent = |ns: f64| ns * 100.0 / self.cpu_ns.max(1) as f64;
        let half = 1.96 * self.error_ns as f64;
        let share = percent(self.spent_ns as f64);
        format!("{share:.1}% \u{b1} {:.1}%", percent(half))
    }

    /// Returns the cost of this session and another one.
    pub fn plus(&self, other: &Self) -> Self {
        let [own, others] = [self.error_ns, other.error_ns].map(|ns| ns as f64);
        Self {
            cpu_ns: self.cpu_ns.saturating_add(other.cpu_ns),
            spent_ns: self.spent_ns.saturating_add(other.spent_ns),
            error_ns: own.hypot(others) as u64,
        }
    }

    /// Returns the cost since an earlier moment of the session.
    pub fn since(&self, earlier: &Self) -> Self {
        let spent_ns = self.spent_ns.saturating_sub(earlier.spent_ns);
        let relative_error = self.error_ns as f64 / self.spent_ns.max(1) as f64;
        Self {
            cpu_ns: self.cpu_ns.saturating_sub(earlier.cpu_ns),
            spent_ns,
            error_ns: (spent_ns as f64 * relative_error) as u64,
        }
    }
}

/// A thread whose stacks are recorded separately.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Thread {
    /// Thread id in the process's own PID namespace.
    pub tid: u32,
    /// Thread name; empty if unknown.
    pub name: String,
}

impl Thread {
    /// Returns the name, or the thread id if the name is unknown.
    pub fn title(&self) -> String {
        if self.name.is_empty() {
            format!("thread {}", self.tid)
        } else {
            self.name.clone()
        }
    }
}

/// Key of the label with the name of a stack's thread.
pub const THREAD_LABEL: &str = "thread";
/// Value of [`THREAD_LABEL`] for stacks of threads that are not in [`Facts::threads`].
pub const OTHER_THREADS: &str = "[other threads]";

/// Dump metadata: process, times, counters, mappings. Each fact may be missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// Process id of the target.
    pub pid: Option<u32>,
    /// Short name of the process.
    pub process: Option<String>,
    /// Path of the executable.
    pub exe: Option<PathBuf>,
    /// Build id of the executable; empty if unknown.
    pub exe_build_id: BuildId,
    /// Identity of the executable's file, if it has no build id.
    pub exe_file: Option<FileIdentity>,
    /// Command line; empty if unknown.
    pub command_line: Vec<String>,
    /// Boot id of the host.
    pub boot_id: Option<String>,
    /// Start of the session, Unix time in nanoseconds.
    pub start_unix_ns: Option<u64>,
    /// End of the session, Unix time in nanoseconds.
    pub end_unix_ns: Option<u64>,
    /// End of the session, in nanoseconds since the boot [`boot_id`](Self::boot_id), including
    /// suspended time.
    pub end_boot_ns: Option<u64>,
    /// Length of the session.
    pub duration_ns: Option<u64>,
    /// Time from the start of the session to the maximum of the live heap, if the profile shows
    /// that moment.
    pub peak_ns: Option<u64>,
    /// Periods with different intervals, in chronological order; empty if the interval did not
    /// change. The profile's period is the smallest interval.
    pub intervals: Vec<IntervalPeriod>,
    /// Cost of the session's sampling; `None` if it was not measured.
    pub cost: Option<Cost>,
    /// Maximum thinning: at frequent call sites, only one due sample in up to this many was taken.
    /// `None` if all due samples were taken.
    pub thinning: Option<u64>,
    /// Description of the Python interpreter in the process, and whether its frames are in the
    /// stacks.
    pub python: Option<String>,
    /// Set if the Python interpreter allocates small objects by itself, where the agent does not
    /// see them. `None` if unknown.
    pub python_hides: Option<bool>,
    /// Language runtime that recorded the profile by itself: [`GO`](crate::GO). `None` if it was
    /// recorded in another way.
    pub runtime: Option<String>,
    /// Threads whose stacks are recorded separately.
    pub threads: Vec<Thread>,
    /// Stacks that allocated objects whose headers were overwritten by underruns: lookup addresses,
    /// innermost first; at most [`MAX_OVERWRITTEN`](crate::overwritten::MAX_OVERWRITTEN).
    pub overwritten_stacks: Vec<Vec<u64>>,
    /// Number of this dump among the dumps of the session.
    pub sequence: Option<u64>,
    /// Cause of the dump.
    pub trigger: Option<String>,
    /// End of the session: `live`, `target died`, …
    pub ended: Option<String>,
    /// Counters of the agent by name.
    pub counters: BTreeMap<String, u64>,
    /// Statistics of the allocator by name.
    pub allocator: BTreeMap<String, u64>,
    /// Time at which the allocator's statistics were taken, Unix time in nanoseconds.
    pub allocator_unix_ns: Option<u64>,
    /// Memory counters of the process from the kernel, by name.
    pub memory: BTreeMap<String, u64>,
    /// Leak check whose result the dump is: the dump's stacks are those that allocated lost
    /// objects.
    pub leak_check: Option<LeakCheck>,
    /// Text of `/proc/PID/maps`, or a generated replacement.
    pub maps_text: Vec<u8>,
    /// Sampling of a CPU profile of this project.
    pub cpu: Option<Sampling>,
}

/// A profile: stacks with values, and the known facts about their addresses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// Format of the file.
    pub format: Format,
    /// Columns of values.
    pub sample_types: Vec<ValueType>,
    /// Index of the column that reports show by default.
    pub default_type: usize,
    /// Sampling interval in the unit of `period_type`; 0 if unknown.
    pub period: i64,
    /// Kind and unit of `period`.
    pub period_type: Option<ValueType>,
    /// Distinct code addresses.
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
    /// Exact values, one for each stack; or empty.
    pub details: Vec<Detail>,
    /// Variances of the values, in the same order; or empty. See
    /// [`variance::fill`](crate::variance::fill).
    pub variances: Vec<f64>,
    /// Sampling errors of the values as parts of a difference, in the same order; empty if there is
    /// no base. If a stack of a separate base has an equal stack in the other profile, that one has
    /// the error of the change, and the base's stack has none.
    pub errors: Vec<SamplingError>,
    /// Known total of each column, of which its values are parts; or empty. See
    /// [`variance::wholes`](crate::variance::wholes).
    pub wholes: Vec<f64>,
    /// Average object size of each stack, in bytes; or empty. pprof's label `bytes` for heap text.
    pub block_sizes: Vec<i64>,
    /// Thread of each stack: a 1-based index into [`Facts::threads`], 0 for other threads; or
    /// empty.
    pub threads: Vec<u32>,
    /// Loss of the objects of each stack; or empty.
    pub losses: Vec<Lost>,
    /// Set if each stack has objects of only one size class, so that a call stack with several
    /// classes occurs several times, and short-lived objects are counted.
    pub split_by_size_class: bool,
    /// Labels, in ascending order of stack.
    pub labels: Vec<Label>,
    /// Regular expression of frames that reports hide together with their callees, as in pprof;
    /// empty if none.
    pub drop_frames: String,
    /// Regular expression of exceptions from `drop_frames`; empty if none.
    pub keep_frames: String,
    /// Comments.
    pub comments: Vec<String>,
    /// Moments of the session in order of time; empty if none were recorded.
    pub moments: Vec<Moment>,
    /// Dump metadata.
    pub facts: Facts,
}

impl Profile {
    /// Returns the values of stack `index`, one for each sample type.
    pub fn values_of(&self, index: usize) -> &[i64] {
        let n = self.sample_types.len();
        &self.values[index * n..(index + 1) * n]
    }

    /// Returns the sampling error of a stack's value, or of its change if there is a base.
    pub fn error(&self, stack: usize, column: usize) -> SamplingError {
        let at = stack * self.sample_types.len() + column;
        let known = self.errors.get(at).copied();
        let error = known.unwrap_or_else(|| SamplingError {
            variance: self.variances.get(at).copied().unwrap_or(0.0),
            turnover: self.values[at].unsigned_abs() as f64,
            whole: 0.0,
        });
        SamplingError {
            whole: self.wholes.get(column).copied().unwrap_or(0.0),
            ..error
        }
    }

    /// Returns the index of the column called `kind`.
    pub fn type_index(&self, kind: &str) -> Option<usize> {
        self.sample_types.iter().position(|t| t.kind == kind)
    }

    /// Returns true if the values are amounts of memory: bytes or objects.
    pub fn is_memory_profile(&self) -> bool {
        let memory = |t: &ValueType| t.unit == "bytes" || t.kind.ends_with("objects");
        self.sample_types.iter().any(memory)
    }

    /// Returns the index of the column of nanoseconds.
    pub fn time_column(&self) -> Option<usize> {
        self.sample_types
            .iter()
            .position(|t| t.unit == "nanoseconds")
    }

    /// Returns true if Go's runtime recorded the stacks. An inlined function has an address of its
    /// own in them, followed by that of the function that it was inlined into. The times of
    /// allocations and frees are not known.
    pub fn is_of_go(&self) -> bool {
        self.facts.runtime.as_deref() == Some(GO)
    }

    /// Returns true if a location is a kernel function.
    pub fn is_kernel_location(&self, location: &Location) -> bool {
        let mapping = self.mappings.get(location.mapping as usize);
        // Compares bytes: comparing path components takes a hundred times as long.
        mapping.is_some_and(|m| m.path.as_os_str() == KERNEL)
    }

    /// Returns true if a location has no name from a symbol: either no name, or a generated one.
    pub fn is_unnamed(&self, location: &Location) -> bool {
        let mut lines = self.lines_of(location).iter();
        lines.all(|line| self.functions[line.function as usize].is_unnamed())
    }

    /// Returns the source-level frames of a location, innermost first.
    pub fn lines_of(&self, location: &Location) -> &[Line] {
        let first = location.first_line as usize;
        &self.lines[first..first + location.line_count as usize]
    }

    /// Formats the sampling interval: `1024`, or `256 to 9253` if it changed.
    pub fn period_text(&self) -> String {
        let intervals = self.facts.intervals.iter().map(|p| p.interval);
        let widest = intervals.max().unwrap_or(0);
        if u64::try_from(self.period).is_ok_and(|period| widest > period) {
            format!("{} to {widest}", self.period)
        } else {
            self.period.to_string()
        }
    }

    /// Returns the sum of a column, saturated.
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

    /// Returns a copy without stacks, moments, locations and lines.
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
            split_by_size_class: self.split_by_size_class,
            facts: self.facts.clone(),
            ..Profile::default()
        }
    }

    /// Appends stack `index` of `other`, a profile with the same columns: its values, details and
    /// labels. `frames` replaces its frames, and refers to the locations of this profile.
    pub fn push_stack_of(&mut self, other: &Profile, index: usize, frames: &[u32]) {
        let stack = self.stacks.len() as u32;
        frames.iter().for_each(|&f| self.stacks.push_frame(f));
        self.stacks.close();
        self.values.extend_from_slice(other.values_of(index));
        self.details.extend(other.details.get(index));
        let columns = self.sample_types.len();
        let variances = other.variances.chunks(columns.max(1)).nth(index);
        self.variances.extend(variances.unwrap_or_default());
        let errors = other.errors.chunks(columns.max(1)).nth(index);
        self.errors.extend(errors.unwrap_or_default());
        self.block_sizes.extend(other.block_sizes.get(index));
        self.threads.extend(other.threads.get(index));
        self.losses.extend(other.losses.get(index));
        let start = other.labels.partition_point(|l| (l.stack as usize) < index);
        let labels_of_stack = other.labels[start..]
            .iter()
            .take_while(|l| l.stack as usize == index);
        self.labels
            .extend(labels_of_stack.map(|l| Label { stack, ..l.clone() }));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_has_its_share_or_a_bound() {
        let cost = |spent_ns| Cost {
            cpu_ns: 1000,
            spent_ns,
            error_ns: spent_ns / 10,
        };
        assert_eq!(cost(241).share(), "24.1% \u{b1} 4.7%");
        assert_eq!(cost(0).share(), "0.0% \u{b1} 0.0%");
        assert_eq!(cost(1000).share(), "up to 100%");
    }
}
