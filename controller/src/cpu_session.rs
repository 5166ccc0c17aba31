//! CPU profiling sessions: chooses the sampling engine, follows the processes until they exit or
//! the session ends, and writes a profile of each.

mod agents_or_ptrace;
mod choose;
mod description;
mod ending;
mod engine;
mod filters;
mod member;
mod outcome;
mod own_profile;
pub mod recovered;
mod sampler;
mod signals;
mod sink;
mod targets;
pub mod timers;
mod writer;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use capture::RaisedPriority;
use cpu::{Recording, Refusal, Sampling};
use mem_agents::cleaning;
use mem_agents::discovery::Discovery;
use mem_agents::segment::default_directory;
use mem_agents::text;
use mem_agents::waiting::{Received, Signals};
use nix::sys::signal::Signal;
use proc::{self, FileLimit};
use profile::cpu::Mode;

pub use crate::cli::{CpuFormat, EngineName};
use crate::launch::{self, LaunchedProgram};
use crate::reporter::Reporter;
use crate::rounds::{self, Rounds};
use crate::survivors;
pub use choose::will_use_agents;
pub use description::Description;
pub use engine::explain_hidden_kernel;
pub use outcome::{Outcome, Unsampled, Written};
pub use own_profile::OwnProfile;
pub use sampler::{Agents, Sampler};
use sink::{Sink, file_sink};
pub use targets::{Targets, find};
pub use writer::{Session, Times, facts, location, modules, user_location};

/// Maximum interval between collections of samples.
const COLLECT_INTERVAL: Duration = Duration::from_millis(100);

/// Descriptors reserved for reads of `/proc` while an engine opens its own. Some of them are
/// released afterwards, for opening executables and libraries.
const RESERVED_WHILE_ATTACHING: usize = 24;

/// Descriptors reserved for reads of `/proc` after attaching.
const RESERVED_WHILE_SAMPLING: usize = 4;

/// Maximum time that a session waits for the exit status of its program.
const EXIT_TIMEOUT: Duration = Duration::from_secs(2);

/// Settings of a CPU session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the session. `None`: until a signal arrives or all processes have exited.
    pub length: Option<Duration>,
    /// Samples per second of CPU time.
    pub rate: u32,
    /// Directory and name prefix of the profiles.
    pub prefix: PathBuf,
    /// Requested engine. `None`: the best engine that is permitted.
    pub engine: Option<EngineName>,
    /// Kind of time that is sampled.
    pub mode: Mode,
    /// File format of the profiles.
    pub format: CpuFormat,
    /// True if a program that profiles itself has chosen which of its samples are kept.
    pub is_filtered: bool,
}

/// CPU session before or during sampling.
pub struct Run {
    settings: Settings,
    sink: Sink,
    signals: Signals,
    reporter: Box<dyn Reporter>,
    sampler: Sampler,
    recording: Recording,
    /// Descriptions by serial number. A process that executes another program gets a new number.
    descriptions: HashMap<u64, Description>,
    /// Requested processes: pid and title.
    requested: Vec<(i32, String)>,
    child: Option<LaunchedProgram>,
    /// Original limit on open files, restored in a program that we start.
    original_file_limit: Option<FileLimit>,
    /// CPU time of our children that were reaped before the program was started, in nanoseconds.
    reaped_before_ns: u64,
    start: Instant,
    start_unix_ns: u64,
    /// True if a process without samples is a failure.
    expects_samples: bool,
    /// Raised scheduling priority of this process; `None` unless it is sampling.
    raised_priority: Option<RaisedPriority>,
    outcome: Outcome,
}

impl Run {
    /// Creates a session that runs alone, without a heap session. Checks that profiles can be
    /// written, and chooses an engine. If `launches`, the session starts a program and also samples
    /// its children.
    pub fn new(
        settings: Settings,
        launches: bool,
        reporter: Box<dyn Reporter>,
    ) -> anyhow::Result<Self> {
        let signals = launch::block_signals(None, launches)?;
        let sink = file_sink(&settings)?;
        let agents = Agents::StartedHere;
        Self::with_sink(signals, settings, sink, launches, agents, reporter)
    }

    /// Creates a session that runs in a thread of its own beside a heap session. That shows the
    /// progress and ends this one. A process without samples is not a failure, since its heap profile is
    /// written.
    pub fn with_heap(
        settings: Settings,
        signals: Signals,
        reporter: Box<dyn Reporter>,
    ) -> anyhow::Result<Self> {
        let sink = file_sink(&settings)?;
        let agents = Agents::StartedByHeap;
        let mut run = Self::with_sink(signals, settings, sink, false, agents, reporter)?;
        run.expects_samples = false;
        Ok(run)
    }

    /// Creates a session that a program has requested for itself.
    pub fn for_own_profile(
        settings: Settings,
        profile: OwnProfile,
        reporter: Box<dyn Reporter>,
    ) -> anyhow::Result<Self> {
        let sink = Sink::OwnProfile {
            profile: Box::new(profile),
            serial: 0,
        };
        let signals = Signals::block(&[])?;
        Self::with_sink(
            signals,
            settings,
            sink,
            false,
            Agents::StartedHere,
            reporter,
        )
    }

