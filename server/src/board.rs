//! State of the live page: the list of processes, and the memory of each over time. Updated on
//! request, at most once a second however many clients request it, and every few seconds
//! otherwise.

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mem_agents::cgroup::{self, Memory};
use mem_agents::clock::{Time, now_ns};
use mem_agents::discovery::{Agent, Life};
use mem_agents::listing::{self, Row};
use mem_agents::live;
use mem_agents::segment::{Entry, Head};
use mem_agents::text;
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::history::{History, Point};
use crate::history_file::{HistoryFile, Key};
use crate::sessions::Sessions;

/// Maximum age of the list before it is updated for a client.
const MAX_AGE: Duration = Duration::from_millis(900);
/// Interval between updates while no client requests the list.
const UPDATE_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between searches for processes while clients request the list. New segments in the
/// server's own directory, and ends of processes, cause a search at once.
const SCAN_INTERVAL: Duration = Duration::from_secs(10);
/// Interval between searches for processes while no client requests it.
const IDLE_SCAN_INTERVAL: Duration = Duration::from_secs(30);
/// Interval between writes of the histories.
const SAVE_INTERVAL: Duration = Duration::from_secs(60);
/// Interval between reads of a process's memory limit.
const LIMIT_INTERVAL: Duration = Duration::from_secs(15);
/// Number of latest points that rates are computed over.
const RATE_POINTS: usize = 6;
/// Maximum number of points in the list's outline of a process's history.
const OUTLINE_POINTS: usize = 48;
/// Maximum number of sessions remembered for each process.
const MAX_SESSIONS: usize = 32;
/// Maximum length of a command line in the list, in characters.
const MAX_COMMAND: usize = 240;
/// Maximum number of processes remembered as gone, for clients that have not heard of it.
const MAX_GONE: usize = 10_000;
/// Maximum number of processes shown.
pub const MAX_PROCESSES: usize = 4000;
/// Windows over which the growth of the resident memory is given, in ms; the last is all time.
const WINDOWS_MS: [u64; 4] = [60_000, 600_000, 3_600_000, u64::MAX];

/// The list of processes, shared by all clients.
pub struct Board {
    state: Mutex<State>,
    file: HistoryFile,
}

#[derive(Default)]
struct State {
    /// Time of the last update.
    updated: Option<Instant>,
    /// Time of the last search for processes.
    scanned: Option<Instant>,
    /// Names of segments as of that search.
    names: HashSet<Entry>,
    /// Time of the last write of the histories.
    saved: Option<Instant>,
    /// Number of updates so far: the version of the list.
    version: u64,
    processes: HashMap<Key, Process>,
    /// Processes that have gone, and the version without them.
    gone: VecDeque<(u64, String)>,
    /// Histories of an earlier server, of processes that were not seen yet.
    restored: HashMap<Key, History>,
}

/// A process of the list.
struct Process {
    /// The process, with its segment open.
    agent: Agent,
    /// Command line, as of the last scan.
    command: String,
    /// Identity in the list: it differs between processes that use the same pid in turn.
    id: String,
    row: Value,
    /// Times that pass by themselves, which alone do not change the row.
    times: Times,
    /// First version with this process.
    since: u64,
    /// First version with this row.
    changed: u64,
    history: History,
    rates: VecDeque<Totals>,
    sessions: VecDeque<Span>,
    limit: Option<(Instant, Option<Memory>)>,
}

/// Sums of the samples at one time.
#[derive(Clone, Copy)]
struct Totals {
    at_ms: u64,
    session: u64,
    live: f64,
    allocated: f64,
}

/// Time in which a session ran, in ms of the segment's clock.
#[derive(Clone, Copy)]
struct Span {
    number: u64,
    from_ms: u64,
    /// Time when it was last seen to run.
    to_ms: u64,
    interval: u64,
    is_running: bool,
}

/// Points in time, in ms of the segment's clock.
#[derive(Clone, Copy, Default)]
struct Times {
    live: Option<f64>,
    end: Option<f64>,
}

impl Times {
    fn of(row: &Row, now_ms: u64) -> Self {
        let now = now_ms as f64;
        Self {
            live: row.live_age_seconds.map(|age| now - age * 1e3),
            end: row.seconds_left.map(|left| now + left * 1e3),
        }
    }

