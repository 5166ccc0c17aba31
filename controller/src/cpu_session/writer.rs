//! Writes the profile of a recorded process, and the remarks on its quality.

use std::ffi::OsStr;
use std::io::{self, BufWriter, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use cpu::kernel::Symbols;
use cpu::recording::{FIRST_OF_KERNEL, TABLE_FULL, TRUNCATED};
use cpu::space::Range;
use cpu::{Process, Waiting};
use cpython::State;
use mem_agents::room;
use mem_agents::text;
use profile::cpu::{CpuBuilder, Frame, Mode, Sampling};
use profile::{BuildId, Facts, Function, LocationId, Mapping, Thread};

use super::Description;
use crate::cli::CpuFormat;
use crate::python;

/// Minimum share of time without samples for advice, in percent.
const MIN_ADVICE_PERCENT: f64 = 10.0;
/// Minimum unsampled time for advice, in sampling periods. Less may be chance.
const MIN_MISSING_PERIODS: u64 = 10;
/// Message: possible reason for time without samples.
const RARELY_SEEN: &str = "short-lived threads are rarely seen";
/// Frame for time that threads spend in a processor's run queue.
const QUEUE: &str = "[waits for a processor]";
/// Name of the engine that takes no stacks of running threads.
const WITHOUT_STACKS: &str = "/proc";
/// Prefix of the names of engines with perf events.
const PERF: &str = "perf_event";
/// Prefix of the names of engines with ptrace.
const PTRACE: &str = "ptrace";
/// Message: ptrace misses short-lived threads.
const PTRACE_MISSES: &str =
    "ptrace does not see threads that end within some 50 ms: --engine perf does";
/// Maximum sampling rate that may be requested, in samples per second.
const MAX_RATE: u32 = 10_000;

/// Time of one process, of the kind that a session samples, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    /// Total.
    pub total_ns: u64,
    /// Part that no sample covers.
    pub unsampled_ns: u64,
}

impl Times {
    /// Returns the times of a process for a sampling mode.
    pub fn of(process: &Process, mode: Mode) -> Self {
        let counts = &process.counts;
        let waited = Self {
            total_ns: counts.waiting_ns.saturating_add(counts.waited_ns),
            unsampled_ns: counts.waited_ns,
        };
        let ran = Self {
            total_ns: process.cpu_ns(),
            unsampled_ns: process.unsampled_ns(),
        };
        match mode {
            Mode::Cpu => ran,
            Mode::OffCpu => waited,
            Mode::Wall => Self {
                total_ns: ran.total_ns.saturating_add(waited.total_ns),
                unsampled_ns: ran.unsampled_ns.saturating_add(waited.unsampled_ns),
            },
        }
    }
}

/// Facts about a session that hold for the profiles of all its processes.
pub struct Session {
    /// Engine, mode and rate, and what was lost.
    pub sampling: Sampling,
    /// File format of the profiles.
    pub format: CpuFormat,
    /// True if the processes' CPU clocks were read, so that their total CPU time is known.
    pub has_clock: bool,
    /// Start of the session, in nanoseconds since the Unix epoch.
    pub start_unix_ns: u64,
    /// Length of the session.
    pub length: Duration,
    /// True if the program filters its own samples.
    pub is_filtered: bool,
}

impl Session {
    /// Writes the profile of a process to `file`. `number` is the file's sequence number. If the
    /// disk is full, the error says how much space the profile needs.
    pub fn write(
        &self,
        process: &Process,
        description: &Description,
        symbols: &Symbols,
        number: u64,
        file: &mut impl Write,
    ) -> io::Result<()> {
        let mut builder = CpuBuilder::new(self.sampling(process));
        modules(process).for_each(|module| builder.module(module));
        builder.facts(self.facts(process, description, number));
        add_stacks(process, symbols, &mut builder);
        if !self.is_filtered {
            add_unsampled(process, self.sampling.mode, &mut builder);
        }
        let profile = builder.finish();
        match self.encode(&profile, file) {
            Err(error) if room::is_short(&error) => {
                let needed = room::measure(|mut out| self.encode(&profile, &mut out))?;
                Err(room::short_of(needed))
            }
            result => result,
        }
    }

    fn encode(&self, profile: &profile::Profile, file: &mut impl Write) -> io::Result<()> {
        let mut out = BufWriter::new(file);
        match self.format {
            CpuFormat::Cpu => profile::cpu::write_packed(profile, &mut out)?,
            CpuFormat::Gperftools => profile::cpu::gperftools::write(profile, &mut out)?,
        }
        out.flush()
    }

