//! Lists the processes of all pid namespaces that are visible.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use proc::{Stat, Status};

use crate::segment::SegmentName;

/// Stands for every pid namespace in [`ProcessIndex::process_of`].
pub const ANY_NAMESPACE: u64 = 0;

/// Live process, as read from `/proc`.
#[derive(Clone)]
pub struct Process {
    /// Pid in our namespace.
    pub pid: i32,
    /// Start time, state and parent.
    pub stat: Stat,
    /// User ids and pids.
    pub status: Status,
}

/// Index of processes by the pids and start times in segment names, across pid namespaces.
#[derive(Default)]
pub struct ProcessIndex {
    /// All pids in `/proc`.
    all: HashSet<i32>,
    /// Pids in our namespace, by pid in the process's own namespace and start time. Not unique:
    /// containers that start together may have processes with equal keys.
    elsewhere: HashMap<(i32, u64), Vec<i32>>,
    /// One process for each other mount namespace or root directory.
    pub mounts: Vec<i32>,
    /// Cache of the processes read so far.
    known: RefCell<HashMap<i32, Option<Process>>>,
}

impl ProcessIndex {
    /// Reads the list of all processes.
    pub fn read() -> Self {
        Self::read_except(&HashSet::new())
    }

    /// Reads the list of all processes. Does not examine the namespaces of those `at_home`, which
    /// are known to see the same files as this program.
    pub fn read_except(at_home: &HashSet<i32>) -> Self {
        let our_mnt = namespace("self", "mnt");
        let our_pid = namespace("self", "pid");
        let our_root = proc::root_of("self");
        let our_view = our_mnt.map(|mnt| (mnt, our_root));
        let mut processes = Self::default();
        let mut mounts = HashSet::new();
        for pid in proc::all_pids() {
            processes.all.insert(pid);
            if at_home.contains(&pid) {
                continue;
            }
            let text = pid.to_string();
            let pids = namespace(&text, "pid");
            // A main thread that has exited is in no mount namespace, so another thread is used.
            let tid = match namespace(&text, "mnt") {
                Some(_) => pid,
                None => proc::living_thread(pid),
            };
            let tid = tid.to_string();
            let mnt = namespace(&tid, "mnt");
            if pids.is_some() && pids != our_pid {
                processes.add(pid);
            }
            let view = mnt.map(|mnt| (mnt, proc::root_of(&tid).or(our_root)));
            if view.is_some() && view != our_view && mounts.insert(view) {
                processes.mounts.push(pid);
            }
        }
        processes
    }

    fn add(&mut self, pid: i32) {
        if let Some(process) = self.process(pid) {
            let key = (process.status.own_pid(), process.stat.start_time);
            self.elsewhere.entry(key).or_default().push(pid);
        }
    }

    fn process(&self, pid: i32) -> Option<Process> {
        let read = || {
            Some(Process {
                pid,
                stat: Stat::of(pid)?,
                status: Status::of(pid)?,
            })
        };
        let mut known = self.known.borrow_mut();
        known.entry(pid).or_insert_with(read).clone()
    }

    /// Returns true if a segment's name refers to a live process. Cheap if it does not.
    pub fn may_live(&self, name: SegmentName) -> bool {
        let here = self.all.contains(&name.pid);
        self.elsewhere.contains_key(&(name.pid, name.start_time))
            || here && self.process_of(name, ANY_NAMESPACE).is_some()
    }

    /// Returns the live process that a segment's name refers to: the one in the pid namespace with
    /// inode `wanted_namespace` (or [`ANY_NAMESPACE`]), or else one whose namespace cannot be
    /// queried.
    pub fn process_of(&self, name: SegmentName, wanted_namespace: u64) -> Option<Process> {
        let key = (name.pid, name.start_time);
        let here = self.all.contains(&name.pid).then_some(name.pid);
        let elsewhere = self.elsewhere.get(&key).into_iter().flatten().copied();
        let mut unknown = None;
        for pid in here.into_iter().chain(elsewhere) {
            let Some(process) = self.process(pid) else {
                continue;
            };
            if (process.status.own_pid(), process.stat.start_time) != key {
                continue;
            }
            match namespace(&pid.to_string(), "pid") {
                _ if wanted_namespace == ANY_NAMESPACE => return Some(process),
                Some(own) if own == wanted_namespace => return Some(process),
                Some(_) => {}
                None => unknown = unknown.or(Some(process)),
            }
        }
        unknown
    }
}

/// Returns the inode of a process's namespace, or `None` without permission.
pub fn namespace(pid: &str, kind: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    let text = link.to_str()?.strip_prefix(kind)?;
    text.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}
