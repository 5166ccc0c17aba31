//! A running Go program: the addresses of its runtime's variables, and access to its memory.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use anyhow::anyhow;
use golang::{Heap, Memory, Variables};
use mem_agents::{program, unreadable};
use proc::Program;
use profile::maps::{self, Entry};

use crate::cpu_session::Description;

/// Names of the variables in the order of [`Variables`].
const NAMES: [&str; 4] = [
    "runtime.mbuckets",
    "runtime.MemProfileRate",
    "runtime.mProfCycle",
    "runtime.profMemActiveLock",
];

/// Running Go program.
pub struct Process {
    /// Pid.
    pub pid: i32,
    /// Name and pid, for display.
    pub title: String,
    /// Name, executable and command line.
    pub description: Description,
    program: Program,
    variables: Variables,
}

impl Process {
    /// Examines a process.
    ///
    /// # Errors
    /// The process is no Go program, is stripped, or may not be examined.
    pub fn open(pid: i32) -> anyhow::Result<Self> {
        let ended_error = || anyhow!("it has ended");
        let description = Description::read(pid).ok_or_else(ended_error)?;
        let maps = proc::maps(pid).ok_or_else(|| anyhow!(unreadable::maps(pid)))?;
        let program = proc::program(pid).ok_or_else(ended_error)?;
        let exe = exe_path(pid);
        let distances = symbols::distances(&exe, &NAMES)
            .map_err(|error| anyhow!(unreadable::explain(&exe.to_string_lossy(), &error)))?;
        let first_mapping = description.exe.as_ref().and_then(|exe| {
            let exe = exe.as_os_str().as_bytes();
            let mut entries = Entry::all(&maps);
            entries.find(|entry| *maps::with_newlines(entry.path) == *exe)
        });
        let address = |name| Some(first_mapping?.start.wrapping_add(*distances.get(name)?));
        let [Some(buckets), Some(rate), Some(cycle), Some(lock)] = NAMES.map(address) else {
            return Err(refusal(pid, &exe, distances.is_empty()));
        };
        let is_variable = |entry: Entry<'_>| {
            (entry.start..entry.end).contains(&rate) && entry.permissions.starts_with(b"rw")
        };
        anyhow::ensure!(
            rate.is_multiple_of(8) && Entry::all(&maps).any(is_variable),
            "its file does not fit to its memory: {} is not among its variables",
            NAMES[1]
        );
        Ok(Self {
            pid,
            title: description.title(pid),
            description,
            program,
            variables: Variables {
                buckets,
                rate,
                cycle,
                lock,
            },
        })
    }

    /// Returns true if the process has ended, or executes another program.
    pub fn has_ended(&self) -> bool {
        proc::has_exited(self.pid) || proc::program(self.pid) != Some(self.program)
    }

    /// Returns the start, in clock ticks since boot.
    pub fn start_time(&self) -> u64 {
        self.program.start
    }

    /// Reads the heap profile.
    pub fn heap(&self) -> anyhow::Result<Heap> {
        golang::read(&self.memory(), &self.variables).map_err(|error| self.explain(error))
    }

    /// Reads `runtime.MemProfileRate`.
    pub fn rate(&self) -> anyhow::Result<i64> {
        let mut bytes = [0; 8];
        let address = self.variables.rate;
        if self.memory().read(address, &mut bytes) < bytes.len() {
            return Err(self.explain(golang::Error::Unreadable(address)));
        }
        Ok(i64::from_le_bytes(bytes))
    }

    /// Writes `runtime.MemProfileRate`, if it is still `from`.
    pub fn change_rate(&self, from: i64, to: i64) -> anyhow::Result<()> {
        anyhow::ensure!(!self.has_ended(), "it has ended");
        let now = self.rate()?;
        anyhow::ensure!(
            now == from,
            "runtime.MemProfileRate is {now}, not {from}: the program has set it itself"
        );
        let path = proc::path_of_memory(self.pid, "mem");
        let memory = File::options().write(true).open(&path);
        memory
            .and_then(|memory| memory.write_all_at(&to.to_le_bytes(), self.variables.rate))
            .map_err(|error| anyhow!("{path} cannot be written: {error}"))
    }

    fn memory(&self) -> RemoteMemory {
        RemoteMemory { pid: self.pid }
    }

    /// Explains why memory could not be read: the process may have ended meanwhile.
    fn explain(&self, error: golang::Error) -> anyhow::Error {
        if self.has_ended() {
            return anyhow!("it has ended, and its heap profile with it");
        }
        match capture::read_memory_error(self.pid) {
            Some(errno) => {
                let path = proc::path_of_memory(self.pid, "mem");
                let error = std::io::Error::from_raw_os_error(errno);
                anyhow!(unreadable::explain(&path, &error))
            }
            None => anyhow!(error),
        }
    }
}

/// Memory of a process.
struct RemoteMemory {
    pid: i32,
}

impl Memory for RemoteMemory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> usize {
        capture::read_memory(self.pid, address, bytes)
    }
}

/// Returns the path by which a process's executable can be opened, even if it was deleted.
pub fn exe_path(pid: i32) -> PathBuf {
    proc::directory(pid).join("exe")
}

/// Explains that the variables of Go's runtime were not found.
fn refusal(pid: i32, exe: &std::path::Path, are_all_missing: bool) -> anyhow::Error {
    if !program::is_go(exe) {
        return anyhow!(
            "it is no program of Go: if it carries the agent, -p {pid} samples its heap; \
             mem_profiler rss -p {pid} samples what touches memory"
        );
    }
    let why = if are_all_missing {
        "it is stripped (-ldflags=-s), so it is not known where its runtime keeps the heap profile: build it without -s"
    } else {
        "its runtime keeps no heap profile of the kind of Go 1.19 to 1.27"
    };
    anyhow!("{why}; mem_profiler rss -p {pid} samples which stacks touch memory")
}
