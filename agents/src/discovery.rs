//! Finds agents: segments and the processes they belong to. Searches the shared directory, the
//! directories that `run` creates in it, and those that processes in other mount namespaces see.
//!
//! Anybody may create any number of files there, so the cost of a scan is bounded: a few system
//! calls per segment and per process in another namespace, no open descriptors, at most 64 segments
//! of each live process, and a limited number of dead ones per owner. A process's maps are read
//! only if several segments claim to belong to it. [`Agent::confirm`] reads them for processes that
//! are about to receive commands.

mod found;
pub mod process_index;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub use found::{Agent, Found, Life, Refusals, Refused, Unconfirmed};
use found::{ProgramOrder, UNKNOWN_NAMESPACE};
use process_index::{ANY_NAMESPACE, Process, ProcessIndex};

use shm_protocol::snapshot::Invalid;

use crate::process;
use crate::segment::{
    Directory, Entry, FileInfo, Head, RUN_PREFIX, Refusal, Segment, default_directory, is_young,
};
use crate::text;

/// Name prefix of the directory that `run`, if run as root, creates inside its own directory. The
/// rest of the name is unguessable.
pub const HIDDEN_PREFIX: &str = "segments.";
/// Minimum age of a directory's modification time for detecting changes by it. A change after that
/// gets a different time, even on file systems whose clocks advance only every second.
const SETTLED_AFTER: Duration = Duration::from_secs(3);
/// Maximum number of `run` directories per owner that are searched.
const MAX_RUNS: usize = 64;
/// Maximum number of names of `run` directories that are read.
const MAX_RUN_NAMES: usize = 10_000;
/// Maximum number of segments per live process that are examined.
const MAX_LIVE_SEGMENTS: usize = 64;
/// Maximum number of segments of dead processes, per owner, that are examined.
const MAX_DEAD_SEGMENTS: usize = 10_000;

/// Result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Live agents and segments of dead ones, sorted by pid.
    pub found: Vec<Found>,
    /// Segments that were refused.
    pub refused: Refusals,
    /// Incomplete segments of dead processes. They contain no data.
    pub unfinished: Vec<Found>,
    /// Segments of another version whose processes are dead. Their content is unknown.
    pub outdated: Vec<Found>,
    /// Refused segments that need not be examined again.
    pub settled: Vec<Entry>,
    /// Segments that the scan skipped as known and that still exist.
    pub still_known: HashSet<Entry>,
}

impl Scan {
    /// Forgets known segments that no longer exist if there are more than `max_known`. A program
    /// that watches for days keeps finding new ones.
    pub fn forget_gone(&self, known: &mut HashSet<Entry>, max_known: usize) {
        if known.len() > max_known {
            known.retain(|entry| self.still_known.contains(entry));
        }
    }
}

/// Searches for agents.
pub struct Discovery {
    path: PathBuf,
    boot_id: Option<[u8; 16]>,
}

/// State of a scan.
struct Search<'a> {
    processes: &'a ProcessIndex,
    head: Head,
    /// Device and inode of the files seen. Several directories may show the same file.
    files: HashSet<(u64, u64)>,
    /// Number of segments of each live process, by pid.
    live_segments: HashMap<i32, usize>,
    /// Number of segments of dead processes, by owner.
    dead_segments: HashMap<u32, usize>,
    scan: Scan,
}

impl Default for Discovery {
    fn default() -> Self {
        Self::new()
    }
}

impl Discovery {
    /// Searches `MEM_PROFILER_DIR`, or by default `/dev/shm`.
    pub fn new() -> Self {
        Self::in_directory(default_directory())
    }

    /// Searches one directory.
    pub fn in_directory(path: PathBuf) -> Self {
        Self {
            path,
            boot_id: proc::boot_id().map(|(id, _)| id),
        }
    }

    /// Searches everywhere. A missing shared directory counts as empty.
    pub fn scan(&self) -> Scan {
        self.scan_except(&HashSet::new())
    }

    /// Searches everywhere, but skips the segments in `known`.
    pub fn scan_except(&self, known: &HashSet<Entry>) -> Scan {
        self.scan_among(ProcessIndex::read(), known)
    }

