//! One process of the live page's list: its row, its memory over time, and its sessions.

use std::collections::VecDeque;
use std::time::Instant;

use mem_agents::cgroup::Memory;
use mem_agents::clock::{Time, now_ns};
use mem_agents::discovery::{Agent, Life};
use mem_agents::listing::{Lister, Row, SAMPLES};
use mem_agents::live::{self, Recorded};
use mem_agents::segment::Head;
use mem_agents::snapshot::Snapshot;
use mem_agents::text;
use mem_agents::timeline::{Due, Timeline};
use serde::Serialize;
use serde_json::{Value, json};
use shm_protocol::segment::Session;

use crate::history::{History, Point};
use crate::sessions::{Sessions, TimeLeft};

/// Maximum number of records of a profile that this server builds itself, in some MiB of memory. A
/// child process builds larger ones.
const MAX_OWN_RECORDS: usize = 8192;
/// Maximum number of latest points that rates are computed over.
const MAX_RATE_POINTS: usize = 6;
/// Maximum number of points in the list's outline of a process's history.
const OUTLINE_POINTS: usize = 48;
/// Maximum number of sessions remembered for each process.
const MAX_SESSIONS: usize = 32;
/// Maximum length of a command line in the list, in characters.
const MAX_COMMAND_CHARS: usize = 240;
/// Maximum number of sampled processes for which moments are recorded with stacks. They may take
/// 100 KiB of memory for each process.
const MAX_TIMELINES: usize = 64;
/// Maximum age of live bytes that count as measured now, in ms. The allocator's figure is updated
/// once a second.
const FRESH_MS: u64 = 3000;
/// Number of updates without change after which a process counts as quiet.
const QUIET_VERSIONS: u64 = 4;
/// Maximum age of a process that may be starting up, in ms. Older processes count as quiet when
/// they are found.
const STARTING_MS: u64 = 30_000;
/// Maximum age of a quiet process's latest point, in ms. An older one is followed by another even
/// if the process does not have its turn, so that the history has no gap.
const MAX_POINT_AGE_MS: u64 = 30_000;
/// Maximum age of a quiet process's row while its memory does not change, in ms.
const MAX_ROW_AGE_MS: u64 = 40_000;
/// Half-width of a 95 % confidence interval, in standard errors.
const CONFIDENCE: f64 = 1.96;
/// Windows over which the growth of the resident memory is given, in ms; the last is all time.
const WINDOWS_MS: [u64; 4] = [60_000, 600_000, 3_600_000, u64::MAX];

/// A process of the list.
pub struct Process {
    /// The process, with its segment open.
    pub agent: Agent,
    /// Builds the process's rows.
    pub lister: Lister,
    /// Id in the list. Unlike the pid, it is never reused.
    pub id: String,
    /// Memory over time.
    pub history: History,
    /// First version of the list with this process.
    pub added_in: u64,
    /// First version of the list with this row.
    pub changed_in: u64,
    /// Version in which the memory last changed or a session last ran.
    last_activity: u64,
    /// Moments of the last session.
    pub recorded: Option<Recorded>,
    /// Device and inode of the executable, as of the last scan.
    pub executable: Option<(u64, u64)>,
    /// Command line, as of the last scan.
    command: String,
    row: Option<ClientRow>,
    /// Time at which the row was made, in ms of the segment's clock.
    row_at_ms: u64,
    /// Time of the values in the row that change as time passes, in ms of the segment's clock.
    advanced_at_ms: u64,
    /// Points in time that the row refers to. A row changes if these do, not because time passes.
    event_times: EventTimes,
    /// Latest sums of the running session, from which rates are computed; empty without a session.
    rate_points: VecDeque<RatePoint>,
    sessions: VecDeque<SessionSpan>,
}

/// Row as clients get it.
#[derive(PartialEq, Serialize)]
pub struct ClientRow {
    #[serde(flatten)]
    row: Row,
    id: String,
    command: String,
    /// Growth of the live bytes in the session, in bytes per second.
    growth_per_second: Option<f64>,
    /// Bytes allocated per second in the session.
    alloc_per_second: Option<f64>,
    /// Growth of the resident memory in each window, in bytes.
    rss_growth: [Option<i64>; WINDOWS_MS.len()],
    /// Time over which each growth was measured. Shorter than the window if the history is shorter.
    rss_growth_ms: [Option<u64>; WINDOWS_MS.len()],
    /// Memory of the nearest control group with a limit. `None` without a limit: the value would
    /// change all the time, and is of no interest then.
    group_bytes: Option<u64>,
    group_limit: Option<u64>,
    /// Live bytes that were allocated in the session.
    session_live_bytes: Option<f64>,
    /// Upper bound of the error of `session_live_bytes` at 95 %; `None` if the interval has
    /// changed. Also applies to `live_bytes` if those are from samples.
    session_live_error: Option<f64>,
    /// Start of the session, as Unix time in ms.
    session_since: Option<u64>,
    /// True if the session was started by this server.
    ours: bool,
    /// CPU budget of a session of this server, as a fraction.
    max_overhead: Option<f64>,
    /// Thinning of a session of this server.
    thin: Option<bool>,
}