    fn sampling(&self, process: &Process) -> Sampling {
        let mut sampling = self.sampling.clone();
        sampling.process_ns = self.has_clock.then(|| process.cpu_ns());
        sampling.lost += process.counts.lost;
        sampling
    }

    fn facts(&self, process: &Process, description: &Description, number: u64) -> Facts {
        facts(
            process,
            description,
            number,
            self.start_unix_ns,
            self.length,
        )
    }

    /// Returns one line of remarks on a profile's quality. `failure_reason` is the reason why the
    /// process was not sampled all the time, if that is known.
    pub fn remark(&self, process: &Process, failure_reason: Option<&str>) -> String {
        let counts = &process.counts;
        let mut parts = vec![self.sampling.engine.clone()];
        let share = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
        let complete = counts.samples - counts.all_truncated().min(counts.samples);
        parts.push(format!(
            "{:.1} % of stacks complete",
            share(complete, counts.samples)
        ));
        match self.sampling.lost.saturating_add(counts.lost) {
            0 => {}
            1 => parts.push("1 sample lost".to_owned()),
            lost => parts.push(format!("{lost} samples lost")),
        }
        let times = Times::of(process, self.sampling.mode);
        let unsampled = share(times.unsampled_ns, times.total_ns);
        if unsampled >= 0.1 {
            let why = match (failure_reason, self.is_filtered) {
                (Some(why), _) => &format!("not sampled: {why}"),
                (None, true) => "left out by the program's filter, or not sampled",
                (None, false) => "not sampled",
            };
            parts.push(format!("{unsampled:.1} % of the time {why}"));
        }
        if counts.blocked > 0 && unsampled >= MIN_ADVICE_PERCENT {
            let threads = text::count(counts.blocked, "thread blocks", "threads block");
            parts.push(format!("{threads} the timers' signal"));
        }
        if counts.lacks_timers {
            parts.push("threads without a timer, since the kernel had no more of them".to_owned());
        }
        // CPU time of threads after their last sample.
        let rest_ns = counts.rest_ns.min(times.unsampled_ns);
        let period = 1_000_000_000 / u64::from(self.sampling.rate.max(1));
        let is_much = |ns| share(ns, times.total_ns) >= MIN_ADVICE_PERCENT;
        let would_higher_rate_help = failure_reason.is_none()
            && self.sampling.mode != Mode::OffCpu
            && self.sampling.rate < MAX_RATE;
        let is_traced = self.sampling.engine.starts_with(PTRACE);
        if is_traced && self.sampling.mode == Mode::Cpu && is_much(times.unsampled_ns) {
            parts.push(PTRACE_MISSES.to_owned());
        } else if would_higher_rate_help && is_much(rest_ns) {
            // Each exited thread contributes less than one period.
            let why = if rest_ns >= period.saturating_mul(MIN_MISSING_PERIODS) {
                "many threads end before a sample is due"
            } else {
                "it ran only briefly"
            };
            parts.push(advise_higher_rate(why, self.sampling.rate));
        } else if would_higher_rate_help
            && counts.blocked == 0
            && !self.is_filtered
            && is_much(times.unsampled_ns)
        {
            // Engines other than perf events do not know which threads they missed.
            if times.unsampled_ns >= period.saturating_mul(MIN_MISSING_PERIODS) {
                parts.push(advise_higher_rate(RARELY_SEEN, self.sampling.rate));
            }
        }
        let takes_stacks = self.sampling.engine != WITHOUT_STACKS;
        if takes_stacks && lacks_python_lines(process) {
            let is_perf = self.sampling.engine.starts_with(PERF);
            parts.extend(explain_missing_lines(process, is_perf));
        }
        if counts.hidden_ns > 0 {
            let hidden = share(counts.hidden_ns, times.total_ns);
            parts.push(format!("{hidden:.1} % in the kernel, which is hidden"));
        } else if self.sampling.kernel_hidden.is_some() {
            parts.push("kernel hidden".to_owned());
        }
        parts.join(", ")
    }
}