    /// Like [`Discovery::scan_except`]. Does not search the mount namespaces of the processes
    /// `at_home`, whose segments are known and lie in the shared directory: much cheaper if these
    /// are thousands.
    pub fn scan_around(&self, known: &HashSet<Entry>, at_home: &HashSet<i32>) -> Scan {
        self.scan_among(ProcessIndex::read_except(at_home), known)
    }

    /// Returns true if a segment lies in the shared directory itself.
    pub fn is_shared(&self, directory: &Directory) -> bool {
        directory.path == self.path
    }

    /// Scans with `before`, the processes that existed when the scan began.
    fn scan_among(&self, before: ProcessIndex, known: &HashSet<Entry>) -> Scan {
        let mut entries = Vec::new();
        let mut still_known = HashSet::new();
        for directory in self.directories(&before) {
            for entry in directory.segments().unwrap_or_default() {
                if known.contains(&entry) {
                    still_known.insert(entry);
                } else {
                    entries.push((directory.clone(), entry));
                }
            }
        }
        // A segment may belong to a process created after `before` was read. So a process counts as
        // dead only if it is missing from a list that was read after the segments.
        let all_may_live = entries.iter().all(|(_, entry)| before.may_live(entry.name));
        let processes = if all_may_live {
            before
        } else {
            ProcessIndex::read()
        };
        let mut search = Search {
            processes: &processes,
            head: Head::new(),
            files: HashSet::new(),
            live_segments: HashMap::new(),
            dead_segments: HashMap::new(),
            scan: Scan {
                still_known,
                ..Scan::default()
            },
        };
        let (live, dead): (Vec<_>, Vec<_>) = entries
            .into_iter()
            .partition(|(_, entry)| processes.may_live(entry.name));
        for (directory, entry) in live {
            self.examine_live(&directory, entry, &mut search);
        }
        for (directory, entry) in dead {
            self.examine_dead(&directory, entry, &mut search);
        }
        let mut scan = search.scan;
        mark_replaced(&mut scan.found);
        scan.found
            .sort_by_key(|found| (found.pid, found.program_order()));
        scan
    }

    /// Returns the names of segments in the shared directory. Cheap.
    pub fn names(&self) -> HashSet<Entry> {
        let entries = Directory::open(&self.path).and_then(|directory| directory.segments());
        entries.unwrap_or_default().into_iter().collect()
    }

    /// Returns the time of the last change of the shared directory's names; `None` if it was so
    /// recently that another change may still get the same time.
    pub fn settled_at(&self) -> Option<SystemTime> {
        let at = std::fs::metadata(&self.path).and_then(|metadata| metadata.modified());
        let at = at.ok()?;
        let age = at.elapsed().ok()?;
        (age >= SETTLED_AFTER).then_some(at)
    }

    /// Returns true if the shared directory contains a name that is not in `known`. Cheap.
    pub fn has_new(&self, known: &HashSet<Entry>) -> bool {
        let entries = Directory::open(&self.path).and_then(|directory| directory.segments());
        entries
            .unwrap_or_default()
            .iter()
            .any(|entry| !known.contains(entry))
    }

    /// Returns the shared directory, the `run` directories in it, and the directories of that path
    /// in other mount namespaces.
    fn directories(&self, processes: &ProcessIndex) -> Vec<Arc<Directory>> {
        let mut directories = Vec::new();
        let mut seen = HashSet::new();
        let ours = Directory::open(&self.path);
        let others = processes
            .mounts
            .iter()
            .map(|pid| Directory::open_in(*pid, &self.path));
        for directory in std::iter::once(ours).chain(others).flatten() {
            if !seen.insert(directory.identity) {
                continue;
            }
            directories.extend(run_directories(&directory));
            directories.push(directory);
        }
        directories
    }

