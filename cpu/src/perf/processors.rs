//! Events that sample processors, used if all processes may be sampled (see `meters`). A sample's
//! weight is the CPU time that it stands for.

// Decision 41: perf events per processor.
use super::{Event, Perf};
use crate::event::{self, EventConfig};
use crate::meter::{Clock, Weighting, Weights};
use crate::meters::Meters;
use crate::recording::Recording;
use crate::refusal::Refusal;

/// CPU time as reported by the kernel.
pub(super) struct Kernel;

impl Clock for Kernel {
    fn process(&self, pid: i32) -> Option<u64> {
        proc::cpu_ns(pid)
    }

    fn thread(&self, pid: i32, tid: i32) -> Option<u64> {
        proc::thread_ns(pid, tid)
    }
}

/// Returns true if processes of all users may be sampled (`perf_event_paranoid` of 0 or less, or
/// `CAP_PERFMON`).
pub(super) fn may_sample_all(config: &EventConfig, processors: &[u32]) -> bool {
    let first = processors.first().copied().unwrap_or(0);
    config.kernel && config.open_processor(first).is_ok()
}

impl Perf {
    /// Adds a process, if that is allowed. Opens the processors' events if they are not open.
    pub(super) fn open_processors(
        &mut self,
        pid: i32,
        recording: &mut Recording,
    ) -> Result<(), Refusal> {
        self.check_permission(pid)?;
        if let Some(meters) = &mut self.meters {
            let clock_ns = meters.begin(pid, &proc::threads(pid));
            if let Some(process) = recording.process(pid) {
                process.set_start_clock(clock_ns);
            }
        }
        if self.events.is_empty() {
            self.events = self.sample_processors(pid)?;
        }
        Ok(())
    }

    /// Checks that the process may be sampled, by opening events of one of its threads. Closes them
    /// again, since they would cost the process something at each context switch.
    fn check_permission(&self, pid: i32) -> Result<(), Refusal> {
        let first = self
            .rings
            .processors
            .first()
            .map_or(0, |first| first.number);
        // The main thread may have exited before others.
        for tid in proc::threads(pid) {
            match self.config.open(tid, first) {
                Ok(_) => return Ok(()),
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
                Err(error) => return Err(Refusal::of_thread(pid, error, self.events.len())),
            }
        }
        Err(Refusal::Gone { pid })
    }

    fn sample_processors(&self, pid: i32) -> Result<Vec<Event>, Refusal> {
        let mut events = Vec::new();
        for processor in &self.rings.processors {
            let opened = self.config.open_processor(processor.number);
            let opened = opened.and_then(|fd| {
                event::redirect(&fd, &processor.owner)?;
                Ok((event::id(&fd)?, fd))
            });
            match opened {
                Ok((id, fd)) => events.push(Event { fd, pid: 0, id }),
                Err(error) if error.raw_os_error() == Some(libc::ENODEV) => {}
                Err(error) => return Err(Refusal::of_thread(pid, error, 0)),
            }
        }
        Ok(events)
    }

    /// Reopens the events after the size of stack copies has changed. `before` is the old size.
    pub(super) fn reopen_processors(&mut self, before: u32) {
        // With two events, everything would be sampled twice.
        self.events.clear();
        let opened = self.sample_processors(0).or_else(|_| {
            // Falls back to the old size.
            self.config.stack_bytes = before;
            self.sample_processors(0)
        });
        self.events = opened.unwrap_or_default();
    }

    /// Weights samples if that is due.
    pub(super) fn weigh_if_due(&mut self, recording: &mut Recording) {
        if self.meters.as_ref().is_some_and(Meters::is_due) {
            self.weigh(Weighting::Clock, recording);
        }
    }

    /// Weights samples now.
    pub(super) fn weigh(&mut self, weighting: Weighting, recording: &mut Recording) {
        for (pid, weighed) in self.weigh_all(weighting) {
            record(pid, weighed, recording);
        }
    }

    /// Weights samples for the last time. CPU time that processes use from now on does not count.
    pub(super) fn weigh_at_end(&mut self, recording: &mut Recording) {
        for (pid, weighed) in self.weigh_all(Weighting::Last) {
            if let (Some(clock), Some(process)) = (weighed.clock, recording.process(pid)) {
                process.set_end_clock(clock);
            }
            record(pid, weighed, recording);
        }
    }

    fn weigh_all(&mut self, weighting: Weighting) -> Vec<(i32, Weights)> {
        let meters = self.meters.as_mut();
        meters.map_or(Vec::new(), |meters| meters.weigh_all(weighting))
    }

    /// Weights the samples of a process before it executes another program.
    pub(super) fn weigh_before_exec(&mut self, pid: i32, recording: &mut Recording) {
        let meters = self.meters.as_mut();
        if let Some(weighed) = meters.and_then(|meters| meters.weigh_before_exec(pid)) {
            record(pid, weighed, recording);
        }
    }
}

/// Adds weighted samples to the recording.
fn record(pid: i32, weighed: Weights, recording: &mut Recording) {
    if let Some(process) = recording.process(pid) {
        process.counts.lost = process.counts.lost.saturating_add(weighed.lost);
        for (stack, ns) in weighed.times {
            process.weigh(stack, ns);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::perf::Sampling;
    use crate::running::Running;

    const RATE: u32 = 999;
    /// CPU time for each processor, in nanoseconds, whose samples do not all fit into the ring.
    const OVERFLOW_NS: u64 = 300_000_000;
    const TIMEOUT: Duration = Duration::from_secs(60);

    /// The kernel reports lost samples with the next record that it writes. A stopped process
    /// writes none.
    #[test]
    fn lost_samples_are_counted_even_if_no_record_follows() {
        let busy = Running::start(Command::new("sh").args(["-c", "while :; do :; done"]));
        let pid = busy.pid();
        let sampling = Sampling {
            rate: RATE,
            children: false,
        };
        let mut perf = Perf::open(sampling).expect("perf events");
        assert!(perf.meters.is_some(), "events of processors");
        let mut recording = Recording::new(false);
        recording.add(pid);
        perf.attach(pid, &mut recording).expect("a process of ours");
        let before = proc::cpu_ns(pid).expect("its clock");
        let used_ns = OVERFLOW_NS * perf.rings.processors.len() as u64;
        let begun = Instant::now();
        while proc::cpu_ns(pid).expect("its clock") < before + used_ns {
            assert!(begun.elapsed() < TIMEOUT, "it does not run");
        }
        // SAFETY: no memory is passed, and the child is not waited for before the end.
        assert_eq!(unsafe { libc::kill(pid, libc::SIGSTOP) }, 0);
        perf.collect(&mut recording);
        perf.weigh(Weighting::Last, &mut recording);
        let process = recording.process(pid).expect("it runs");
        let samples = process.counts.samples;
        let lost = process.counts.lost;
        let due = used_ns / perf.config.period;
        assert!(
            lost > 0 && samples + lost >= due * 9 / 10,
            "{samples}, {lost} of {due}"
        );
    }
}
