//! Describes the processes with the agent for the `list` command: identity, state, memory.

use std::time::{Duration, Instant};

use proc::Resident;
use serde::Serialize;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use crate::cgroup::Membership;
use crate::discovery::{Agent, Life};
use crate::interpreted;
use crate::process;
use crate::segment::Head;
use crate::target::{
    Deadline, Error, is_running, is_sandboxed_unnoticed, stated_obstacle, uncollected,
    uncollected_cpu_session,
};
use crate::text;

/// Row of the list.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Pid as we see it.
    pub pid: i32,
    /// Short name.
    pub name: String,
    /// User name.
    pub user: String,
    /// User id.
    pub uid: u32,
    /// Container; `None` if the process is in none.
    pub container: Option<String>,
    /// Version of the process's agent.
    pub agent_version: String,
    /// CPython in the process: version, and whether its lines are named.
    pub python: Option<String>,
    /// State of the process and its session.
    pub state: &'static str,
    /// Sampling interval in bytes, while a session runs.
    pub interval: Option<u64>,
    /// True if the interval has changed during the session.
    #[serde(skip)]
    pub interval_changed: bool,
    /// Seconds left of a session with a fixed end.
    pub seconds_left: Option<f64>,
    /// True if the session runs until it is stopped.
    pub open_end: bool,
    /// True if the controller that started the session is gone, so that nobody ends the session or
    /// writes its profile.
    pub unattended: bool,
    /// Number of samples of the last session.
    pub samples: u64,
    /// Best known value of the bytes in use.
    pub live_bytes: Option<u64>,
    /// Source of `live_bytes`.
    pub live_source: Option<&'static str>,
    /// True if every allocation since the session began was sampled.
    #[serde(skip)]
    pub is_exact: bool,
    /// Age of `live_bytes` in seconds.
    pub live_age_seconds: Option<f64>,
    /// Resident memory in bytes; `None` if the process has exited.
    pub rss_bytes: Option<u64>,
    /// Path of the segment.
    pub segment: String,
}

/// Interval between readings of the facts that seldom change.
const FACTS_INTERVAL: Duration = Duration::from_secs(180);

/// Facts about a process that seldom change, and cost several reads of `/proc`.
struct Facts {
    read: Instant,
    groups: Membership,
    container: Option<String>,
    /// True if a seccomp filter prevents sessions, and the agent has not noticed it.
    is_sandboxed_unnoticed: bool,
}

impl Facts {
    fn of(agent: &Agent, header: &Header<'_>) -> Self {
        let groups = Membership::of(agent.pid);
        Self {
            read: Instant::now(),
            container: groups.container(),
            groups,
            is_sandboxed_unnoticed: stated_obstacle(header).is_none()
                && is_sandboxed_unnoticed(agent, header),
        }
    }
}

/// Builds the rows of one process repeatedly. Keeps what seldom changes, so later rows are cheaper.
#[derive(Default)]
pub struct Lister {
    resident: Option<Resident>,
    facts: Option<Facts>,
}

/// Returns the row of a process, or `None` if its segment cannot be read.
pub fn row(agent: &Agent, head: &mut Head) -> Option<Row> {
    Lister::default().row(agent, head)
}

impl Lister {
    /// Returns the resident memory of the process, or `None` if it has exited.
    pub fn resident_bytes(&mut self, pid: i32) -> Option<u64> {
        if self.resident.is_none() {
            self.resident = Resident::new(pid);
        }
        self.resident.as_ref()?.bytes()
    }

    /// Returns the control groups of the process as of the latest row.
    pub fn groups(&self) -> Option<&Membership> {
        self.facts.as_ref().map(|facts| &facts.groups)
    }

