//! Choice of the sampling engine: the best one that is permitted, found by trying.

use cpu::{Perf, Ptrace, Recording, Refusal, Sampling, Waiting};
use profile::cpu::Mode;

use super::agents_or_ptrace::{AgentsOrPtrace, SAMPLED_BY_PTRACE};
use super::engine::{Engine, ExitWatcher};
use super::sampler::{Agents, Choice, Sampler};
use super::timers::agents_see_python_lines;
use crate::cli::EngineName;

impl Sampler {
    /// Opens the engine that was requested, or the best that is permitted.
    pub fn choose(
        requested: Option<EngineName>,
        mode: Mode,
        sampling: Sampling,
        agents: Agents,
    ) -> Result<Self, Refusal> {
        let choice = Choice {
            may_change: requested.is_none(),
            wants_python_lines: true,
            agents,
            perf: None,
        };
        let waiting = (mode != Mode::Cpu).then(|| Waiting::new(sampling));
        let sampler_with = |engine: Box<dyn Engine>| Self::new(engine, waiting, sampling, choice);
        if mode == Mode::OffCpu {
            return Ok(sampler_with(Box::<ExitWatcher>::default()));
        }
        match requested {
            Some(EngineName::Ptrace) => return Ok(sampler_with(Box::new(Ptrace::new(sampling)))),
            Some(EngineName::Timers) => {
                let shares_session = agents == Agents::StartedByHeap;
                let timers = AgentsOrPtrace::agents_only(sampling, shares_session);
                return Ok(sampler_with(Box::new(timers)));
            }
            Some(EngineName::Perf) | None => {}
        }
        match Perf::open(sampling) {
            Ok(perf) => {
                let small_buffers = perf.small_buffers();
                let mut sampler = sampler_with(Box::new(perf));
                let remark =
                    small_buffers.map(|(bytes, wanted)| describe_small_buffers(bytes, wanted));
                sampler.fallbacks.extend(remark);
                Ok(sampler)
            }
            Err(refusal) if requested.is_none() => {
                let mut sampler = sampler_with(Box::<ExitWatcher>::default());
                sampler.fall_back(&refusal);
                Ok(sampler)
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Tells the sampler that the output format has no Python lines.
    pub fn omit_python_lines(&mut self) {
        self.choice.wants_python_lines = false;
    }

    /// Replaces refused perf events by the agents, or by ptrace for processes without agents.
    fn fall_back(&mut self, refusal: &Refusal) {
        // A program that we start may always be traced, and carries no agent unless that was
        // requested. Sampling waiting threads needs the same permissions as tracing.
        if self.sampling.children || self.waiting.is_some() {
            let missed = if self.sampling.children {
                MISSES_SHORT_LIVED
            } else {
                ""
            };
            self.fallbacks
                .push(format!("{refusal}; {SAMPLED_BY_PTRACE}{missed}"));
            self.engine = Box::new(Ptrace::new(self.sampling));
        } else {
            let shares_session = self.choice.agents == Agents::StartedByHeap;
            self.engine = Box::new(AgentsOrPtrace::as_fallback(
                self.sampling,
                shares_session,
                refusal,
            ));
        }
    }

    /// Falls back if the choice is still open and another engine may succeed where this one was
    /// refused. Returns true if the engine has changed.
    pub(super) fn fall_back_after(&mut self, refusal: &Refusal) -> bool {
        let may_change = self.choice.may_change && refusal.concerns_engine();
        if may_change {
            self.fall_back(refusal);
            self.choice.may_change = false;
        }
        may_change
    }

    /// Replaces perf events by the agents if all processes run Python and have agents that can
    /// sample, since only agents see Python lines. Returns true if the agents sample now.
    pub(super) fn prefer_agents_for_lines(
        &mut self,
        pids: &[i32],
        recording: &mut Recording,
    ) -> bool {
        let may_change = self.choice.may_change
            && self.choice.wants_python_lines
            && self.waiting.is_none()
            && !self.sampling.children;
        if !may_change || !self.engine.lacks_python_lines() || !agents_see_python_lines(pids) {
            return false;
        }
        let shares_session = self.choice.agents == Agents::StartedByHeap;
        let mut agents = AgentsOrPtrace::for_python_lines(self.sampling, shares_session);
        if let Err(refusal) = agents.attach_agents(pids) {
            self.fallbacks
                .push(format!("{refusal}{PERF_WITHOUT_LINES}"));
            agents.release_all(recording);
            self.warnings.append(&mut agents.take_warnings());
            return false;
        }
        let subject = match pids {
            [pid] => format!("process {pid} runs Python"),
            pids => format!("{} processes run Python", pids.len()),
        };
        self.fallbacks.push(format!("{subject}{AGENTS_FOR_LINES}"));
        let perf = std::mem::replace(&mut self.engine, Box::new(agents));
        self.choice.perf = Some(perf);
        self.choice.may_change = false;
        true
    }

    /// Switches from the agents back to perf events if an agent that was chosen for its Python
    /// lines cannot sample.
    pub(super) fn return_to_perf(&mut self, recording: &mut Recording) {
        if self.choice.perf.is_none() {
            return;
        }
        let failures = self.engine.failures();
        let Some((pid, failure)) = failures.first() else {
            return;
        };
        let why = failure.reason();
        let Some(mut perf) = self.choice.perf.take() else {
            return;
        };
        self.fallbacks
            .push(format!("process {pid}: {why}{PERF_WITHOUT_LINES}"));
        for pid in self.engine.release_all(recording) {
            let reason = "perf events took over during the session".to_owned();
            self.failure_reasons.insert(pid, reason);
            let start = recording.process(pid).map(|process| process.start_clock());
            if let Err(refusal) = perf.attach(pid, recording, &mut self.fallbacks) {
                self.fallbacks.push(refusal.to_string());
            }
            // Restores the start, so that the time without samples counts as not sampled.
            if let (Some(process), Some(start)) = (recording.process(pid), start) {
                process.set_start_clock(start);
            }
        }
        self.warnings.append(&mut self.engine.take_warnings());
        self.engine = perf;
    }
}

/// Formats the message about perf buffers that are smaller than wanted, both in bytes.
fn describe_small_buffers(bytes: usize, wanted: usize) -> String {
    format!(
        "only {} of {} KiB may be locked for perf's buffers, so samples may be lost: raise \
         kernel.perf_event_mlock_kb or ulimit -l",
        bytes >> 10,
        wanted >> 10
    )
}

/// Predicts, before attaching, whether the agents will take the samples of these processes.
pub fn will_use_agents(engine: Option<EngineName>, rate: u32, pids: &[i32]) -> bool {
    let sampling = Sampling {
        rate,
        children: false,
    };
    match engine {
        Some(engine) => engine == EngineName::Timers,
        None => agents_see_python_lines(pids) || Perf::open(sampling).is_err(),
    }
}

/// Message: agents sample although perf events are permitted.
const AGENTS_FOR_LINES: &str = ", whose lines the agent names: sampled by timers, the kernel's time \
                         attributed to callers (--engine perf: the kernel, no lines)";
/// Message: perf events sample because the agents, which see Python lines, cannot.
const PERF_WITHOUT_LINES: &str = "; perf events sample it instead, which do not show Python lines";

/// Message: ptrace misses short-lived children.
const MISSES_SHORT_LIVED: &str = "; processes that end within a few milliseconds are missed";
