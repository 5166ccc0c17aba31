//! Decides whether a segment may still be in use. Only a segment that is provably unused is
//! removed, or written out as that of a dead process.
//!
//! A process is provably gone only if all processes of its pid namespace are visible: from that
//! namespace, or from the initial one. In addition, no process may have the file mapped for
//! writing, since children inherit the mapping. Only the creator of a segment and its descendants
//! map it, so processes that are older than the creator need not be checked.

use std::collections::HashMap;

use proc::{Stat, Status};

use crate::discovery::process_index::namespace;
use crate::discovery::{Found, Life};
use crate::mappings;
use crate::text;
use crate::unreadable;

/// Inode of the initial pid namespace, a constant of the kernel (`PROC_PID_INIT_INO`).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// Reason to believe that a segment is still in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// The segment's process is running.
    #[error("its process runs")]
    Alive,
    /// A process has it mapped.
    #[error("process {0} still maps it")]
    Mapped(i32),
    /// The mappings of this process cannot be read.
    #[error("process {} may map it: {}", .0, unreadable::maps(*.0))]
    Unreadable(i32),
    /// The process would not be visible from here.
    #[error(
        "its process is in a pid namespace that cannot be searched from here: run this inside that \
         container, or on the host"
    )]
    Elsewhere,
    /// `/proc` belongs to another pid namespace.
    #[error("/proc belongs to another pid namespace: mount that of this one")]
    ForeignProc,
}

/// Files that processes have mapped for writing. Read once, when first needed.
pub struct Claims {
    /// Inode of our pid namespace; `None` if unknown.
    pid_namespace: Option<u64>,
    /// True if `/proc` shows our pid namespace.
    proc_is_ours: bool,
    /// Mapped files; `None` before they are needed.
    mapped_files: Option<MappedFiles>,
    /// Earliest start time of the segments' creators, in clock ticks since boot. Older processes
    /// are not examined.
    since: u64,
    /// Number of times that all processes were examined.
    #[cfg(test)]
    pub passes: usize,
}

/// A mapped file: device as maps show it, and inode.
type File = ((u32, u32), u64);

/// Process whose maps cannot be read.
struct Unreadable {
    pid: i32,
    /// Start time of the process, in clock ticks since boot.
    start_time: u64,
    /// Real, effective, saved and file-system user ids.
    uids: [u32; 4],
}

/// Result of one pass over all processes.
#[derive(Default)]
struct MappedFiles {
    /// One process for each mapped file.
    mapped: HashMap<File, i32>,
    /// One process for each segment, by inode and name, on any device.
    named: HashMap<(u64, Vec<u8>), i32>,
    unreadable: Vec<Unreadable>,
}

impl Claims {
    /// Prepares checks of segments whose creators started at `since` or later.
    pub fn since(since: u64) -> Self {
        Self {
            pid_namespace: namespace("self", "pid"),
            proc_is_ours: proc::is_ours(),
            mapped_files: None,
            since,
            #[cfg(test)]
            passes: 0,
        }
    }

    /// Prepares checks of the given segments. Determines the oldest creator first: a check of a
    /// segment with an older creator costs another pass over all processes, and anybody can create
    /// files whose names claim ever older creators.
    pub fn of<'a>(found: impl IntoIterator<Item = &'a Found>) -> Self {
        let starts = found.into_iter().map(|found| found.entry.name.start_time);
        Self::since(starts.min().unwrap_or(0))
    }

    /// Checks that a segment is no longer in use.
    pub fn check(&mut self, found: &Found) -> Result<(), Doubt> {
        if found.life == Life::Running {
            return Err(Doubt::Alive);
        }
        if !self.proc_is_ours {
            return Err(Doubt::ForeignProc);
        }
        let sees_all_processes = self.pid_namespace == Some(INITIAL_PID_NAMESPACE)
            || self.pid_namespace == Some(found.namespace);
        if !sees_all_processes && !found.other_boot {
            return Err(Doubt::Elsewhere);
        }
        let name = found.entry.name;
        if found.life == Life::Dead
            && self.pid_namespace == Some(found.namespace)
            && is_hidden(name.pid)
        {
            return Err(Doubt::Unreadable(name.pid));
        }
        let since = self.since.min(name.start_time);
        let mapped_files = match self.mapped_files.take() {
            Some(mapped_files) if since == self.since => mapped_files,
            _ => {
                #[cfg(test)]
                {
                    self.passes += 1;
                }
                MappedFiles::read(since)
            }
        };
        self.since = since;
        self.mapped_files.insert(mapped_files).check(found)
    }
}

impl MappedFiles {
    fn read(since: u64) -> Self {
        let mut mapped_files = Self::default();
        for pid in proc::all_pids() {
            let Some(stat) = Stat::of(pid).filter(|stat| stat.start_time >= since) else {
                continue;
            };
            let maps = proc::maps(pid);
            match (maps, Status::of(pid)) {
                (Some(maps), _) => mapped_files.add(pid, &maps),
                (None, Some(status)) => {
                    mapped_files.unreadable.push(Unreadable {
                        pid,
                        start_time: stat.start_time,
                        uids: status.uids,
                    });
                }
                // The process has exited since it was listed.
                (None, None) => {}
            }
        }
        mapped_files
    }

    fn add(&mut self, pid: i32, maps: &[u8]) {
        for file in mappings::written_files(maps) {
            let inode = file.inode;
            self.mapped.entry((file.device, inode)).or_insert(pid);
            let name = text::base_name(file.path);
            if name.starts_with(shm_protocol::segment::FILE_PREFIX.as_bytes()) {
                self.named.entry((inode, name.to_vec())).or_insert(pid);
            }
        }
    }

    fn check(&self, found: &Found) -> Result<(), Doubt> {
        let (device, inode) = found.file;
        let mapped = self.mapped.get(&(mappings::device(device), inode));
        let name = found.entry.name.to_string().into_bytes();
        if let Some(pid) = mapped.or_else(|| self.named.get(&(inode, name))) {
            return Err(Doubt::Mapped(*pid));
        }
        let start = found.entry.name.start_time;
        let may_map = |process: &&Unreadable| {
            process.start_time >= start && process.uids.contains(&found.owner)
        };
        match self.unreadable.iter().find(may_map) {
            Some(process) => Err(Doubt::Unreadable(process.pid)),
            None => Ok(()),
        }
    }
}

/// Returns true if the process exists but `/proc` hides it from us (`hidepid`).
fn is_hidden(pid: i32) -> bool {
    let exists = match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) {
        Ok(()) | Err(nix::errno::Errno::EPERM) => true,
        Err(_) => false,
    };
    exists && Stat::of(pid).is_none()
}
