//! Removes the segments of dead processes.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::claims::{Claims, Doubt};
use crate::discovery::{Agent, Discovery, Found, HIDDEN_PREFIX, Life, Scan, run_directories};
use crate::segment::{Directory, Head, Refusal, default_directory};
use crate::select::Selection;
use crate::target::{uncollected, uncollected_cpu_session};
use crate::text;

/// Result of a cleaning.
#[derive(Debug, Default)]
pub struct Cleaned {
    /// Number of segments removed.
    pub removed: usize,
    /// Memory that the removed segments occupied, in bytes.
    pub removed_bytes: u64,
    /// Error messages, one for each segment that could not be removed.
    pub failures: Vec<String>,
    /// Number of segments kept because their profiles have not been written.
    pub kept: usize,
    /// Memory that the kept segments occupy, in bytes.
    pub kept_bytes: u64,
    /// Number of segments that another controller is writing out.
    pub in_use: usize,
    /// Number of segments of another version that were kept, since their content is unknown.
    pub outdated: usize,
    /// Memory that the outdated segments occupy, in bytes.
    pub outdated_bytes: u64,
    /// Paths of segments that may still be in use, with the reasons.
    pub doubted: Vec<(String, Doubt)>,
}

/// Removes segments of dead processes: those without an unwritten profile, or all if `all`.
pub fn remove_unused(discovery: &Discovery, selection: &Selection, all: bool) -> Cleaned {
    remove_among(discovery.scan(), selection, all).0
}

/// Like [`remove_unused`], for the result of a scan. Also returns the claims, for tests.
fn remove_among(scan: Scan, selection: &Selection, all: bool) -> (Cleaned, Claims) {
    let mut cleaned = Cleaned::default();
    let mut found = scan.found;
    found.retain(|found| found.life != Life::Running && selection.wants(found));
    let unread = || scan.unfinished.iter().chain(&scan.outdated);
    let mut claims = Claims::of(found.iter().chain(unread()));
    for found in found {
        if let Err(doubt) = claims.check(&found) {
            cleaned.doubted.push((text::path(found.path()), doubt));
            continue;
        }
        match found.open() {
            Ok(agent) => cleaned.remove(&agent, all),
            // Somebody else has removed it.
            Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => cleaned.fail(&error.to_string()),
        }
    }
    let unfinished = scan.unfinished.iter().map(|found| (found, true));
    let outdated = scan.outdated.iter().map(|found| (found, all));
    for (found, remove) in unfinished.chain(outdated) {
        if !selection.wants(found) {
            continue;
        }
        if !remove {
            cleaned.outdated += 1;
            cleaned.outdated_bytes = cleaned.outdated_bytes.saturating_add(found.memory_bytes());
            continue;
        }
        match claims.check(found) {
            Ok(()) => cleaned.remove_unread(found),
            Err(doubt) => cleaned.doubted.push((text::path(found.path()), doubt)),
        }
    }
    (cleaned, claims)
}

impl Cleaned {
    fn remove(&mut self, agent: &Agent, all: bool) {
        let mut head = Head::new();
        let header = agent.segment.head(&mut head);
        let has_profile = header.is_ok_and(|header| {
            uncollected(agent, &header).is_some()
                || uncollected_cpu_session(agent, &header).is_some()
        });
        let size = agent.segment.memory_bytes().unwrap_or(0);
        // Another controller that holds the lock is about to write the dump.
        if !agent.segment.lock().unwrap_or(false) {
            self.in_use += 1;
            return;
        }
        if has_profile && !all {
            self.kept += 1;
            self.kept_bytes = self.kept_bytes.saturating_add(size);
            return;
        }
        match agent.segment.remove() {
            Ok(true) => {
                self.removed += 1;
                self.removed_bytes = self.removed_bytes.saturating_add(size);
            }
            // Somebody else has removed it.
            Ok(false) => {}
            Err(error) => self.fail(&format!("{}: {error}", text::path(agent.path()))),
        }
    }

    /// Removes a segment that cannot be read: its process was killed while creating it, or it is of
    /// another version.
    fn remove_unread(&mut self, found: &Found) {
        let bytes = found.memory_bytes();
        let (device, inode) = found.file;
        match found.directory.remove_file(found.entry.name, device, inode) {
            Ok(true) => {
                self.removed += 1;
                self.removed_bytes = self.removed_bytes.saturating_add(bytes);
            }
            // Somebody else has removed it.
            Ok(false) => {}
            Err(error) => self.fail(&format!("{}: {error}", text::path(found.path()))),
        }
    }

    fn fail(&mut self, message: &str) {
        self.failures.push(message.to_owned());
    }
}

/// Removes the empty directories of `run`.
pub fn remove_run_directories() {
    let shared = default_directory();
    if let Ok(directory) = Directory::open(&shared) {
        for inner in run_directories(&directory) {
            // Fails if the directory is not empty, as intended.
            remove_directory(&inner.path);
        }
    }
}

/// Removes a directory that `run` created for a program's segments, and its parent, if they are
/// empty.
pub fn remove_directory(path: &Path) {
    // Fails while segments exist, for instance of live children; `clean` removes the directory
    // later.
    let _ = std::fs::remove_dir(path);
    let name = path.file_name().unwrap_or_default().as_bytes();
    if name.starts_with(HIDDEN_PREFIX.as_bytes())
        && let Some(outer) = path.parent()
    {
        let _ = std::fs::remove_dir(outer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::time::SystemTime;

    /// Anybody can create files that are named after ever earlier processes. Examining them in
    /// order must not repeat the pass over all processes.
    #[test]
    fn processes_are_read_once_for_any_number_of_unfinished_segments() {
        let directory = tempfile::tempdir().unwrap();
        // Pids that no process has.
        let pids = i32::MAX as u64 - 300..i32::MAX as u64;
        for (number, pid) in pids.enumerate() {
            let name = format!("mem_profiler.{pid}.{}.0", 1_000_000 - number);
            let file = File::create_new(directory.path().join(name)).unwrap();
            file.set_len(10).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        }
        let scan = Discovery::in_directory(directory.path().into()).scan();
        let count = scan.unfinished.len();
        assert!(count >= 300, "{count}");
        let is_in_directory = |found: &Found| found.directory.path == directory.path();
        let scan = Scan {
            unfinished: scan
                .unfinished
                .into_iter()
                .filter(is_in_directory)
                .collect(),
            ..Scan::default()
        };
        let (cleaned, claims) = remove_among(scan, &Selection::default(), false);
        assert_eq!(cleaned.removed + cleaned.doubted.len(), 300, "{cleaned:?}");
        assert!(claims.passes <= 1, "{}", claims.passes);
    }
}
