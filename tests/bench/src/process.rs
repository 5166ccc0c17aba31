//! Runs a program to its end and measures its resources.

use std::fs::{File, read_to_string};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::tools::Tools;

/// Resources that a process used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Usage {
    /// Seconds of CPU, user and system, of the process and the children it waited for.
    pub cpu: f64,
    /// Seconds from start to end.
    pub wall: f64,
    /// Number of voluntary context switches: waits and stops.
    pub waits: i64,
    /// Memory at the end; of the segment, the maximum that was resident.
    pub memory: Memory,
}

/// Memory, KiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// Most that was ever resident.
    pub peak: u64,
    /// Anonymous.
    pub anonymous: u64,
    /// Of files.
    pub file: u64,
    /// Shared memory, which in these programs is only the agent's segment.
    pub shared: u64,
}

impl Memory {
    /// Returns the peak of resident memory, without the segment.
    pub fn peak_without_table(&self) -> u64 {
        self.peak.saturating_sub(self.shared)
    }

    fn of(pid: i32) -> Result<Self> {
        Ok(Self::parse(&read_to_string(format!("/proc/{pid}/status"))?))
    }

    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let value = line.and_then(|line| line.split_whitespace().next());
            value.and_then(|value| value.parse().ok()).unwrap_or(0)
        };
        Self {
            peak: field("VmHWM:"),
            anonymous: field("RssAnon:"),
            file: field("RssFile:"),
            shared: field("RssShmem:"),
        }
    }
}

/// Runs a command; its output goes to the scratch files `stdout` and `stderr`.
pub fn run(tools: &Tools, command: &mut Command) -> Result<Usage> {
    run_with(tools, command, |_| Ok(()))
}

/// Runs a command and, in another thread, `driver`, which gets the pid and must make the command
/// end.
pub fn run_with(
    tools: &Tools,
    command: &mut Command,
    driver: impl FnOnce(u32) -> Result<()> + Send,
) -> Result<Usage> {
    command
        .stdout(File::create(tools.scratch("stdout"))?)
        .stderr(File::create(tools.scratch("stderr"))?);
    let start = Instant::now();
    let child = command
        .spawn()
        .with_context(|| format!("cannot run {command:?}"))?;
    let pid = child.id();
    let running = AtomicBool::new(true);
    let (ended, driven, most_shared) = std::thread::scope(|scope| {
        let most_shared = scope.spawn(|| most_shared(pid as i32, &running));
        let driven = scope.spawn(move || {
            let result = driver(pid);
            if result.is_err() {
                // SAFETY: our own child; at worst it has just ended.
                unsafe { libc::kill(pid as i32, libc::SIGKILL) };
            }
            result
        });
        let ended = watch(pid as i32).map(|ended| (ended, start.elapsed()));
        running.store(false, Ordering::Relaxed);
        (ended, driven.join(), most_shared.join())
    });
    driven.map_err(|_| anyhow::anyhow!("the driver of {command:?} panicked"))??;
    let ((status, mut usage), wall) = ended?;
    usage.wall = wall.as_secs_f64();
    usage.memory.shared = usage.memory.shared.max(most_shared.unwrap_or(0));
    if !status.success() {
        let said = read_to_string(tools.scratch("stderr")).unwrap_or_default();
        bail!("{command:?}: {status}\n{said}");
    }
    Ok(usage)
}

/// Returns the maximum resident size of the segment that was seen. At exit the agent returns the
/// unused part, and the kernel keeps no high-water mark of shared memory.
fn most_shared(pid: i32, running: &AtomicBool) -> u64 {
    const BETWEEN: Duration = Duration::from_millis(10);
    let mut most = 0;
    while running.load(Ordering::Relaxed) {
        most = Memory::of(pid).map_or(most, |memory| most.max(memory.shared));
        std::thread::sleep(BETWEEN);
    }
    most
}

/// Returns the command's standard output, the last one run.
pub fn output(tools: &Tools) -> Result<String> {
    Ok(read_to_string(tools.scratch("stdout"))?)
}

/// Returns the standard error of the last process.
pub fn errors(tools: &Tools) -> Result<String> {
    Ok(read_to_string(tools.scratch("stderr"))?)
}

/// Waits for a child to end. Stops it at its exit to read its memory, because `ru_maxrss` includes
/// the memory that it had before `exec`.
fn watch(pid: i32) -> Result<(ExitStatus, Usage)> {
    let options = libc::PTRACE_O_TRACEEXIT | libc::PTRACE_O_EXITKILL;
    // SAFETY: seizing our own child.
    if unsafe { libc::ptrace(libc::PTRACE_SEIZE, pid, 0, options) } != 0 {
        bail!("cannot trace {pid}: {}", std::io::Error::last_os_error());
    }
    let mut memory = Memory::default();
    loop {
        let mut status = 0;
        // SAFETY: all zero is a valid rusage.
        let mut rusage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid for writing.
        let waited = unsafe { libc::wait4(pid, &mut status, libc::__WALL, &mut rusage) };
        if waited < 0 {
            bail!("cannot wait for {pid}: {}", std::io::Error::last_os_error());
        }
        if !libc::WIFSTOPPED(status) {
            let usage = Usage {
                cpu: seconds(rusage.ru_utime) + seconds(rusage.ru_stime),
                wall: 0.0,
                waits: rusage.ru_nvcsw,
                memory,
            };
            return Ok((ExitStatus::from_raw(status), usage));
        }
        let (signal, event) = (libc::WSTOPSIG(status), status >> 16);
        if event == libc::PTRACE_EVENT_EXIT {
            memory = Memory::of(pid)?;
        }
        // SAFETY: our tracee, stopped.
        unsafe {
            match event {
                0 => libc::ptrace(libc::PTRACE_CONT, pid, 0, signal),
                // Somebody stops all of its threads: it stays so until SIGCONT.
                libc::PTRACE_EVENT_STOP if signal != libc::SIGTRAP => {
                    libc::ptrace(libc::PTRACE_LISTEN, pid, 0, 0)
                }
                _ => libc::ptrace(libc::PTRACE_CONT, pid, 0, 0),
            }
        };
    }
}

fn seconds(time: libc::timeval) -> f64 {
    time.tv_sec as f64 + time.tv_usec as f64 / 1e6
}

/// Opens a file as a command's input.
pub fn input(path: &Path) -> Result<Stdio> {
    let file = File::open(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_from_status() {
        let status = "Name:\tx\nVmHWM:\t  120 kB\nVmRSS:\t 100 kB\nRssAnon:\t 60 kB\n\
                      RssFile:\t 30 kB\nRssShmem:\t 10 kB\n";
        let memory = Memory::parse(status);
        let expected = Memory {
            peak: 120,
            anonymous: 60,
            file: 30,
            shared: 10,
        };
        assert_eq!(memory, expected);
        assert_eq!(memory.peak_without_table(), 110);
    }
}
