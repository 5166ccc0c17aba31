//! Sessions that sample page faults, and write a profile of the resident memory of each process.

mod kind;
mod writer;

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use capture::RaisedPriority;
use cpu::recording::RecordingResult;
use cpu::{Faults, Recording, Refusal};
use mem_agents::output::{self, Output};
use mem_agents::text;
use mem_agents::waiting::{Received, Signals};

use crate::cpu_session::{Description, Targets};
use crate::launch::LaunchedProgram;
use crate::reporter::Reporter;
use crate::rounds::{self, Rounds};
use writer::Session;

/// Descriptors reserved for reads of `/proc` while events are opened.
const RESERVED_WHILE_ATTACHING: usize = 24;
/// Descriptors reserved for reads of `/proc` afterwards.
const RESERVED_WHILE_SAMPLING: usize = 4;

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the session. `None`: until a signal arrives or all processes have exited.
    pub length: Option<Duration>,
    /// Samples per second and thread that the kernel aims at.
    pub rate: u32,
    /// Directory and name prefix of the profiles.
    pub prefix: PathBuf,
}

/// Outcome of a session.
#[derive(Default)]
pub struct Outcome {
    /// Profiles that were written.
    pub written: Vec<Written>,
    /// Number of processes that failed.
    pub failures: usize,
}

/// Profile that was written.
pub struct Written {
    /// Path of the file.
    pub path: PathBuf,
    /// Pid of the process.
    pub pid: i32,
    /// Name and pid of the process, for display.
    pub title: String,
    /// Resident memory of the process, in bytes.
    pub resident: u64,
    /// Summary, for display.
    pub remark: String,
}

/// Session before or during sampling.
pub struct Run {
    settings: Settings,
    output: Output,
    signals: Signals,
    reporter: Box<dyn Reporter>,
    faults: Faults,
    recording: Recording,
    /// Requested processes: pid and title.
    requested: Vec<(i32, String)>,
    start: Instant,
    start_unix_ns: u64,
    outcome: Outcome,
}

impl Run {
    /// Creates a session. Checks that profiles can be written, and that page faults may be sampled.
    pub fn new(settings: Settings, reporter: Box<dyn Reporter>) -> anyhow::Result<Self> {
        let signals = Signals::block(&[])?;
        let output = Output::open_for(&settings.prefix, output::RSS)?;
        proc::allow_files();
        Ok(Self {
            faults: Faults::open(settings.rate)?,
            settings,
            output,
            signals,
            reporter,
            recording: Recording::new(false),
            requested: Vec::new(),
            start: Instant::now(),
            start_unix_ns: shm_protocol::clock::unix_ns(),
            outcome: Outcome::default(),
        })
    }

    /// Samples running processes until the session ends, and writes their profiles.
    pub fn attach(mut self, targets: Targets) -> anyhow::Result<Outcome> {
        for failure in &targets.failures {
            self.fail(failure);
        }
        if !self.faults.sees_kernel() {
            self.reporter.warning(&format!(
                "memory that the kernel touches for the process, as in read(), is not sampled: {}",
                crate::cpu_session::explain_hidden_kernel()
            ));
        }
        let raised_priority = RaisedPriority::of_collector();
        proc::reserve_files(RESERVED_WHILE_ATTACHING);
        for &pid in &targets.pids {
            let title = Description::read(pid).map_or_else(|| pid.to_string(), |d| d.title(pid));
            match self.attach_one(pid) {
                Ok(()) => self.requested.push((pid, title)),
                Err(refusal) => {
                    self.recording.forget(pid);
                    self.fail(&format!("{title}: {refusal}"));
                }
            }
        }
        proc::reserve_files(RESERVED_WHILE_SAMPLING);
        if self.recording.running().next().is_some() {
            self.reporter.begin(self.settings.length);
            self.start = Instant::now();
            let result = rounds::watch(&mut self);
            self.reporter.end();
            result?;
            self.finish();
        }
        drop(raised_priority);
        Ok(self.outcome)
    }

    fn attach_one(&mut self, pid: i32) -> Result<(), Refusal> {
        if let Some(refusal) = Refusal::of_program(pid) {
            return Err(refusal);
        }
        self.recording.add(pid);
        self.recording.prepare(pid);
        self.faults.attach(pid, &mut self.recording)
    }

    fn fail(&mut self, message: &str) {
        self.outcome.failures += 1;
        self.reporter.failure(message);
    }

    /// Ends sampling, and writes the profiles.
    fn finish(&mut self) {
        self.faults.finish(&mut self.recording);
        proc::reserve_files(0);
        let session = Session {
            start_unix_ns: self.start_unix_ns,
            length: self.start.elapsed(),
            lost: self.faults.lost,
            hides_kernel: !self.faults.sees_kernel(),
        };
        let RecordingResult {
            processes, symbols, ..
        } = std::mem::take(&mut self.recording).finish();
        for (pid, title) in std::mem::take(&mut self.requested) {
            let is_running = |process: &&cpu::Process| process.pid == pid && !process.is_over;
            let Some(process) = processes.iter().find(is_running) else {
                self.fail(&format!(
                    "{title}: it has ended, so that none of its memory is resident: sample for a \
                     shorter time (-s)"
                ));
                continue;
            };
            match session.write(process, &symbols, &mut self.faults, &self.output) {
                Ok(written) => self.outcome.written.push(written),
                Err(error) => self.fail(&format!("{title}: {error}")),
            }
        }
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
        self.faults.max_wait()
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.faults.descriptors().collect()
    }

    fn round(&mut self, received: &[Received]) -> bool {
        self.faults.collect(&mut self.recording);
        self.receive(received) || self.recording.running().next().is_none()
    }

    fn receive(&mut self, received: &[Received]) -> bool {
        received.iter().any(|signal| signal.ends_session())
    }

    fn show(&self) {
        let state = || {
            let samples = self.recording.running().map(|p| p.counts.samples).sum();
            let processes = self.recording.running().count() as u64;
            let samples = text::count(samples, "sampled fault", "sampled faults");
            let processes = text::count(processes, "process", "processes");
            format!("{samples}, {processes}")
        };
        self.reporter.progress(self.start.elapsed(), &state);
    }

    fn child(&self) -> Option<&LaunchedProgram> {
        None
    }
}
