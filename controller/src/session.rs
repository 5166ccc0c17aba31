//! Session over one or more processes: prepares and starts all, polls them, stops all, and writes a
//! dump of each.

mod checking;
mod dumping;
mod joining;
mod member;
mod silent;

use std::collections::HashSet;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mem_agents::discovery::Discovery;
use mem_agents::dump::Written;
use mem_agents::lineage::Lineage;
use mem_agents::output::Output;
use mem_agents::segment::Entry;
use mem_agents::select::Selection;
use mem_agents::target::{Deadline, Density, LOCK_TIMEOUT, Polled, RENEWAL_INTERVAL};
use mem_agents::text;
use mem_agents::waiting::{Received, Signals};

use crate::family::Family;
use crate::jemalloc_options;
use crate::launch::{self, LaunchedProgram};
use crate::python;
use crate::reporter::Reporter;
use crate::rounds::{self, Rounds};
use crate::survivors::{self, Survivor};
use crate::triggers::Triggers;

pub use checking::ExitCheck;
use member::Member;
use silent::LastPrograms;

/// Polling interval while tables fill up quickly.
const FAST_INTERVAL: Duration = Duration::from_millis(20);
/// Polling interval while a trigger depends on it.
const TRIGGER_INTERVAL: Duration = Duration::from_millis(50);
/// Polling interval otherwise.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Polling interval while points of the timeline are closer together than [`POLL_INTERVAL`], as at
/// the start of a session.
const TIMELINE_INTERVAL: Duration = Duration::from_millis(100);
/// Maximum number of members for which [`TIMELINE_INTERVAL`] is affordable.
const MAX_TIMELINE_MEMBERS: usize = 8;
/// Time between checks of the shared directory for new segments.
const NAME_CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Time between complete scans, which include other mount namespaces.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Time for which a session without processes waits for a new one.
const EMPTY_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum time by which a session must have been cut short for a warning.
const MIN_CUT_SHORT: Duration = Duration::from_secs(1);
/// Delay after the stop, in which samples in progress are still counted.
const SETTLE_DELAY: Duration = Duration::from_millis(5);

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Initial sampling interval and thinning.
    pub density: Density,
    /// CPU budget for sampling, as a fraction of a process's CPU time. `None`: fixed interval.
    pub max_overhead: Option<f64>,
    /// Length of the session. `None`: until a signal.
    pub length: Option<Duration>,
    /// Directory and name prefix of dumps.
    pub prefix: PathBuf,
    /// Processes to sample.
    pub selection: Selection,
    /// Conditions for dumps before the end of the session.
    pub triggers: Triggers,
    /// Condition for dumps of a program that we start and of its children.
    pub dump_condition: DumpCondition,
    /// CPU samples per second that the agents take as well; 0: none.
    pub cpu_rate: u32,
    /// Leak check at the exit of a program that we start. `None`: no check.
    pub leak_check: Option<ExitCheck>,
}

/// Condition for a dump of a process.
#[derive(Clone, Debug, Default)]
pub struct DumpCondition {
    /// Minimum number of bytes allocated. Does not apply to the program that we started.
    pub min: u64,
    /// Patterns of names, one of which must match. Empty: any name.
    pub only: Vec<String>,
}

/// Maximum number of dumps that are remembered for the summary.
const MAX_REMEMBERED: usize = 4096;

/// Result of a session.
#[derive(Default)]
pub struct Outcome {
    /// Dumps. If there are very many, only those from the end of sessions and the latest.
    pub written: Vec<Written>,
    /// Number of processes or dumps that failed.
    pub failures: usize,
    /// Number of processes whose session another program has ended early.
    pub cut_short: usize,
    /// Number of processes without a dump, because of [`DumpCondition`].
    pub left_out: usize,
    /// Number of processes checked for leaks at exit.
    pub checked: usize,
    /// Number of checked processes without leaks and, because of [`DumpCondition`], without a dump.
    /// Only the number is printed, since scripts start many such processes.
    pub clean_left_out: usize,
    /// Number of processes that had made their own check or disabled it.
    pub unchecked: usize,
    /// Number of processes whose check is disabled by LeakSanitizer options.
    pub disabled_by_options: usize,
    /// Number of processes with leaks.
    pub leaks: usize,
    /// Processes that outlive the session.
    pub survivors: Vec<Survivor>,
    /// Exit status of the program that we started.
    pub status: Option<std::process::ExitStatus>,
}