    /// Returns true if two readings are of the same points in time. The clock has ticks of some
    /// milliseconds.
    fn are_as_in(&self, other: &Self) -> bool {
        let same = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < 500.0,
            (a, b) => a == b,
        };
        same(self.live, other.live) && same(self.end, other.end)
    }
}

impl Board {
    /// Creates a board that keeps histories in this directory.
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

    /// Returns the list as JSON: with `since`, a version of an earlier answer, only the rows that
    /// have changed.
    pub fn read(&self, agents: &Agents, sessions: &Sessions, since: Option<u64>) -> Value {
        let mut state = self.state();
        state.update_after(MAX_AGE, agents, sessions);
        let settings = sessions.settings();
        let mut list = state.list(since);
        list["interval"] = json!(settings.density.interval);
        list["max_overhead"] = json!(settings.max_overhead);
        list["thin"] = json!(settings.is_thin());
        list
    }

    /// Returns the memory of a process over time, and its sessions, as JSON; `None` if it is not in
    /// the list.
    pub fn history(&self, agents: &Agents, sessions: &Sessions, agent: &Agent) -> Option<Value> {
        let mut state = self.state();
        state.update_after(MAX_AGE, agents, sessions);
        let process = state.processes.get(&Key::of(agent))?;
        // Converted by the present system clock, which may have been set since the first point.
        let now = Time::now();
        let spans = process.sessions.iter().map(|span| {
            json!({
                "from": unix_ms(now, span.from_ms),
                "to": (!span.is_running).then(|| unix_ms(now, span.to_ms)),
                "interval": span.interval,
            })
        });
        Some(json!({
            "id": process.id,
            "now": unix_ms(now, now.ns / 1_000_000),
            "points": points(now, process.history.points()),
            "sessions": spans.collect::<Vec<_>>(),
        }))
    }

    /// Adds a point to the histories if no client has caused one for a while, and saves them.
    pub fn tick(&self, agents: &Agents, sessions: &Sessions) {
        let mut state = self.state();
        state.update_after(UPDATE_INTERVAL, agents, sessions);
        let saved = *state.saved.get_or_insert_with(Instant::now);
        if saved.elapsed() >= SAVE_INTERVAL {
            state.saved = Some(Instant::now());
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
        // Without a file, the next server begins anew: not worth a message every minute.
        let _ = self.file.write(histories);
    }
}

impl State {
    /// Updates the list if the last update is older than `age`.
    fn update_after(&mut self, age: Duration, agents: &Agents, sessions: &Sessions) {
        if self.updated.is_none_or(|updated| updated.elapsed() >= age) {
            self.update(agents, sessions);
            self.updated = Some(Instant::now());
        }
    }

    fn update(&mut self, agents: &Agents, sessions: &Sessions) {
        self.version += 1;
        let age = self.scanned.map(|scanned| scanned.elapsed());
        let idle = self
            .updated
            .is_none_or(|updated| updated.elapsed() >= UPDATE_INTERVAL);
        let interval = if idle {
            IDLE_SCAN_INTERVAL
        } else {
            SCAN_INTERVAL
        };
        if age.is_none_or(|age| age >= interval) || self.has_ended() || agents.has_new(&self.names)
        {
            self.scan(agents);
        }
        let mut head = Head::new();
        let mut useless = Vec::new();
        for (key, process) in &mut self.processes {
            let row = listing::row(&process.agent, &mut head);
            match row.filter(|row| process.agent.life != Life::Dead || row.is_of_use()) {
                Some(row) => process.update(&row, &mut head, sessions, self.version),
                None => useless.push(*key),
            }
        }
        for key in useless {
            self.remove(key);
        }
        let excess = self.gone.len().saturating_sub(MAX_GONE);
        self.gone.drain(..excess);
    }

    /// Returns true if a process of the list has ended since the last scan.
    fn has_ended(&self) -> bool {
        self.processes.values().any(|process| {
            let agent = &process.agent;
            agent.life == Life::Running && proc::rss_bytes(agent.pid).is_none()
        })
    }

