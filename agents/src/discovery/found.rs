//! Results of a scan: segments, each with its process, and those refused.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::sync::Arc;

use crate::mappings;
use crate::process_end::ProcessEnd;
use crate::segment::{Directory, Entry, Refusal, Segment};
use crate::text;
use crate::unreadable;
use shm_protocol::layout::CONTROL_BYTES;

/// Whether the process that made a segment still uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It does.
    Running,
    /// It executed another program since.
    Replaced,
    /// It is gone.
    Dead,
}

/// A process that carries the agent, or what is left of it. Its segment is closed: there
/// may be more of them than descriptors.
#[derive(Clone, Debug)]
pub struct Found {
    /// Pid as we see it; a dead process's as it saw it.
    pub pid: i32,
    /// Inode of its pid namespace; 0: not known.
    pub namespace: u64,
    /// Whether it still runs.
    pub life: Life,
    /// It ran before the machine was last started.
    pub other_boot: bool,
    /// How it ended, where somebody saw it.
    pub end: Option<ProcessEnd>,
    /// Short name; bytes that it chose.
    pub name: Vec<u8>,
    /// Name of the main thread; bytes that it chose.
    pub comm: Vec<u8>,
    /// User; of a dead process, the segment's owner.
    pub uid: u32,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// When the segment was made, by the segments' clock: distinguishes images of a process.
    pub created_ns: u64,
    /// Pid of its parent, as that saw itself, where a forked child made the segment; else 0.
    pub forked_from: u32,
    /// The segment's entry in the directory.
    pub entry: Entry,
    /// The directory.
    pub directory: Arc<Directory>,
    /// Owner of the segment's file.
    pub owner: u32,
    /// Device and inode of the segment's file.
    pub file: (u64, u64),
}

/// A process that carries the agent, with its segment open.
#[derive(Debug)]
pub struct Agent {
    found: Found,
    /// The segment.
    pub segment: Segment,
}

impl Deref for Agent {
    type Target = Found;

    fn deref(&self) -> &Found {
        &self.found
    }
}

impl DerefMut for Agent {
    fn deref_mut(&mut self) -> &mut Found {
        &mut self.found
    }
}

impl Found {
    /// `name (pid)`, for display.
    pub fn title(&self) -> String {
        format!("{} ({})", text::escape(&self.name), self.pid)
    }

    /// Where its segment is.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(self.entry.name.to_string())
    }

    /// Identity of a process, whatever it calls itself: two containers that share
    /// a directory may have processes that agree in pid and start.
    pub fn process(&self) -> (u32, u64, i32, u64) {
        let name = self.entry.name;
        (self.owner, self.namespace, name.pid, name.start_time)
    }

    /// Orders images of one process: a shell that executes a program at once has made its segment
    /// in the same tick of the clock.
    pub fn age(&self) -> (u64, bool, u32) {
        let is_last = self.life == Life::Running;
        (self.created_ns, is_last, self.entry.name.image)
    }

    /// Memory that its segment takes, if the name still means that file.
    pub fn memory_bytes(&self) -> u64 {
        let kind = self.directory.kind(self.entry.name).ok();
        let same = kind.filter(|kind| kind.file == self.file);
        same.map_or(0, |kind| kind.memory_bytes)
    }

    /// Opens its segment, if the name still means that file.
    pub fn open(self) -> Result<Agent, Refusal> {
        let segment = Segment::open(&self.directory, self.entry.name)?;
        if (segment.device, segment.inode) != self.file {
            return Err(Refusal::Io(std::io::ErrorKind::NotFound.into()));
        }
        Ok(Agent {
            found: self,
            segment,
        })
    }

    /// Whether the process maps a file of this inode and name, on whatever device: tells
    /// images of one process apart. `None` where its maps cannot be read.
    pub fn seems_mapped(&self) -> Option<bool> {
        let maps = proc::maps(self.pid)?;
        let name = self.entry.name.to_string();
        Some(mappings::has_name(&maps, self.file.1, name.as_bytes()))
    }
}

impl Agent {
    /// Makes sure that the process has this segment mapped, now.
    pub fn confirm(&self) -> Result<(), Unconfirmed> {
        let maps = proc::maps(self.pid)
            .ok_or_else(|| Unconfirmed::Unreadable(unreadable::maps(self.pid)))?;
        let name = self.segment.name.to_string();
        let is_mapped = |device| {
            mappings::has_file(&maps, device, self.segment.inode, name.as_bytes()).then_some(())
        };
        let mapped = is_mapped(mappings::device(self.segment.device)).or_else(|| {
            // Some filesystems show another device there than `stat` does.
            let seems = mappings::has_name(&maps, self.segment.inode, name.as_bytes());
            let shown = || mappings::shown_device(self.segment.file());
            seems.then(shown).flatten().and_then(is_mapped)
        });
        mapped.ok_or_else(|| Unconfirmed::NotMapped(self.segment.path()))
    }
}

