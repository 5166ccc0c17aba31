//! A session that samples CPU time: chooses the engine, follows processes until the session or the
//! process ends, and writes a profile of each.

mod answers;
mod asked;
mod description;
mod ending;
mod engine;
mod filters;
mod inside;
mod member;
mod outcome;
mod profile;
pub mod remains;
mod signals;
mod targets;
pub mod timers;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use capture::RaisedPriority;
use cpu::{Recording, Refusal, Sampling};
use heap_format::cpu::Mode;
use mem_agents::cleaning;
use mem_agents::discovery::Discovery;
use mem_agents::segment::default_directory;
use mem_agents::text;
use mem_agents::waiting::{Received, Signals};
use nix::sys::signal::Signal;
use proc::{self, FileLimit};

pub use crate::cli::{CpuFormat, EngineName};
use crate::launch::{self, FORWARDED, Launched};
use crate::terminal::{self, Progress};
use answers::{Sink, files};
pub use asked::Asked;
pub use description::Description;
pub use engine::{Agents, Engine, samples_inside};
pub use outcome::{Outcome, Silent, Written};
pub use profile::{Session, Times, modules, user_location};
pub use targets::{Targets, find};

/// Longest time between looks at what was sampled.
const ROUND: Duration = Duration::from_millis(100);

/// Descriptors that are kept for reads of `/proc` while engines open theirs, and afterwards: the
/// difference is for the files of programs.
const RESERVE: (usize, usize) = (24, 4);

/// Longest time for which a session waits for a program that is exiting.
const MOST_AWAITED: Duration = Duration::from_secs(2);

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length; if `None`, until a signal or the end of the processes.
    pub length: Option<Duration>,
    /// Samples in a second of CPU time.
    pub rate: u32,
    /// Directory and name prefix of the profiles.
    pub prefix: PathBuf,
    /// What is to take the samples, if not the best that is allowed.
    pub engine: Option<EngineName>,
    /// Which time is sampled.
    pub mode: Mode,
    /// What the profiles are written as.
    pub format: CpuFormat,
    /// Whether processes leave samples out, by a filter of their own.
    pub is_filtered: bool,
}

/// A session.
pub struct Run {
    settings: Settings,
    sink: Sink,
    signals: Signals,
    engine: Engine,
    recording: Recording,
    /// By the programs' serial numbers.
    descriptions: HashMap<u64, Description>,
    /// The processes that were requested, with their titles.
    named: Vec<(i32, String)>,
    child: Option<Launched>,
    /// The limit that a program which is started should have.
    files: Option<FileLimit>,
    /// CPU time of children of this process that were waited for before that program began.
    waited_before_ns: u64,
    start: Instant,
    start_unix_ns: u64,
    /// Whether it has the terminal for itself.
    is_alone: bool,
    /// Whether a process that did nothing is a failure.
    expects_samples: bool,
    /// What is to be done when sampling has begun.
    begun: Option<Box<dyn FnOnce()>>,
    /// As long as it samples.
    raised: Option<RaisedPriority>,
    outcome: Outcome,
}

impl Run {
    /// Makes sure that profiles can be written, and finds an engine. `launches`: children of what
    /// is sampled are sampled too.
    pub fn new(settings: Settings, launches: bool) -> anyhow::Result<Self> {
        let mut signals = Vec::new();
        if launches {
            signals.extend(FORWARDED);
            signals.push(Signal::SIGCHLD);
        }
        let signals = Signals::block(&signals)?;
        let sink = files(&settings)?;
        Self::by(signals, settings, sink, (launches, Agents::Asked))
    }

    /// A session in a thread beside another session, which shows the progress. It ends on request.
    /// The other one has a result even of a process that does nothing.
    pub fn beside(settings: Settings, signals: Signals) -> anyhow::Result<Self> {
        let sink = files(&settings)?;
        let mut run = Self::by(signals, settings, sink, (false, Agents::Beside))?;
        run.is_alone = false;
        run.expects_samples = false;
        Ok(run)
    }

    /// A session that a program requested. It says nothing while it runs, and calls `begun` when
    /// sampling has begun, if it does.
    pub fn asked(
        settings: Settings,
        asked: Asked,
        begun: Box<dyn FnOnce()>,
    ) -> anyhow::Result<Self> {
        let sink = Sink::Asked(Box::new(asked), 0);
        let signals = Signals::block(&[])?;
        let mut run = Self::by(signals, settings, sink, (false, Agents::Asked))?;
        run.is_alone = false;
        run.begun = Some(begun);
        Ok(run)
    }

