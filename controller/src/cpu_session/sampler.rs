//! Sampler of a CPU session: the engine in use, the sampler of waiting threads, and the reasons why
//! better engines are not used.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use cpu::{Recording, Refusal, Sampling, Waiting};
use mem_agents::discovery::Discovery;
use profile::cpu::{self as format, Mode};

use super::engine::{ClosedEngine, Engine};
use super::member::SamplingFailure;

/// Role of the agents in processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agents {
    /// Agents sample if no better engine is permitted. This session starts theirs.
    StartedHere,
    /// Like `StartedHere`, but a heap session of this program starts the agents' sessions.
    StartedByHeap,
}

/// State of the choice of an engine.
pub(super) struct Choice {
    /// True if another engine may still replace the current one.
    pub(super) may_change: bool,
    /// True if the output can hold Python lines.
    pub(super) wants_python_lines: bool,
    pub(super) agents: Agents,
    /// Engine with perf events, kept as a fallback while agents sample for their Python lines.
    pub(super) perf: Option<Box<dyn Engine>>,
}

/// Engine in use, and the reasons why better ones are not.
pub struct Sampler {
    pub(super) engine: Box<dyn Engine>,
    /// Sampler of waiting threads, if off-CPU time is requested.
    pub(super) waiting: Option<Waiting>,
    pub(super) sampling: Sampling,
    pub(super) choice: Choice,
    /// Reasons why better engines are not used, with the consequences.
    pub(super) fallbacks: Vec<String>,
    /// Number of `fallbacks` that were reported.
    reported: usize,
    /// Warnings about single processes that were not reported yet.
    pub(super) warnings: Vec<String>,
    /// Reasons why processes were not sampled throughout, by pid. All reasons are known once the
    /// engine is closed.
    pub(super) failure_reasons: HashMap<i32, String>,
}

impl Sampler {
    pub(super) fn new(
        engine: Box<dyn Engine>,
        waiting: Option<Waiting>,
        sampling: Sampling,
        choice: Choice,
    ) -> Self {
        Self {
            engine,
            waiting,
            sampling,
            choice,
            fallbacks: Vec::new(),
            reported: 0,
            warnings: Vec::new(),
            failure_reasons: HashMap::new(),
        }
    }

    /// Returns the fallbacks since the last call.
    pub fn unreported_fallbacks(&mut self) -> Vec<String> {
        let unreported = self.fallbacks[self.reported..].to_vec();
        self.reported = self.fallbacks.len();
        unreported
    }

