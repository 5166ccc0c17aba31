//! Captures a process for a search: stopped, copied, or running.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, anyhow, ensure};
use capture::{Copy, Pause, RaisedPriority, Refusal, Stopped, Thread};
use libc::{major, minor};
use mem_agents::discovery::Agent;
use mem_agents::unreadable;

use super::Means;
use super::held::Held;
use super::kernel::KernelData;
use super::memory::MomentMemory;
use super::refusal::{no_room, without_copy};
use super::regions::{self, Region};
use super::{roots, unstopped};

/// Maximum time to stop all threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a process at one moment.
pub struct Moment {
    /// Threads with their registers. Little is known about running threads.
    pub threads: Vec<Thread>,
    /// Mappings of the process.
    pub regions: Vec<Region>,
    /// Words stored in the kernel.
    pub kernels: KernelData,
    /// Contents of the memory.
    pub memory: MomentMemory,
    /// Keeps the memory unchanged.
    pub hold: Hold,
    /// Pid of the process.
    pid: i32,
    /// Thread through which `/proc` shows the memory: the main thread, unless it has exited.
    shown: i32,
}

/// Process or copy that is held while the memory is read.
pub enum Hold {
    /// A copy; the process continues.
    Copy(Arc<Copy>, Pause),
    /// The stopped process.
    Process(Stopped),
    /// Nothing: the process runs, with this many threads.
    Nothing(usize),
}

impl Hold {
    /// Resumes the process if it is stopped. Returns the length of the stop.
    pub fn release(self) -> Pause {
        match self {
            Self::Copy(_, pause) => pause,
            Self::Process(stopped) => stopped.resume(),
            Self::Nothing(threads) => Pause {
                stopped: Duration::ZERO,
                cloned: Duration::ZERO,
                threads,
            },
        }
    }
}

/// Stops a process and, if requested, copies it.
fn stop(pid: i32, means: Means) -> anyhow::Result<(Stopped, Option<Copy>)> {
    let lack = match means {
        Means::Copied => no_room(pid).map_or(Ok(false), Err)?,
        Means::CopiedIfPossible => no_room(pid).is_some(),
        Means::Stopped | Means::Running(_) => true,
    };
    if lack {
        let stopped = Stopped::stop(pid, STOP_TIMEOUT).map_err(without_stop)?;
        return Ok((stopped, None));
    }
    let (stopped, copied) = Stopped::stop_with_copy(pid, STOP_TIMEOUT).map_err(without_stop)?;
    let copy = match (means, copied) {
        (Means::CopiedIfPossible, Err(refusal)) if refusal.is_of_copy() => None,
        (Means::CopiedIfPossible, copied) => Some(copied?),
        (_, copied) => Some(copied.map_err(without_copy)?),
    };
    Ok((stopped, copy))
}

impl Moment {
    /// Captures a process.
    pub fn of(agent: &Agent, means: Means) -> anyhow::Result<Self> {
        let pid = agent.pid;
        if let Means::Running(_) = means {
            return Self::of_running(agent);
        }
        // Reading these words while the process is stopped would take too long. They are read
        // shortly before and shortly after instead.
        let mut kernels = KernelData::of_descriptors(pid);
        // A higher priority shortens the stop. Not for a search of the stopped process, which takes
        // long and would disturb others.
        let raised = (means != Means::Stopped).then(RaisedPriority::new);
        let (stopped, copy) = stop(pid, means)?;
        let shown = proc::living_thread(pid);
        let regions = regions(agent)?;
        kernels.add_timers(pid);
        let threads = stopped.threads().to_vec();
        let (memory, hold) = match copy {
            None => {
                drop(raised);
                let memory = MomentMemory::of(shown, shown, &regions, &[], Held::default());
                (memory, Hold::Process(stopped))
            }
            Some(copy) => {
                let copied = proc::maps(copy.pid()).unwrap_or_default();
                let absent = roots::absent(&regions, &copied);
                let held = Held::of(shown, &regions, &absent);
                let pause = stopped.resume();
                drop(raised);
                let copy = Arc::new(copy);
                let mut memory = MomentMemory::of(copy.pid(), shown, &regions, &absent, held);
                memory.let_work(&copy);
                (memory, Hold::Copy(copy, pause))
            }
        };
        kernels.join(KernelData::of_descriptors(pid));
        Ok(Self {
            threads,
            regions,
            kernels,
            memory,
            hold,
            pid,
            shown,
        })
    }