/// Row in an answer.
#[derive(Serialize)]
pub struct AnswerRow<'a> {
    #[serde(flatten)]
    shown: &'a ClientRow,
    /// A few points of the history, for clients that do not know the process yet.
    #[serde(skip_serializing_if = "Option::is_none")]
    outline: Option<Vec<ClientPoint>>,
}

/// Values of a row that change as time passes.
#[derive(Clone, Copy)]
struct TimeDependent {
    live_age_seconds: Option<f64>,
    seconds_left: Option<f64>,
    rss_growth_ms: [Option<u64>; WINDOWS_MS.len()],
}

impl TimeDependent {
    /// Returns the values after some time.
    fn after(self, ms: u64) -> Self {
        let seconds = ms as f64 / 1e3;
        Self {
            live_age_seconds: self.live_age_seconds.map(|age| age + seconds),
            seconds_left: self.seconds_left.map(|left| (left - seconds).max(0.0)),
            rss_growth_ms: self.rss_growth_ms.map(|span| span.map(|span| span + ms)),
        }
    }
}

impl ClientRow {
    /// Returns the values that change as time passes.
    fn time_dependent(&self) -> TimeDependent {
        TimeDependent {
            live_age_seconds: self.row.live_age_seconds,
            seconds_left: self.row.seconds_left,
            rss_growth_ms: self.rss_growth_ms,
        }
    }

    /// Replaces the values that change as time passes, and returns the earlier ones.
    fn replace_time_dependent(&mut self, passing: TimeDependent) -> TimeDependent {
        let before = self.time_dependent();
        self.row.live_age_seconds = passing.live_age_seconds;
        self.row.seconds_left = passing.seconds_left;
        self.rss_growth_ms = passing.rss_growth_ms;
        before
    }

    /// Returns true if two rows differ at most in values that change as time passes.
    fn is_same(&mut self, other: &mut Self) -> bool {
        let empty = TimeDependent {
            live_age_seconds: None,
            seconds_left: None,
            rss_growth_ms: Default::default(),
        };
        let own_values = self.replace_time_dependent(empty);
        let other_values = other.replace_time_dependent(empty);
        let is_same = self == other;
        self.replace_time_dependent(own_values);
        other.replace_time_dependent(other_values);
        is_same
    }
}

/// Sums of the samples at one time.
#[derive(Clone, Copy)]
struct RatePoint {
    at_ms: u64,
    session: u64,
    live: f64,
    allocated: f64,
}

/// Time in which a session ran, in ms of the segment's clock.
#[derive(Clone, Copy)]
struct SessionSpan {
    number: u64,
    from_ms: u64,
    /// Time when it was last seen to run.
    to_ms: u64,
    interval: u64,
    is_running: bool,
}

/// Points in time, in ms of the segment's clock.
#[derive(Clone, Copy, Default)]
struct EventTimes {
    /// Measurement of the live bytes.
    live: Option<f64>,
    /// End of the session.
    end: Option<f64>,
}

impl EventTimes {
    fn new(row: &Row, now_ms: u64) -> Self {
        let now = now_ms as f64;
        Self {
            live: row.live_age_seconds.map(|age| now - age * 1e3),
            end: row.seconds_left.map(|left| now + left * 1e3),
        }
    }

    /// Returns true if two readings are of the same points in time, but for the resolution of the
    /// clocks.
    fn are_close_to(&self, other: &Self) -> bool {
        let is_close = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => (a - b).abs() < 500.0,
            (a, b) => a == b,
        };
        is_close(self.live, other.live) && is_close(self.end, other.end)
    }
}