    fn by(
        signals: Signals,
        settings: Settings,
        sink: Sink,
        (launches, agents): (bool, Agents),
    ) -> anyhow::Result<Self> {
        let files = proc::allow_files();
        let sampling = Sampling {
            rate: settings.rate,
            children: launches,
        };
        let mut engine = Engine::choose((settings.engine, settings.mode), sampling, agents)?;
        if settings.format == CpuFormat::Gperftools {
            engine.leave_lines_out();
        }
        Ok(Self {
            engine,
            recording: Recording::new(launches),
            signals,
            descriptions: HashMap::new(),
            named: Vec::new(),
            child: None,
            files,
            waited_before_ns: 0,
            start: Instant::now(),
            start_unix_ns: shm_protocol::clock::unix_ns(),
            is_alone: true,
            expects_samples: true,
            begun: None,
            raised: None,
            outcome: Outcome {
                mode: settings.mode,
                format: settings.format,
                ..Outcome::default()
            },
            sink,
            settings,
        })
    }

    /// Samples processes that run already.
    pub fn attach(mut self, targets: Targets) -> anyhow::Result<Outcome> {
        for failure in &targets.failures {
            self.fail(failure);
        }
        for &pid in &targets.pids {
            self.recording.add(pid);
            let title = Description::read(pid).map_or_else(|| pid.to_string(), |d| d.title(pid));
            self.named.push((pid, title));
        }
        if let Sink::Asked(asked, serial) = &mut self.sink {
            let process = self.recording.process(asked.pid());
            *serial = process.map_or(0, |process| process.serial);
        }
        self.engine.limit(self.settings.length);
        self.raised = Some(RaisedPriority::of_collector());
        for (pid, refusal) in self.attach_engine(&targets.pids) {
            let at = self.named.iter().position(|(named, _)| *named == pid);
            let title = at.map(|at| self.named.remove(at).1);
            let title = title.unwrap_or_else(|| pid.to_string());
            self.fail(&format!("{title}: {refusal}"));
        }
        self.warn_of_fallbacks();
        if self.recording.running().next().is_some() {
            self.begin()?;
            let mut progress = match self.is_alone {
                true => Progress::start(self.settings.length),
                false => Progress::silent(),
            };
            let watched = self.watch(&progress);
            progress.finish();
            watched?;
            self.finish();
        }
        Ok(self.outcome)
    }

    /// Starts a program, and samples it and its children to its end.
    pub fn follow(mut self, command: &[OsString]) -> anyhow::Result<io::Result<Outcome>> {
        let needs_attaching = self.engine.attach_children()?;
        let directory = match self.engine.is_inside() {
            true => Some(launch::make_directory(&default_directory())?),
            false => None,
        };
        let child = match &directory {
            Some(directory) => {
                let agent = launch::find_agent(None)?;
                let discovery = Discovery::in_directory(directory.clone());
                self.engine.follow_agents(discovery);
                let how = (self.settings.rate, filters::that_let_timers_pass());
                Launched::start_timed(command, &agent, how, directory)
            }
            None => Launched::start_plain(command),
        };
        let followed = match child {
            Ok(child) => self.follow_child(child, needs_attaching).map(Ok),
            Err(error) => Ok(Err(error)),
        };
        if let Some(directory) = directory {
            cleaning::remove_directory(&directory);
        }
        followed
    }

    fn follow_child(mut self, child: Launched, needs_attaching: bool) -> anyhow::Result<Outcome> {
        let pid = child.pid();
        self.waited_before_ns = ending::waited_ns();
        // The program has its own.
        self.raised = Some(RaisedPriority::of_collector());
        if let Some(files) = self.files {
            files.restore(pid);
        }
        self.child = Some(child);
        self.recording.add_newborn(pid);
        if needs_attaching {
            self.attach_child(pid);
        }
        self.warn_of_fallbacks();
        let progress = Progress::without_bar();
        self.watch(&progress)?;
        self.await_end()?;
        self.finish();
        drop(progress);
        // The program may outlive the session: how it ends is passed on nevertheless.
        while self
            .child
            .as_ref()
            .is_some_and(|child| child.status.is_none())
        {
            let came = self.signals.wait(&[], Duration::from_secs(3600))?;
            self.receive(&came);
        }
        self.outcome.status = self.child.take().and_then(|child| child.status);
        Ok(self.outcome)
    }

