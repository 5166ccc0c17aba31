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

use super::Method;
use super::kernel::KernelData;
use super::memory::MomentMemory;
use super::refusal::{advise_other_method, copy_memory_shortage};
use super::regions::{self, Region};
use super::saved::{self, SavedMemory};
use super::{roots, unstopped};

/// Maximum time to stop all threads.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// State of a process at one moment.
pub struct Moment {
    /// Threads with their registers. Little is known about running threads.
    pub threads: Vec<Thread>,
    /// Mappings of the process.
    pub regions: Vec<Region>,
    /// Words that the kernel stores for the process.
    pub kernel: KernelData,
    /// Contents of the memory.
    pub memory: MomentMemory,
    /// Keeps the memory unchanged.
    pub hold: Hold,
    /// Pid of the process.
    pid: i32,
    /// Thread whose files in `/proc` are read: the main thread, unless it has exited.
    proc_tid: i32,
}

/// Means of keeping the memory unchanged while it is read.
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
fn stop_and_copy(pid: i32, method: Method) -> anyhow::Result<(Stopped, Option<Copy>)> {
    let without_copying = match method {
        Method::Copied => {
            if let Some(error) = copy_memory_shortage(pid) {
                return Err(error);
            }
            false
        }
        Method::CopiedIfPossible => copy_memory_shortage(pid).is_some(),
        Method::Stopped | Method::Running(_) => true,
    };
    if without_copying {
        let stopped = Stopped::stop(pid, STOP_TIMEOUT).map_err(advise_gentle)?;
        return Ok((stopped, None));
    }
    let (stopped, copied) = Stopped::stop_with_copy(pid, STOP_TIMEOUT).map_err(advise_gentle)?;
    let copy = match copied {
        Ok(copy) => Some(copy),
        Err(refusal) if method != Method::CopiedIfPossible => {
            return Err(advise_other_method(refusal));
        }
        Err(refusal) if refusal.is_copy_refused() => None,
        Err(refusal) => return Err(refusal.into()),
    };
    Ok((stopped, copy))
}

impl Moment {
    /// Captures a process.
    pub fn of(agent: &Agent, method: Method) -> anyhow::Result<Self> {
        let pid = agent.pid;
        if let Method::Running(_) = method {
            return Self::of_running(agent);
        }
        // Reading the kernel's data takes too long to do it while the process is stopped. It is
        // read shortly before and shortly after instead.
        let mut kernel = KernelData::of_descriptors(pid);
        // A higher priority shortens the stop. It is not raised for a search of the stopped
        // process, which takes long and would disturb other processes.
        let raised = (method != Method::Stopped).then(RaisedPriority::new);
        let (stopped, copy) = stop_and_copy(pid, method)?;
        let proc_tid = proc::living_thread(pid);
        let regions = regions(agent)?;
        kernel.add_timers(pid);
        let threads = stopped.threads().to_vec();
        let (memory, hold) = match copy {
            None => {
                drop(raised);
                let memory =
                    MomentMemory::of(proc_tid, proc_tid, &regions, &[], SavedMemory::default());
                (memory, Hold::Process(stopped))
            }
            Some(copy) => {
                let copied = proc::maps(copy.pid()).unwrap_or_default();
                let mut absent = roots::missing_in_copy(&regions, &copied);
                absent.extend(saved::wiped_mappings(proc_tid, copy.pid(), &regions));
                absent.sort_unstable_by_key(|range| range.start);
                let saved = SavedMemory::of(proc_tid, &regions, &absent);
                let pause = stopped.resume();
                drop(raised);
                let copy = Arc::new(copy);
                let mut memory = MomentMemory::of(copy.pid(), proc_tid, &regions, &absent, saved);
                memory.search_in_copy(&copy);
                (memory, Hold::Copy(copy, pause))
            }
        };
        kernel.join(KernelData::of_descriptors(pid));
        Ok(Self {
            threads,
            regions,
            kernel,
            memory,
            hold,
            pid,
            proc_tid,
        })
    }

    /// Checks after a search that the memory still exists. If the process was killed during the
    /// search, for example by the OOM killer, its memory was read as zeros.
    pub fn confirm(&self) -> anyhow::Result<()> {
        let pid = self.pid;
        match &self.hold {
            Hold::Copy(copy, _) => ensure!(
                copy.is_whole(),
                "the copy of process {pid} was killed while it was searched, perhaps for lack of memory: try again, or use --stop"
            ),
            Hold::Process(_) => {
                ensure!(
                    has_memory(self.proc_tid),
                    "process {pid} exited while it was searched"
                );
            }
            Hold::Nothing(_) => ensure!(
                has_memory(self.proc_tid),
                "process {pid}, or its thread {} through which its memory was read, exited during \
                 the search: try again if the process is still running",
                self.proc_tid
            ),
        }
        Ok(())
    }

    /// Describes a running process. The parts of the result are read at slightly different times.
    fn of_running(agent: &Agent) -> anyhow::Result<Self> {
        let pid = agent.pid;
        let proc_tid = proc::living_thread(pid);
        let regions = regions(agent)?;
        let (count, threads) = unstopped::threads(pid);
        let mut kernel = KernelData::of_descriptors(pid);
        kernel.add_timers(pid);
        Ok(Self {
            threads,
            kernel,
            memory: MomentMemory::of(proc_tid, proc_tid, &regions, &[], SavedMemory::default()),
            regions,
            hold: Hold::Nothing(count),
            pid,
            proc_tid,
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
    let metadata = agent.segment.file().metadata().ok();
    let segment = metadata.map(|file| ((major(file.dev()), minor(file.dev())), file.ino()));
    let segments = regions
        .iter_mut()
        .filter(|region| Some(region.file) == segment);
    segments.for_each(|region| region.is_readable = false);
    Ok(regions)
}

/// Adds the options that work without a stop to the text of a refusal, if they can help.
fn advise_gentle(refusal: Refusal) -> anyhow::Error {
    match refusal {
        Refusal::Traced { .. } => anyhow!(
            "{refusal}; or search it while it runs: --gentle, or, for a check that the program \
             requests itself, HEAP_CHECK_RUN_UNDER_GDB=1"
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
    fn a_killed_process_has_no_memory() {
        let mut child = Command::new("sleep").arg("1000").spawn().expect("sleep");
        let pid = child.id() as i32;
        assert!(has_memory(pid));
        child.kill().expect("a child");
        // The process remains as a zombie until its parent waits for it.
        while has_memory(pid) {
            std::thread::yield_now();
        }
        assert!(proc::Stat::of(pid).is_some());
        child.wait().expect("a child");
        assert!(!has_memory(pid));
    }
}
