//! Finding agents: segments in the shared folder, in folders of `run`, and in the
//! folders that processes of other mount namespaces see; and whose they are.
//!
//! A scan costs a few system calls per segment and per process in another namespace. It
//! does not read anybody's memory map: [`Agent::confirm`] does, for the processes that
//! are about to be commanded.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;

use crate::ended::Fate;
use crate::process::{self, Stat, Status};
use crate::segment::{Entry, Folder, Head, Refusal, Segment, SegmentName, default_folder};
use crate::text;

/// Folders inside the shared one that `run` makes begin like this.
pub const RUN_PREFIX: &str = "mem_profiler.run.";

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

/// A process that carries the agent, or what is left of it.
#[derive(Debug)]
pub struct Agent {
    /// Pid as we see it; a dead process's as it saw it.
    pub pid: i32,
    /// Whether it still runs.
    pub life: Life,
    /// How it ended, where somebody saw it.
    pub fate: Option<Fate>,
    /// Short name; bytes that it chose.
    pub name: Vec<u8>,
    /// Name of the main thread; bytes that it chose.
    pub comm: Vec<u8>,
    /// Its user; a dead process's segment's owner.
    pub uid: u32,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// When the segment was made, by the segments' clock: tells images of a process apart.
    pub created_ns: u64,
    /// Its segment's entry in the folder.
    pub entry: Entry,
    /// Its segment.
    pub segment: Segment,
}

impl Agent {
    /// `name (pid)`, for people.
    pub fn title(&self) -> String {
        format!("{} ({})", text::escape(&self.name), self.pid)
    }

    /// Makes sure that the process has this segment mapped, now.
    pub fn confirm(&self) -> Result<(), String> {
        let Some(maps) = process::maps(self.pid) else {
            return Err("its memory map cannot be read (it ended, or needs root)".to_owned());
        };
        let name = self.segment.name.to_string();
        if process::maps_file(&maps, self.segment.inode, name.as_bytes()) {
            Ok(())
        } else {
            Err(format!(
                "it does not map {}: another program left it",
                self.segment.path().display()
            ))
        }
    }
}

/// A segment that is not used, and why.
#[derive(Debug)]
pub struct Refused {
    /// Where it is.
    pub path: PathBuf,
    /// Pid of its live process, as we see it.
    pub live_pid: Option<i32>,
    /// Why.
    pub reason: Refusal,
    /// It may be in the making.
    pub young: bool,
}

/// What a scan found.
#[derive(Debug, Default)]
pub struct Scan {
    /// Agents, in order of pid.
    pub agents: Vec<Agent>,
    /// Segments that are not used.
    pub refused: Vec<Refused>,
}

/// A live process, as `/proc` tells.
struct Process {
    pid: i32,
    stat: Stat,
    status: Status,
}

/// Which names mean which process, across pid namespaces.
#[derive(Default)]
struct Namespaces {
    /// From a process's own pid and start time to its pid here. Containers that start
    /// together have processes that agree in both.
    pids: HashMap<(i32, u64), Vec<i32>>,
    /// One process of each other mount namespace.
    mounts: Vec<i32>,
}

/// Looks for agents.
pub struct Discovery {
    path: PathBuf,
    boot_id: Option<[u8; 16]>,
}

impl Discovery {
    /// Looks in `MEM_PROFILER_DIR` or `/dev/shm`.
    pub fn new() -> Self {
        Self::in_folder(default_folder())
    }

    /// Looks in one folder.
    pub fn in_folder(path: PathBuf) -> Self {
        Self {
            path,
            boot_id: process::boot_id().map(|(id, _)| id),
        }
    }

    /// Looks everywhere. A shared folder that is not there holds no agents.
    pub fn scan(&self) -> Scan {
        self.scan_except(&HashSet::new())
    }

    /// Looks everywhere, but leaves out the segments named.
    pub fn scan_except(&self, known: &HashSet<Entry>) -> Scan {
        let spaces = Namespaces::read();
        let mut scan = Scan::default();
        let mut head = Head::new();
        let mut files = HashSet::new();
        for folder in self.folders(&spaces) {
            let entries = folder.segments().unwrap_or_default();
            for entry in entries.into_iter().filter(|e| !known.contains(e)) {
                self.look_at(&folder, entry, &spaces, &mut head, &mut files, &mut scan);
            }
        }
        mark_replaced(&mut scan.agents);
        scan.agents.sort_by_key(|a| (a.pid, a.created_ns));
        scan
    }

    /// Whether the shared folder holds a name that is not known: cheap.
    pub fn has_new(&self, known: &HashSet<Entry>) -> bool {
        let entries = Folder::open(&self.path).and_then(|folder| folder.segments());
        entries
            .unwrap_or_default()
            .iter()
            .any(|entry| !known.contains(entry))
    }

    /// The shared folder, those of `run` in it, and other mount namespaces' of that name.
    fn folders(&self, spaces: &Namespaces) -> Vec<Rc<Folder>> {
        let mut folders = Vec::new();
        let mut seen = HashSet::new();
        let own = Folder::open(&self.path);
        let others = spaces
            .mounts
            .iter()
            .map(|pid| Folder::open_in(*pid, &self.path));
        for folder in std::iter::once(own).chain(others).flatten() {
            if !seen.insert(folder.identity) {
                continue;
            }
            for inner in run_folders(&folder) {
                if let Ok(inner) = folder.folder(&inner) {
                    folders.push(inner);
                }
            }
            folders.push(folder);
        }
        folders
    }

