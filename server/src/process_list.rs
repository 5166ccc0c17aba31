//! State of the live page: the list of processes, and the memory of each over time. Updated on
//! request, at most once a second however many clients request it, and every few seconds
//! otherwise.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use mem_agents::cgroup::{Membership, Memory};
use mem_agents::clock::{Time, now_ns};
use mem_agents::discovery::{Agent, Life};
use mem_agents::live::Recorded;
use mem_agents::segment::{Entry, Head};
use serde::Serialize;
use serde_json::Value;

use crate::agents::{Agents, MAX_ENDED};
use crate::history::History;
use crate::history_file::{HistoryFile, Key};
use crate::process::{AnswerRow, Process, unix_ms};
use crate::reply::{Reply, Shared};
use crate::sessions::{Sessions, Settings};

/// Maximum age of the list before it is updated for a client.
const MAX_AGE: Duration = Duration::from_millis(900);
/// Interval between updates while no client requests the list.
const UPDATE_INTERVAL: Duration = Duration::from_secs(10);
/// Intervals between searches for processes while clients request the list. New segments in the
/// server's own directory, and ends of processes, cause an immediate search.
const SCAN_INTERVALS: ScanIntervals = ScanIntervals {
    partial: Duration::from_secs(10),
    complete: Duration::from_secs(60),
};
/// Minimum interval between searches, as a multiple of the time that the last one took: they cost
/// an update at most a millisecond in the mean.
const SEARCH_COST_FACTOR: u32 = 1500;
/// Intervals between searches for processes while no client requests the list.
const IDLE_SCAN_INTERVALS: ScanIntervals = ScanIntervals {
    partial: Duration::from_secs(60),
    complete: Duration::from_secs(600),
};
/// Interval between writes of the histories.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between reads of a control group's memory.
const GROUP_READ_INTERVAL: Duration = Duration::from_secs(15);
/// Maximum number of unchanged processes that one update examines. If there are more, they take
/// turns.
const MAX_QUIET_PER_UPDATE: usize = 150;
/// Maximum number of updates until each unchanged process has had its turn, while there are no
/// clients. More would leave gaps in the histories.
const MAX_IDLE_PARTS: usize = 3;
/// Divisor of a control group's limit that gives the smallest change of its memory that is shown.
/// With smaller ones, the rows of all its processes would change all the time.
const GROUP_STEP_DIVISOR: u64 = 100;
/// Maximum number of removed processes that are remembered, for clients that still list them.
const MAX_REMOVED: usize = 10_000;
/// Maximum number of processes shown.
pub const MAX_PROCESSES: usize = 4000;

/// The list of processes, shared by all clients.
pub struct ProcessList {
    state: Mutex<State>,
    file: HistoryFile,
}

/// Process of the list.
#[derive(Clone, Copy)]
pub struct ListedProcess {
    /// Identity of the process.
    pub key: Key,
    /// Device and inode of its segment.
    pub file: (u64, u64),
}

#[derive(Default)]
struct State {
    /// Time of the last update.
    updated_at: Option<Instant>,
    /// True once all processes were searched for.
    had_full_scan: bool,
    /// Number of searches that examined only unknown segments and a part of the known ones.
    partial_scans: u64,
    /// Time of the last search.
    last_scan: Option<Instant>,
    /// Version of the list at that time.
    last_scan_version: u64,
    /// Time that the last search took.
    search_cost: Duration,
    /// Names of segments as of the last search.
    names: HashSet<Entry>,
    /// Modification time of the shared directory when `names` was last known to be complete.
    names_complete_at: Option<SystemTime>,
    /// Time of the last write of the histories.
    saved_at: Option<Instant>,
    /// Encoded list of all processes, if a client has requested it since the last update.
    encoded_list: Option<Arc<Shared>>,
    /// True if the last update has built the rows.
    has_rows: bool,
    /// Number of updates so far: the version of the list.
    version: u64,
    processes: HashMap<Key, Process>,
    /// Removed processes: first version without the process, and its id.
    removed: VecDeque<(u64, String)>,
    /// Histories that an earlier server has saved, of processes that were not found yet.
    restored: HashMap<Key, History>,
    /// Memory of the processes' control groups.
    groups: HashMap<Membership, GroupMemory>,
}

