//! Process whose agent samples it, and the counts in its segment.

use std::collections::HashMap;

use cpu::script::{Script, ScriptLine};
use cpu::space::Range;
use cpu::stacks::{Count, Stacks};
use cpu::{Process, Recording};
use mem_agents::collect;
use mem_agents::dump;
use mem_agents::interpreted::{self, Interpreted};
use mem_agents::segment::Head;
use mem_agents::snapshot::Snapshot;
use mem_agents::target::Target;
use shm_protocol::cpu::CpuState;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::snapshot::CpuView;

use super::signals::BlockingThreads;
use crate::launch::FILTERS_VARIABLE;

/// CPU time after which a process should have noticed the session, in nanoseconds.
const NOTICE_TIMEOUT_NS: u64 = 100_000_000;

/// Reason why a process does not sample itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SamplingFailure {
    /// The process has used CPU time without noticing the session.
    Unnoticed,
    /// The process cannot sample itself, for this reason.
    Refused(String),
}

impl SamplingFailure {
    /// Returns the reason, for display.
    pub fn reason(&self) -> &str {
        match self {
            Self::Unnoticed => {
                "none of its threads has allocated memory since the session began, and its agent \
                 notices a session when one does"
            }
            Self::Refused(why) => why,
        }
    }
}

/// Process that samples itself.
pub(super) struct Member {
    pub target: Target,
    pub pid: i32,
    /// Totals in the segment at the last read.
    pub totals: CpuView,
    /// CPU time of the process at the start of the session, in nanoseconds.
    pub start_cpu_ns: u64,
    /// Executable at the start of the session.
    exe: Option<Vec<u8>>,
    blocking_threads: BlockingThreads,
}

impl Member {
    pub fn new(target: Target) -> Self {
        let pid = target.agent.pid;
        Self {
            totals: CpuView::default(),
            start_cpu_ns: proc::cpu_ns(pid).unwrap_or(0),
            exe: proc::exe(pid),
            blocking_threads: BlockingThreads::new(),
            pid,
            target,
        }
    }

    /// Returns true if the process has executed another program since the start of the session.
    pub fn has_executed(&self) -> bool {
        let exe = proc::exe(self.pid);
        exe.is_some() && exe != self.exe && self.target.agent.confirm().is_err()
    }

    /// Explains why the agent creates no timers under seccomp filters, with advice.
    fn explain_filters(&self) -> String {
        let mut head = Head::new();
        let header = self.target.agent.segment.head(&mut head);
        let inherited = header.map_or(0, |header| header.seccomp().1);
        let why = "the agent makes no system call that a filter might not allow";
        match inherited {
            0 => format!("it is under a seccomp filter, and {why}"),
            1 => format!(
                "it was started under a seccomp filter, and {why}; if that allows timers (Docker, Kubernetes), start it with {FILTERS_VARIABLE}=1"
            ),
            n => format!(
                "it was started under {n} seccomp filters, and {why}; if they allow timers, start \
                 the program with {FILTERS_VARIABLE}={n}"
            ),
        }
    }

    /// Reads all stacks and counts from the segment.
    pub fn read(&mut self, recording: &mut Recording) -> anyhow::Result<()> {
        let target = &self.target;
        let mut head = Head::new();
        let header = target.agent.segment.full_head(&mut head)?;
        let snapshot = dump::snapshot(&target.agent, &target.session, &header)?;
        if let Some(process) = recording.process(self.pid) {
            let maps = proc::maps(self.pid).unwrap_or_default();
            process.stacks = Stacks::default();
            fill_from_segment(process, &snapshot, &header, &maps);
            process.set_clock(snapshot.cpu_totals.process_ns);
            process.set_clock(target.cpu_clock().unwrap_or(0));
        }
        self.totals = snapshot.cpu_totals;
        Ok(())
    }

    /// Updates the totals of the process, for the progress display.
    pub fn update_totals(&mut self, recording: &mut Recording) {
        let segment = &self.target.agent.segment;
        let number = self.target.session.number;
        let mut buffer = [0; BANK_HEADER_BYTES];
        let Ok(bank) = segment.bank(number, &mut buffer) else {
            return;
        };
        self.totals = bank.cpu();
        if let Some(process) = recording.process(self.pid) {
            set_counts(process, &self.totals);
            let cpu_ns = process.cpu_ns();
            let sampled_ns = process.counts.ns;
            let signal = self.totals.signal;
            self.blocking_threads
                .update(self.pid, signal, cpu_ns, sampled_ns);
            process.counts.blocked = self.blocking_threads.max_threads();
        }
    }