    /// Examines a segment whose process may be running.
    fn examine_live(&self, directory: &Arc<Directory>, entry: Entry, search: &mut Search<'_>) {
        let examined = search.live_segments.entry(entry.name.pid).or_default();
        *examined += 1;
        if *examined <= MAX_LIVE_SEGMENTS {
            self.examine(directory, entry, search);
        } else {
            let path = directory.path.join(entry.name.to_string());
            search.scan.refused.count(directory.path.clone(), path);
        }
    }

    /// Examines a segment whose process is dead. Files that cannot be segments are not opened, nor
    /// are those of other users unless this program runs as root.
    fn examine_dead(&self, directory: &Arc<Directory>, entry: Entry, search: &mut Search<'_>) {
        let Ok(info) = directory.file_info(entry.name) else {
            return;
        };
        if info.is_stub() && search.keep_unfinished(directory, entry, &info) {
            return;
        }
        let refusal = match info.refusal() {
            Some(refusal) => refusal,
            None => {
                let examined = search.dead_segments.entry(info.owner).or_default();
                *examined += 1;
                if *examined <= MAX_DEAD_SEGMENTS {
                    return self.examine(directory, entry, search);
                }
                let path = directory.path.join(entry.name.to_string());
                return search.scan.refused.count(directory.path.clone(), path);
            }
        };
        search.refuse(directory, entry, refusal, info.is_young());
    }

    /// Opens a segment and adds it to the results.
    fn examine(&self, directory: &Arc<Directory>, entry: Entry, search: &mut Search<'_>) {
        let mut young = false;
        let result = Segment::open(directory, entry.name).and_then(|segment| {
            young = is_young(segment.modified_unix_ns);
            if search.files.insert((segment.device, segment.inode)) {
                self.describe(&segment, entry, search).map(Some)
            } else {
                Ok(None)
            }
        });
        match result {
            Ok(found) => search.scan.found.extend(found),
            // The file has been removed since it was listed.
            Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(Refusal::Content(Invalid::NoMagic))
                if directory
                    .file_info(entry.name)
                    .is_ok_and(|info| search.keep_unfinished(directory, entry, &info)) => {}
            Err(reason) => {
                if matches!(reason, Refusal::Content(Invalid::Version(..))) {
                    search.keep_outdated(directory, entry);
                }
                search.refuse(directory, entry, reason, young);
            }
        }
    }

    /// Validates a segment and finds its process.
    fn describe(
        &self,
        segment: &Segment,
        entry: Entry,
        search: &mut Search<'_>,
    ) -> Result<Found, Refusal> {
        let header = segment.head(&mut search.head)?;
        let other_boot = process::is_from_other_boot(self.boot_id, &header);
        let named = (entry.name.pid as u32, entry.name.start_time);
        // No agent writes a header that contradicts the file's name. Such a segment is refused, so
        // that it does not affect others.
        let is_genuine = (header.pid(), header.start_time()) == named
            && (other_boot
                || header.created_ns() <= crate::clock::now_ns() + process::MAX_CLOCK_LEAD_NS);
        if !is_genuine {
            return Err(Refusal::Misnamed);
        }
        let exe = header.exe();
        let comm = header.comm();
        let mut found = Found {
            pid: entry.name.pid,
            namespace: header.pid_namespace(),
            life: Life::Dead,
            other_boot,
            end: None,
            name: process::display_name(comm, exe, &[comm.to_vec()]),
            comm: comm.to_vec(),
            uid: segment.owner,
            cpu_ticks: 0,
            created_ns: header.created_ns(),
            forked_from: header.forked_from(),
            entry,
            directory: segment.directory.clone(),
            owner: segment.owner,
            file: (segment.device, segment.inode),
        };
        let process = search.processes.process_of(entry.name, found.namespace);
        if let Some(process) = process.filter(|p| !other_boot && !p.stat.is_dead()) {
            add_process(&mut found, process, exe)?;
        }
        Ok(found)
    }
}