/// Returns the facts about a process and its session. `number` is the file's sequence number.
pub fn facts(
    process: &Process,
    description: &Description,
    number: u64,
    start_unix_ns: u64,
    length: Duration,
) -> Facts {
    let lossy = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let length = length.as_nanos() as u64;
    let thread = |(tid, name): &(i32, Vec<u8>)| Thread {
        tid: tid.cast_unsigned(),
        name: lossy(name),
    };
    let end_unix_ns = start_unix_ns.saturating_add(length);
    Facts {
        exe_file: description.executable_identity(process, end_unix_ns),
        pid: u32::try_from(process.pid).ok(),
        process: Some(lossy(&description.name)),
        exe: description.exe.clone(),
        command_line: description
            .command_line
            .iter()
            .map(|argument| lossy(argument))
            .collect(),
        boot_id: proc::boot_id().map(|(_, text)| text),
        start_unix_ns: Some(start_unix_ns),
        end_unix_ns: Some(end_unix_ns),
        duration_ns: Some(length),
        python: process.script.interpreter.map(|python| python.to_string()),
        threads: process.threads.iter().map(thread).collect(),
        sequence: Some(number),
        ..Facts::default()
    }
}

/// Returns true if a process runs Python, but its stacks have neither Python lines nor the
/// trampolines that Python generates for profilers.
fn lacks_python_lines(process: &Process) -> bool {
    let mut ranges = process.space.ranges().iter();
    let is_python = |path: &[u8]| {
        let name = text::base_name(path);
        name.starts_with(b"python3")
            || name.starts_with(b"libpython3")
            || python::version_of(path).is_some()
    };
    let runs_python =
        process.script.interpreter.is_some() || ranges.clone().any(|range| is_python(&range.path));
    runs_python && process.script.is_empty() && !ranges.any(|range| range.is_generated())
}

/// Explains why Python lines are missing, if that is known.
fn explain_missing_lines(process: &Process, is_perf: bool) -> Option<String> {
    let interpreter = process.script.interpreter;
    let by_name = || {
        let mut ranges = process.space.ranges().iter();
        ranges.find_map(|range| python::version_of(&range.path))
    };
    let reported = interpreter.map(|python| python.version);
    let version = reported.filter(|version| *version != 0).or_else(by_name);
    let is_unknown = match version {
        Some(version) => !cpython::layout::is_known(version),
        None => interpreter.is_some_and(|python| python.state == State::Unknown),
    };
    if is_unknown {
        let name = version.map_or("its version".to_owned(), |version| {
            format!("{}.{}", (version >> 24) & 0xff, (version >> 16) & 0xff)
        });
        let known = cpython::VERSIONS;
        return Some(format!(
            "no lines of Python ({name} is not supported, only {known} are)"
        ));
    }
    match interpreter.map(|python| python.state) {
        Some(State::Differs) => {
            Some("no lines of Python (its data do not match its version)".to_owned())
        }
        _ => is_perf.then(|| "no lines of Python (--engine ptrace names them)".to_owned()),
    }
}

/// Formats the advice to sample at a higher rate, for this reason.
fn advise_higher_rate(why: &str, rate: u32) -> String {
    let more = rate.saturating_mul(10).min(MAX_RATE);
    format!("{why}: sample more often (-F {more})")
}

/// Returns the executable mappings of a process.
pub fn modules(process: &Process) -> impl Iterator<Item = Mapping> {
    let ranges = process.space.ranges();
    ranges.iter().map(|range| Mapping {
        start: range.start,
        end: range.end,
        file_offset: range.offset,
        build_id: BuildId(build_id(ranges, range)),
        path: OsStr::from_bytes(&range.path).into(),
        past: false,
    })
}

/// Returns the build id of a range's file. A file may have several ranges with code, and only the
/// sampled ones have been read.
fn build_id(ranges: &[Range], range: &Range) -> Vec<u8> {
    let is_same = |other: &&Range| other.file == range.file && other.path == range.path;
    let mut ids = ranges.iter().filter(is_same).map(Range::build_id);
    if let Some(id) = ids.find(|id| !id.is_empty()) {
        return id.to_vec();
    }
    // None of the file's ranges was sampled.
    let path = Path::new(OsStr::from_bytes(&range.path));
    let is_mapped_file = range.file.inode != 0
        && path.is_absolute()
        && std::fs::metadata(path).is_ok_and(|file| file.ino() == range.file.inode);
    if !is_mapped_file {
        return Vec::new();
    }
    symbols::Elf::open(path).map_or_else(|_| Vec::new(), |elf| elf.build_id.0)
}

fn add_stacks(process: &Process, symbols: &Symbols, builder: &mut CpuBuilder) {
    let mut stack = Vec::new();
    process.stacks.each(|thread, frames, count| {
        stack.clear();
        for &frame in frames {
            stack.push(location(process, symbols, frame, builder));
        }
        builder.stack(&stack, count.samples, count.ns, thread);
    });
}