impl Process {
    /// Creates an entry for a process, with its known history.
    pub fn new(agent: Agent, history: History, version: u64) -> Self {
        let age_ms = now_ns().saturating_sub(agent.created_ns) / 1_000_000;
        let last_activity = if age_ms < STARTING_MS { version } else { 0 };
        Self {
            executable: proc::executable(agent.pid),
            command: command_line(agent.pid),
            recorded: None,
            id: format!("{}-{}", agent.pid, agent.created_ns),
            lister: Lister::default(),
            agent,
            history,
            added_in: version,
            changed_in: version,
            last_activity,
            row: None,
            row_at_ms: 0,
            advanced_at_ms: 0,
            event_times: EventTimes::default(),
            rate_points: VecDeque::new(),
            sessions: VecDeque::new(),
        }
    }

    /// Updates the entry after a scan that has found the process again.
    pub fn update_agent(&mut self, agent: Agent) {
        self.executable = proc::executable(agent.pid);
        self.command = command_line(agent.pid);
        self.agent = agent;
    }

    /// Reads the present row, adds a point to the history, and returns the row. Returns `None` if
    /// the segment cannot be read or has no profile and no running process. `sampled` is the number
    /// of sampled processes in the list.
    pub fn observe(&mut self, head: &mut Head, sampled: usize, version: u64) -> Option<Row> {
        let row = self.lister.row(&self.agent, head)?;
        if !row.is_useful() {
            return None;
        }
        let at_ms = now_ns() / 1_000_000;
        let last = self.history.last();
        if row.interval.is_some() || last.is_some_and(|last| last.rss != row.rss_bytes) {
            self.last_activity = version;
        }
        let since_last_ms = last.map_or(0, |last| at_ms.saturating_sub(last.at_ms));
        // Live bytes that were measured earlier belong to an earlier point.
        let is_fresh = |age: f64| age * 1e3 <= FRESH_MS.max(since_last_ms) as f64;
        // What an ended process has left is not of this moment.
        if self.agent.life == Life::Running && row.rss_bytes.is_some() {
            self.history.push(Point {
                at_ms,
                live: row
                    .live_bytes
                    .filter(|_| row.live_age_seconds.is_some_and(is_fresh)),
                rss: row.rss_bytes,
            });
        }
        let running = totals(&self.agent, &row, head);
        self.record_session(
            &row,
            running.as_ref().map(|running| &running.session),
            at_ms,
        );
        match running {
            Some(running) => {
                self.record_moment(&running, row.rss_bytes, sampled);
                self.rate_points.push_back(RatePoint {
                    at_ms,
                    session: running.session.number,
                    live: running.totals.live_bytes,
                    allocated: running.totals.alloc_bytes,
                });
            }
            None => self.rate_points.clear(),
        }
        if self.rate_points.len() > MAX_RATE_POINTS {
            self.rate_points.pop_front();
        }
        Some(row)
    }

    /// Adds a point to the history and returns true if the resident memory is unchanged and the row
    /// is not old. Otherwise, [`Process::observe`] is needed, which costs several times as much.
    pub fn push_if_unchanged(&mut self) -> bool {
        let at_ms = now_ns() / 1_000_000;
        let is_old = at_ms.saturating_sub(self.row_at_ms) > MAX_ROW_AGE_MS;
        let last = self.history.last().and_then(|last| last.rss);
        if is_old || last.is_none() || self.lister.resident_bytes(self.agent.pid) != last {
            return false;
        }
        self.history.push(Point {
            at_ms,
            live: None,
            rss: last,
        });
        true
    }

    /// Returns true if the latest point is so old that the history would get a gap.
    pub fn is_overdue(&self, now_ms: u64) -> bool {
        let last = self.history.last();
        let last = last.filter(|_| self.agent.life == Life::Running);
        last.is_some_and(|last| now_ms.saturating_sub(last.at_ms) >= MAX_POINT_AGE_MS)
    }

    /// Makes the next update examine the process, since its session is being started or stopped.
    pub fn expect_change(&mut self, version: u64) {
        self.last_activity = version + 1;
    }

    /// Returns true if nothing has changed for a while.
    pub fn is_quiet(&self, version: u64) -> bool {
        self.row.is_some() && version.saturating_sub(self.last_activity) > QUIET_VERSIONS
    }

    /// Returns true if the memory has changed, or a session was seen, in a version or after it.
    pub fn was_active_since(&self, version: u64) -> bool {
        self.last_activity >= version
    }

    /// Returns true if a session was running at the last observation.
    pub fn is_sampled(&self) -> bool {
        !self.rate_points.is_empty()
    }