impl Search<'_> {
    /// Records a segment whose process was killed while creating it, for cleaning up. Returns false
    /// if it is not such a segment, or if too many have been recorded.
    fn keep_unfinished(
        &mut self,
        directory: &Arc<Directory>,
        entry: Entry,
        info: &FileInfo,
    ) -> bool {
        if info.is_young() || self.scan.unfinished.len() >= MAX_DEAD_SEGMENTS {
            return false;
        }
        let Some(found) = self.dead_by_name(directory, entry, info) else {
            return false;
        };
        self.scan.unfinished.push(found);
        true
    }

    /// Records a segment of another version, for cleaning up, if its process is gone.
    fn keep_outdated(&mut self, directory: &Arc<Directory>, entry: Entry) {
        if let Ok(info) = directory.file_info(entry.name)
            && self.scan.outdated.len() < MAX_DEAD_SEGMENTS
        {
            let found = self.dead_by_name(directory, entry, &info);
            self.scan.outdated.extend(found);
        }
    }

    /// Describes a segment by its name alone, if its process is dead.
    fn dead_by_name(
        &self,
        directory: &Arc<Directory>,
        entry: Entry,
        info: &FileInfo,
    ) -> Option<Found> {
        let process = self.processes.process_of(entry.name, ANY_NAMESPACE);
        process.is_none().then(|| Found {
            pid: entry.name.pid,
            namespace: UNKNOWN_NAMESPACE,
            life: Life::Dead,
            other_boot: false,
            end: None,
            name: Vec::new(),
            comm: Vec::new(),
            uid: info.owner,
            cpu_ticks: 0,
            created_ns: 0,
            forked_from: 0,
            entry,
            directory: directory.clone(),
            owner: info.owner,
            file: info.file,
        })
    }

    fn refuse(&mut self, directory: &Directory, entry: Entry, reason: Refusal, young: bool) {
        let process = self.processes.process_of(entry.name, ANY_NAMESPACE);
        // On a busy disk, an agent may take seconds to fill in its segment.
        let may_change = young
            || process.is_some()
                && matches!(
                    reason,
                    Refusal::Content(Invalid::NoMagic) | Refusal::Size(_) | Refusal::Io(_)
                );
        if !may_change {
            self.scan.settled.push(entry);
        }
        // A file of another user proves nothing about the process that it is named after.
        let owner = directory.file_info(entry.name).map(|info| info.owner);
        let owns = |p: &Process| owner.is_ok_and(|o| o == 0 || p.status.uids.contains(&o));
        let is_own = !matches!(reason, Refusal::Misnamed) && process.as_ref().is_some_and(owns);
        self.scan.refused.push(Refused {
            path: directory.path.join(entry.name.to_string()),
            live_pid: process.map(|process| process.pid),
            is_own,
            reason,
            young,
        });
    }
}

/// Completes the description of an agent whose process exists.
fn add_process(found: &mut Found, process: Process, exe: &[u8]) -> Result<(), Refusal> {
    let Process { pid, stat, status } = process;
    if found.owner != 0 && !status.uids.contains(&found.owner) {
        return Err(Refusal::Planted(found.owner));
    }
    let current = proc::exe(pid);
    let is_same = current.is_none_or(|path| text::base_name(&path) == text::base_name(exe));
    if is_same {
        found.life = Life::Running;
        found.name = process::display_name(&stat.comm, exe, &proc::command_line(pid));
    } else {
        found.life = Life::Replaced;
        found.name = text::base_name(exe).to_vec();
    }
    found.pid = pid;
    found.uid = status.uid();
    found.cpu_ticks = stat.cpu_ticks;
    found.comm = stat.comm;
    Ok(())
}

/// Marks segments of programs that a process ran before an exec as replaced. Only the last program
/// can be running or have died. If the process is alive, its maps show which one that is; otherwise
/// the creation times decide. Segments belong to one process only if owner, namespace and directory
/// agree.
fn mark_replaced(all: &mut [Found]) {
    let key = |found: &Found| (found.process(), found.directory.identity);
    let mut last_programs: HashMap<_, ProgramOrder> = HashMap::new();
    for found in all.iter() {
        let last = last_programs.entry(key(found)).or_default();
        *last = found.program_order().max(*last);
    }
    let mut claimants: HashMap<i32, usize> = HashMap::new();
    for found in all.iter().filter(|found| found.life == Life::Running) {
        *claimants.entry(found.pid).or_default() += 1;
    }
    for found in all {
        let is_last = last_programs[&key(found)] == found.program_order();
        let replaced = match found.life {
            Life::Running if claimants[&found.pid] > 1 => match found.seems_mapped() {
                Some(mapped) => !mapped,
                None => !is_last,
            },
            Life::Running => false,
            _ => !is_last,
        };
        if replaced {
            found.life = Life::Replaced;
        }
    }
}

