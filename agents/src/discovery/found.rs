//! Results of a scan: segments with their processes, and refused segments.

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

/// Key that sorts the programs that one process has executed: creation time of the segment, true if
/// the program is still running, number of the program.
pub type ProgramOrder = (u64, bool, u32);

/// Value of [`Found::namespace`] if it is unknown.
pub const UNKNOWN_NAMESPACE: u64 = 0;

/// State of the process that created a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// The process is running and uses the segment.
    Running,
    /// The process has executed another program since.
    Replaced,
    /// The process is dead.
    Dead,
}

/// Process with the agent, or the segment that a dead one left. The segment is not open, since
/// there may be more segments than descriptors.
#[derive(Clone, Debug)]
pub struct Found {
    /// Pid in our namespace. For a dead process, the pid in its own namespace.
    pub pid: i32,
    /// Inode of the process's pid namespace, or 0 if it is not known.
    pub namespace: u64,
    /// State of the process.
    pub life: Life,
    /// True if the process ran before the last boot.
    pub other_boot: bool,
    /// Exit status of the process; `None` if unknown.
    pub end: Option<ProcessEnd>,
    /// Short name, chosen by the process: untrusted bytes.
    pub name: Vec<u8>,
    /// Name of the main thread, chosen by the process: untrusted bytes.
    pub comm: Vec<u8>,
    /// User id of the process. For a dead process, the owner of the segment.
    pub uid: u32,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// Creation time of the segment, in ns of the segment's clock. Distinguishes the programs that
    /// one process has executed.
    pub created_ns: u64,
    /// Pid of the parent in its own namespace, if a forked child created the segment; otherwise 0.
    pub forked_from: u32,
    /// Directory entry of the segment.
    pub entry: Entry,
    /// Directory that contains the segment.
    pub directory: Arc<Directory>,
    /// Owner of the segment's file.
    pub owner: u32,
    /// Device and inode of the segment's file.
    pub file: (u64, u64),
}

/// Process with the agent, with its segment open.
#[derive(Debug)]
pub struct Agent {
    found: Found,
    /// Open segment.
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
    /// Returns `name (pid)`, for display.
    pub fn title(&self) -> String {
        format!("{} ({})", text::escape(&self.name), self.pid)
    }

    /// Returns the path of the segment.
    pub fn path(&self) -> PathBuf {
        self.directory.path.join(self.entry.name.to_string())
    }

    /// Returns a key for the process: owner, namespace, pid, start time. Pid and start time alone
    /// are not unique, since several containers may share a directory.
    pub fn process(&self) -> (u32, u64, i32, u64) {
        let name = self.entry.name;
        (self.owner, self.namespace, name.pid, name.start_time)
    }

    /// Returns the sort key for the programs that one process has executed. Creation times may be
    /// equal, since a shell may execute a program within one clock tick.
    pub fn program_order(&self) -> ProgramOrder {
        let is_last = self.life == Life::Running;
        (self.created_ns, is_last, self.entry.name.image)
    }

    /// Returns the memory that the segment occupies, in bytes; 0 if the file was removed or
    /// replaced.
    pub fn memory_bytes(&self) -> u64 {
        let info = self.directory.file_info(self.entry.name).ok();
        let same = info.filter(|info| info.file == self.file);
        same.map_or(0, |info| info.memory_bytes)
    }

    /// Opens the segment. Fails if the file was removed or replaced.
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

    /// Returns whether the process maps a file of this inode and name, on any device. Distinguishes
    /// program images of one process. Returns `None` if the maps cannot be read.
    pub fn seems_mapped(&self) -> Option<bool> {
        let maps = proc::maps(self.pid)?;
        let name = self.entry.name.to_string();
        Some(mappings::has_name(&maps, self.file.1, name.as_bytes()))
    }
}

impl Agent {
    /// Checks that the process has this segment mapped now.
    pub fn confirm(&self) -> Result<(), Unconfirmed> {
        let maps = proc::maps(self.pid)
            .ok_or_else(|| Unconfirmed::Unreadable(unreadable::maps(self.pid)))?;
        let name = self.segment.name.to_string();
        let inode = self.segment.inode;
        let is_mapped =
            |(major, minor)| mappings::has_file(&maps, major, minor, inode, name.as_bytes());
        let is_mapped_elsewhere = || {
            // Some file systems show another device in maps than `stat` reports.
            mappings::has_name(&maps, inode, name.as_bytes())
                && mappings::shown_device(self.segment.file()).is_some_and(is_mapped)
        };
        if is_mapped(mappings::device(self.segment.device)) || is_mapped_elsewhere() {
            Ok(())
        } else {
            Err(Unconfirmed::NotMapped(self.segment.path()))
        }
    }
}