    /// Takes the warnings about single processes since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        let mut warnings = std::mem::take(&mut self.warnings);
        warnings.append(&mut self.engine.take_warnings());
        warnings
    }

    /// Returns the processes that could not be sampled, by reason. Excludes processes that never
    /// noticed the session, which is normal for short-lived programs.
    pub fn refusals(&self) -> BTreeMap<&str, Vec<i32>> {
        let mut refused: BTreeMap<&str, Vec<i32>> = BTreeMap::new();
        for (pid, reason) in &self.failure_reasons {
            if SamplingFailure::Unnoticed.reason() != reason {
                refused.entry(reason).or_default().push(*pid);
            }
        }
        refused
    }

    /// Returns the reason why a process was not sampled, if it is known. All reasons are known once
    /// the engine is closed.
    pub fn failure_reason(&self, pid: i32) -> Option<&str> {
        self.failure_reasons.get(&pid).map(String::as_str)
    }

    /// Tells the agents' engine where the program that is about to be started will put its
    /// segments.
    pub fn set_segment_directory(&mut self, discovery: Discovery) {
        self.engine.set_segment_directory(discovery);
    }

    /// Sets the length after which agents end their sessions by themselves if no controller does.
    pub fn set_session_length(&mut self, length: Option<Duration>) {
        self.engine.set_session_length(length);
    }

    /// Returns true if the agents take the samples.
    pub fn uses_agents(&self) -> bool {
        self.engine.uses_agents()
    }

    /// Does the slow part of preparing a process before its sampling starts.
    pub fn prepare(&self, pid: i32, recording: &mut Recording) {
        self.engine.prepare(pid, recording);
    }

    /// Starts sampling these processes. Returns those that cannot be sampled, with the reason. The
    /// first call has to name all requested processes, since it may still change the engine.
    pub fn attach(&mut self, pids: &[i32], recording: &mut Recording) -> Vec<(i32, Refusal)> {
        if self.prefer_agents_for_lines(pids, recording) {
            return Vec::new();
        }
        let mut refused = Vec::new();
        for &pid in pids {
            if let Some(refusal) = Refusal::of_program(pid) {
                refused.push((pid, refusal));
                continue;
            }
            if let Err(refusal) = self.attach_one(pid, recording) {
                if self.fall_back_after(&refusal) {
                    return self.attach(pids, recording);
                }
                refused.push((pid, refusal));
            }
        }
        refused
    }

    fn attach_one(&mut self, pid: i32, recording: &mut Recording) -> Result<(), Refusal> {
        self.engine.attach(pid, recording, &mut self.fallbacks)?;
        match &mut self.waiting {
            Some(waiting) => waiting.attach(pid),
            None => Ok(()),
        }
    }

    /// Prepares to sample the program that this thread is about to start. Returns true if the
    /// program must be attached once it runs.
    pub fn prepare_for_child(&mut self) -> Result<bool, Refusal> {
        self.engine.prepare_for_child()
    }

    /// Returns the engine's name for profiles.
    pub fn name(&self) -> String {
        match (self.engine.name(), &self.waiting) {
            (Some(name), Some(_)) => format!("{name} + /proc"),
            (Some(name), None) => name.to_owned(),
            (None, _) => "/proc".to_owned(),
        }
    }

    /// Returns the facts about sampling that profiles hold.
    pub fn facts(&self, mode: Mode) -> format::Sampling {
        format::Sampling {
            engine: self.name(),
            mode,
            rate: self.sampling.rate,
            process_ns: None,
            lost: self.engine.lost(),
            kernel_hidden: self.engine.kernel_hidden(),
            fallbacks: self.fallbacks.clone(),
        }
    }

    /// Returns descriptors that become readable when [`collect`](Self::collect) should be called
    /// early.
    pub fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.engine.descriptors()
    }

    /// Returns the maximum time until the next [`collect`](Self::collect).
    pub fn pause(&self) -> Duration {
        let engine = self.engine.max_wait();
        let waiting = self.waiting.as_ref();
        waiting.map_or(engine, |waiting| waiting.max_wait().min(engine))
    }

    /// Records the samples since the last call.
    pub fn collect(&mut self, recording: &mut Recording) {
        self.engine.collect(recording, &mut self.fallbacks);
        self.return_to_perf(recording);
        if let Some(waiting) = &mut self.waiting {
            waiting.collect(recording);
        }
    }

    /// Like [`collect`](Self::collect), but also reads the counts of agents and of events so far,
    /// for live views. Returns the reason why process `pid` is not sampled, if that is known.
    pub fn collect_live(&mut self, recording: &mut Recording, pid: i32) -> Option<String> {
        self.collect(recording);
        self.engine.collect_live(recording);
        self.engine.failure_reason(pid)
    }

    /// Ends sampling: records the last samples and the time without samples, then closes the
    /// engine.
    pub fn finish(&mut self, recording: &mut Recording) {
        self.engine.finish(recording);
        if let Some(waiting) = &mut self.waiting {
            waiting.finish(recording);
        }
        self.close();
    }

    /// Closes all events and detaches from all threads, because profiles take time to write and a
    /// program may run on for long. The engine's facts stay available.
    fn close(&mut self) {
        let closed = ClosedEngine {
            name: self.name(),
            lost: self.engine.lost(),
            kernel_hidden: self.engine.kernel_hidden(),
        };
        self.failure_reasons
            .extend(self.engine.take_failure_reasons());
        self.warnings.append(&mut self.engine.take_warnings());
        self.engine = Box::new(closed);
        self.choice.perf = None;
        self.waiting = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::EngineName;

    #[test]
    fn a_closed_engine_keeps_its_facts_and_samples_nothing() {
        let sampling = Sampling {
            rate: 99,
            children: false,
        };
        let wanted = Some(EngineName::Ptrace);
        let mut sampler =
            Sampler::choose(wanted, Mode::Cpu, sampling, Agents::StartedHere).unwrap();
        let before = sampler.facts(Mode::Cpu);
        assert_eq!(before.engine, "ptrace");
        assert!(before.kernel_hidden.is_some());
        // No process has this pid, which a closed engine does not detect.
        let mut recording = Recording::new(false);
        assert!(sampler.attach_one(i32::MAX, &mut recording).is_err());
        sampler.finish(&mut recording);
        sampler.finish(&mut recording);
        let after = sampler.facts(Mode::Cpu);
        assert_eq!(after.engine, before.engine);
        assert_eq!(after.lost, before.lost);
        assert_eq!(after.kernel_hidden, before.kernel_hidden);
        assert!(sampler.attach_one(i32::MAX, &mut recording).is_ok());
        assert!(sampler.descriptors().is_empty());
    }
}