    /// Records a moment of the session, if one is due.
    fn record_moment(&mut self, running: &Running, resident: Option<u64>, sampled: usize) {
        let session = &running.session;
        let is_same = |recorded: &Recorded| recorded.session == session.number;
        if !self.recorded.as_ref().is_some_and(is_same) {
            self.recorded = Some(Recorded {
                session: session.number,
                timeline: Timeline::default(),
            });
        }
        let Some(Recorded { timeline, .. }) = &mut self.recorded else {
            return;
        };
        let totals = &running.totals;
        let at_ns = now_ns().saturating_sub(session.start_ns);
        match timeline.due(at_ns, totals, sampled) {
            Due::Nothing => timeline.note_poll(at_ns, totals, resident),
            // Reading all stacks of a large table would take as much memory as they have.
            Due::Stacks if sampled <= MAX_TIMELINES && !running.is_large => {
                let start = Instant::now();
                match Snapshot::read_sums(&self.agent.segment, session) {
                    Ok(sums) => timeline.add_stacks(at_ns, &sums, resident),
                    Err(_) => timeline.add(at_ns, totals, resident),
                }
                timeline.set_table_cost(start.elapsed());
            }
            Due::Stacks | Due::Totals => timeline.add(at_ns, totals, resident),
        }
    }

    /// Updates the row that clients get.
    pub fn update_row(
        &mut self,
        row: Row,
        limit: Option<Memory>,
        sessions: &Sessions,
        version: u64,
    ) {
        let now_ms = now_ns() / 1_000_000;
        self.row_at_ms = now_ms;
        let event_times = EventTimes::new(&row, now_ms);
        let mut next = self.build_row(row, limit, sessions);
        self.advanced_at_ms = now_ms;
        let has_same_times = self.event_times.are_close_to(&event_times);
        let known = self.row.as_mut().filter(|_| has_same_times);
        if let Some(known) = known
            && known.is_same(&mut next)
        {
            // Clients that come later do not know when these values were measured.
            known.replace_time_dependent(next.time_dependent());
            return;
        }
        self.changed_in = version;
        self.event_times = event_times;
        self.row = Some(next);
    }

    fn build_row(&self, mut row: Row, limit: Option<Memory>, sessions: &Sessions) -> ClientRow {
        let (growth, rate) = rates(&self.rate_points).unzip();
        let settings = sessions.settings_of(row.pid);
        let growths = WINDOWS_MS.map(|window| self.history.growth(window));
        if let Some(left) = sessions.time_left(row.pid) {
            // The segment has only the deadline of a lease, which is extended.
            row.seconds_left = match left {
                TimeLeft::For(left) => Some(left.as_secs_f64()),
                TimeLeft::UntilStopped => None,
            };
            row.open_end = left == TimeLeft::UntilStopped;
        }
        let limited = limit.filter(|memory| memory.limit.is_some());
        let session = self.rate_points.back().zip(self.sessions.back());
        // Rounded to whole seconds, since two readings of the clocks differ by a few milliseconds.
        let since = session.map(|(_, span)| unix_ms(Time::now(), span.from_ms) / 1000 * 1000);
        ClientRow {
            id: self.id.clone(),
            command: self.command.clone(),
            growth_per_second: growth,
            alloc_per_second: rate,
            rss_growth: growths.map(|growth| growth.map(|growth| growth.bytes)),
            rss_growth_ms: growths.map(|growth| growth.map(|growth| growth.span_ms)),
            group_bytes: limited.map(|memory| memory.current),
            group_limit: limited.and_then(|memory| memory.limit),
            session_live_bytes: session.map(|(totals, _)| totals.live),
            session_live_error: self
                .live_error(&row, settings.and_then(|settings| settings.max_overhead)),
            session_since: since,
            ours: sessions.is_own_session(row.pid),
            max_overhead: settings.and_then(|settings| settings.max_overhead),
            thin: settings.map(|settings| settings.is_thin()),
            row,
        }
    }

    /// Returns an upper bound of the error of the sampled live bytes at 95 %. The error is largest
    /// for small objects, of which each sample stands for the mean interval.
    fn live_error(&self, row: &Row, max_overhead: Option<f64>) -> Option<f64> {
        let is_fixed = max_overhead.is_none() && !row.interval_changed;
        let interval = row.interval.filter(|_| is_fixed)?;
        let live = match self.rate_points.back() {
            Some(totals) => totals.live,
            None if row.live_source == Some(SAMPLES) => row.live_bytes? as f64,
            None => return None,
        };
        let is_exact = interval == 1;
        let variance = if is_exact {
            0.0
        } else {
            interval as f64 * live
        };
        Some(CONFIDENCE * variance.sqrt())
    }

