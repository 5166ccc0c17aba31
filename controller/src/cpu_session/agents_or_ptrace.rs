//! Engine for processes that sample themselves by their agents, with ptrace for those that cannot.

use std::collections::HashMap;
use std::time::Duration;

use cpu::{Ptrace, Recording, Refusal, Sampling};
use mem_agents::discovery::Discovery;

use super::COLLECT_INTERVAL;
use super::engine::Engine;
use super::member::SamplingFailure;
use super::timers::Timers;

/// Message: agents do not see kernel frames.
pub const KERNEL_HIDDEN_BY_TIMERS: &str = "timers do not see the kernel: time spent there is attributed to its \
                               callers";

/// Message: the agent's timers sample, with the consequences.
const SAMPLED_BY_TIMERS: &str = "instead the agent in it samples its threads by timers: time in the kernel \
                      is attributed to its callers";

/// Message: ptrace samples, with the consequences.
pub const SAMPLED_BY_PTRACE: &str = "instead its running threads are stopped for microseconds (ptrace): \
                           without the kernel; waiting calls may return EINTR";

/// Samples by agents where they can sample, and by ptrace elsewhere if that is allowed.
pub struct AgentsOrPtrace {
    /// Engine of the agents.
    timers: Timers,
    /// Engine for processes whose agents cannot sample. `None`: only agents may sample.
    ptrace: Option<Ptrace>,
    /// True if ptrace samples at least one process.
    uses_ptrace: bool,
    /// Reason why perf events are not used.
    perf_refusal: Option<String>,
}

impl AgentsOrPtrace {
    /// Uses the agents alone. If `shares_session`, a heap session of this program starts the
    /// agents' sessions.
    pub fn agents_only(sampling: Sampling, shares_session: bool) -> Self {
        Self {
            timers: Timers::new(sampling.rate, shares_session),
            ptrace: None,
            uses_ptrace: false,
            perf_refusal: None,
        }
    }

    /// Uses agents for their Python lines, and otherwise ptrace, which sees them too.
    pub fn for_python_lines(sampling: Sampling, shares_session: bool) -> Self {
        Self {
            ptrace: Some(Ptrace::new(sampling)),
            ..Self::agents_only(sampling, shares_session)
        }
    }

    /// Uses agents, or ptrace for processes without agents, in place of perf events.
    pub fn as_fallback(sampling: Sampling, shares_session: bool, perf_refusal: &Refusal) -> Self {
        Self {
            ptrace: Some(Ptrace::new(sampling)),
            perf_refusal: Some(perf_refusal.to_string()),
            ..Self::agents_only(sampling, shares_session)
        }
    }

    /// Starts sampling these processes by their agents alone.
    pub fn attach_agents(&mut self, pids: &[i32]) -> Result<(), Refusal> {
        pids.iter().try_for_each(|pid| self.timers.attach(*pid))
    }
}

impl Engine for AgentsOrPtrace {
    fn name(&self) -> Option<&str> {
        Some(match (self.timers.is_used(), self.uses_ptrace) {
            (true, true) => "timers + ptrace",
            (false, true) => "ptrace",
            (_, false) => "timers",
        })
    }

    fn attach(
        &mut self,
        pid: i32,
        _recording: &mut Recording,
        fallbacks: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        let perf_refusal = self.perf_refusal.as_deref();
        let mut report = |consequence: &str| {
            let reason = perf_refusal.map(|refusal| format!("{refusal}; {consequence}"));
            fallbacks.extend(reason.filter(|reason| !fallbacks.contains(reason)));
        };
        let agent_refusal = match self.timers.attach(pid) {
            Ok(()) => {
                report(SAMPLED_BY_TIMERS);
                return Ok(());
            }
            Err(refusal) => refusal,
        };
        let Some(ptrace) = &mut self.ptrace else {
            return Err(agent_refusal);
        };
        match ptrace.attach(pid) {
            Ok(()) => {
                self.uses_ptrace = true;
                report(SAMPLED_BY_PTRACE);
                Ok(())
            }
            Err(
                refusal @ (Refusal::Yama { .. } | Refusal::Foreign { .. } | Refusal::Forbidden),
            ) => {
                let Refusal::Agent { why, .. } = agent_refusal else {
                    return Err(refusal);
                };
                let why = format!("{why}; and from outside: {refusal}");
                Err(Refusal::Agent { pid, why })
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Returns false, since the program's agent starts its session by itself.
    fn prepare_for_child(&mut self) -> Result<bool, Refusal> {
        Ok(false)
    }

    /// Also traces processes whose agents turn out unable to sample.
    fn collect(&mut self, recording: &mut Recording, fallbacks: &mut Vec<String>) {
        self.timers.collect(recording);
        let Some(ptrace) = &mut self.ptrace else {
            return;
        };
        for (pid, failure) in self.timers.failures() {
            if ptrace.attach(pid).is_ok() {
                let why = failure.reason();
                fallbacks.push(format!("process {pid}: {why}; {SAMPLED_BY_PTRACE}"));
                self.uses_ptrace = true;
                self.timers.release(pid, recording);
            }
        }
        if self.uses_ptrace {
            ptrace.collect(recording);
        }
    }

    fn collect_live(&mut self, recording: &mut Recording) {
        self.timers.collect_live(recording);
    }

    fn finish(&mut self, recording: &mut Recording) {
        self.timers.finish(recording);
    }

    fn max_wait(&self) -> Duration {
        match &self.ptrace {
            Some(ptrace) if self.uses_ptrace => ptrace.max_wait().min(COLLECT_INTERVAL),
            _ => COLLECT_INTERVAL,
        }
    }

    fn kernel_hidden(&self) -> Option<String> {
        Some(KERNEL_HIDDEN_BY_TIMERS.to_owned())
    }

    fn uses_agents(&self) -> bool {
        true
    }

    fn set_segment_directory(&mut self, discovery: Discovery) {
        self.timers.follow(discovery);
    }

    fn set_session_length(&mut self, length: Option<Duration>) {
        self.timers.set_session_length(length);
    }

    fn failures(&self) -> Vec<(i32, SamplingFailure)> {
        self.timers.failures()
    }

    fn release_all(&mut self, recording: &mut Recording) -> Vec<i32> {
        let pids = self.timers.pids();
        for pid in &pids {
            self.timers.release(*pid, recording);
        }
        pids
    }

    fn failure_reason(&self, pid: i32) -> Option<String> {
        self.timers.failure_reason(pid)
    }

    fn take_failure_reasons(&mut self) -> HashMap<i32, String> {
        self.timers.take_failure_reasons()
    }

    fn take_warnings(&mut self) -> Vec<String> {
        self.timers.take_warnings()
    }
}