impl Agent {
    /// Whether the process has the tables of sessions mapped, without which it samples nothing.
    /// `None` where its maps cannot be read.
    pub fn maps_tables(&self) -> Option<bool> {
        let maps = proc::maps(self.pid)?;
        let name = self.segment.name.to_string();
        let inode = self.segment.inode;
        Some(mappings::largest(&maps, inode, name.as_bytes()) > CONTROL_BYTES as u64)
    }
}

/// Why a process is not taken to have a segment mapped.
#[derive(Debug, thiserror::Error)]
pub enum Unconfirmed {
    /// Nobody may read what it maps.
    #[error("{0}")]
    Unreadable(String),
    /// It does not map this file.
    #[error("it does not map {}: another program left it", text::path(.0))]
    NotMapped(PathBuf),
}

/// A segment that is not used, and why.
#[derive(Debug)]
pub struct Refused {
    /// Where it is.
    pub path: PathBuf,
    /// Pid of its live process, as we see it.
    pub live_pid: Option<i32>,
    /// Whether that process, or root, may have made it.
    pub is_own: bool,
    /// Why.
    pub reason: Refusal,
    /// It may be in the making.
    pub young: bool,
}

/// Maximum number of refused segments that are kept one by one.
const KEPT: usize = 256;
/// Maximum number of refused segments that are named in a warning.
const NAMED: usize = 3;

/// Segments that are not used. Anybody can make any number of them, so the rest is counted.
#[derive(Debug, Default)]
pub struct Refusals {
    /// The first ones; those of live processes are examined first.
    pub first: Vec<Refused>,
    /// How many more there are, by directory, each with the first of them.
    more: BTreeMap<PathBuf, (PathBuf, usize)>,
}

impl Refusals {
    /// Takes one in. Those of other users concern nobody here, however many there are.
    pub fn push(&mut self, refused: Refused) {
        if matches!(refused.reason, Refusal::Foreign(_)) {
            return;
        }
        match self.first.len() < KEPT {
            true => self.first.push(refused),
            false => {
                let directory = refused.path.parent().map(PathBuf::from).unwrap_or_default();
                self.count(directory, refused.path);
            }
        }
    }

    /// Counts one that nobody looked at.
    pub fn count(&mut self, directory: PathBuf, path: PathBuf) {
        let (_, files) = self.more.entry(directory).or_insert((path, 0));
        *files += 1;
    }

    /// Warnings of those that `concern` us, and of the `rest` that was only counted: one for
    /// each where they are few, else their number and the first of them.
    pub fn warnings(&self, concern: impl Fn(&Refused) -> bool, rest: bool) -> Vec<String> {
        let ours: Vec<&Refused> = self.first.iter().filter(|r| concern(r)).collect();
        let more = self.more.values().filter(|_| rest);
        let more: usize = more.map(|(_, files)| files).sum();
        if ours.len() <= NAMED && more == 0 {
            return ours.iter().map(|refused| refused.line()).collect();
        }
        let count = ours.len() + more;
        let first = ours.iter().take(NAMED).map(|refused| refused.line());
        let mut first: Vec<String> = first.collect();
        if first.is_empty() {
            let files = self.more.values().take(NAMED);
            first.extend(files.map(|(path, _)| text::path(path)));
        }
        let first = first.join("; ");
        vec![format!(
            "{count} files named like segments cannot be used, among them: {first}"
        )]
    }
}

impl Refused {
    fn line(&self) -> String {
        let path = text::path(&self.path);
        match self.live_pid {
            Some(pid) => format!("{pid}: {path} cannot be used: {}", self.reason),
            None => format!(
                "{path} cannot be used: {}; its process is gone",
                self.reason
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_users_are_no_warning() {
        let mut refusals = Refusals::default();
        let refused = |reason| Refused {
            path: "/dev/shm/a".into(),
            live_pid: None,
            is_own: false,
            reason,
            young: false,
        };
        (0..2 * KEPT).for_each(|_| refusals.push(refused(Refusal::Foreign(7))));
        assert!(refusals.warnings(|_| true, true).is_empty());
        refusals.push(refused(Refusal::NotAFile));
        let warnings = refusals.warnings(|_| true, true);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("not a regular file"), "{warnings:?}");
    }

    #[test]
    fn a_file_is_named_where_only_their_number_is_kept() {
        let mut refusals = Refusals::default();
        for number in 0..50 {
            refusals.count("/dev/shm".into(), format!("/dev/shm/a\n{number}").into());
        }
        let warnings = refusals.warnings(|_| true, true);
        let expected = "50 files named like segments cannot be used, among them: \
                        /dev/shm/a\\x0a0";
        assert_eq!(warnings, [expected]);
        assert!(refusals.warnings(|_| true, false).is_empty());
    }
}
