//! Heap profiles of Go programs, which their runtime keeps: read from outside, without an agent.

mod process;
mod writer;

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::anyhow;
use mem_agents::clock::Time;
use mem_agents::dump::Written;
use mem_agents::output::Output;
use mem_agents::text;
use mem_agents::waiting::Signals;

use crate::cpu_session::Description;
use crate::reporter::Reporter;
pub use process::Process;

/// Go's own default of `runtime.MemProfileRate`, in bytes. It differs from 0 in a single byte, so
/// no thread can read a partly written value.
const RATE: i64 = 512 << 10;

/// Maximum interval between updates of the progress.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(250);

/// Process whose profile is to be written.
pub struct Target {
    process: Process,
    /// Time at which we switched its sampling on; `None` if the runtime samples by itself.
    enabled: Option<Time>,
}

impl Target {
    /// Finds the heap profile of a process. Switches sampling on if it is off and `enable` is set.
    pub fn open(pid: i32, enable: bool) -> anyhow::Result<Self> {
        let process = Process::open(pid)?;
        let mut enabled = None;
        if process.rate()? == 0 {
            anyhow::ensure!(
                enable,
                "its runtime does not sample (MemProfileRate is 0, Go's default without users of \
                 MemProfile): mem_profiler go -p {pid} --enable -s 60"
            );
            process.change_rate(0, RATE)?;
            enabled = Some(Time::now());
        }
        Ok(Self { process, enabled })
    }

    /// Returns the process's name and pid, for display.
    pub fn title(&self) -> &str {
        &self.process.title
    }

    /// Returns true if sampling was switched on.
    pub fn is_enabled(&self) -> bool {
        self.enabled.is_some()
    }

    /// Writes the profile.
    pub fn write(&self, output: &Output) -> anyhow::Result<Written> {
        let heap = self.process.heap()?;
        anyhow::ensure!(
            heap.rate > 0,
            "its runtime does not sample any more (runtime.MemProfileRate was set to 0), and at which rate it has \
             sampled is not known"
        );
        writer::write(&self.process, &heap, self.enabled, output)
    }

    /// Switches sampling off again if it was switched on. Returns what to tell the user.
    pub fn restore(&mut self) -> Option<anyhow::Result<String>> {
        self.enabled.take()?;
        if self.process.has_ended() {
            return None;
        }
        let title = self.title();
        let restored = self.process.change_rate(RATE, 0);
        Some(match restored {
            Ok(()) => Ok(format!("{title}: runtime.MemProfileRate is 0 again")),
            Err(error) => Err(anyhow!("{title}: its runtime continues to sample: {error}")),
        })
    }
}

/// Returns the name and pid of a process, for display.
pub fn title(pid: i32) -> String {
    Description::read(pid).map_or_else(|| pid.to_string(), |description| description.title(pid))
}

/// Reports in which processes sampling was switched on.
pub fn announce(targets: &[Target], reporter: &mut dyn Reporter) {
    for target in targets.iter().filter(|target| target.is_enabled()) {
        reporter.diagnostic(&format!(
            "{}: runtime.MemProfileRate was set from 0 to {RATE}, until this command ends",
            target.title()
        ));
    }
}

/// Waits for a length of time, a signal, or the end of all processes.
pub fn wait(
    targets: &[Target],
    length: Option<Duration>,
    signals: &Signals,
    reporter: &dyn Reporter,
) -> anyhow::Result<()> {
    let pidfds: Vec<_> = (targets.iter())
        .filter_map(|target| proc::pidfd(target.process.pid))
        .collect();
    let start = Instant::now();
    let state = || text::count(targets.len() as u64, "process", "processes");
    loop {
        let time_left = length.map(|length| length.saturating_sub(start.elapsed()));
        let have_all_ended = targets.iter().all(|target| target.process.has_ended());
        if time_left == Some(Duration::ZERO) || have_all_ended {
            return Ok(());
        }
        let running: Vec<_> = (pidfds.iter().filter(|pidfd| !proc::has_ended(pidfd)))
            .map(AsFd::as_fd)
            .collect();
        let timeout = time_left
            .unwrap_or(PROGRESS_INTERVAL)
            .min(PROGRESS_INTERVAL);
        let received = signals.wait(&running, timeout)?;
        if received.iter().any(|signal| signal.ends_session()) {
            return Ok(());
        }
        reporter.progress(start.elapsed(), &state);
    }
}
