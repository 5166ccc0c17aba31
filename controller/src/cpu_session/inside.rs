//! Processes that sample themselves, and along with them those that cannot, but may be traced.

use cpu::{Ptrace, Recording, Refusal, Sampling};

use super::timers::Timers;

/// What timers cost.
pub const INSIDE: &str = "instead the agent in it samples its threads, by timers and a signal: \
                          time spent in the kernel counts for the calls that lead there";

/// What ptrace costs.
pub const STOPPED: &str = "instead its running threads are stopped for some microseconds each \
                           (ptrace): what they do in the kernel is not seen, and a waiting call \
                           (epoll_wait and the like) may occasionally return EINTR";

/// Both.
pub struct Inside {
    /// The agents.
    pub timers: Timers,
    /// For processes without one; `None`: only agents are required.
    ptrace: Option<Ptrace>,
    is_traced: bool,
    /// Why no better engine is used.
    refused: Option<String>,
}

impl Inside {
    /// The agents alone. `beside`: their sessions are begun by another session of this program.
    pub fn only(sampling: Sampling, beside: bool) -> Self {
        Self {
            timers: Timers::new(sampling.rate, beside),
            ptrace: None,
            is_traced: false,
            refused: None,
        }
    }

    /// Agents that were chosen for their lines of Python, which ptrace sees, too.
    pub fn with_lines(sampling: Sampling, beside: bool) -> Self {
        Self {
            ptrace: Some(Ptrace::new(sampling)),
            ..Self::only(sampling, beside)
        }
    }

    /// In place of an engine that was refused: agents where there are any.
    pub fn instead(sampling: Sampling, beside: bool, refused: &Refusal) -> Self {
        Self {
            ptrace: Some(Ptrace::new(sampling)),
            refused: Some(refused.to_string()),
            ..Self::only(sampling, beside)
        }
    }

    /// Has a process sampled; what is to be said of it goes to `fallbacks`.
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

    /// Records what was sampled, and traces processes that run without sampling themselves.
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

    /// Its name in profiles.
    pub fn name(&self) -> &'static str {
        match (self.timers.is_used(), self.is_traced) {
            (true, true) => "timers + ptrace",
            (false, true) => "ptrace",
            (_, false) => "timers",
        }
    }

    /// The longest time until [`collect`](Self::collect) is due.
    pub fn due(&self) -> std::time::Duration {
        let ptrace = self.ptrace.as_ref().filter(|_| self.is_traced);
        ptrace.map_or(super::ROUND, |ptrace| ptrace.due().min(super::ROUND))
    }
}
