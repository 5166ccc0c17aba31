//! Finds the processes to serve: those that this user may profile, among the selected ones.

use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::SystemTime;

use mem_agents::discovery::{Agent, Discovery, Found, Life, Scan};
use mem_agents::segment::Entry;
use mem_agents::select::Selection;
use mem_agents::values;

use crate::reply::Reply;

/// Maximum number of matching processes that an error lists.
const MAX_LISTED: usize = 10;

/// Maximum number of ended processes that are found. The latest are preferred.
pub const MAX_ENDED: usize = 100;

/// Search for processes with the agent, among the selected ones.
pub struct Agents {
    discovery: Discovery,
    selection: Selection,
}

/// Result of a search that skips known segments.
pub struct PartialScan<T> {
    /// Known segments that still exist.
    pub still_known: HashSet<Entry>,
    /// Processes of the segments that were not skipped.
    pub agents: T,
}

impl Agents {
    /// Limits the search to a selection.
    pub fn new(selection: Selection) -> Self {
        Self {
            discovery: Discovery::new(),
            selection,
        }
    }

    /// Returns the names of segments in the shared directory.
    pub fn names(&self) -> HashSet<Entry> {
        self.discovery.names()
    }

    /// Returns the time of the last change of the names in the shared directory; `None` if it was
    /// just now.
    pub fn settled_at(&self) -> Option<SystemTime> {
        self.discovery.settled_at()
    }

    /// Returns true if the shared directory has a segment that is not among these.
    pub fn has_new(&self, known: &HashSet<Entry>) -> bool {
        self.discovery.has_new(known)
    }

    /// Returns all live processes, and after them those that have ended and left a profile, the
    /// latest first.
    pub fn all_and_ended(&self) -> impl Iterator<Item = Agent> {
        self.open_useful(self.discovery.scan())
    }

    /// Like [`Agents::all_and_ended`], but skips known segments, which is much cheaper. Also
    /// returns the known segments that still exist.
    pub fn scan_except(
        &self,
        known: &[&Agent],
    ) -> PartialScan<impl Iterator<Item = Agent> + use<>> {
        let mut entries = HashSet::new();
        let mut pids_of_shared = HashSet::new();
        for agent in known {
            entries.insert(agent.entry);
            // Segments are named after the pid in the process's own namespace.
            let is_named_by_pid = agent.entry.name.pid == agent.pid;
            if is_named_by_pid && self.discovery.is_shared(&agent.directory) {
                pids_of_shared.insert(agent.pid);
            }
        }
        let mut scan = self.discovery.scan_around(&entries, &pids_of_shared);
        PartialScan {
            still_known: std::mem::take(&mut scan.still_known),
            agents: self.open_useful(scan),
        }
    }

    /// Opens live processes, and the latest of the ended ones.
    fn open_useful(&self, scan: Scan) -> impl Iterator<Item = Agent> + use<> {
        let mut found = scan.found;
        found.retain(|found| found.life != Life::Replaced && self.selection.wants(found));
        let is_ended = |found: &Found| found.life == Life::Dead;
        found.sort_by_key(|found| (is_ended(found), Reverse(found.created_ns)));
        let live = found.iter().take_while(|found| !is_ended(found)).count();
        found.truncate(live + MAX_ENDED);
        found.into_iter().filter_map(|found| found.open().ok())
    }

    /// Returns all live processes. Each is opened only when it is reached, because there may be
    /// more processes than file descriptors.
    pub fn all(&self) -> impl Iterator<Item = Agent> {
        let found = self.discovery.scan().found.into_iter();
        let live = found.filter(|found| found.life == Life::Running && self.selection.wants(found));
        live.filter_map(|found| found.open().ok())
    }

    /// Like [`Agents::find`], but if there is no such process, finds one with this pid that has
    /// ended and left a profile.
    pub fn find_or_ended(&self, name: Option<&str>) -> Result<Agent, Reply> {
        let refusal = match self.find(name) {
            Ok(agent) => return Ok(agent),
            Err(refusal) => refusal,
        };
        let pid = name.and_then(|name| name.parse::<i32>().ok());
        let ended = pid.and_then(|pid| {
            let is_it = |agent: &Agent| agent.pid == pid && agent.life == Life::Dead;
            self.all_and_ended().find(is_it)
        });
        ended.ok_or(refusal)
    }

    /// Examines the segments of one process alone, if they are in the shared directory: cheap, even
    /// among thousands of processes.
    fn scan_process(&self, pid: i32) -> Option<Scan> {
        let mut other_entries = self.discovery.names();
        other_entries.retain(|entry| entry.name.pid != pid);
        let scan = self.discovery.scan_except(&other_entries);
        let is_process = |found: &Found| found.pid == pid && found.life == Life::Running;
        scan.found.iter().any(is_process).then_some(scan)
    }

    /// Finds the process with this pid, name or pattern. Without `name`, finds the only process
    /// there is.
    pub fn find(&self, name: Option<&str>) -> Result<Agent, Reply> {
        let name = name.map(values::process).transpose();
        let name = name.map_err(|why| Reply::refusal(400, format!("the process: {why}")))?;
        let matching = Selection {
            names: name.clone().into_iter().collect(),
            cgroup: self.selection.cgroup.clone(),
            user: self.selection.user,
        };
        let pid = name.as_ref().and_then(|name| name.parse::<i32>().ok());
        let scan = pid.and_then(|pid| self.scan_process(pid));
        let mut scan = scan.unwrap_or_else(|| self.discovery.scan());
        scan.found.retain(|found| self.selection.wants(found));
        let mut chosen = matching.choose(scan);
        if chosen.agents.len() > 1 {
            let titles = chosen.agents.iter().take(MAX_LISTED);
            let titles = titles.map(|agent| agent.title());
            let titles: Vec<String> = titles.collect();
            return Err(Reply::refusal(
                400,
                format!(
                    "{} processes match: choose one with ?pid= or ?name=, or by the path /p/PID/...: \
                     {}",
                    chosen.agents.len(),
                    titles.join(", ")
                ),
            ));
        }
        chosen.agents.pop().ok_or_else(|| {
            let why = chosen.failures.first().map(String::as_str);
            Reply::refusal(404, why.unwrap_or("no process carries the agent"))
        })
    }
}