    fn with_sink(
        signals: Signals,
        settings: Settings,
        sink: Sink,
        launches: bool,
        agents: Agents,
        reporter: Box<dyn Reporter>,
    ) -> anyhow::Result<Self> {
        let original_file_limit = proc::allow_files();
        let sampling = Sampling {
            rate: settings.rate,
            children: launches,
        };
        let mut sampler = Sampler::choose(settings.engine, settings.mode, sampling, agents)?;
        if settings.format == CpuFormat::Gperftools {
            sampler.omit_python_lines();
        }
        Ok(Self {
            sampler,
            reporter,
            recording: Recording::new(launches),
            signals,
            descriptions: HashMap::new(),
            requested: Vec::new(),
            child: None,
            original_file_limit,
            reaped_before_ns: 0,
            start: Instant::now(),
            start_unix_ns: shm_protocol::clock::unix_ns(),
            expects_samples: true,
            raised_priority: None,
            outcome: Outcome {
                mode: settings.mode,
                format: settings.format,
                ..Outcome::default()
            },
            sink,
            settings,
        })
    }

    /// Samples running processes until the session ends, and writes their profiles.
    pub fn attach(mut self, targets: Targets) -> anyhow::Result<Outcome> {
        for failure in &targets.failures {
            self.fail(failure);
        }
        for &pid in &targets.pids {
            self.recording.add(pid);
            let title = Description::read(pid).map_or_else(|| pid.to_string(), |d| d.title(pid));
            self.requested.push((pid, title));
        }
        if let Sink::OwnProfile { profile, serial } = &mut self.sink {
            let process = self.recording.process(profile.pid());
            *serial = process.map_or(0, |process| process.serial);
        }
        self.sampler.set_session_length(self.settings.length);
        self.raised_priority = Some(RaisedPriority::of_collector());
        for (pid, refusal) in self.attach_engine(&targets.pids) {
            let index = self
                .requested
                .iter()
                .position(|(requested, _)| *requested == pid);
            let title = index.map(|index| self.requested.remove(index).1);
            let title = title.unwrap_or_else(|| pid.to_string());
            self.fail(&format!("{title}: {refusal}"));
        }
        self.report_warnings();
        if self.recording.running().next().is_some() {
            self.announce_start()?;
            let result = self.watch();
            self.reporter.end();
            result?;
            self.finish();
        }
        Ok(self.outcome)
    }

    /// Starts a program and samples it and its children until it exits. The inner error is a
    /// failure to start the program.
    pub fn follow(mut self, command: &[OsString]) -> anyhow::Result<io::Result<Outcome>> {
        let needs_attaching = self.sampler.prepare_for_child()?;
        let directory = if self.sampler.uses_agents() {
            Some(launch::make_directory(&default_directory())?)
        } else {
            None
        };
        let child = match &directory {
            Some(directory) => {
                let agent = launch::find_agent(None)?;
                let discovery = Discovery::in_directory(directory.clone());
                self.sampler.set_segment_directory(discovery);
                let filters = filters::count_if_timers_allowed();
                LaunchedProgram::start_with_timers(
                    command,
                    &agent,
                    self.settings.rate,
                    filters,
                    directory,
                )
            }
            None => LaunchedProgram::start_plain(command),
        };
        let result = match child {
            Ok(child) => self
                .follow_child(child, needs_attaching, directory.as_deref())
                .map(Ok),
            Err(error) => Ok(Err(error)),
        };
        if let Some(directory) = directory {
            cleaning::remove_directory(&directory);
        }
        result
    }

    fn follow_child(
        mut self,
        child: LaunchedProgram,
        needs_attaching: bool,
        directory: Option<&Path>,
    ) -> anyhow::Result<Outcome> {
        let pid = child.pid();
        self.reaped_before_ns = ending::reaped_ns();
        // The program runs already, at its own priority.
        self.raised_priority = Some(RaisedPriority::of_collector());
        if let Some(limit) = self.original_file_limit {
            limit.restore(pid);
        }
        self.child = Some(child);
        self.recording.add_new(pid);
        if needs_attaching {
            self.attach_child(pid);
        }
        self.report_warnings();
        self.announce_start()?;
        self.watch()?;
        self.await_child_exit()?;
        self.record_survivors(pid, directory);
        self.finish();
        self.reporter.end();
        self.outcome.status = rounds::await_exit(&mut self)?;
        Ok(self.outcome)
    }

    /// Records the descendants of the program that continue after its exit. `directory` has
    /// the agents' segments, if agents take the samples.
    fn record_survivors(&mut self, child: i32, directory: Option<&Path>) {
        if !proc::has_exited(child) {
            return;
        }
        let pids = self.recording.pids().into_iter();
        let pids: Vec<i32> = pids.filter(|pid| *pid != child).collect();
        self.outcome.survivors = survivors::among(&pids);
        let in_directory = directory.map(survivors::in_directory).unwrap_or_default();
        let unrecorded = in_directory
            .into_iter()
            .filter(|survivor| !pids.contains(&survivor.pid));
        self.outcome.survivors.extend(unrecorded);
    }