    /// Finds out which processes there are.
    fn scan(&mut self, agents: &Agents) {
        self.scanned = Some(Instant::now());
        self.names = agents.names();
        let mut before: HashSet<Key> = self.processes.keys().copied().collect();
        for agent in agents.all_and_ended().take(MAX_PROCESSES) {
            let key = Key::of(&agent);
            before.remove(&key);
            if let Some(known) = self.processes.get_mut(&key) {
                known.renew(agent);
                continue;
            }
            let history = self.restored.remove(&key).unwrap_or_default();
            let process = Process::new(agent, history, self.version);
            self.processes.insert(key, process);
        }
        for key in before {
            self.remove(key);
        }
        // What an earlier server knew of processes that have ended.
        self.restored.clear();
    }

    fn remove(&mut self, key: Key) {
        if let Some(process) = self.processes.remove(&key) {
            self.gone.push_back((self.version, process.id));
        }
    }

    fn list(&self, since: Option<u64>) -> Value {
        let now = Time::now();
        // A version of another server, or one that is too old, is of no use.
        let forgotten = match self.gone.front() {
            Some((first, _)) if self.gone.len() == MAX_GONE => *first,
            _ => 0,
        };
        let since = since.filter(|since| (forgotten..=self.version).contains(since));
        let mut rows: Vec<(&Key, &Process)> = self.processes.iter().collect();
        rows.retain(|(_, process)| since.is_none_or(|since| process.changed > since));
        rows.sort_unstable_by_key(|(key, _)| **key);
        let rows = rows.into_iter().map(|(_, process)| {
            let mut row = process.row.clone();
            if since.is_none_or(|since| process.since > since) {
                let outline = process.history.outline(OUTLINE_POINTS);
                row["outline"] = points(now, outline.iter());
            }
            row
        });
        let gone = self.gone.iter();
        let gone = gone.filter(|(version, _)| since.is_some_and(|since| *version > since));
        json!({
            "version": self.version,
            "whole": since.is_none(),
            "now": unix_ms(now, now.ns / 1_000_000),
            "count": self.processes.len(),
            "processes": rows.collect::<Vec<_>>(),
            "gone": gone.map(|(_, id)| id).collect::<Vec<_>>(),
        })
    }
}

impl Process {
    fn new(agent: Agent, history: History, version: u64) -> Self {
        Self {
            command: command(agent.pid),
            id: format!("{}-{}", agent.pid, agent.created_ns),
            agent,
            row: Value::Null,
            times: Times::default(),
            since: version,
            changed: version,
            history,
            rates: VecDeque::new(),
            sessions: VecDeque::new(),
            limit: None,
        }
    }

    /// Takes over what a scan has found of the same process.
    fn renew(&mut self, agent: Agent) {
        self.command = command(agent.pid);
        self.agent = agent;
    }

    /// Adds a point, and makes the row anew.
    fn update(&mut self, row: &Row, head: &mut Head, sessions: &Sessions, version: u64) {
        let at_ms = now_ns() / 1_000_000;
        self.history.push(Point {
            at_ms,
            live: row.live_bytes,
            rss: row.rss_bytes,
        });
        match totals(&self.agent, row, head, at_ms) {
            Some(totals) => self.rates.push_back(totals),
            None => self.rates.clear(),
        }
        if self.rates.len() > RATE_POINTS {
            self.rates.pop_front();
        }
        self.see_session(row, at_ms);
        let is_due = |(read, _): (Instant, _)| read.elapsed() >= LIMIT_INTERVAL;
        if self.limit.is_none_or(is_due) {
            self.limit = Some((Instant::now(), cgroup::memory(self.agent.pid)));
        }
        let next = self.shown(row, sessions);
        let times = Times::of(row, at_ms);
        if !self.times.are_as_in(&times) || !is_same(&self.row, &next) {
            self.changed = version;
            self.times = times;
            self.row = next;
        }
    }

    /// Remembers when sessions ran.
    fn see_session(&mut self, row: &Row, at_ms: u64) {
        let number = self.rates.back().map(|totals| totals.session);
        let running = number.zip(row.interval);
        if let Some(last) = self.sessions.back_mut() {
            last.is_running = running.is_some_and(|(number, _)| number == last.number);
            if last.is_running {
                last.to_ms = at_ms;
            }
        }
        let is_known = self.sessions.back().is_some_and(|last| last.is_running);
        if let Some((number, interval)) = running.filter(|_| !is_known) {
            self.sessions.push_back(Span {
                number,
                from_ms: at_ms,
                to_ms: at_ms,
                interval,
                is_running: true,
            });
            if self.sessions.len() > MAX_SESSIONS {
                self.sessions.pop_front();
            }
        }
    }