impl Outcome {
    /// Records a dump. Drops old ones, so that memory use stays bounded in a session of days.
    fn remember(&mut self, dump: Written) {
        if self.written.len() >= MAX_REMEMBERED {
            let oldest_kept = self.written.len() / 2;
            let mut number = 0;
            self.written.retain(|dump| {
                number += 1;
                dump.is_last || number >= oldest_kept
            });
        }
        self.written.push(dump);
    }
}

/// Descendant whose agent is not known yet: it has executed another program, or is new.
struct Unverified {
    pid: i32,
    /// Name and pid of its earlier program or, for a new process, of its parent, for display.
    title: String,
    /// Time when the process was first seen; `None` if it is not new.
    first_seen: Option<Instant>,
}

/// A session.
pub struct Run {
    settings: Settings,
    output: Output,
    discovery: Discovery,
    signals: Signals,
    reporter: Box<dyn Reporter>,
    members: Vec<Member>,
    /// Segments that have been examined.
    examined: HashSet<Entry>,
    /// Segments, with their creation times, that still exist although an exec has replaced their
    /// programs; see [`release`](Self::release).
    replaced: HashSet<(Entry, u64)>,
    /// Segments of new processes that other commands held at first.
    postponed: HashSet<Entry>,
    outcome: Outcome,
    start: Instant,
    /// Start in ns of the segments' clock. `None`: not started.
    start_ns: Option<u64>,
    last_search: Instant,
    last_names_check: Instant,
    /// Time of the next renewal of the sessions' deadlines.
    renewal: Instant,
    /// Last time at which the session had processes.
    last_occupied: Instant,
    /// Program that we started; its agents start sessions by themselves.
    child: Option<LaunchedProgram>,
    /// Descendants of the program.
    family: Family,
    /// Processes that the session has reached.
    lineage: Lineage,
    /// Descendants whose agent is not known yet.
    unverified: Vec<Unverified>,
    /// Number of programs without the agent that descendants have executed.
    lost_agents: usize,
    /// Programs of descendants that have ended.
    last_programs: LastPrograms,
}

impl Run {
    /// Creates a session. Checks that dumps can be written, and blocks the signals that the session
    /// handles. If `launches`, the session starts a program.
    pub fn new(
        settings: Settings,
        discovery: Discovery,
        launches: bool,
        reporter: Box<dyn Reporter>,
    ) -> anyhow::Result<Self> {
        let output = Output::open(&settings.prefix)?;
        Ok(Self {
            output,
            discovery,
            signals: launch::block_signals(settings.triggers.signal, launches)?,
            reporter,
            members: Vec::new(),
            examined: HashSet::new(),
            replaced: HashSet::new(),
            postponed: HashSet::new(),
            outcome: Outcome::default(),
            start: Instant::now(),
            start_ns: None,
            last_search: Instant::now(),
            last_names_check: Instant::now(),
            renewal: Instant::now() + RENEWAL_INTERVAL,
            last_occupied: Instant::now(),
            child: None,
            family: Family::new(),
            lineage: Lineage::default(),
            unverified: Vec::new(),
            lost_agents: 0,
            last_programs: LastPrograms::default(),
            settings,
        })
    }

    /// Runs a session in running processes.
    pub fn run(mut self) -> anyhow::Result<Outcome> {
        let scan = self.discovery.scan();
        self.examined.extend(scan.found.iter().map(|a| a.entry));
        self.examined.extend(&scan.settled);
        let chosen = self.settings.selection.choose(scan);
        chosen
            .failures
            .iter()
            .for_each(|failure| self.fail(failure));
        chosen
            .warnings
            .iter()
            .for_each(|warning| self.reporter.warning(warning));
        let targets = self.claim(chosen.agents, LOCK_TIMEOUT);
        self.check_space(&targets)?;
        self.start_sessions(targets);
        if !self.members.is_empty() {
            let agents = self.members.iter().map(|member| &member.target.agent);
            let processes = agents.map(|agent| (agent.pid, &agent.name[..]));
            let hints = [
                python::hint(processes.clone()),
                jemalloc_options::hint(processes),
            ];
            for hint in hints.iter().flatten() {
                self.reporter.diagnostic(hint);
            }
            self.reporter.begin(self.settings.length);
            self.watch()?;
            self.join_last();
            self.end();
        }
        Ok(self.outcome)
    }

