//! Profiles of earlier moments of running sessions, which the live page compares with each other
//! and with the present.
//!
//! Some are taken when a user marks a moment. Others are taken at intervals, during sessions that
//! this server has started and of processes whose page a user is watching. Their interval doubles
//! whenever their space is used up. Snapshots are files in a temporary directory of this server,
//! which is removed at its end.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mem_agents::clock::Time;
use mem_agents::discovery::Agent;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::job;
use crate::process_list::ListedProcess;
use crate::reply::{Reply, Step};
use crate::sources::Sources;
use crate::writing::{Form, ProfileWrite, WriteSpec, Written};

/// File of a snapshot while it is taken.
const FILE: &str = "moment.heap.gz";
/// Initial interval between the snapshots of a process.
const FIRST_INTERVAL: Duration = Duration::from_secs(30);
/// Reciprocal of the maximum share of time that is spent on snapshots at intervals. Applies to each
/// process, and to all processes together.
const COST_RECIPROCAL: u32 = 50;
/// Maximum time without snapshots for which others may be taken in a row afterwards.
const MAX_CREDIT: Duration = Duration::from_secs(10);
/// Time for which a process counts as watched after its page has been updated.
const WATCHED_FOR: Duration = Duration::from_secs(60);
/// Maximum number of snapshots of a process that were taken at intervals.
const MAX_SPACED: usize = 24;
/// Maximum number of marks of a process.
const MAX_MARKS: usize = 16;
/// Maximum size of all snapshots, in bytes.
const MAX_BYTES: u64 = 128 << 20;

/// The snapshots of all processes.
pub struct Snapshots {
    directory: Option<TempDir>,
    state: Mutex<State>,
}

struct State {
    /// By device and inode of the segment's file.
    series: HashMap<(u64, u64), Series>,
    /// Number of snapshots taken so far.
    taken: u64,
    /// Time before which no snapshot at an interval is taken, since earlier ones have used their
    /// share of the time.
    rest_until: Instant,
}

impl Default for State {
    fn default() -> Self {
        Self {
            series: HashMap::new(),
            taken: 0,
            rest_until: Instant::now(),
        }
    }
}

/// Snapshots of the last session of a process.
struct Series {
    session: u64,
    snapshots: Vec<Snapshot>,
    interval: Duration,
    /// Time at which the next snapshot is due.
    due: Instant,
    /// Time at which a user last looked at the process.
    watched_at: Option<Instant>,
    /// True once the process was in the list. Only then does its absence mean that it has gone.
    is_listed: bool,
}

/// Profile of one moment.
struct Snapshot {
    id: u64,
    /// Time of the segment's clock, in ns.
    at_ns: u64,
    live_bytes: f64,
    /// Size of the file.
    bytes: u64,
    is_mark: bool,
    path: PathBuf,
}

impl Drop for Snapshot {
    fn drop(&mut self) {
        // The directory is removed at the end in any case.
        let _ = std::fs::remove_file(&self.path);
    }
}

impl Series {
    fn new(session: u64) -> Self {
        Self {
            session,
            snapshots: Vec::new(),
            interval: FIRST_INTERVAL,
            due: Instant::now(),
            watched_at: None,
            is_listed: false,
        }
    }

    /// Removes snapshots beyond the limits: every second one of those at intervals, and the oldest
    /// mark.
    fn thin(&mut self) {
        let spaced = self
            .snapshots
            .iter()
            .filter(|snapshot| !snapshot.is_mark)
            .count();
        if spaced > MAX_SPACED {
            let mut number = 0;
            self.snapshots.retain(|snapshot| {
                number += usize::from(!snapshot.is_mark);
                snapshot.is_mark || number % 2 == 1
            });
            self.interval *= 2;
        }
        let marks = self
            .snapshots
            .iter()
            .filter(|snapshot| snapshot.is_mark)
            .count();
        if marks > MAX_MARKS
            && let Some(oldest) = self.snapshots.iter().position(|snapshot| snapshot.is_mark)
        {
            self.snapshots.remove(oldest);
        }
    }
}

/// File for a new snapshot.
struct SnapshotFile {
    id: u64,
    path: PathBuf,
}

/// A snapshot that is being taken.
pub struct PendingSnapshot {
    write: ProfileWrite,
    directory: Arc<TempDir>,
    snapshots: Arc<Snapshots>,
    agent: Agent,
    is_mark: bool,
    start: Instant,
}

impl PendingSnapshot {
    /// Begins to take a snapshot of the running session of a process.
    pub fn begin(
        snapshots: &Arc<Snapshots>,
        sources: &Sources,
        agent: Agent,
        is_mark: bool,
    ) -> Result<Self, Reply> {
        let start = Instant::now();
        let directory = job::directory()?;
        let spec = WriteSpec {
            trigger: "a moment on the live page",
            file: FILE,
            form: Form::Gzip,
            must_run: true,
            since: None,
        };
        Ok(Self {
            write: ProfileWrite::begin(sources, &agent, spec, &directory)?,
            directory,
            snapshots: Arc::clone(snapshots),
            agent,
            is_mark,
            start,
        })
    }