    /// Checks after a search that the memory still exists. Memory of a process that was killed
    /// meanwhile, for example by the OOM killer, has been read as zeros.
    pub fn confirm(&self) -> anyhow::Result<()> {
        let pid = self.pid;
        match &self.hold {
            Hold::Copy(copy, _) => ensure!(
                copy.is_whole(),
                "the copy of process {pid} was killed while it was searched, perhaps for lack of memory: try again, or use --stop"
            ),
            Hold::Process(_) => {
                ensure!(
                    has_memory(self.shown),
                    "process {pid} ended while it was searched"
                );
            }
            Hold::Nothing(_) => ensure!(
                has_memory(self.shown),
                "process {pid}, or its thread {} by which its memory is read, ended while it was \
                 searched: try again if it lives",
                self.shown
            ),
        }
        Ok(())
    }

    /// Describes a running process. Its parts are of slightly different times.
    fn of_running(agent: &Agent) -> anyhow::Result<Self> {
        let pid = agent.pid;
        let shown = proc::living_thread(pid);
        let regions = regions(agent)?;
        let (count, threads) = unstopped::threads(pid);
        let mut kernels = KernelData::of_descriptors(pid);
        kernels.add_timers(pid);
        Ok(Self {
            threads,
            kernels,
            memory: MomentMemory::of(shown, shown, &regions, &[], Held::default()),
            regions,
            hold: Hold::Nothing(count),
            pid,
            shown,
        })
    }
}

/// Returns true if a thread still has memory. A thread that has exited or was killed loses it long
/// before it disappears.
fn has_memory(tid: i32) -> bool {
    let mut byte = [0];
    let maps = File::open(format!("/proc/{tid}/maps"));
    maps.is_ok_and(|mut maps| maps.read(&mut byte).is_ok_and(|read| read > 0))
}

/// Returns the mappings of a process. The agent's segment is marked unreadable, since it is not the
/// program's memory.
fn regions(agent: &Agent) -> anyhow::Result<Vec<Region>> {
    let pid = agent.pid;
    let maps = proc::maps(pid).filter(|maps| !maps.is_empty());
    let maps = maps.with_context(|| unreadable::maps(pid))?;
    let mut regions = regions::parse(&maps);
    let own = agent.segment.file().metadata().ok();
    let own = own.map(|file| ((major(file.dev()), minor(file.dev())), file.ino()));
    let segments = regions.iter_mut().filter(|region| Some(region.file) == own);
    segments.for_each(|region| region.is_readable = false);
    Ok(regions)
}

/// Adds the options that work without a stop to a refusal, if they can help.
fn without_stop(refusal: Refusal) -> anyhow::Error {
    match refusal {
        Refusal::Traced { .. } => anyhow!(
            "{refusal}; or search it while it runs: --gentle, or HEAP_CHECK_RUN_UNDER_GDB=1 for a check \
             of its own"
        ),
        Refusal::Deadline { .. } => anyhow!("{refusal}; or search it while it runs: --gentle"),
        _ => refusal.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn what_was_killed_has_no_memory() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = child.id() as i32;
        assert!(has_memory(pid));
        child.kill().expect("a child");
        // It stays until somebody waits for it.
        while has_memory(pid) {
            std::thread::yield_now();
        }
        assert!(proc::Stat::of(pid).is_some());
        child.wait().expect("a child");
        assert!(!has_memory(pid));
    }
}
