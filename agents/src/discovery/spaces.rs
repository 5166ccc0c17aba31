//! The processes there are, across pid namespaces.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};

use proc::{Stat, Status};

use crate::segment::SegmentName;

/// A live process, from `/proc`.
#[derive(Clone)]
pub struct Process {
    /// Pid in our namespace.
    pub pid: i32,
    /// Start, state and parent.
    pub stat: Stat,
    /// Users and pids.
    pub status: Status,
}

/// Processes by the names of their segments, across pid namespaces.
#[derive(Default)]
pub struct Spaces {
    /// All pids that `/proc` shows.
    all: HashSet<i32>,
    /// From a process's own pid and start time to its pid here. Containers that start
    /// together have processes that agree in both.
    elsewhere: HashMap<(i32, u64), Vec<i32>>,
    /// One process of each other mount namespace, and of each other root directory.
    pub mounts: Vec<i32>,
    /// Those that were requested.
    known: RefCell<HashMap<i32, Option<Process>>>,
}

impl Spaces {
    /// Looks at all processes.
    pub fn read() -> Self {
        let (our_mnt, our_pid) = (namespace("self", "mnt"), namespace("self", "pid"));
        let our_root = proc::root_of("self");
        let our_view = our_mnt.map(|mnt| (mnt, our_root));
        let mut spaces = Self::default();
        let mut mounts = HashSet::new();
        for pid in proc::all() {
            let text = pid.to_string();
            let pids = namespace(&text, "pid");
            // A first thread that has ended is in no mount namespace any more.
            let shown = match namespace(&text, "mnt") {
                Some(_) => pid,
                None => proc::living_thread(pid),
            };
            let text = shown.to_string();
            let mnt = namespace(&text, "mnt");
            if pids.is_some() && pids != our_pid {
                spaces.add(pid);
            }
            let view = mnt.map(|mnt| (mnt, proc::root_of(&text).or(our_root)));
            if view.is_some() && view != our_view && mounts.insert(view) {
                spaces.mounts.push(pid);
            }
            spaces.all.insert(pid);
        }
        spaces
    }

    fn add(&mut self, pid: i32) {
        if let Some(process) = self.process(pid) {
            let own = (process.status.own_pid(), process.stat.start_time);
            self.elsewhere.entry(own).or_default().push(pid);
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

    /// Whether a segment's name means a process that lives: costs next to nothing where not.
    pub fn may_live(&self, name: SegmentName) -> bool {
        let here = self.all.contains(&name.pid);
        self.elsewhere.contains_key(&(name.pid, name.start_time))
            || here && self.process_of(name, 0).is_some()
    }

    /// The live process that a segment's name means, as we see it: the one in the pid namespace
    /// whose inode the segment names (0: not known), or one whose namespace we may not query.
    pub fn process_of(&self, name: SegmentName, wanted: u64) -> Option<Process> {
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
                _ if wanted == 0 => return Some(process),
                Some(own) if own == wanted => return Some(process),
                Some(_) => {}
                None => unknown = unknown.or(Some(process)),
            }
        }
        unknown
    }
}

/// Inode of a namespace of a process; `None` where we may not ask.
pub fn namespace(pid: &str, kind: &str) -> Option<u64> {
    let link = std::fs::read_link(format!("/proc/{pid}/ns/{kind}")).ok()?;
    let text = link.to_str()?.strip_prefix(kind)?;
    text.strip_prefix(":[")?.strip_suffix(']')?.parse().ok()
}