/// Returns the location of a frame.
pub fn location(
    process: &Process,
    symbols: &Symbols,
    frame: u64,
    builder: &mut CpuBuilder,
) -> LocationId {
    match frame {
        TRUNCATED => builder.location(Frame::Truncated),
        TABLE_FULL => builder.location(Frame::TableFull),
        Waiting::QUEUE => builder.location(Frame::Kernel(QUEUE)),
        kernel if kernel >= FIRST_OF_KERNEL => {
            builder.location(Frame::Kernel(symbols.name(kernel).unwrap_or_default()))
        }
        user => user_location(process, user, builder),
    }
}

/// Returns the location of a user-space frame: machine code or a Python line.
pub fn user_location(process: &Process, frame: u64, builder: &mut CpuBuilder) -> LocationId {
    let Some(line) = process.script.line(frame) else {
        return builder.location(Frame::User(frame));
    };
    let function = Function {
        name: line.name.clone(),
        system_name: String::new(),
        file: line.file.clone(),
        start_line: line.first_line,
    };
    builder.location(Frame::Python(&function, line.line))
}

/// Adds hidden kernel time and the time without samples, each as a stack of one frame.
fn add_unsampled(process: &Process, mode: Mode, builder: &mut CpuBuilder) {
    let mut add_frame = |frame, ns: u64| {
        if ns > 0 {
            let stack = [builder.location(frame)];
            builder.stack(&stack, 0, ns, 0);
        }
    };
    add_frame(Frame::Kernel(""), process.counts.hidden_ns);
    add_frame(Frame::NotSampled, Times::of(process, mode).unsampled_ns);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mode_counts_its_own_kind_of_time() {
        let mut recording = cpu::Recording::new(false);
        recording.add_new(i32::MAX);
        let process = recording.process(i32::MAX).expect("a process");
        process.counts.ns = 10;
        process.counts.rest_ns = 5;
        process.counts.waiting_ns = 300;
        process.counts.waited_ns = 100;
        let times = |mode| {
            let times = Times::of(process, mode);
            (times.total_ns, times.unsampled_ns)
        };
        assert_eq!(times(Mode::Cpu), (15, 5));
        assert_eq!(times(Mode::OffCpu), (400, 100));
        assert_eq!(times(Mode::Wall), (415, 105));
    }

    #[test]
    fn the_advised_rate_is_within_the_maximum() {
        assert!(advise_higher_rate(RARELY_SEEN, 99).ends_with("(-F 990)"));
        assert!(advise_higher_rate(RARELY_SEEN, 5000).ends_with("(-F 10000)"));
    }

    #[test]
    fn the_remark_names_the_gaps_of_a_profile() {
        const MS: u64 = 1_000_000;
        let mut session = Session {
            sampling: Sampling {
                engine: "perf_event".into(),
                rate: 99,
                ..Sampling::default()
            },
            format: CpuFormat::Cpu,
            has_clock: true,
            start_unix_ns: 0,
            length: Duration::from_secs(1),
            is_filtered: false,
        };
        let mut recording = cpu::Recording::new(false);
        recording.add_new(i32::MAX);
        let process = recording.process(i32::MAX).expect("a process");
        process.counts.samples = 100;
        process.counts.ns = 1000 * MS;
        assert_eq!(
            session.remark(process, None),
            "perf_event, 100.0 % of stacks complete"
        );
        process.counts.truncated[0] = 1;
        process.counts.lost = 2;
        session.sampling.kernel_hidden = Some("it may not be seen".into());
        let start = "perf_event, 99.0 % of stacks complete, 2 samples lost";
        assert_eq!(
            session.remark(process, None),
            format!("{start}, kernel hidden")
        );
        // For threads that ended, ptrace knows only the process's clock.
        process.set_clock(2000 * MS);
        let remark = session.remark(process, None);
        let missing =
            format!("50.0 % of the time not sampled, {RARELY_SEEN}: sample more often (-F 990)");
        assert_eq!(remark, format!("{start}, {missing}, kernel hidden"));
        process.counts.rest_ns = 1000 * MS;
        process.counts.hidden_ns = 100 * MS;
        let remark = session.remark(process, None);
        assert!(
            remark.contains("many threads end before a sample is due"),
            "{remark}"
        );
        assert!(
            remark.ends_with("4.8 % in the kernel, which is hidden"),
            "{remark}"
        );
    }
}