/// Returns the directories that `run` created in a shared one, inner ones before outer ones. At
/// most `MAX_RUNS` per owner, since anybody can create any number.
pub fn run_directories(directory: &Directory) -> Vec<Arc<Directory>> {
    let mut directories = Vec::new();
    let mut owners: HashMap<u32, usize> = HashMap::new();
    let names = directory.entries(RUN_PREFIX).unwrap_or_default();
    for outer in names.into_iter().take(MAX_RUN_NAMES) {
        let Ok(outer) = directory.directory(&outer) else {
            continue;
        };
        let count = owners.entry(outer.owner).or_default();
        *count += 1;
        if *count > MAX_RUNS {
            continue;
        }
        let hidden = outer.entries(HIDDEN_PREFIX).unwrap_or_default();
        directories.extend(hidden.first().and_then(|name| outer.directory(name).ok()));
        directories.push(outer);
    }
    directories
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A program that watches for days keeps finding new segments.
    #[test]
    fn deleted_segments_are_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let name = |number: u32| format!("mem_profiler.{}.{number}.0", i32::MAX - 7);
        for number in 0..100 {
            std::fs::write(directory.path().join(name(number)), [0; 10]).unwrap();
        }
        let opened = Directory::open(directory.path()).unwrap();
        let mut known: HashSet<Entry> = opened.segments().unwrap().into_iter().collect();
        assert_eq!(known.len(), 100);
        for number in 3..100 {
            std::fs::remove_file(directory.path().join(name(number))).unwrap();
        }
        let scan = Discovery::in_directory(directory.path().into()).scan_except(&known);
        scan.forget_gone(&mut known, 100);
        assert_eq!(known.len(), 100, "few are kept");
        scan.forget_gone(&mut known, 99);
        let left: HashSet<Entry> = opened.segments().unwrap().into_iter().collect();
        assert_eq!((known.len(), &known), (3, &left));
    }

    /// A process that is created during a scan does not count as dead, although it was not listed
    /// at the start.
    #[test]
    fn a_process_created_during_the_scan_is_running() {
        let directory = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let mut segment = forge::Forged::of(pid, forge::start_of(pid));
        segment.exe = std::env::current_exe()
            .unwrap()
            .into_os_string()
            .into_encoded_bytes();
        segment.make(directory.path());
        let discovery = Discovery::in_directory(directory.path().to_path_buf());
        let scan = discovery.scan_among(ProcessIndex::default(), &HashSet::new());
        let found: Vec<_> = scan
            .found
            .iter()
            .map(|found| (found.pid, found.life))
            .collect();
        assert_eq!(found, [(pid as i32, Life::Running)]);
    }
    /// A segment that its process has not filled in yet is examined again, however long that takes.
    #[test]
    fn segments_of_slow_agents_are_not_settled() {
        let directory = tempfile::tempdir().unwrap();
        let pid = std::process::id();
        let segment = forge::Forged::of(pid, forge::start_of(pid));
        segment.make(directory.path());
        let path = std::fs::read_dir(directory.path()).unwrap().next();
        let path = path.unwrap().unwrap().path();
        let bytes = std::fs::metadata(&path).unwrap().len();
        let discovery = Discovery::in_directory(directory.path().to_path_buf());
        for unfinished in [0, bytes] {
            let file = std::fs::File::create(&path).unwrap();
            file.set_len(unfinished).unwrap();
            file.set_modified(std::time::UNIX_EPOCH).unwrap();
            let scan = discovery.scan_except(&HashSet::new());
            assert!(scan.found.is_empty(), "{unfinished}");
            assert!(scan.settled.is_empty(), "{unfinished}");
        }
    }
}