    /// Follows a program that was started with the agent, and its children, until it exits.
    /// `directory` contains the segments.
    pub fn follow(mut self, child: LaunchedProgram, directory: &Path) -> anyhow::Result<Outcome> {
        self.child = Some(child);
        self.start = Instant::now();
        self.reporter.begin(self.settings.length);
        self.watch()?;
        self.join_new();
        self.poll_members();
        self.end();
        self.warn_of_refused_segments();
        self.warn_of_more_lost_agents();
        self.warn_of_silent_ends();
        self.record_survivors(directory);
        self.outcome.status = rounds::await_exit(&mut self)?;
        Ok(self.outcome)
    }

    /// Records the descendants of the program that continue without having been sampled: a daemon
    /// leaves the session when its parent exits before it has a segment of its own.
    fn record_survivors(&mut self, directory: &Path) {
        let child = self.child.as_ref().map(LaunchedProgram::pid);
        let known_pids: Vec<i32> = self
            .outcome
            .survivors
            .iter()
            .map(|survivor| survivor.pid)
            .collect();
        let all = survivors::in_directory(directory).into_iter();
        let unknown = all
            .filter(|survivor| Some(survivor.pid) != child && !known_pids.contains(&survivor.pid));
        self.outcome.survivors.extend(unknown);
    }

    fn warn_of_refused_segments(&mut self) {
        let refused = self.family.refused;
        if refused > 0 {
            self.reporter.warning(&format!(
                "{refused} segments in this run's directory are ignored: they belong to users \
                 that none of its processes was seen to run as"
            ));
        }
    }

    fn fail(&mut self, message: &str) {
        self.outcome.failures += 1;
        self.reporter.failure(message);
    }

    fn watch(&mut self) -> nix::Result<()> {
        self.renewal = Instant::now() + RENEWAL_INTERVAL;
        self.last_occupied = Instant::now();
        rounds::watch(self)
    }

    /// Polls all members: removes those that have ended, and checks the triggers of the others.
    fn poll_members(&mut self) {
        let mut index = 0;
        while index < self.members.len() {
            let result = self.members[index].target.poll();
            for warning in self.members[index].target.take_warnings() {
                self.reporter.warning(&warning);
            }
            let ended = match result {
                Ok(Polled::Counting) if self.has_lost_agent(index) => {
                    self.end_membership(index);
                    continue;
                }
                Ok(Polled::Counting) => {
                    let members = self.members.len();
                    self.members[index].update_timeline(members);
                    self.check_triggers(index);
                    self.check_at_exit(index);
                    false
                }
                Ok(Polled::Dead) => true,
                // The agent may end the session at its deadline a moment before we do.
                Ok(Polled::Stopped) => self.time_left().is_none_or(|left| left > FAST_INTERVAL),
                Err(error) => {
                    let title = self.members[index].title();
                    self.fail(&format!("{title}: its segment became unusable: {error}"));
                    self.members.swap_remove(index);
                    continue;
                }
            };
            if ended {
                let member = self.members.swap_remove(index);
                let early_end = match result {
                    Ok(Polled::Stopped) => self.describe_early_end(&member),
                    _ => None,
                };
                self.finish(member);
                if let Some(warning) = early_end {
                    self.outcome.cut_short += 1;
                    self.reporter.warning(&warning);
                }
            } else {
                index += 1;
            }
        }
    }

