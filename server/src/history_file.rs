//! Keeps the histories of processes across restarts of the server, in a file in the directory of
//! the segments.
//!
//! The file belongs to one user, and is valid for one boot, since its times are from the
//! monotonic clock. Its content is checked and bounded, since others may write to the directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use mem_agents::discovery::Agent;

use crate::history::{History, Point};

/// First bytes of the file: name and version of the format.
const MAGIC: &[u8; 8] = b"MPHIST1\n";
/// Maximum size of a file that is read, in bytes.
const MAX_BYTES: u64 = 64 << 20;
/// Stands for an unknown value in the file.
const UNKNOWN: u64 = u64::MAX;

/// Process that a history belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key {
    /// Pid of the process.
    pub pid: i32,
    /// Creation time of its segment, in ns. Distinguishes processes with the same pid, and programs
    /// that one process executes in turn.
    pub created_ns: u64,
}

impl Key {
    /// Returns the key of a process.
    pub fn of(agent: &Agent) -> Self {
        Self {
            pid: agent.pid,
            created_ns: agent.created_ns,
        }
    }
}

/// File with the histories.
#[derive(Debug)]
pub struct HistoryFile {
    path: PathBuf,
    /// Identity of this boot; empty if unknown.
    boot: Vec<u8>,
}

impl HistoryFile {
    /// Selects the file of this user in a directory.
    pub fn in_directory(directory: &Path) -> Self {
        // SAFETY: geteuid takes no argument and cannot fail.
        let user = unsafe { libc::geteuid() };
        let boot = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Self {
            path: directory.join(format!("mem_profiler_history.{user}")),
            boot: boot.trim_ascii().to_vec(),
        }
    }

    /// Reads the histories. Returns none if the file is missing or unreadable, or if it belongs to
    /// another user or another boot. Reads a damaged file up to the damage.
    pub fn read(&self, now_ms: u64) -> Vec<(Key, History)> {
        let bytes = self.content().unwrap_or_default();
        let mut input = Input(&bytes);
        let mut histories = Vec::new();
        let is_ours = input.take(MAGIC.len()) == Some(MAGIC)
            && input.number().is_some_and(|length| {
                let length = usize::try_from(length).unwrap_or(usize::MAX);
                input.take(length) == Some(&self.boot)
            })
            && !self.boot.is_empty();
        if !is_ours {
            return histories;
        }
        while let Some(entry) = input.history(now_ms) {
            histories.push(entry);
        }
        histories
    }

    fn content(&self) -> io::Result<Vec<u8>> {
        let mut options = OpenOptions::new();
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_CLOEXEC;
        let file = options.read(true).custom_flags(flags).open(&self.path)?;
        let metadata = file.metadata()?;
        // SAFETY: geteuid takes no argument and cannot fail.
        let is_ours = metadata.is_file() && metadata.uid() == unsafe { libc::geteuid() };
        if !is_ours {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut bytes = Vec::new();
        file.take(MAX_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    /// Replaces the file by one with these histories.
    pub fn write<'a>(
        &self,
        histories: impl IntoIterator<Item = (Key, &'a History)>,
    ) -> io::Result<()> {
        let mut bytes = MAGIC.to_vec();
        push_number(&mut bytes, self.boot.len() as u64);
        bytes.extend_from_slice(&self.boot);
        for (key, history) in histories {
            push_number(&mut bytes, key.pid as u64);
            push_number(&mut bytes, key.created_ns);
            push_number(&mut bytes, history.spaced().len() as u64);
            for point in history.spaced() {
                push_number(&mut bytes, point.at_ms);
                push_number(&mut bytes, point.live.unwrap_or(UNKNOWN));
                push_number(&mut bytes, point.rss.unwrap_or(UNKNOWN));
            }
        }
        let mut temporary = self.path.clone();
        temporary.as_mut_os_string().push(".new");
        // An earlier server may have been killed while it wrote.
        let _ = fs::remove_file(&temporary);
        let mut options = OpenOptions::new();
        let mut file: File = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)?;
        let written = file.write_all(&bytes);
        let result = written.and_then(|()| fs::rename(&temporary, &self.path));
        if result.is_err() {
            // Returns the first error, not one of this call.
            let _ = fs::remove_file(&temporary);
        }
        result
    }
}

fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend_from_slice(&number.to_le_bytes());
}

/// Bytes of the file that were not read yet.
struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }

    fn number(&mut self) -> Option<u64> {
        let bytes = self.take(8)?.try_into().ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    fn history(&mut self, now_ms: u64) -> Option<(Key, History)> {
        let pid = i32::try_from(self.number()?).ok()?;
        let created_ns = self.number()?;
        let count = self.number()?;
        let mut points = Vec::new();
        for _ in 0..count {
            let at_ms = self.number()?;
            let known = |value| Some(value).filter(|value| *value != UNKNOWN);
            let live = known(self.number()?);
            let rss = known(self.number()?);
            points.push(Point { at_ms, live, rss });
        }
        Some((Key { pid, created_ns }, History::restored(points, now_ms)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(pid: i32) -> Key {
        Key {
            pid,
            created_ns: 10,
        }
    }

    fn history() -> History {
        let mut history = History::default();
        for at in 1..40 {
            history.push(Point {
                at_ms: at * 20_000,
                live: (at % 2 == 0).then_some(at),
                rss: Some(at << 20),
            });
        }
        history
    }

    #[test]
    fn histories_are_read_as_they_were_written() {
        let directory = tempfile::tempdir().unwrap();
        let file = HistoryFile::in_directory(directory.path());
        assert!(file.read(1 << 40).is_empty());
        let history = history();
        for _ in 0..2 {
            file.write([(key(7), &history), (key(8), &history)])
                .unwrap();
        }
        let read = file.read(1 << 40);
        let keys: Vec<Key> = read.iter().map(|(key, _)| *key).collect();
        assert_eq!(keys, [key(7), key(8)]);
        assert!(read[1].1.spaced().eq(history.spaced()));
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1);
    }

    #[test]
    fn damaged_and_foreign_files_are_not_trusted() {
        let directory = tempfile::tempdir().unwrap();
        let file = HistoryFile::in_directory(directory.path());
        file.write([(key(7), &history()), (key(8), &history())])
            .unwrap();
        let whole = fs::read(&file.path).unwrap();
        for length in 0..whole.len() {
            fs::write(&file.path, &whole[..length]).unwrap();
            assert!(file.read(1 << 40).len() < 2, "{length}");
        }
        let mut other_boot = whole.clone();
        other_boot[20] ^= 1;
        fs::write(&file.path, &other_boot).unwrap();
        assert!(file.read(1 << 40).is_empty());
        let mut endless = whole;
        let count = MAGIC.len() + 8 + file.boot.len() + 16;
        endless[count..count + 8].fill(0xff);
        fs::write(&file.path, &endless).unwrap();
        assert!(file.read(1 << 40).is_empty());
        fs::remove_file(&file.path).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", &file.path).unwrap();
        assert!(file.read(1 << 40).is_empty());
    }
}