/// Memory of a control group.
struct GroupMemory {
    read: Instant,
    memory: Option<Memory>,
}

/// Intervals between searches for processes.
struct ScanIntervals {
    /// Interval between searches for unknown segments, also in containers, and for known processes
    /// that have executed another program.
    partial: Duration,
    /// Time in which all known segments are examined once more, a part of them in each search.
    complete: Duration,
}

impl ScanIntervals {
    /// Returns the number of searches that examine all known segments once.
    fn parts(&self) -> u64 {
        self.complete.as_secs().div_ceil(self.partial.as_secs())
    }
}

/// The list as clients get it.
#[derive(Serialize)]
struct List<'a> {
    version: u64,
    /// True if the list has all processes, not only those that have changed.
    whole: bool,
    /// Unix time in ms.
    now: u64,
    /// Number of all processes.
    count: usize,
    processes: Vec<AnswerRow<'a>>,
    /// Ids of removed processes.
    gone: Vec<&'a str>,
    /// Default settings of sessions.
    interval: u64,
    max_overhead: Option<f64>,
    thin: bool,
}

/// Purpose of an update.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// Adds points to the histories. No client waits for rows.
    History,
    /// Answers a client.
    Client,
}

impl ProcessList {
    /// Creates an empty list that keeps histories in this directory.
    pub fn new(directory: &Path) -> Self {
        let file = HistoryFile::in_directory(directory);
        let restored = file.read(now_ns() / 1_000_000).into_iter().collect();
        let state = State {
            restored,
            ..State::default()
        };
        Self {
            state: Mutex::new(state),
            file,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the list as JSON. With `since`, the version of an earlier answer, returns only the
    /// rows that have changed.
    pub fn read(&self, agents: &Agents, sessions: &Sessions, since: Option<u64>) -> Reply {
        let mut state = self.state();
        state.update_after(MAX_AGE, Purpose::Client, agents, sessions);
        let since = state.known_version(since);
        if since.is_some() {
            return Reply::json(&state.list(since, sessions.settings()));
        }
        // The list may be large, and is the same for all clients that begin now.
        if let Some(encoded) = &state.encoded_list {
            return Reply::shared(encoded);
        }
        state.advance_time();
        let list = state.list(None, sessions.settings());
        match Shared::json(&list) {
            Ok(encoded) => {
                let reply = Reply::shared(&encoded);
                state.encoded_list = Some(encoded);
                reply
            }
            Err(error) => Reply::refusal(500, error.to_string()),
        }
    }

    /// Returns the process of the list with this pid. Prefers a running one, then the latest.
    pub fn find(&self, pid: i32) -> Option<ListedProcess> {
        let state = self.state();
        let candidates = state.processes.iter().filter(|(key, _)| key.pid == pid);
        let found = candidates
            .max_by_key(|(key, process)| (process.agent.life == Life::Running, key.created_ns));
        found.map(|(key, process)| ListedProcess {
            key: *key,
            file: process.agent.file,
        })
    }

    /// Makes the next update examine a process whose session was started or stopped. Otherwise, if
    /// there are thousands, one that was idle would have to wait for its turn.
    pub fn expect_change(&self, agent: &Agent) {
        let mut state = self.state();
        let version = state.version;
        if let Some(process) = state.processes.get_mut(&Key::of(agent)) {
            process.expect_change(version);
        }
    }

    /// Returns the running processes of the list.
    pub fn running(&self) -> Vec<ListedProcess> {
        let state = self.state();
        let processes = state.processes.iter();
        let running = processes.filter(|(_, process)| process.agent.life == Life::Running);
        let listed = running.map(|(key, process)| ListedProcess {
            key: *key,
            file: process.agent.file,
        });
        listed.collect()
    }

    /// Returns the moments of a process's last session that were recorded.
    pub fn recorded(&self, agent: &Agent) -> Option<Recorded> {
        let state = self.state();
        state.processes.get(&Key::of(agent))?.recorded.clone()
    }

    /// Returns the memory of a process over time, and its sessions, as JSON; `None` if it is not in
    /// the list.
    pub fn history(&self, agents: &Agents, sessions: &Sessions, key: Key) -> Option<Value> {
        let mut state = self.state();
        state.update_after(MAX_AGE, Purpose::Client, agents, sessions);
        Some(state.processes.get(&key)?.history_json())
    }

    /// Updates the histories if no client has caused an update for a while. Saves them once a
    /// minute.
    pub fn tick(&self, agents: &Agents, sessions: &Sessions) {
        let mut state = self.state();
        state.update_after(UPDATE_INTERVAL, Purpose::History, agents, sessions);
        let saved_at = *state.saved_at.get_or_insert_with(Instant::now);
        if saved_at.elapsed() >= SAVE_INTERVAL {
            state.saved_at = Some(Instant::now());
            self.save(&state);
        }
    }

    /// Saves the histories, at the end of the server. Short ones are not worth a file.
    pub fn end(&self) {
        let state = self.state();
        let mut processes = state.processes.values();
        if processes.any(|process| process.history.spaced().len() > 1) {
            self.save(&state);
        }
    }

    fn save(&self, state: &State) {
        let histories = state.processes.iter();
        let histories = histories.map(|(key, process)| (*key, &process.history));
        // Without a file, the next server begins without histories. That is not worth a message
        // every minute.
        let _ = self.file.write(histories);
    }
}

impl State {
    /// Updates the list if the last update is older than `age`, or lacks the rows.
    fn update_after(
        &mut self,
        age: Duration,
        purpose: Purpose,
        agents: &Agents,
        sessions: &Sessions,
    ) {
        let lacks_rows = purpose == Purpose::Client && !self.has_rows;
        if lacks_rows
            || self
                .updated_at
                .is_none_or(|updated| updated.elapsed() >= age)
        {
            self.update(purpose, agents, sessions);
            self.updated_at = Some(Instant::now());
            self.has_rows = purpose == Purpose::Client;
        }
    }

    fn update(&mut self, purpose: Purpose, agents: &Agents, sessions: &Sessions) {
        self.version += 1;
        self.encoded_list = None;
        self.search(purpose, agents);
        let ended = self.observe(purpose, sessions);
        if !ended.is_empty() {
            // Some of the ended processes have left a profile.
            self.partial_scan(agents, &ended);
            self.observe(purpose, sessions);
        }
        let excess = self.removed.len().saturating_sub(MAX_REMOVED);
        self.removed.drain(..excess);
    }

    /// Adds a point to each history, and makes the rows for a client. Returns the processes that
    /// have ended.
    fn observe(&mut self, purpose: Purpose, sessions: &Sessions) -> Vec<Key> {
        let mut head = Head::new();
        let mut without_row = Vec::new();
        let mut ended = Vec::new();
        let processes = self.processes.values();
        let sampled = processes.filter(|process| process.is_sampled()).count();
        let parts = match purpose {
            // The first update for a client examines all processes.
            Purpose::Client if !self.has_rows => 1,
            Purpose::Client => self.processes.len().div_ceil(MAX_QUIET_PER_UPDATE),
            Purpose::History => self
                .processes
                .len()
                .div_ceil(MAX_QUIET_PER_UPDATE)
                .min(MAX_IDLE_PARTS),
        };
        let turn = self.version as usize;
        let now_ms = now_ns() / 1_000_000;
        for (index, (key, process)) in self.processes.iter_mut().enumerate() {
            if process.is_quiet(self.version) {
                let has_turn = (index + turn).is_multiple_of(parts.max(1));
                if !(has_turn || process.is_overdue(now_ms)) || process.push_if_unchanged() {
                    continue;
                }
            }
            let Some(row) = process.observe(&mut head, sampled, self.version) else {
                without_row.push(*key);
                continue;
            };
            if process.agent.life == Life::Running && row.rss_bytes.is_none() {
                ended.push(*key);
            }
            if purpose == Purpose::Client {
                let groups = process.lister.groups();
                let memory = groups.and_then(|groups| cached_memory(&mut self.groups, groups));
                process.update_row(row, memory, sessions, self.version);
            }
        }
        for key in without_row {
            self.remove(key);
        }
        ended
    }

    /// Searches for processes, if a search is due.
    fn search(&mut self, purpose: Purpose, agents: &Agents) {
        let intervals = match purpose {
            Purpose::History => IDLE_SCAN_INTERVALS,
            Purpose::Client => SCAN_INTERVALS,
        };
        // Among thousands of processes, a search costs more than an update.
        let interval = intervals.partial.max(self.search_cost * SEARCH_COST_FACTOR);
        let is_due = self.last_scan.is_none_or(|last| last.elapsed() >= interval);
        if !self.had_full_scan || is_due && self.has_replaced_program() {
            self.full_scan(agents);
        } else if is_due {
            let rechecked = self.keys_to_recheck(intervals.parts());
            self.partial_scan(agents, &rechecked);
            self.tidy();
        } else if self.has_new_segments(agents) {
            self.partial_scan(agents, &[]);
        }
    }

    /// Returns the known processes that this search examines once more: one of `parts` parts of
    /// them.
    fn keys_to_recheck(&mut self, parts: u64) -> Vec<Key> {
        self.partial_scans += 1;
        let turn = self.partial_scans;
        let keys = self.processes.keys().copied();
        let is_due = |key: &Key| (u64::from(key.pid.unsigned_abs()) + turn).is_multiple_of(parts);
        keys.filter(is_due).collect()
    }

    /// Forgets what is not needed any more.
    fn tidy(&mut self) {
        self.groups
            .retain(|_, group| group.read.elapsed() < GROUP_READ_INTERVAL);
        // Each search may add `MAX_ENDED` ended processes.
        let processes = self.processes.iter();
        let ended = processes.filter(|(_, process)| process.agent.life == Life::Dead);
        let mut ended: Vec<Key> = ended.map(|(key, _)| *key).collect();
        ended.sort_unstable_by_key(|key| Reverse(key.created_ns));
        for key in ended.into_iter().skip(MAX_ENDED) {
            self.remove(key);
        }
    }

    /// Returns true if the shared directory has segments that the last search did not find. Does
    /// not read the names if the directory has not changed.
    fn has_new_segments(&mut self, agents: &Agents) -> bool {
        let changed_at = agents.settled_at();
        if changed_at.is_some() && changed_at == self.names_complete_at {
            return false;
        }
        let has_new = agents.has_new(&self.names);
        self.names_complete_at = changed_at.filter(|_| !has_new);
        has_new
    }

    /// Returns true if a process of the list executes another program than at the last scan.
    /// Examines only processes whose memory has changed, as an exec changes it.
    fn has_replaced_program(&self) -> bool {
        let mut changed = self.processes.values().filter(|process| {
            process.agent.life == Life::Running && process.was_active_since(self.last_scan_version)
        });
        changed.any(|process| proc::executable(process.agent.pid) != process.executable)
    }

    /// Searches for unknown segments, and examines those of the processes `rechecked` once more.
    fn partial_scan(&mut self, agents: &Agents, rechecked: &[Key]) {
        let start = Instant::now();
        self.last_scan = Some(start);
        self.last_scan_version = self.version;
        self.names = agents.names();
        let mut missing: HashSet<Key> = rechecked.iter().copied().collect();
        let known = self
            .processes
            .iter()
            .filter(|(key, _)| !missing.contains(key));
        let known: Vec<&Agent> = known.map(|(_, process)| &process.agent).collect();
        let scan = agents.scan_except(&known);
        let unseen = self
            .processes
            .iter()
            .filter(|(_, process)| !scan.still_known.contains(&process.agent.entry));
        // The scan finds rechecked processes again, if they still exist.
        missing.extend(unseen.map(|(key, _)| *key));
        let mut found_exec = false;
        let places_left = MAX_PROCESSES.saturating_sub(self.processes.len()) + rechecked.len();
        for agent in scan.agents.take(places_left) {
            let key = Key::of(&agent);
            missing.remove(&key);
            found_exec |= self.processes.iter().any(|(known, process)| {
                let is_running = process.agent.life == Life::Running;
                known.pid == key.pid && *known != key && is_running
            });
            self.add(agent);
        }
        for key in missing {
            self.remove(key);
        }
        self.search_cost = start.elapsed();
        if found_exec {
            self.full_scan(agents);
        }
    }

    /// Examines all segments.
    fn full_scan(&mut self, agents: &Agents) {
        let start = Instant::now();
        self.had_full_scan = true;
        self.last_scan = Some(start);
        self.last_scan_version = self.version;
        self.names = agents.names();
        let mut missing: HashSet<Key> = self.processes.keys().copied().collect();
        for agent in agents.all_and_ended().take(MAX_PROCESSES) {
            missing.remove(&Key::of(&agent));
            self.add(agent);
        }
        for key in missing {
            self.remove(key);
        }
        // The remaining histories belong to processes that have ended.
        self.restored.clear();
        self.tidy();
        self.search_cost = start.elapsed();
    }

    /// Adds a process that was found, or updates it if it is known.
    fn add(&mut self, agent: Agent) {
        let key = Key::of(&agent);
        if let Some(known) = self.processes.get_mut(&key) {
            known.update_agent(agent);
            return;
        }
        let history = self.restored.remove(&key).unwrap_or_default();
        self.processes
            .insert(key, Process::new(agent, history, self.version));
    }

    fn remove(&mut self, key: Key) {
        if let Some(process) = self.processes.remove(&key) {
            self.removed.push_back((self.version, process.id));
        }
    }

    /// Advances the values in the rows that change as time passes.
    fn advance_time(&mut self) {
        let now_ms = now_ns() / 1_000_000;
        for process in self.processes.values_mut() {
            process.advance_time(now_ms);
        }
    }

    /// Returns a version of the list that a client has, if changes since then are known. A version
    /// of another server, or one that is too old, is of no use.
    fn known_version(&self, since: Option<u64>) -> Option<u64> {
        let forgotten = match self.removed.front() {
            Some((first, _)) if self.removed.len() == MAX_REMOVED => *first,
            _ => 0,
        };
        since.filter(|since| (forgotten..=self.version).contains(since))
    }

    /// Returns the list, or what has changed in it since a known version.
    fn list(&self, since: Option<u64>, settings: Settings) -> List<'_> {
        let now = Time::now();
        let has_changed = |process: &Process| since.is_none_or(|since| process.changed_in > since);
        let changed = self.processes.iter();
        let changed = changed.filter(|(_, process)| has_changed(process));
        let mut rows: Vec<(&Key, &Process)> = changed.collect();
        rows.sort_unstable_by_key(|(key, _)| **key);
        let rows = rows.into_iter().filter_map(|(_, process)| {
            let is_known = since.is_some_and(|since| process.added_in <= since);
            process.row_for_client(now, is_known)
        });
        let gone = self.removed.iter();
        let gone = gone.filter(|(version, _)| since.is_some_and(|since| *version > since));
        List {
            version: self.version,
            whole: since.is_none(),
            now: unix_ms(now, now.ns / 1_000_000),
            count: self.processes.len(),
            processes: rows.collect(),
            gone: gone.map(|(_, id)| id.as_str()).collect(),
            interval: settings.density.interval,
            max_overhead: settings.max_overhead,
            thin: settings.is_thin(),
        }
    }
}

/// Returns the memory of control groups. Caches it, since many processes share their groups.
fn cached_memory(
    cache: &mut HashMap<Membership, GroupMemory>,
    groups: &Membership,
) -> Option<Memory> {
    let before = cache.get(groups);
    if let Some(group) = before.filter(|group| group.read.elapsed() < GROUP_READ_INTERVAL) {
        return group.memory;
    }
    let now = groups.memory();
    let is_close = |before: &Memory, now: &Memory| {
        let limit = now.limit.unwrap_or(0);
        before.limit == now.limit
            && before.current.abs_diff(now.current) < limit / GROUP_STEP_DIVISOR
    };
    let before = before.and_then(|group| group.memory);
    let memory = match before.zip(now) {
        Some((before, now)) if is_close(&before, &now) => Some(before),
        _ => now,
    };
    let group = GroupMemory {
        read: Instant::now(),
        memory,
    };
    cache.insert(groups.clone(), group);
    memory
}
