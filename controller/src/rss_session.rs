//! Sessions that sample page faults, and write a profile of the resident memory of each process.

mod kind;
mod writer;

use std::collections::HashMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::{Duration, Instant};

use capture::RaisedPriority;
use cpu::recording::RecordingResult;
use cpu::{Faults, Recording, Refusal};
use mem_agents::output::{self, Output};
use mem_agents::text;
use mem_agents::waiting::{Received, Signals};

use crate::cpu_session::{Description, Targets};
use crate::launch::{self, LaunchedProgram};
use crate::reporter::Reporter;
use crate::rounds::{self, Rounds};
use writer::{Session, Snapshot};

/// Descriptors reserved for reads of `/proc` while events are opened.
const RESERVED_WHILE_ATTACHING: usize = 24;
/// Descriptors reserved for reads of `/proc` afterwards.
const RESERVED_WHILE_SAMPLING: usize = 4;

// Decision 88: a process's memory cannot be read after its end.

/// Size of a program's resident memory, in percent of its largest reading, above which it is read
/// again at once.
const FAST_GROWTH_PERCENT: u64 = 105;
/// Size, in percent of the largest reading, above which it is read again if that reading is at least
/// [`SLOW_READING_INTERVAL`] old.
const SLOW_GROWTH_PERCENT: u64 = 101;
/// Age of a reading from which on slow growth is a reason for another.
const SLOW_READING_INTERVAL: Duration = Duration::from_millis(200);
/// Divisor of the session's length: this part of it may be spent on such readings.
const READING_SHARE: u32 = 50;
/// Time that may be spent on such readings in addition.
const READING_ALLOWANCE: Duration = Duration::from_millis(100);
/// Length of the beginning of a session in which the memory of programs is read more often, so that
/// those that end soon have a profile.
const SHORT_LIFE: Duration = Duration::from_secs(1);
/// Maximum pause between two rounds during [`SHORT_LIFE`].
const SHORT_LIFE_PAUSE: Duration = Duration::from_millis(5);

/// Settings of a session.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Length of the session. `None`: until a signal arrives or all processes have exited.
    pub length: Option<Duration>,
    /// Time between profiles of a running process; `None`: only one is written.
    pub every: Option<Duration>,
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
    /// Exit status of the program that the session has started.
    pub status: Option<ExitStatus>,
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
    /// Largest reading of each program's memory, by the program's serial number.
    peaks: HashMap<u64, Snapshot>,
    /// Time spent on these readings so far.
    reading_time: Duration,
    child: Option<LaunchedProgram>,
    /// Limit of open files that the program gets.
    original_file_limit: Option<proc::FileLimit>,
    start: Instant,
    start_unix_ns: u64,
    /// Time of the next profiles of [`Settings::every`].
    next_profiles: Option<Instant>,
    outcome: Outcome,
}