    /// Waits up to `EXIT_TIMEOUT` for the exit status of a program that is exiting. The engine may
    /// notice the exit before SIGCHLD arrives, and the CPU time of the program's children is known
    /// only once the program is reaped.
    fn await_child_exit(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        let is_exiting =
            |child: &LaunchedProgram| child.status.is_none() && proc::is_ending(child.pid());
        while self.child.as_ref().is_some_and(is_exiting) && since.elapsed() < EXIT_TIMEOUT {
            let received = self.signals.wait(&[], Duration::from_millis(1))?;
            self.receive(&received);
            self.recording.poll_exited();
            if let Some(child) = &mut self.child {
                child.poll_exit();
            }
        }
        Ok(())
    }

    /// Attaches the engine to processes. Removes those that it refuses from the recording, and
    /// returns them with the reasons.
    fn attach_engine(&mut self, pids: &[i32]) -> Vec<(i32, Refusal)> {
        for &pid in pids {
            self.sampler.prepare(pid, &mut self.recording);
        }
        proc::reserve_files(RESERVED_WHILE_ATTACHING);
        let refused = self.sampler.attach(pids, &mut self.recording);
        proc::reserve_files(RESERVED_WHILE_SAMPLING);
        refused
            .iter()
            .for_each(|(pid, _)| self.recording.forget(*pid));
        refused
    }

    /// Attaches the engine to the program that we started.
    fn attach_child(&mut self, pid: i32) {
        let title = Description::read(pid).map_or_else(|| pid.to_string(), |d| d.title(pid));
        for (_, refusal) in self.attach_engine(&[pid]) {
            match refusal {
                // A program that exits immediately is not a failure.
                Refusal::Gone { .. } => self.outcome.unsampled.processes += 1,
                refusal => self.fail(&format!(
                    "{title}: {refusal}; it runs without being sampled"
                )),
            }
        }
    }

    fn fail(&mut self, message: &str) {
        self.outcome.failures += 1;
        self.reporter.failure(message);
    }

    /// Reports warnings about single processes and new fallbacks.
    fn report_warnings(&mut self) {
        let warnings = self.sampler.take_warnings();
        let fallbacks = self.sampler.unreported_fallbacks();
        for line in warnings.iter().chain(&fallbacks) {
            self.reporter.warning(line);
        }
    }

    fn watch(&mut self) -> nix::Result<()> {
        self.start = Instant::now();
        rounds::watch(self)
    }

    /// Reads the descriptions of new processes, and removes those of programs that the recording
    /// has dropped.
    fn describe(&mut self) {
        for serial in self.recording.take_dropped() {
            self.descriptions.remove(&serial);
        }
        for process in self.recording.running() {
            let is_described = self.descriptions.contains_key(&process.serial);
            if !is_described
                && let Some(description) = Description::read(process.pid)
                && description.matches(process)
            {
                self.descriptions.insert(process.serial, description);
            }
        }
    }

    /// Formats the progress so far.
    fn state(&self) -> String {
        let mut processes = 0;
        let mut samples = 0;
        let mut ns = 0;
        for process in self.recording.running() {
            processes += 1;
            samples += process.counts.samples;
            ns += Times::of(process, self.settings.mode).total_ns;
        }
        let time = text::short_time(Duration::from_nanos(ns));
        let mode = self.settings.mode;
        let samples = text::count(samples, "sample", "samples");
        let processes = text::count(processes, "process", "processes");
        format!("{samples}, {time} of {mode}, {processes}")
    }
}

impl Rounds for Run {
    fn signals(&self) -> &Signals {
        &self.signals
    }

    fn time_left(&self) -> Option<Duration> {
        let length = self.settings.length;
        length.map(|length| length.saturating_sub(self.start.elapsed()))
    }

    fn pause(&self) -> Duration {
        self.sampler.pause()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let mut descriptors = self.sampler.descriptors();
        descriptors.extend(self.sink.descriptor());
        descriptors
    }

    fn round(&mut self, received: &[Received]) -> bool {
        self.sampler.collect(&mut self.recording);
        self.report_warnings();
        self.describe();
        self.receive(received) || self.reply_to_requests() || !self.has_running_process()
    }

    fn receive(&mut self, received: &[Received]) -> bool {
        let Some(child) = &mut self.child else {
            return received.iter().any(|signal| signal.ends_session());
        };
        if received
            .iter()
            .any(|signal| signal.signal == Signal::SIGCHLD)
        {
            // Reads the child's CPU clock, which disappears once the child is reaped.
            self.recording.poll_exited();
        }
        received
            .iter()
            .for_each(|signal| child.handle_signal(*signal));
        child.status.is_some()
    }

    fn show(&self) {
        self.reporter
            .progress(self.start.elapsed(), &|| self.state());
    }

    fn child(&self) -> Option<&LaunchedProgram> {
        self.child.as_ref()
    }
}