impl Agent {
    /// Returns whether the process has the tables mapped, without which it cannot be sampled.
    /// Returns `None` if the maps cannot be read.
    pub fn maps_tables(&self) -> Option<bool> {
        let maps = proc::maps(self.pid)?;
        let name = self.segment.name.to_string();
        let inode = self.segment.inode;
        Some(mappings::largest(&maps, inode, name.as_bytes()) > CONTROL_BYTES as u64)
    }
}

/// Reason to doubt that a process has a segment mapped.
#[derive(Debug, thiserror::Error)]
pub enum Unconfirmed {
    /// The process's maps cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The process does not map this file.
    #[error("it does not map {}: another program left it", text::path(.0))]
    NotMapped(PathBuf),
}

/// Segment that is not used, with the reason.
#[derive(Debug)]
pub struct Refused {
    /// Path of the file.
    pub path: PathBuf,
    /// Pid of the live process, in our namespace; `None` if it is dead.
    pub live_pid: Option<i32>,
    /// True if that process or root may have created the file.
    pub is_own: bool,
    /// Reason for the refusal.
    pub reason: Refusal,
    /// True if the file is so new that it may be incomplete.
    pub young: bool,
}

/// Maximum number of refused segments that are stored individually.
const MAX_STORED: usize = 256;
/// Maximum number of refused segments that a warning names.
const MAX_NAMED: usize = 3;

/// Refused segments. Anybody can create any number of them, so most are only counted.
#[derive(Debug, Default)]
pub struct Refusals {
    /// First refused segments. Those of live processes come first.
    pub first: Vec<Refused>,
    /// Number of further ones by directory, with the path of the first of them.
    more: BTreeMap<PathBuf, (PathBuf, usize)>,
}

impl Refusals {
    /// Adds a refused segment. Ignores segments of other users.
    pub fn push(&mut self, refused: Refused) {
        if matches!(refused.reason, Refusal::Foreign(_)) {
            return;
        }
        if self.first.len() < MAX_STORED {
            self.first.push(refused);
        } else {
            let directory = refused.path.parent().map(PathBuf::from).unwrap_or_default();
            self.count(directory, refused.path);
        }
    }

    /// Counts a segment that was not examined.
    pub fn count(&mut self, directory: PathBuf, path: PathBuf) {
        let (_, files) = self.more.entry(directory).or_insert((path, 0));
        *files += 1;
    }

    /// Returns warnings about the stored segments for which `concern` returns true and, if
    /// `include_counted`, about those that were only counted. Lists a few individually; if there
    /// are many, returns one warning with their number and the first of them.
    pub fn warnings(
        &self,
        concern: impl Fn(&Refused) -> bool,
        include_counted: bool,
    ) -> Vec<String> {
        let ours: Vec<&Refused> = self.first.iter().filter(|r| concern(r)).collect();
        let more: usize = if include_counted {
            self.more.values().map(|(_, files)| files).sum()
        } else {
            0
        };
        if ours.len() <= MAX_NAMED && more == 0 {
            return ours.iter().map(|refused| refused.line()).collect();
        }
        let count = ours.len() + more;
        let mut named: Vec<String> =
            (ours.iter().take(MAX_NAMED).map(|refused| refused.line())).collect();
        if named.is_empty() {
            let files = self.more.values().take(MAX_NAMED);
            named.extend(files.map(|(path, _)| text::path(path)));
        }
        let named = named.join("; ");
        vec![format!(
            "{count} files named like segments cannot be used, among them: {named}"
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
    fn files_of_other_users_cause_no_warning() {
        let mut refusals = Refusals::default();
        let refused = |reason| Refused {
            path: "/dev/shm/a".into(),
            live_pid: None,
            is_own: false,
            reason,
            young: false,
        };
        (0..2 * MAX_STORED).for_each(|_| refusals.push(refused(Refusal::Foreign(7))));
        assert!(refusals.warnings(|_| true, true).is_empty());
        refusals.push(refused(Refusal::NotAFile));
        let warnings = refusals.warnings(|_| true, true);
        assert_eq!(warnings.len(), 1, "{warnings:?}");
        assert!(warnings[0].contains("not a regular file"), "{warnings:?}");
    }

    #[test]
    fn the_warning_about_counted_files_names_one() {
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
