//! Engine for processes that sample themselves by their agents, with ptrace for those that cannot.

use cpu::{Ptrace, Recording, Refusal, Sampling};

use super::timers::Timers;

/// Message: the agent's timers sample, with the consequences.
pub const INSIDE: &str = "instead the agent in it samples its threads by timers: time in the kernel counts for the calls that lead there";

/// Message: ptrace samples, with the consequences.
pub const STOPPED: &str = "instead its running threads are stopped for microseconds (ptrace): without the kernel; waiting calls may return EINTR";

/// Agents and ptrace.
pub struct Inside {
    /// Engine of the agents.
    pub timers: Timers,
    /// Engine for processes whose agents cannot sample. `None`: only agents may sample.
    ptrace: Option<Ptrace>,
    is_traced: bool,
    /// Reason why perf events are not used.
    refused: Option<String>,
}

impl Inside {
    /// Uses the agents alone. `beside`: a heap session of this program starts the agents' sessions.
    pub fn only(sampling: Sampling, beside: bool) -> Self {
        Self {
            timers: Timers::new(sampling.rate, beside),
            ptrace: None,
            is_traced: false,
            refused: None,
        }
    }

    /// Uses agents for their Python lines, and otherwise ptrace, which sees them too.
    pub fn with_lines(sampling: Sampling, beside: bool) -> Self {
        Self {
            ptrace: Some(Ptrace::new(sampling)),
            ..Self::only(sampling, beside)
        }
    }

    /// Uses agents where there are any, and otherwise ptrace, in place of an engine that was
    /// refused.
    pub fn instead(sampling: Sampling, beside: bool, refused: &Refusal) -> Self {
        Self {
            ptrace: Some(Ptrace::new(sampling)),
            refused: Some(refused.to_string()),
            ..Self::only(sampling, beside)
        }
    }

    /// Starts sampling a process. Appends messages about the engine to `fallbacks`.
    pub fn attach(&mut self, pid: i32, fallbacks: &mut Vec<String>) -> Result<(), Refusal> {
        let refused = self.refused.as_deref();
        let mut tell = |what: &str| {
            let said = refused.map(|refused| format!("{refused}; {what}"));
            fallbacks.extend(said.filter(|said| !fallbacks.contains(said)));
        };
        let why = match self.timers.attach(pid) {
            Ok(()) => {
                tell(INSIDE);
                return Ok(());
            }
            Err(why) => why,
        };
        let Some(ptrace) = &mut self.ptrace else {
            return Err(why);
        };
        match ptrace.attach(pid) {
            Ok(()) => {
                self.is_traced = true;
                tell(STOPPED);
                Ok(())
            }
            Err(
                refusal @ (Refusal::Yama { .. } | Refusal::Foreign { .. } | Refusal::Forbidden),
            ) => {
                let Refusal::Agent { why, .. } = why else {
                    return Err(refusal);
                };
                let why = format!("{why}; and from outside: {refusal}");
                Err(Refusal::Agent { pid, why })
            }
            Err(refusal) => Err(refusal),
        }
    }

    /// Records samples, and traces processes that turn out not to sample themselves.
    pub fn collect(&mut self, recording: &mut Recording, fallbacks: &mut Vec<String>) {
        self.timers.collect(recording);
        let Some(ptrace) = &mut self.ptrace else {
            return;
        };
        for (pid, trouble) in self.timers.troubled() {
            if let Some(why) = trouble.reason()
                && ptrace.attach(pid).is_ok()
            {
                fallbacks.push(format!("process {pid}: {why}; {STOPPED}"));
                self.is_traced = true;
                self.timers.release(pid, recording);
            }
        }
        if self.is_traced {
            ptrace.collect(recording);
        }
    }

    /// Returns the engine's name for profiles.
    pub fn name(&self) -> &'static str {
        match (self.timers.is_used(), self.is_traced) {
            (true, true) => "timers + ptrace",
            (false, true) => "ptrace",
            (_, false) => "timers",
        }
    }

    /// Returns the maximum time until [`collect`](Self::collect) is due.
    pub fn due(&self) -> std::time::Duration {
        let ptrace = self.ptrace.as_ref().filter(|_| self.is_traced);
        ptrace.map_or(super::ROUND, |ptrace| ptrace.due().min(super::ROUND))
    }
}
