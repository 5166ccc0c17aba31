//! Numbers for `top --cpu`: samples CPU time as long as the table is shown.

use std::os::fd::BorrowedFd;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use capture::RaisedPriority;
use cpu::{Recording, Sampling};
use mem_agents::output::{self, Output};
use mem_agents::text;
use mem_agents::waiting::{Received, Signals};
use proc::rss_bytes;
use profile::cpu::{Mode, Sampling as SamplingFacts};
use serde_json::Value;

use super::Feed;
use crate::cli::{self, CpuFormat, TopArgs};
use crate::cpu_session::{Agents, Description, Sampler, Session, find};
use crate::terminal::warning;
use crate::top::cpu::{CpuNumbers, CpuTable};
use crate::top::model::Model;
use crate::top::screen::Title;

/// CPU samples of one process.
pub struct CpuFeed {
    pid: i32,
    description: Description,
    sampler: Sampler,
    recording: Recording,
    rate: u32,
    cpu: CpuTable,
    /// Facts about the sampling at the last refresh.
    sampling: SamplingFacts,
    start: Instant,
    start_unix_ns: u64,
    refreshed: Instant,
    /// Reason why the process cannot be sampled, as displayed.
    failure_reason: Option<String>,
    /// Prefix of profile names.
    output: PathBuf,
    /// Keeps the priority raised while the process is sampled.
    _raised: RaisedPriority,
}

impl CpuFeed {
    /// Opens the process that was requested. Also returns its title.
    pub fn open(args: &TopArgs) -> anyhow::Result<(Self, String)> {
        let pid = find_process(&args.select.processes)?;
        let Some(description) = Description::read(pid) else {
            bail!("{pid}: the process has ended");
        };
        let title = description.title(pid);
        let sampling = Sampling {
            rate: args.frequency,
            children: false,
        };
        let mut sampler = Sampler::choose(args.engine, Mode::Cpu, sampling, Agents::StartedHere)?;
        let mut recording = Recording::new(false);
        recording.add(pid);
        if let Some((_, refusal)) = sampler.attach(&[pid], &mut recording).pop() {
            bail!("{title}: {refusal}");
        }
        sampler
            .unreported_fallbacks()
            .iter()
            .for_each(|reason| warning(reason));
        let now = Instant::now();
        let feed = Self {
            pid,
            description,
            sampler,
            recording,
            rate: args.frequency,
            cpu: CpuTable::default(),
            sampling: SamplingFacts::default(),
            start: now,
            start_unix_ns: shm_protocol::clock::unix_ns(),
            refreshed: now,
            failure_reason: None,
            output: args.output.output.clone(),
            _raised: RaisedPriority::of_collector(),
        };
        Ok((feed, title))
    }

    fn warn(&mut self) {
        let warnings = self.sampler.take_warnings();
        warnings.iter().for_each(|line| warning(line));
    }
}

fn find_process(names: &[String]) -> anyhow::Result<i32> {
    if names.is_empty() {
        cli::refuse("no process was named: use -p PID or -p NAME");
    }
    let targets = find(names);
    if let Some(failure) = targets.failures.first() {
        bail!("{failure}");
    }
    let [pid] = targets.pids[..] else {
        let pids: Vec<String> = targets.pids.iter().take(10).map(i32::to_string).collect();
        bail!(
            "several processes have this name, choose one with -p: {}",
            pids.join(", ")
        );
    };
    Ok(pid)
}

impl Feed for CpuFeed {
    type Numbers = CpuNumbers;

    fn process(&self) -> (i32, String) {
        (self.pid, text::escape(&self.description.name))
    }

    fn refresh(
        &mut self,
        model: &mut Model<CpuNumbers>,
        title: &mut Title,
        at_once: bool,
    ) -> anyhow::Result<bool> {
        let failure_reason = self.sampler.collect_live(&mut self.recording, self.pid);
        self.warn();
        if let Some(fallback) = self.sampler.unreported_fallbacks().pop() {
            title.message = fallback;
        }
        if failure_reason != self.failure_reason {
            title.message = failure_reason.clone().unwrap_or_default();
            self.failure_reason = failure_reason;
        }
        let seconds = self.refreshed.elapsed().as_secs_f64();
        self.refreshed = Instant::now();
        title.session = format!(
            "{}, {} samples per second of CPU time, {}",
            self.sampler.name(),
            self.rate,
            text::duration(self.start.elapsed())
        );
        title.rss_bytes = rss_bytes(self.pid);
        let Some(process) = self
            .recording
            .running()
            .find(|process| process.pid == self.pid)
        else {
            return Ok(false);
        };
        if !self.description.matches(process) {
            let new_description =
                Description::read(self.pid).filter(|description| description.matches(process));
            self.description =
                new_description.unwrap_or_else(|| Description::from_mappings(process));
            title.process = self.description.title(self.pid);
        }
        let kernel = self.recording.symbols();
        self.cpu.update(model, process, kernel, seconds, at_once);
        let mut sampling = self.sampler.facts(Mode::Cpu);
        sampling.lost += process.counts.lost;
        title.quality = self.cpu.quality.text(&sampling);
        self.sampling = sampling;
        Ok(true)
    }

    fn facts(&self) -> Option<(&'static str, Value)> {
        Some(("cpu", self.cpu.quality.json(&self.sampling)))
    }

    /// Also collects samples, since the kernel's buffers are small.
    fn wait(
        &mut self,
        signals: &Signals,
        others: &[BorrowedFd<'_>],
        until: Instant,
    ) -> nix::Result<Vec<Received>> {
        loop {
            let time_left = until.saturating_duration_since(Instant::now());
            let timeout = self.sampler.pause().min(time_left);
            let mut descriptors = self.sampler.descriptors();
            descriptors.extend(others);
            let received = signals.wait(&descriptors, timeout)?;
            self.sampler.collect(&mut self.recording);
            self.warn();
            if !received.is_empty() || is_readable(others)? || Instant::now() >= until {
                return Ok(received);
            }
        }
    }

    fn write(&mut self) -> String {
        let session = Session {
            is_filtered: false,
            sampling: self.sampler.facts(Mode::Cpu),
            format: CpuFormat::Cpu,
            has_clock: true,
            start_unix_ns: self.start_unix_ns,
            length: self.start.elapsed(),
        };
        let Some(process) = self
            .recording
            .running()
            .find(|process| process.pid == self.pid)
        else {
            return "the process has ended".to_owned();
        };
        let symbols = self.recording.symbols();
        let written = Output::open_for(&self.output, output::CPU).and_then(|output| {
            output.write(&self.description.name, self.pid, |number, file| {
                session.write(process, &self.description, symbols, number, file)
            })
        });
        match written {
            Ok(path) => format!("wrote {}", text::path(path)),
            Err(error) => error.to_string(),
        }
    }
}

impl Drop for CpuFeed {
    /// Ends the session of a process that samples itself.
    fn drop(&mut self) {
        self.sampler.finish(&mut self.recording);
        self.warn();
    }
}

/// Returns true if one of the descriptors is readable now.
fn is_readable(descriptors: &[BorrowedFd<'_>]) -> nix::Result<bool> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut fds: Vec<PollFd<'_>> = descriptors
        .iter()
        .map(|fd| PollFd::new(*fd, PollFlags::POLLIN))
        .collect();
    Ok(poll(&mut fds, PollTimeout::ZERO)? > 0)
}