    /// Returns a warning if another program has ended a member's session early, so that its profile
    /// covers a shorter time. Returns `None` if the session was complete or the process has exited.
    fn describe_early_end(&self, member: &Member) -> Option<String> {
        let left = self.time_left();
        let is_early = left.is_none_or(|left| left > MIN_CUT_SHORT);
        if !is_early || !member.target.is_cut_short() {
            return None;
        }
        let before = left.map_or_else(String::new, |left| {
            format!(", {} before its time", text::duration(left))
        });
        Some(format!(
            "{}: another program has ended its session after {}{before}: its profile is of that time only",
            member.title(),
            text::short_time(member.target.lasted()),
        ))
    }

    fn check_triggers(&mut self, index: usize) {
        let Member {
            target, watcher, ..
        } = &mut self.members[index];
        let triggers = &self.settings.triggers;
        let reason = watcher.dump_reason(triggers, target.agent.pid, &target.totals);
        if let Some(reason) = reason {
            self.dump(index, &reason);
        }
    }

    fn extend_sessions(&mut self) {
        let deadline = Deadline::ns_after(None);
        for member in &mut self.members {
            if let Err(reason) = member.target.publish(deadline) {
                let warning = format!("{}: {reason}", member.title());
                self.reporter.warning(&warning);
            }
        }
    }

    /// Formats the progress so far.
    fn state(&self) -> String {
        let mut samples = 0_u64;
        let mut bytes = 0.0;
        for member in &self.members {
            let totals = &member.target.totals;
            samples = samples.saturating_add(totals.samples);
            bytes += totals.alloc_bytes;
        }
        for dump in self.outcome.written.iter().filter(|dump| dump.is_last) {
            samples = samples.saturating_add(dump.samples);
            bytes += dump.alloc_bytes;
        }
        let is_exact = self.settings.density.interval == 1 && self.settings.max_overhead.is_none();
        format!(
            "{}, {}{} allocated, {}",
            text::count(samples, "sample", "samples"),
            if is_exact { "" } else { "~" },
            text::bytes(bytes),
            text::count(self.members.len() as u64, "process", "processes")
        )
    }
}

impl Rounds for Run {
    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn time_left(&self) -> Option<Duration> {
        self.settings
            .length
            .map(|length| length.saturating_sub(self.start.elapsed()))
    }

    fn pause(&self) -> Duration {
        let is_young = self.start.elapsed() < Duration::from_secs(1);
        if is_young
            || self.settings.leak_check.is_some()
            || self.members.iter().any(|m| m.target.growing)
        {
            FAST_INTERVAL
        } else if self.settings.triggers.needs_polling() {
            TRIGGER_INTERVAL
        } else if self.members.len() <= MAX_TIMELINE_MEMBERS
            && (self.members.iter()).any(|m| m.timeline.period() < POLL_INTERVAL)
        {
            TIMELINE_INTERVAL
        } else {
            POLL_INTERVAL
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let pidfds = self.members.iter().filter_map(|m| m.target.pidfd());
        pidfds.collect()
    }

    fn round(&mut self, received: &[Received]) -> bool {
        if self.receive(received) {
            return true;
        }
        self.poll_members();
        let now = Instant::now();
        self.search(now);
        self.warn_of_lost_agents();
        // Sessions that agents start by themselves end unless they are extended.
        let is_rolling = self.settings.length.is_none() || self.child.is_some();
        if is_rolling && now >= self.renewal {
            self.renewal = now + RENEWAL_INTERVAL;
            self.extend_sessions();
        }
        if !self.members.is_empty() || self.child.is_some() {
            self.last_occupied = now;
        }
        now - self.last_occupied >= EMPTY_TIMEOUT
    }

    fn receive(&mut self, received: &[Received]) -> bool {
        for signal in received {
            if Some(signal.signal) == self.settings.triggers.signal {
                for index in 0..self.members.len() {
                    self.dump(index, &format!("signal {}", signal.signal));
                }
            } else if let Some(child) = &mut self.child {
                child.handle_signal(*signal);
            }
        }
        match &self.child {
            Some(child) => child.status.is_some(),
            None => received.iter().any(|signal| signal.ends_session()),
        }
    }

    fn show(&self) {
        self.reporter
            .progress(self.start.elapsed(), &|| self.state());
    }

    fn child(&self) -> Option<&LaunchedProgram> {
        self.child.as_ref()
    }
}