    /// Continues with the snapshot as JSON.
    pub fn then(self, next: impl FnOnce(Value) -> Result<Step, Reply> + Send + 'static) -> Step {
        let Self {
            write,
            directory,
            snapshots,
            agent,
            is_mark,
            start,
        } = self;
        write.then(move |written| {
            let file = snapshots.reserve_file()?;
            let snapshot = file.store(&directory.path().join(FILE), written, is_mark)?;
            next(snapshots.add(snapshot, &agent, written.session, start))
        })
    }

    /// Waits until the snapshot is taken.
    fn wait(self) -> Result<(), Reply> {
        let written = self.write.wait()?;
        let snapshots = &self.snapshots;
        let file = self.directory.path().join(FILE);
        let snapshot = snapshots
            .reserve_file()?
            .store(&file, written, self.is_mark)?;
        snapshots.add(snapshot, &self.agent, written.session, self.start);
        Ok(())
    }
}

impl SnapshotFile {
    /// Moves a file here, which completes the snapshot.
    fn store(self, file: &Path, written: Written, is_mark: bool) -> Result<Snapshot, Reply> {
        let failed = |error: std::io::Error| Reply::temporary_file_error(&error);
        std::fs::rename(file, &self.path).map_err(failed)?;
        let metadata = self.path.metadata().map_err(failed)?;
        Ok(Snapshot {
            id: self.id,
            at_ns: written.at_ns,
            live_bytes: written.live_bytes,
            bytes: metadata.len(),
            is_mark,
            path: self.path,
        })
    }
}