    /// Waits for how the program ended, if it is ending: an engine may know that before its parent
    /// is reported, and what all of its children used is known only then.
    fn await_end(&mut self) -> anyhow::Result<()> {
        let since = Instant::now();
        let is_due = |child: &Launched| child.status.is_none() && proc::is_ending(child.pid());
        while self.child.as_ref().is_some_and(is_due) && since.elapsed() < MOST_AWAITED {
            let came = self.signals.wait(&[], Duration::from_millis(1))?;
            self.receive(&came);
            self.recording.look();
            if let Some(child) = &mut self.child {
                child.ask();
            }
        }
        Ok(())
    }

    /// Has processes sampled, and forgets those that are refused.
    fn attach_engine(&mut self, pids: &[i32]) -> Vec<(i32, Refusal)> {
        for &pid in pids {
            self.engine.prepare(pid, &mut self.recording);
        }
        proc::reserve_files(RESERVE.0);
        let refused = self.engine.attach(pids, &mut self.recording);
        proc::reserve_files(RESERVE.1);
        refused
            .iter()
            .for_each(|(pid, _)| self.recording.forget(*pid));
        refused
    }

    /// Has the program sampled that we started.
    fn attach_child(&mut self, pid: i32) {
        let title = Description::read(pid).map_or_else(|| pid.to_string(), |d| d.title(pid));
        for (_, refusal) in self.attach_engine(&[pid]) {
            match refusal {
                // A short program is none that failed.
                Refusal::Gone { .. } => self.outcome.silent.processes += 1,
                refusal => self.fail(&format!(
                    "{title}: {refusal}; it runs without being sampled"
                )),
            }
        }
    }

    fn fail(&mut self, message: &str) {
        self.outcome.failures += 1;
        terminal::diagnostic(message);
    }

    fn warn_of_fallbacks(&mut self) {
        let news = self.engine.news();
        news.iter().for_each(|reason| terminal::warning(reason));
    }

    fn time_left(&self) -> Option<Duration> {
        let length = self.settings.length;
        length.map(|length| length.saturating_sub(self.start.elapsed()))
    }

    /// Until the time is over, a signal arrives, or no process is left.
    fn watch(&mut self, progress: &Progress) -> anyhow::Result<()> {
        self.start = Instant::now();
        loop {
            let left = self.time_left();
            let pause = self.engine.pause();
            let pause = left.map_or(pause, |left| left.min(pause));
            let mut descriptors = self.engine.descriptors();
            descriptors.extend(self.sink.descriptor());
            let came = self.signals.wait(&descriptors, pause)?;
            self.engine.collect(&mut self.recording);
            self.warn_of_fallbacks();
            self.describe();
            let is_over = self.receive(&came) || self.answer() || !self.is_anybody_left();
            if is_over || left.is_some_and(|left| left.is_zero()) {
                return Ok(());
            }
            progress.show(self.start.elapsed(), || self.state());
        }
    }

    /// Handles signals. Whether the session should end.
    fn receive(&mut self, came: &[Received]) -> bool {
        let Some(child) = &mut self.child else {
            return came.iter().any(|received| received.ends_session());
        };
        if came
            .iter()
            .any(|received| received.signal == Signal::SIGCHLD)
        {
            // Once we have asked how it ended, it has no clock any more.
            self.recording.look();
        }
        came.iter().for_each(|received| child.signal(*received));
        child.status.is_some()
    }

    /// Reads who the processes are that are new.
    fn describe(&mut self) {
        for serial in self.recording.take_dropped() {
            self.descriptions.remove(&serial);
        }
        for process in self.recording.running() {
            let known = self.descriptions.contains_key(&process.serial);
            if let Some(read) = (!known).then(|| Description::read(process.pid)).flatten()
                && read.fits(process)
            {
                self.descriptions.insert(process.serial, read);
            }
        }
    }

    fn state(&self) -> String {
        let (mut processes, mut samples, mut ns) = (0, 0, 0);
        for process in self.recording.running() {
            processes += 1;
            samples += process.counts.samples;
            ns += Times::of(process, self.settings.mode).all;
        }
        let time = text::short_time(Duration::from_nanos(ns));
        let mode = self.settings.mode;
        let samples = text::count(samples, "sample", "samples");
        let processes = text::count(processes, "process", "processes");
        format!("{samples}, {time} of {mode}, {processes}")
    }
}