    /// Returns the row of a process, or `None` if its segment cannot be read. Each call must be for
    /// the same process.
    pub fn row(&mut self, agent: &Agent, head: &mut Head) -> Option<Row> {
        let header = agent.segment.head(head).ok()?;
        let is_alive = agent.life == Life::Running;
        let session_runs = is_alive && is_running(&header);
        let session = if session_runs { header.session() } else { None };
        let unattended = session.is_some_and(|session| is_unattended(agent, &session));
        let end = session.map(|s| Deadline::of(s.deadline_ns));
        let sampled = SampleSums::of(agent, &header);
        // The samples show the present state while the session runs, and a dead process's last
        // state.
        let shown_sums = sampled.as_ref().filter(|_| session_runs || !is_alive);
        let interval = session.map(|session| match &sampled {
            Some(sampled) => sampled.interval,
            None => session.interval,
        });
        let heap = LiveEstimate::of(&header, is_alive, shown_sums);
        let rss_bytes = if is_alive {
            self.resident_bytes(agent.pid)
        } else {
            None
        };
        let is_old = |facts: &Facts| facts.read.elapsed() >= FACTS_INTERVAL;
        if is_alive && self.facts.as_ref().is_none_or(is_old) {
            self.facts = Some(Facts::of(agent, &header));
        }
        let facts = self.facts.as_ref().filter(|_| is_alive);
        let obstacle = stated_obstacle(&header).or_else(|| {
            let is_sandboxed = facts.is_some_and(|facts| facts.is_sandboxed_unnoticed);
            is_sandboxed.then_some(Error::Sandboxed)
        });
        Some(Row {
            pid: agent.pid,
            name: text::escape(&agent.name),
            user: process::user_name(agent.uid),
            uid: agent.uid,
            container: facts.and_then(|facts| facts.container.clone()),
            agent_version: text::escape(header.agent_version()),
            python: interpreted::describe(&header),
            state: state(agent, &header, session_runs, obstacle),
            interval: interval.filter(|bytes| *bytes != 0),
            interval_changed: (sampled.as_ref())
                .is_some_and(|sampled| sampled.widest != sampled.interval),
            seconds_left: match end {
                Some(Deadline::At(ns)) => Some(seconds_to(ns)),
                // Without its controller, nobody extends the session.
                Some(Deadline::Rolling(ns)) if unattended => Some(seconds_to(ns)),
                _ => None,
            },
            open_end: match end {
                Some(Deadline::Rolling(_)) => !unattended,
                end => end == Some(Deadline::Never),
            },
            unattended,
            samples: sampled.as_ref().map_or(0, |sampled| sampled.samples),
            live_bytes: heap.as_ref().map(|heap| heap.bytes),
            live_source: heap.as_ref().map(|heap| heap.source),
            is_exact: shown_sums.is_some_and(|sums| sums.widest == 1),
            live_age_seconds: heap.as_ref().map(|heap| heap.age_ns as f64 / 1e9),
            rss_bytes,
            segment: text::path(agent.segment.path()),
        })
    }
}

fn seconds_to(ns: u64) -> f64 {
    ns.saturating_sub(crate::clock::now_ns()) as f64 / 1e9
}

/// Returns true if nobody attends a session that a controller or `run` has started.
pub fn is_unattended(agent: &Agent, session: &Session) -> bool {
    let is_orphan = match session.controller_pid {
        // The process started the session itself, as `run` makes it do.
        0 => agent.segment.directory.is_run_alive() == Some(false),
        _ => true,
    };
    is_orphan && !agent.segment.is_locked()
}

impl Row {
    /// Returns a hint about an unattended session: when it ends, and how to write its profile.
    pub fn hint(&self) -> Option<String> {
        let left = self.seconds_left.map(Duration::from_secs_f64);
        let goes_on = match left {
            Some(left) => format!("for {}", text::duration(left)),
            None => "until it is stopped".to_owned(),
        };
        let name = &self.name;
        let pid = self.pid;
        self.unattended.then(|| {
            format!(
                "{name} ({pid}): the mem_profiler that began its session is gone; the session \
                 continues {goes_on}: mem_profiler stop -p {pid} writes it"
            )
        })
    }

    /// Returns true if the process runs or has left a profile.
    pub fn is_useful(&self) -> bool {
        !["dead", "replaced"].contains(&self.state)
    }
}

/// Best known value of the bytes in use.
struct LiveEstimate {
    bytes: u64,
    source: &'static str,
    age_ns: u64,
}