impl Run {
    /// Creates a session, which starts a program if `launches`. Checks that profiles can be written,
    /// and that page faults may be sampled.
    pub fn new(
        settings: Settings,
        launches: bool,
        reporter: Box<dyn Reporter>,
    ) -> anyhow::Result<Self> {
        let signals = launch::block_signals(None, launches)?;
        let output = Output::open_for(&settings.prefix, output::RSS)?;
        let original_file_limit = proc::allow_files();
        Ok(Self {
            original_file_limit,
            faults: Faults::open(settings.rate)?,
            settings,
            output,
            signals,
            reporter,
            recording: Recording::new(false),
            requested: Vec::new(),
            peaks: HashMap::new(),
            reading_time: Duration::ZERO,
            child: None,
            next_profiles: None,
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
        self.warn_of_hidden_kernel();
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
            let result = self.watch();
            self.reporter.end();
            result?;
            self.finish();
        }
        drop(raised_priority);
        Ok(self.outcome)
    }

    /// Starts a program and samples it from its first instruction until it exits. The inner error is
    /// a failure to start the program.
    pub fn follow(mut self, command: &[OsString]) -> anyhow::Result<io::Result<Outcome>> {
        self.warn_of_hidden_kernel();
        let file_limit = self.original_file_limit;
        let mut refusal = None;
        let started = LaunchedProgram::start_prepared(command, |pid| {
            if let Some(limit) = file_limit {
                limit.restore(pid);
            }
            refusal = self.attach_one(pid).err();
            self.requested.push((pid, String::new()));
        });
        let child = match started {
            Ok(child) => child,
            Err(error) => return Ok(Err(error)),
        };
        let title = format!("{} ({})", text::path(&command[0]), child.pid());
        self.child = Some(child);
        self.requested
            .iter_mut()
            .for_each(|(_, requested_title)| requested_title.clone_from(&title));
        if let Some(refusal) = refusal {
            self.requested.clear();
            self.fail(&format!(
                "{title}: {refusal}; it runs without being sampled"
            ));
        }
        let raised_priority = RaisedPriority::of_collector();
        self.watch()?;
        self.finish();
        self.reporter.end();
        drop(raised_priority);
        self.outcome.status = rounds::await_exit(&mut self)?;
        Ok(Ok(self.outcome))
    }

    fn watch(&mut self) -> nix::Result<()> {
        self.reporter.begin(self.settings.length);
        self.start = Instant::now();
        self.next_profiles = self.settings.every.map(|every| self.start + every);
        rounds::watch(self)
    }

    fn warn_of_hidden_kernel(&mut self) {
        if !self.faults.sees_kernel() {
            self.reporter.warning(&format!(
                "memory that the kernel touches for the process, as in read(), is not sampled: {}",
                crate::cpu_session::explain_hidden_kernel()
            ));
        }
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

    /// Reads the memory of processes that have grown.
    fn read_peaks(&mut self) {
        let start = Instant::now();
        let elapsed = self.start.elapsed();
        if self.reading_time > elapsed / READING_SHARE + READING_ALLOWANCE {
            return;
        }
        for (pid, _) in &self.requested {
            let Some(process) = self.recording.running().find(|process| process.pid == *pid) else {
                continue;
            };
            let peak = self.peaks.get(&process.serial);
            let known = peak.map_or(0, Snapshot::resident);
            let age = peak.map_or(elapsed, |peak| elapsed.saturating_sub(peak.time()));
            let percent = if age < SLOW_READING_INTERVAL {
                FAST_GROWTH_PERCENT
            } else {
                SLOW_GROWTH_PERCENT
            };
            let least = known / 100 * percent;
            if proc::rss_bytes(*pid).is_none_or(|bytes| bytes <= least) {
                continue;
            }
            // Fails if the process ends just now. If it is about to, less of it may be left.
            if let Ok(snapshot) = Snapshot::read(process, &mut self.faults, elapsed)
                && snapshot.resident() > known
            {
                self.peaks.insert(process.serial, snapshot);
            }
        }
        self.reading_time += start.elapsed();
    }

    /// Writes the profiles of [`Settings::every`] if they are due.
    fn write_due_profiles(&mut self) {
        let now = Instant::now();
        let (Some(every), Some(due)) = (self.settings.every, self.next_profiles) else {
            return;
        };
        if now < due {
            return;
        }
        self.next_profiles = Some(now + every);
        let session = self.session();
        for (pid, title) in self.requested.clone() {
            let Some(process) = self.recording.running().find(|process| process.pid == pid) else {
                continue;
            };
            let snapshot = Snapshot::read(process, &mut self.faults, self.start.elapsed());
            if snapshot.is_err() && proc::has_exited(pid) {
                continue;
            }
            let written = snapshot.and_then(|snapshot| {
                let symbols = self.recording.symbols();
                let written = session.write(process, symbols, &snapshot, &self.output);
                let peak = self.peaks.get(&process.serial);
                if snapshot.resident() > peak.map_or(0, Snapshot::resident) {
                    self.peaks.insert(process.serial, snapshot);
                }
                written
            });
            self.report(&title, written);
        }
    }

    /// Reports that a profile was written, or why it was not.
    fn report(&mut self, title: &str, written: io::Result<Written>) {
        match written {
            Ok(written) => {
                self.reporter.written_rss(&written);
                self.outcome.written.push(written);
            }
            Err(error) => self.fail(&format!("{title}: {error}")),
        }
    }

    /// Returns the facts about the session so far.
    fn session(&self) -> Session {
        Session {
            start_unix_ns: self.start_unix_ns,
            lost: self.faults.lost,
            hides_kernel: !self.faults.sees_kernel(),
        }
    }

    /// Ends sampling, and writes the profiles.
    fn finish(&mut self) {
        self.faults.finish(&mut self.recording);
        proc::reserve_files(0);
        let session = self.session();
        let time = self.start.elapsed();
        let RecordingResult {
            processes, symbols, ..
        } = std::mem::take(&mut self.recording).finish();
        for (pid, title) in std::mem::take(&mut self.requested) {
            // The last program that the process executed.
            let process = processes.iter().rfind(|process| process.pid == pid);
            let snapshot = process.and_then(|process| {
                let peak = self.peaks.remove(&process.serial);
                let peak = peak.map(|peak| Ok(peak.of_ended_process()));
                if process.is_over {
                    return peak;
                }
                match Snapshot::read(process, &mut self.faults, time) {
                    Err(error) if proc::has_exited(pid) => peak.or(Some(Err(error))),
                    snapshot => Some(snapshot),
                }
            });
            let (Some(process), Some(snapshot)) = (process, snapshot) else {
                self.fail(&format!(
                    "{title}: it ended within milliseconds, before its memory could be read"
                ));
                continue;
            };
            let written = snapshot
                .and_then(|snapshot| session.write(process, &symbols, &snapshot, &self.output));
            self.report(&title, written);
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
        let pause = self.faults.max_wait();
        let until_profiles = self
            .next_profiles
            .map(|due| due.saturating_duration_since(Instant::now()));
        let pause = until_profiles.map_or(pause, |until| until.min(pause));
        if self.start.elapsed() < SHORT_LIFE {
            pause.min(SHORT_LIFE_PAUSE)
        } else {
            pause
        }
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.faults.descriptors().collect()
    }

    fn round(&mut self, received: &[Received]) -> bool {
        self.faults.collect(&mut self.recording);
        self.read_peaks();
        self.write_due_profiles();
        let is_over = self.receive(received);
        is_over || self.child.is_none() && self.recording.running().next().is_none()
    }

    fn receive(&mut self, received: &[Received]) -> bool {
        let Some(child) = &mut self.child else {
            return received.iter().any(|signal| signal.ends_session());
        };
        received
            .iter()
            .for_each(|signal| child.handle_signal(*signal));
        child.status.is_some()
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
        self.child.as_ref()
    }
}