    fn look_at(
        &self,
        folder: &Rc<Folder>,
        entry: Entry,
        spaces: &Namespaces,
        head: &mut Head,
        files: &mut HashSet<(u64, u64)>,
        scan: &mut Scan,
    ) {
        let name = entry.name;
        let mut young = false;
        let found = Segment::open(folder, name).and_then(|segment| {
            young = is_young(&segment);
            if files.insert((segment.device, segment.inode)) {
                self.agent(segment, entry, spaces, head).map(Some)
            } else {
                Ok(None)
            }
        });
        match found {
            Ok(agent) => scan.agents.extend(agent),
            // It was removed meanwhile.
            Err(Refusal::Io(e)) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(reason) => scan.refused.push(Refused {
                path: folder.path.join(name.to_string()),
                live_pid: spaces.process_of(name, 0).map(|process| process.pid),
                reason,
                young,
            }),
        }
    }

    /// Checks a segment and puts it together with its process.
    fn agent(
        &self,
        segment: Segment,
        entry: Entry,
        spaces: &Namespaces,
        head: &mut Head,
    ) -> Result<Agent, Refusal> {
        let header = segment.head(head)?;
        let process = spaces.process_of(entry.name, header.pid_namespace());
        let named = (segment.name.pid as u32, segment.name.start_time);
        let same_boot = self.boot_id.is_none_or(|id| header.boot_id() == id);
        let honest = (header.pid(), header.start_time()) == named && same_boot;
        let (exe, created_ns) = (header.exe(), header.created_ns());
        let process = process.filter(|process| honest && !process.stat.is_dead());
        let Some(Process { pid, stat, status }) = process else {
            return Ok(Agent {
                pid: segment.name.pid,
                life: Life::Dead,
                fate: None,
                name: process::display_name(header.comm(), exe, &[header.comm().to_vec()]),
                comm: header.comm().to_vec(),
                uid: segment.owner,
                cpu_ticks: 0,
                created_ns,
                entry,
                segment,
            });
        };
        if segment.owner != 0 && !status.uids.contains(&segment.owner) {
            return Err(Refusal::Planted(segment.owner));
        }
        let now = process::exe(pid);
        let same = now
            .as_ref()
            .is_none_or(|now| text::base_name(now) == text::base_name(exe));
        let life = if same { Life::Running } else { Life::Replaced };
        let name = match life {
            Life::Running => process::display_name(&stat.comm, exe, &process::command_line(pid)),
            _ => text::base_name(exe).to_vec(),
        };
        let uid = status.uid();
        let cpu_ticks = stat.cpu_ticks;
        Ok(Agent {
            pid,
            life,
            fate: None,
            name,
            comm: stat.comm,
            uid,
            cpu_ticks,
            created_ns,
            entry,
            segment,
        })
    }
}

/// Whether a segment is so young that its agent may not have filled it in yet.
fn is_young(segment: &Segment) -> bool {
    shm_protocol::clock::unix_ns().abs_diff(segment.modified_unix_ns) < 2_000_000_000
}

/// Of several images of one process only the last can be running, or have died.
fn mark_replaced(agents: &mut [Agent]) {
    let mut last: HashMap<(i32, u64), u64> = HashMap::new();
    let process = |agent: &Agent| (agent.pid, agent.entry.name.start_time);
    for agent in agents.iter() {
        let newest = last.entry(process(agent)).or_default();
        *newest = agent.created_ns.max(*newest);
    }
    for agent in agents {
        if last[&process(agent)] > agent.created_ns {
            agent.life = Life::Replaced;
        }
    }
}

/// Names of the folders that `run` made inside a shared one.
pub fn run_folders(folder: &Folder) -> Vec<OsString> {
    folder.entries(RUN_PREFIX).unwrap_or_default()
}

impl Namespaces {
    fn read() -> Self {
        let link =
            |pid: &str, kind: &str| std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok();
        let (our_mnt, our_pid) = (link("self", "mnt"), link("self", "pid"));
        let mut spaces = Self::default();
        let mut mounts = HashSet::new();
        for pid in process::all() {
            let text = pid.to_string();
            let (mnt, pids) = (link(&text, "mnt"), link(&text, "pid"));
            if pids.is_some() && pids != our_pid {
                spaces.add(pid);
            }
            if mnt.is_some() && mnt != our_mnt && mounts.insert(mnt) {
                spaces.mounts.push(pid);
            }
        }
        spaces
    }

    fn add(&mut self, pid: i32) {
        if let (Some(stat), Some(status)) = (Stat::of(pid), Status::of(pid)) {
            let own = (status.own_pid(), stat.start_time);
            self.pids.entry(own).or_default().push(pid);
        }
    }

    /// The live process that a segment's name means, as we see it. Of several the one in
    /// the pid namespace whose inode the segment names (0: not known).
    fn process_of(&self, name: SegmentName, namespace: u64) -> Option<Process> {
        let of = |pid| {
            Some(Process {
                pid,
                stat: Stat::of(pid)?,
                status: Status::of(pid)?,
            })
        };
        let meant =
            |p: &Process| p.stat.start_time == name.start_time && p.status.own_pid() == name.pid;
        let elsewhere = self.pids.get(&(name.pid, name.start_time));
        let mut candidates = std::iter::once(name.pid)
            .chain(elsewhere.into_iter().flatten().copied())
            .filter_map(of)
            .filter(meant);
        let first = candidates.next()?;
        let is_there = |p: &Process| namespace == 0 || pid_namespace(p.pid) == Some(namespace);
        match elsewhere {
            // Nobody else it could be.
            None => Some(first),
            Some(_) if is_there(&first) => Some(first),
            Some(_) => candidates.find(is_there),
        }
    }
}

/// Inode of a process's pid namespace.
fn pid_namespace(pid: i32) -> Option<u64> {
    use std::os::unix::fs::MetadataExt;
    let namespace = std::fs::metadata(format!("/proc/{pid}/ns/pid")).ok()?;
    Some(namespace.ino())
}