impl Snapshots {
    /// Creates an empty set. Without a directory for temporary files, no snapshot can be taken.
    pub fn new() -> Self {
        Self {
            directory: tempfile::tempdir().ok(),
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a snapshot whose file is complete, and returns it as JSON.
    fn add(&self, snapshot: Snapshot, agent: &Agent, session: u64, start: Instant) -> Value {
        let json = snapshot.to_json(Time::now());
        let mut state = self.state();
        let series = state.series.entry(agent.file);
        let series = series.or_insert_with(|| Series::new(session));
        if series.session != session {
            *series = Series {
                watched_at: series.watched_at,
                is_listed: series.is_listed,
                ..Series::new(session)
            };
        }
        series.snapshots.push(snapshot);
        series.thin();
        series.due = start + series.interval.max(start.elapsed() * COST_RECIPROCAL);
        state.limit_size();
        json
    }

    /// Returns the path of a new snapshot, and its number.
    fn reserve_file(&self) -> Result<SnapshotFile, Reply> {
        let directory = self.directory.as_ref();
        let missing = || Reply::refusal(503, "this server has no temporary directory");
        let directory = directory.ok_or_else(missing)?;
        let mut state = self.state();
        state.taken += 1;
        Ok(SnapshotFile {
            id: state.taken,
            path: directory.path().join(format!("{}.heap.gz", state.taken)),
        })
    }

    /// Returns the snapshots of a process as JSON, and records that a user is watching it.
    pub fn list(&self, process: ListedProcess) -> Value {
        let mut state = self.state();
        let series = state.series.entry(process.file);
        let series = series.or_insert_with(|| Series::new(0));
        series.watched_at = Some(Instant::now());
        let now = Time::now();
        series
            .snapshots
            .iter()
            .map(|snapshot| snapshot.to_json(now))
            .collect()
    }

    /// Returns the open file of a snapshot, which stays readable if the snapshot is removed.
    pub fn open(&self, agent: &Agent, id: u64) -> Result<File, Reply> {
        let state = self.state();
        let series = state.series.get(&agent.file);
        let snapshot = series.and_then(|series| {
            let mut snapshots = series.snapshots.iter();
            snapshots.find(|snapshot| snapshot.id == id)
        });
        let file = snapshot.and_then(|snapshot| File::open(&snapshot.path).ok());
        file.ok_or_else(|| {
            let why = "this moment is not kept any more: choose another one, or reload the page";
            Reply::refusal(404, format!("{}: {why}", agent.title()))
        })
    }

    /// Takes the snapshots that are due, and forgets processes that have gone.
    pub fn tick(self: &Arc<Self>, sources: &Sources) {
        let due = self.due_processes(sources);
        if due.is_empty() {
            return;
        }
        for agent in sources
            .agents
            .all()
            .filter(|agent| due.contains(&agent.file))
        {
            let start = Instant::now();
            if start < self.state().rest_until {
                return;
            }
            let file = agent.file;
            let taken =
                PendingSnapshot::begin(self, sources, agent, false).and_then(PendingSnapshot::wait);
            if taken.is_err() {
                // No session is running, or it cannot be read now.
                let mut state = self.state();
                if let Some(series) = state.series.get_mut(&file) {
                    series.due = Instant::now() + FIRST_INTERVAL / 10;
                }
            }
            let mut state = self.state();
            let debt = state
                .rest_until
                .max(start.checked_sub(MAX_CREDIT).unwrap_or(start));
            state.rest_until = debt + start.elapsed() * COST_RECIPROCAL;
        }
    }

    /// Returns the processes whose snapshots are due, and forgets those that have gone.
    fn due_processes(&self, sources: &Sources) -> HashSet<(u64, u64)> {
        let mut state = self.state();
        if state.series.is_empty() && !sources.sessions.has_any() {
            return HashSet::new();
        }
        let running = sources.process_list.running();
        let mut due = HashSet::new();
        for process in &running {
            let is_ours = sources.sessions.is_own_session(process.key.pid);
            if is_ours {
                let series = state.series.entry(process.file);
                series.or_insert_with(|| Series::new(0));
            }
            let is_due = |series: &Series| {
                let is_watched = series
                    .watched_at
                    .is_some_and(|time| time.elapsed() < WATCHED_FOR);
                (is_ours || is_watched) && Instant::now() >= series.due
            };
            if state.series.get(&process.file).is_some_and(is_due) {
                due.insert(process.file);
            }
        }
        let files: HashSet<(u64, u64)> = running.iter().map(|process| process.file).collect();
        state.series.retain(|file, series| {
            let is_listed = files.contains(file);
            let has_gone = series.is_listed && !is_listed;
            series.is_listed |= is_listed;
            !has_gone
        });
        due
    }
}

impl State {
    /// Removes the oldest snapshots until the rest fit into `MAX_BYTES`. Removes marks last.
    fn limit_size(&mut self) {
        loop {
            let all = self.series.values().flat_map(|series| &series.snapshots);
            let total: u64 = all.clone().map(|snapshot| snapshot.bytes).sum();
            let oldest = all.min_by_key(|snapshot| (snapshot.is_mark, snapshot.id));
            let Some(oldest) = oldest.map(|snapshot| snapshot.id) else {
                return;
            };
            if total <= MAX_BYTES {
                return;
            }
            for series in self.series.values_mut() {
                series.snapshots.retain(|snapshot| snapshot.id != oldest);
            }
        }
    }
}

impl Snapshot {
    fn to_json(&self, now: Time) -> Value {
        json!({
            "id": self.id,
            "at": now.at(self.at_ns).unix_ns / 1_000_000,
            "live_bytes": self.live_bytes,
            "is_mark": self.is_mark,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn add(series: &mut Series, id: u64, is_mark: bool) {
        series.snapshots.push(Snapshot {
            id,
            at_ns: id,
            live_bytes: 0.0,
            bytes: 10 << 20,
            is_mark,
            path: PathBuf::new(),
        });
        series.thin();
    }

    #[test]
    fn snapshots_of_a_long_session_are_spread_over_it() {
        let mut series = Series::new(1);
        for id in 0..1000 {
            // Adds only snapshots that are due by the interval, which has doubled.
            let spacing = series.interval.as_secs() / FIRST_INTERVAL.as_secs();
            if id % spacing == 0 {
                add(&mut series, id, false);
            }
        }
        let ids: Vec<u64> = series
            .snapshots
            .iter()
            .map(|snapshot| snapshot.id)
            .collect();
        assert!(ids.len() <= MAX_SPACED, "{ids:?}");
        assert!(ids[0] == 0 && ids[ids.len() - 1] > 900, "{ids:?}");
        let widest = ids.windows(2).map(|two| two[1] - two[0]).max().unwrap();
        assert!(widest <= 128, "{ids:?}");
    }

    #[test]
    fn marks_outlive_snapshots_at_intervals() {
        let mut series = Series::new(1);
        for id in 0..60 {
            add(&mut series, id, id % 10 == 0);
        }
        let is_kept = |id: u64| series.snapshots.iter().any(|snapshot| snapshot.id == id);
        assert!((0..60).step_by(10).all(is_kept));
        for id in 100..130 {
            add(&mut series, id, true);
        }
        let marks = series.snapshots.iter().filter(|snapshot| snapshot.is_mark);
        assert_eq!(marks.count(), MAX_MARKS);
        let mut state = State::default();
        state.series.insert((1, 1), series);
        state.limit_size();
        let all = &state.series[&(1, 1)].snapshots;
        assert!(all.len() as u64 * (10 << 20) <= MAX_BYTES);
        assert!(all.iter().all(|snapshot| snapshot.is_mark));
    }
}
