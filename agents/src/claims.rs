//! Whether a segment may still be in use. Only a provably unused one is removed,
//! or written out as a dead process's.
//!
//! A process is provably gone only if all processes of its pid namespace can be seen:
//! from that namespace, or from the initial one, which sees all. In addition, no process may
//! have the file mapped to be written to, since children inherit the mapping. Only the maker of a segment and its
//! descendants map it, so processes older than the maker need not be checked.

use std::collections::HashMap;

use proc::{Stat, Status};

use crate::discovery::spaces::namespace;
use crate::discovery::{Found, Life};
use crate::mappings;
use crate::text;

/// Inode of the initial pid namespace, a constant of the kernel's (`PROC_PID_INIT_INO`).
const INITIAL: u64 = 0xEFFF_FFFC;

/// Why a segment may still be in use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Doubt {
    /// The process runs.
    #[error("its process runs")]
    Alive,
    /// A process maps it.
    #[error("process {0} still maps it")]
    Mapped(i32),
    /// The mappings of this process cannot be read.
    #[error("process {0} may map it: its maps cannot be read; run this as root")]
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

/// The files that processes map and may write to, read once.
pub struct Claims {
    own: Option<u64>,
    proc_is_ours: bool,
    seen: Option<Seen>,
    /// Earliest start time of the makers in question.
    since: u64,
    /// How often all processes were examined.
    #[cfg(test)]
    pub looks: usize,
}

/// A shared mapping: device as the kernel shows it, inode.
type File = ((u32, u32), u64);

#[derive(Default)]
struct Seen {
    mapped: HashMap<File, i32>,
    /// Segments by inode and name, whatever their device number.
    named: HashMap<(u64, Vec<u8>), i32>,
    /// Processes whose maps cannot be read: start time, users.
    unreadable: Vec<(i32, u64, [u32; 4])>,
}

impl Claims {
    /// For segments whose makers started at `since` or later.
    pub fn since(since: u64) -> Self {
        Self {
            own: namespace("self", "pid"),
            proc_is_ours: proc::is_ours(),
            seen: None,
            since,
            #[cfg(test)]
            looks: 0,
        }
    }

    /// For all segments that will be asked about: one whose maker started before theirs costs another
    /// look at all processes, and anybody can make files with ever earlier times in their names.
    pub fn of<'a>(found: impl IntoIterator<Item = &'a Found>) -> Self {
        let starts = found.into_iter().map(|found| found.entry.name.start_time);
        Self::since(starts.min().unwrap_or(0))
    }

    /// Whether a segment is no longer in use.
    pub fn check(&mut self, found: &Found) -> Result<(), Doubt> {
        if found.life == Life::Running {
            return Err(Doubt::Alive);
        }
        if !self.proc_is_ours {
            return Err(Doubt::ForeignProc);
        }
        let all_seen = self.own == Some(INITIAL) || self.own == Some(found.namespace);
        if !all_seen && !found.other_boot {
            return Err(Doubt::Elsewhere);
        }
        let name = found.entry.name;
        if found.life == Life::Dead && self.own == Some(found.namespace) && is_hidden(name.pid) {
            return Err(Doubt::Unreadable(name.pid));
        }
        let since = self.since.min(name.start_time);
        let seen = match self.seen.take().filter(|_| since == self.since) {
            Some(seen) => seen,
            None => {
                #[cfg(test)]
                {
                    self.looks += 1;
                }
                Seen::look(since)
            }
        };
        self.since = since;
        self.seen.insert(seen).check(found)
    }
}

impl Seen {
    fn look(since: u64) -> Self {
        let mut seen = Self::default();
        for pid in proc::all() {
            let Some(stat) = Stat::of(pid).filter(|stat| stat.start_time >= since) else {
                continue;
            };
            let maps = proc::maps(pid);
            match (maps, Status::of(pid)) {
                (Some(maps), _) => seen.add(pid, &maps),
                (None, Some(status)) => {
                    seen.unreadable.push((pid, stat.start_time, status.uids));
                }
                // It has ended.
                (None, None) => {}
            }
        }
        seen
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
        let may_map = |&&(_, born, uids): &&(i32, u64, [u32; 4])| {
            born >= start && uids.contains(&found.owner)
        };
        match self.unreadable.iter().find(may_map) {
            Some((pid, ..)) => Err(Doubt::Unreadable(*pid)),
            None => Ok(()),
        }
    }
}

/// Whether there is a process with this pid that `/proc` hides from us (`hidepid`).
fn is_hidden(pid: i32) -> bool {
    let exists = match nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), None) {
        Ok(()) | Err(nix::errno::Errno::EPERM) => true,
        Err(_) => false,
    };
    exists && Stat::of(pid).is_none()
}
