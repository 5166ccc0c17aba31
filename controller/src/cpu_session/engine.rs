//! Interface of the sampling engines, and those that need no module of their own.

use std::collections::HashMap;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use cpu::{Perf, Ptrace, Recording, Refusal};
use mem_agents::discovery::Discovery;

use super::COLLECT_INTERVAL;
use super::member::SamplingFailure;

/// Samples the processes that it is attached to.
pub trait Engine {
    /// Returns the name for profiles; `None` if the engine takes no samples.
    fn name(&self) -> Option<&str>;

    /// Does the slow part of preparing a process before its sampling starts.
    fn prepare(&self, _pid: i32, _recording: &mut Recording) {}

    /// Starts sampling a process. Appends messages about the choice of engine to `fallbacks`.
    fn attach(
        &mut self,
        pid: i32,
        recording: &mut Recording,
        fallbacks: &mut Vec<String>,
    ) -> Result<(), Refusal>;

    /// Prepares to sample the program that this thread is about to start. Returns true if the
    /// program must be attached once it runs.
    fn prepare_for_child(&mut self) -> Result<bool, Refusal> {
        Ok(true)
    }

    /// Records the samples since the last call. Appends messages about the choice of engine to
    /// `fallbacks`.
    fn collect(&mut self, recording: &mut Recording, fallbacks: &mut Vec<String>);

    /// Reads counts that are otherwise read only at the end, for live views.
    fn collect_live(&mut self, _recording: &mut Recording) {}

    /// Records the last samples and the time without samples.
    fn finish(&mut self, _recording: &mut Recording) {}

    /// Returns the maximum time until the next [`collect`](Self::collect).
    fn max_wait(&self) -> Duration;

    /// Returns descriptors that become readable when [`collect`](Self::collect) should be called
    /// early.
    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Vec::new()
    }

    /// Explains why kernel frames are not visible; `None` if they are.
    fn kernel_hidden(&self) -> Option<String>;

    /// Returns the number of samples that the kernel dropped and that belong to no known process.
    fn lost(&self) -> u64 {
        0
    }

    /// Returns true if the engine sees no Python lines where an agent would.
    fn lacks_python_lines(&self) -> bool {
        false
    }

    /// Returns true if the agents take the samples.
    fn uses_agents(&self) -> bool {
        false
    }

    /// Tells the agents' engine where the program that is about to be started will put its
    /// segments.
    fn set_segment_directory(&mut self, _discovery: Discovery) {}

    /// Sets the length after which agents end their sessions by themselves if no controller does.
    fn set_session_length(&mut self, _length: Option<Duration>) {}

    /// Returns the processes that cannot be sampled after all, with the reasons.
    fn failures(&self) -> Vec<(i32, SamplingFailure)> {
        Vec::new()
    }

    /// Stops sampling all processes, which another engine takes over. Returns their pids.
    fn release_all(&mut self, _recording: &mut Recording) -> Vec<i32> {
        Vec::new()
    }

    /// Returns the reason why a process is not sampled, if that is known.
    fn failure_reason(&self, _pid: i32) -> Option<String> {
        None
    }

    /// Takes the reasons for missing samples, by pid.
    fn take_failure_reasons(&mut self) -> HashMap<i32, String> {
        HashMap::new()
    }

    /// Takes the warnings about single processes since the last call.
    fn take_warnings(&mut self) -> Vec<String> {
        Vec::new()
    }
}

impl Engine for Perf {
    fn name(&self) -> Option<&str> {
        Some("perf_event")
    }

    fn prepare(&self, pid: i32, recording: &mut Recording) {
        recording.prepare(pid);
    }

    fn attach(
        &mut self,
        pid: i32,
        recording: &mut Recording,
        _fallbacks: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        Perf::attach(self, pid, recording)
    }

    fn prepare_for_child(&mut self) -> Result<bool, Refusal> {
        Perf::attach_children(self).map(|()| false)
    }

    fn collect(&mut self, recording: &mut Recording, _fallbacks: &mut Vec<String>) {
        Perf::collect(self, recording);
    }

    fn collect_live(&mut self, recording: &mut Recording) {
        Perf::weight_samples(self, recording);
    }

    fn finish(&mut self, recording: &mut Recording) {
        Perf::finish(self, recording);
    }

    fn max_wait(&self) -> Duration {
        Perf::max_wait(self)
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        Perf::descriptors(self).collect()
    }

    fn kernel_hidden(&self) -> Option<String> {
        if self.sees_kernel() {
            return None;
        }
        Some(explain_hidden_kernel())
    }

    fn lost(&self) -> u64 {
        self.lost
    }

    fn lacks_python_lines(&self) -> bool {
        true
    }
}

/// Explains why perf events do not show the kernel.
pub fn explain_hidden_kernel() -> String {
    format!(
        "kernel.perf_event_paranoid is {}: {}, or set it to 1",
        proc::setting("perf_event_paranoid").unwrap_or(2),
        cpu::capability_advice("run as root or with CAP_PERFMON", "CAP_PERFMON")
    )
}

impl Engine for Ptrace {
    fn name(&self) -> Option<&str> {
        Some("ptrace")
    }

    fn attach(
        &mut self,
        pid: i32,
        _recording: &mut Recording,
        _fallbacks: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        Ptrace::attach(self, pid)
    }

    fn collect(&mut self, recording: &mut Recording, _fallbacks: &mut Vec<String>) {
        Ptrace::collect(self, recording);
    }

    fn max_wait(&self) -> Duration {
        Ptrace::max_wait(self)
    }

    fn kernel_hidden(&self) -> Option<String> {
        Some("ptrace does not see the kernel".to_owned())
    }
}

/// Engine that takes no samples but notices exits, for sessions that sample waiting threads only.
#[derive(Default)]
pub struct ExitWatcher {
    /// Time of the last check for exited processes.
    last_check: Option<Instant>,
}

impl Engine for ExitWatcher {
    fn name(&self) -> Option<&str> {
        None
    }

    fn attach(
        &mut self,
        _pid: i32,
        _recording: &mut Recording,
        _fallbacks: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn collect(&mut self, recording: &mut Recording, _fallbacks: &mut Vec<String>) {
        if self
            .last_check
            .is_none_or(|time| time.elapsed() >= COLLECT_INTERVAL)
        {
            self.last_check = Some(Instant::now());
            for pid in recording.poll_exited() {
                recording.handle_exit(pid);
            }
        }
    }

    fn max_wait(&self) -> Duration {
        COLLECT_INTERVAL
    }

    fn kernel_hidden(&self) -> Option<String> {
        None
    }
}

/// Facts about an engine that has been closed. Samples nothing.
pub struct ClosedEngine {
    /// Name of the engine.
    pub name: String,
    /// Number of samples that the kernel dropped.
    pub lost: u64,
    /// Reason why kernel frames are missing; `None` if they are not.
    pub kernel_hidden: Option<String>,
}

impl Engine for ClosedEngine {
    fn name(&self) -> Option<&str> {
        Some(&self.name)
    }

    fn attach(
        &mut self,
        _pid: i32,
        _recording: &mut Recording,
        _fallbacks: &mut Vec<String>,
    ) -> Result<(), Refusal> {
        Ok(())
    }

    fn collect(&mut self, _recording: &mut Recording, _fallbacks: &mut Vec<String>) {}

    fn max_wait(&self) -> Duration {
        COLLECT_INTERVAL
    }

    fn kernel_hidden(&self) -> Option<String> {
        self.kernel_hidden.clone()
    }

    fn lost(&self) -> u64 {
        self.lost
    }
}