    /// Returns why the process does not sample itself, or `None` if no problem is known.
    pub fn failure(&self) -> Option<SamplingFailure> {
        let signal = self.totals.signal;
        let why = match self.totals.state {
            CpuState::Armed | CpuState::Disarmed => {
                let threads = self.blocking_threads.max_threads();
                if threads == 0 || self.totals.samples > 0 {
                    return None;
                }
                explain_blocked_signal(threads, signal)
            }
            CpuState::Unnoticed => {
                let now = proc::cpu_ns(self.pid).unwrap_or(0);
                let is_overdue = now.saturating_sub(self.start_cpu_ns) > NOTICE_TIMEOUT_NS;
                return is_overdue.then_some(SamplingFailure::Unnoticed);
            }
            CpuState::Filtered => self.explain_filters(),
            CpuState::NoSignal => "it uses or blocks every real-time signal".to_owned(),
            CpuState::SignalTaken => {
                format!("the program has begun to use signal {signal}, which the timers used")
            }
            CpuState::Failed => {
                let errno = self.totals.errno.cast_signed();
                let error = std::io::Error::from_raw_os_error(errno);
                let why = match errno {
                    libc::EAGAIN => "its user has as many pending signals as ulimit -i allows",
                    _ => &error.to_string(),
                };
                format!("the kernel gives it no timers: {why}")
            }
        };
        Some(SamplingFailure::Refused(why))
    }
}

/// Formats the reason for missing samples of threads that block the timers' signal.
fn explain_blocked_signal(threads: u64, signal: u32) -> String {
    let (subject, verb) = match threads {
        1 => ("a thread".to_owned(), "blocks"),
        n => (format!("{n} threads"), "block"),
    };
    format!("{subject} of it {verb} signal {signal}, which the timers use")
}

fn set_counts(process: &mut Process, totals: &CpuView) {
    let counts = &mut process.counts;
    counts.samples = totals.samples.saturating_add(totals.full_samples);
    counts.ns = totals.ns.saturating_add(totals.full_ns);
    counts.table_full = totals.full_samples;
    counts.truncated = totals.truncated;
    counts.lost = totals.overruns.saturating_add(totals.postponed);
    counts.lacks_timers = totals.unarmed > 0;
}

/// Python frames of a process's segment, which encodes them as pseudo-addresses.
struct ScriptFrames<'a> {
    interpreted: Interpreted<'a>,
    /// Frames by address, as numbered in the profile. `None`: the address is machine code.
    frames_by_address: HashMap<u64, Option<u64>>,
}

impl<'a> ScriptFrames<'a> {
    fn new(snapshot: &'a Snapshot) -> Self {
        Self {
            interpreted: Interpreted::new(snapshot.codes()),
            frames_by_address: HashMap::new(),
        }
    }

    /// Returns the Python frame of an address, or `None` if it is machine code.
    fn frame(&mut self, script: &mut Script, address: u64) -> Option<u64> {
        let new = || {
            let (function, line) = self.interpreted.frame(address)?;
            Some(script.frame(ScriptLine {
                name: function.name,
                file: function.file,
                first_line: function.start_line,
                line,
            }))
        };
        *self.frames_by_address.entry(address).or_insert_with(new)
    }
}

/// Copies a process's stacks and modules from its segment into the recording. `maps` is the text of
/// `/proc/PID/maps`, empty if the process has exited.
pub fn fill_from_segment(
    process: &mut Process,
    snapshot: &Snapshot,
    header: &shm_protocol::snapshot::Header<'_>,
    maps: &[u8],
) {
    let (modules, relocations) = collect::modules(header, maps);
    for module in modules {
        use std::os::unix::ffi::OsStrExt;
        let range = Range::of_module(
            module.start,
            module.end,
            module.file_offset,
            module.path.as_os_str().as_bytes(),
            &module.build_id.0,
        );
        process.space.replace(range);
    }
    let threads: Vec<u32> = (snapshot.thread_entries.iter())
        .map(|thread| process.named_thread(thread.tid.cast_signed(), thread.name()))
        .collect();
    let mut script = ScriptFrames::new(snapshot);
    process.script.interpreter = interpreted::description(header);
    let mut frames = Vec::new();
    let mut sum = Count::default();
    for record in &snapshot.cpu {
        let Some((samples, ns)) = record.cpu() else {
            continue;
        };
        let stack_end = snapshot.stack(record.node, &mut frames);
        for frame in &mut frames {
            let line = script.frame(&mut process.script, *frame);
            *frame = line.unwrap_or_else(|| relocations.shown(*frame).wrapping_sub(1));
        }
        if !stack_end.whole {
            frames.push(cpu::recording::TRUNCATED);
        }
        let thread = stack_end
            .thread
            .and_then(|index| threads.get(index as usize));
        let count = Count { samples, ns };
        let outermost_first = frames.iter().rev().copied();
        process
            .stacks
            .add(thread.copied().unwrap_or(0), outermost_first, count);
        sum.samples = sum.samples.saturating_add(samples);
        sum.ns = sum.ns.saturating_add(ns);
    }
    let mut totals = snapshot.cpu_totals;
    // Totals from the segment are untrusted, so the sums over the stacks replace them.
    totals.samples = sum.samples;
    totals.ns = sum.ns;
    if totals.full_samples > 0 {
        let count = Count {
            samples: totals.full_samples,
            ns: totals.full_ns,
        };
        let frame = std::iter::once(cpu::recording::TABLE_FULL);
        process.stacks.add(0, frame, count);
    }
    set_counts(process, &totals);
}