    /// Returns the row as clients get it.
    fn shown(&self, row: &Row, sessions: &Sessions) -> Value {
        let mut value = json!(row);
        let (growth, rate) = rates(&self.rates).unzip();
        let settings = sessions.settings_of(row.pid);
        let limit = self.limit.and_then(|(_, memory)| memory);
        let growths = WINDOWS_MS.map(|window| self.history.growth(window));
        value["id"] = json!(self.id);
        value["command"] = json!(self.command);
        value["growth_per_second"] = json!(growth);
        value["alloc_per_second"] = json!(rate);
        value["rss_growth"] = json!(growths.map(|growth| growth.map(|growth| growth.bytes)));
        value["rss_growth_ms"] = json!(growths.map(|growth| growth.map(|growth| growth.span_ms)));
        // Without a limit, it is of no interest, and changes all the time.
        let limited = limit.filter(|memory| memory.limit.is_some());
        value["group_bytes"] = json!(limited.map(|memory| memory.current));
        value["group_limit"] = json!(limit.and_then(|memory| memory.limit));
        let session = self.rates.back().zip(self.sessions.back());
        value["session_live_bytes"] = json!(session.map(|(totals, _)| totals.live));
        // In whole seconds, since two readings of the clocks differ by a few milliseconds.
        let since = session.map(|(_, span)| unix_ms(Time::now(), span.from_ms) / 1000 * 1000);
        value["session_since"] = json!(since);
        value["ours"] = json!(sessions.has(row.pid));
        value["max_overhead"] = json!(settings.and_then(|settings| settings.max_overhead));
        value["thin"] = json!(settings.map(|settings| settings.is_thin()));
        value
    }
}

/// Returns the command line of a process, for display.
fn command(pid: i32) -> String {
    let line = text::escape(&proc::command_line(pid).join(&b' '));
    line.chars().take(MAX_COMMAND).collect()
}

/// Returns the sums of the samples, while a session runs.
fn totals(agent: &Agent, row: &Row, head: &mut Head, at_ms: u64) -> Option<Totals> {
    row.interval?;
    let header = agent.segment.head(head).ok()?;
    let session = live::session_of(agent, &header)?;
    let mut buffer = [0; shm_protocol::layout::BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    let totals = bank.totals();
    Some(Totals {
        at_ms,
        session: session.number,
        live: totals.live_bytes,
        allocated: totals.alloc_bytes,
    })
}

/// Returns the growth and the rate of allocation in bytes per second, by the samples of one session
/// alone: the best value of what is live may come from the allocator in one point and from samples
/// in the next.
fn rates(totals: &VecDeque<Totals>) -> Option<(f64, f64)> {
    let last = totals.back()?;
    let first = totals.iter().find(|first| first.session == last.session)?;
    let seconds = last.at_ms.saturating_sub(first.at_ms) as f64 / 1000.0;
    (seconds > 0.0).then(|| {
        let growth = (last.live - first.live) / seconds;
        let rate = (last.allocated - first.allocated).max(0.0) / seconds;
        (growth, rate)
    })
}

/// Returns true if two rows differ at most in the times that pass by themselves.
fn is_same(before: &Value, now: &Value) -> bool {
    let (Some(before), Some(now)) = (before.as_object(), now.as_object()) else {
        return false;
    };
    let passing = ["live_age_seconds", "seconds_left", "rss_growth_ms"];
    let passes = |key: &str| passing.contains(&key);
    now.iter()
        .all(|(key, value)| passes(key) || before.get(key) == Some(value))
}

fn unix_ms(now: Time, at_ms: u64) -> u64 {
    now.at(at_ms * 1_000_000).unix_ns / 1_000_000
}

/// Returns points as JSON: Unix time in ms, live bytes, resident bytes.
fn points<'a>(now: Time, points: impl Iterator<Item = &'a Point>) -> Value {
    let points = points.map(|point| json!([unix_ms(now, point.at_ms), point.live, point.rss]));
    Value::Array(points.collect())
}