impl LiveEstimate {
    /// Chooses between the allocator's own figure and the sum of the samples. The allocator's
    /// figure is updated once a second by a thread that takes a sample, and shown with its age if
    /// older. During a session, the samples replace an outdated figure if they cover the whole heap
    /// or exceed the figure, and a newer figure if they exceed it by more than chance. Without an
    /// allocator's figure, the samples are used if they cover the whole heap, or if the figure will
    /// never exist.
    fn of(header: &Header<'_>, is_alive: bool, session_sums: Option<&SampleSums>) -> Option<Self> {
        let now = crate::clock::now_ns();
        let stats = if is_alive {
            header.allocator_stats()
        } else {
            None
        };
        let allocator = stats.map(|(taken_ns, stats)| Self {
            bytes: stats[0].1,
            source: ALLOCATOR,
            age_ns: now.saturating_sub(taken_ns),
        });
        let interval = session_sums.map_or(0, |sums| sums.widest);
        let sampled = session_sums.map(|sums| Self {
            bytes: sums.live_bytes,
            source: SAMPLES,
            age_ns: 0,
        });
        let session = header.session();
        let covers_heap =
            session.is_some_and(|s| s.start_ns.saturating_sub(header.created_ns()) < STALE_NS);
        match (allocator, sampled) {
            (Some(a), Some(s)) if a.age_ns > STALE_NS && is_running(header) => {
                Some(if covers_heap || s.bytes > a.bytes {
                    s
                } else {
                    a
                })
            }
            // More is in use than at the time of the allocator's figure.
            (Some(a), Some(s))
                if is_running(header) && s.bytes > a.bytes + max_chance_excess(interval, &s) =>
            {
                Some(s)
            }
            (Some(a), _) => Some(a),
            // Objects allocated before the session are in no sample, so the sum would be only a
            // part of the heap.
            (None, Some(s))
                if is_alive && !covers_heap && !(header.system_allocator() && s.bytes > 0) =>
            {
                None
            }
            (None, sampled) => sampled,
        }
    }
}

/// Returns by how many bytes an estimate may exceed the true value by chance: three standard errors
/// of objects that are small compared with the interval.
fn max_chance_excess(interval: u64, sampled: &LiveEstimate) -> u64 {
    (3.0 * (interval as f64 * sampled.bytes as f64).sqrt()) as u64
}

/// Age above which the allocator's figure counts as outdated, in ns.
pub const STALE_NS: u64 = 3_000_000_000;
/// Source: the allocator, which counts the whole heap.
const ALLOCATOR: &str = "allocator";
/// Source: samples, which estimate what was allocated since the session's start and is in use.
pub const SAMPLES: &str = "samples";

/// Sums over the samples of the last session.
struct SampleSums {
    samples: u64,
    live_bytes: u64,
    /// Mean bytes between samples now, or at the session's end. Changes during sessions with a
    /// limit on the cost.
    interval: u64,
    /// Largest interval of the session.
    widest: u64,
}

impl SampleSums {
    /// Reads the sums, if the session's data exist.
    fn of(agent: &Agent, header: &Header<'_>) -> Option<Self> {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let session = header.profiled()?;
        let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
        let totals = bank.totals();
        let intervals: Vec<u64> = bank.intervals().map(|period| period.interval).collect();
        (bank.session() == session.number).then(|| Self {
            samples: totals.samples,
            live_bytes: totals.live_bytes as u64,
            interval: intervals.last().copied().unwrap_or(session.interval),
            widest: intervals.into_iter().fold(session.interval, u64::max),
        })
    }
}

fn state(
    agent: &Agent,
    header: &Header<'_>,
    session_runs: bool,
    obstacle: Option<Error>,
) -> &'static str {
    let is_alive = agent.life == Life::Running;
    let kept =
        uncollected(agent, header).is_some() || uncollected_cpu_session(agent, header).is_some();
    match obstacle.filter(|_| is_alive) {
        Some(Error::Musl) => return "not sampled: musl",
        Some(Error::Sanitizer) => return "not sampled: sanitizer",
        Some(Error::Sandboxed) => return "not sampled: seccomp",
        _ => {}
    }
    match (agent.life, session_runs, kept) {
        (Life::Running, true, _) => "sampling",
        (Life::Running, false, true) => "idle, profile kept",
        (Life::Running, false, false) => "idle",
        (Life::Replaced, _, true) => "replaced, profile kept",
        (Life::Replaced, _, false) => "replaced",
        (Life::Dead, _, true) => "dead, profile kept",
        (Life::Dead, _, false) => "dead",
    }
}