    /// Advances the values in the row that change as time passes. Not every update examines an idle
    /// process.
    pub fn advance_time(&mut self, now_ms: u64) {
        let passed_ms = now_ms.saturating_sub(self.advanced_at_ms);
        self.advanced_at_ms = now_ms;
        if let Some(shown) = &mut self.row {
            shown.replace_time_dependent(shown.time_dependent().after(passed_ms));
        }
    }

    /// Returns the row for a client. `is_known`: the client knows the process.
    pub fn row_for_client(&self, now: Time, is_known: bool) -> Option<AnswerRow<'_>> {
        let outline = || {
            let outline = self.history.outline(OUTLINE_POINTS);
            points(now, outline.into_iter())
        };
        Some(AnswerRow {
            shown: self.row.as_ref()?,
            outline: (!is_known).then(outline),
        })
    }

    /// Returns the memory over time, and the sessions, as JSON.
    pub fn history_json(&self) -> Value {
        // Converted by the present system clock, which may have been set since the first point.
        let now = Time::now();
        let spans = self.sessions.iter().map(|span| {
            json!({
                "from": unix_ms(now, span.from_ms),
                "to": (!span.is_running).then(|| unix_ms(now, span.to_ms)),
                "interval": span.interval,
            })
        });
        json!({
            "id": self.id,
            "now": unix_ms(now, now.ns / 1_000_000),
            "points": points(now, self.history.points()),
            "sessions": spans.collect::<Vec<_>>(),
        })
    }

    /// Records when sessions ran.
    fn record_session(&mut self, row: &Row, running: Option<&Session>, at_ms: u64) {
        let number = running.map(|session| session.number);
        if let Some(last) = self.sessions.back_mut() {
            last.is_running = number == Some(last.number);
            if last.is_running {
                last.to_ms = at_ms;
            }
        }
        let is_known = self.sessions.back().is_some_and(|last| last.is_running);
        let begun = running.zip(row.interval);
        if !is_known && let Some((session, interval)) = begun {
            self.sessions.push_back(SessionSpan {
                number: session.number,
                // It may have begun long before this server.
                from_ms: (session.start_ns / 1_000_000).min(at_ms),
                to_ms: at_ms,
                interval,
                is_running: true,
            });
            if self.sessions.len() > MAX_SESSIONS {
                self.sessions.pop_front();
            }
        }
    }
}

/// Returns the command line of a process, for display.
fn command_line(pid: i32) -> String {
    let line = text::escape(&proc::command_line(pid).join(&b' '));
    line.chars().take(MAX_COMMAND_CHARS).collect()
}

/// Session that is running, and its sums.
struct Running {
    session: Session,
    /// True if the table has more records than this server reads itself.
    is_large: bool,
    totals: shm_protocol::snapshot::Totals,
}

/// Returns the sums of the samples, while a session runs.
fn totals(agent: &Agent, row: &Row, head: &mut Head) -> Option<Running> {
    row.interval?;
    let header = agent.segment.head(head).ok()?;
    let session = live::session_of(agent, &header)?;
    let mut buffer = [0; shm_protocol::layout::BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    Some(Running {
        is_large: is_large(bank.records()),
        totals: bank.totals(),
        session,
    })
}

/// Returns the growth and the rate of allocation in bytes per second. Uses only samples of one
/// session, since the live bytes in a row may come from the allocator at one time and from samples
/// at another.
fn rates(totals: &VecDeque<RatePoint>) -> Option<(f64, f64)> {
    let last = totals.back()?;
    let first = totals.iter().find(|first| first.session == last.session)?;
    let seconds = last.at_ms.saturating_sub(first.at_ms) as f64 / 1000.0;
    (seconds > 0.0).then(|| {
        let growth = (last.live - first.live) / seconds;
        let rate = (last.allocated - first.allocated).max(0.0) / seconds;
        (growth, rate)
    })
}

/// Returns a time of the segment's clock as Unix time in ms.
pub fn unix_ms(now: Time, at_ms: u64) -> u64 {
    now.at(at_ms * 1_000_000).unix_ns / 1_000_000
}

/// Point as clients get it: Unix time in ms, live bytes, resident bytes.
#[derive(Serialize)]
pub struct ClientPoint(u64, Option<u64>, Option<u64>);

fn points(now: Time, points: impl Iterator<Item = Point>) -> Vec<ClientPoint> {
    let shown = |point: Point| ClientPoint(unix_ms(now, point.at_ms), point.live, point.rss);
    points.map(shown).collect()
}

/// Returns true if a table has more records than this server reads itself.
pub fn is_large(records: usize) -> bool {
    records > MAX_OWN_RECORDS
}
