//! Sessions that this server maintains: for clients that wait for a profile, which share one
//! session per process, and for users who start one.
//!
//! Callers must call [`Sessions::tick`] several times a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mem_agents::discovery::Agent;
use mem_agents::governor;
use mem_agents::offspring::{self, Offspring, Root, SessionEnd};
use mem_agents::segment::Head;
use mem_agents::target::{self, Deadline, Density, Polled, RENEWAL_INTERVAL, Target, is_running};
use mem_agents::text::percent;
use shm_protocol::segment::Session;

/// Time to wait for a controller that is starting or ending a session. Meanwhile, other requests
/// that need the sessions wait as well.
const LOCK_TIMEOUT: Duration = Duration::from_millis(300);

/// Sampling settings of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Initial sampling density.
    pub density: Density,
    /// CPU budget for sampling, as a fraction of the process's CPU time; `None` if unlimited.
    pub max_overhead: Option<f64>,
}

/// Settings in a request for a session. The server's limits apply in any case.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestedSettings {
    /// Initial mean bytes between samples; `None` for the server's default.
    pub interval: Option<u64>,
    /// CPU budget for sampling, as a fraction of the process's CPU time; `None` for the server's
    /// default.
    pub max_overhead: Option<f64>,
    /// True to take fewer samples of objects that are freed immediately.
    pub thin: bool,
}

impl Settings {
    /// Returns settings with this initial interval in bytes, CPU budget, and thinning.
    pub fn new(interval: u64, max_overhead: Option<f64>, thin: bool) -> Self {
        let interval = match max_overhead {
            Some(_) => interval.clamp(governor::MIN_INTERVAL, governor::MAX_INTERVAL),
            None => interval,
        };
        let thinning = if thin { Density::THINNED } else { 0 };
        Self {
            density: Density { interval, thinning },
            max_overhead,
        }
    }

    /// Returns true if fewer samples are taken of objects that are freed immediately.
    pub fn is_thin(&self) -> bool {
        self.density.thinning != 0
    }

    /// Returns the settings for a request. A request can lower the server's limit, but not exceed
    /// it. Exception: if the server's limit is the default (`is_default`), it does not apply to
    /// requests with an interval.
    fn applied_to(self, requested: RequestedSettings, is_default: bool) -> Self {
        let server_limit = self
            .max_overhead
            .filter(|_| !is_default || requested.interval.is_none());
        let limits = [server_limit, requested.max_overhead];
        Self::new(
            requested.interval.unwrap_or(self.density.interval),
            limits.into_iter().flatten().reduce(f64::min),
            self.is_thin() || requested.thin,
        )
    }

    /// Describes the settings, as the end of a sentence.
    pub fn describe(&self) -> String {
        let mut text = format!(
            "with a sample every {} bytes to begin with",
            self.density.interval
        );
        if let Some(share) = self.max_overhead {
            text.push_str(&format!(", at most {} of the CPU time", percent(share)));
        }
        if self.is_thin() {
            text.push_str(", thinned");
        }
        text
    }
}

/// A session after a request to start it.
#[derive(Clone, Copy, Debug)]
pub struct StartedSession {
    /// Sampling settings.
    pub settings: Settings,
    /// Remaining time; `None` if the session runs until it is stopped.
    pub left: Option<Duration>,
}

/// All sessions of this server.
pub struct Sessions {
    settings: Settings,
    /// True if the limit in `settings` is the default, not chosen by a user.
    has_default_limit: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Sessions by pid.
    entries: HashMap<i32, Entry>,
    /// Children of sampled processes, which continue their parents' sessions.
    offspring: Offspring,
}

/// Time for which a session runs even if no client waits for its profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum UserHold {
    /// Not at all: no user has started it, or its time is over.
    None,
    /// Until this time, which a user has requested.
    Until(Instant),
    /// Until a user stops it.
    UntilStopped,
}

impl UserHold {
    /// Returns the end, if it is known.
    fn until(self) -> Option<Instant> {
        match self {
            Self::Until(until) => Some(until),
            Self::None | Self::UntilStopped => None,
        }
    }
}

/// Remaining time of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimeLeft {
    /// For this time.
    For(Duration),
    /// Until a user stops it.
    UntilStopped,
}

/// A session of this server.
struct Entry {
    target: Target,
    /// Key of the session in [`Offspring`].
    root: Root,
    /// Time for which the session runs even if no client waits for its profile.
    user_hold: UserHold,
    /// Number of clients that wait for its profile.
    leases: usize,
    /// Time at which the session's deadline has to be extended.
    renewal: Instant,
    /// Settings at the start.
    settings: Settings,
}

/// Keeps a session running until it is dropped.
pub struct Lease {
    sessions: Arc<Sessions>,
    /// Pid and segment file of a session of this server; `None` for another controller's session.
    session: Option<(i32, (u64, u64))>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((pid, file)) = self.session else {
            return;
        };
        let mut state = self.sessions.state();
        // The pid may have been reused.
        let entry_of_pid = state.entries.get_mut(&pid);
        if let Some(entry) = entry_of_pid.filter(|entry| entry.target.agent.file == file) {
            entry.leases = entry.leases.saturating_sub(1);
            state.end_if_unused(pid);
        }
    }
}

impl Entry {
    fn begin(agent: Agent, settings: Settings) -> Result<Self, String> {
        let title = agent.title();
        let message = |error: target::Error| format!("{title}: {error}");
        let deadline = Instant::now() + LOCK_TIMEOUT;
        let target = Target::claim_before(agent, deadline).map_err(message)?;
        let mut target = target.with_max_overhead(settings.max_overhead);
        let started = target
            .prepare(settings.density)
            .and_then(|()| target.publish(Deadline::ns_after(None)));
        started.map_err(message)?;
        Ok(Self {
            root: target.agent.file,
            target,
            user_hold: UserHold::None,
            leases: 0,
            renewal: Instant::now() + RENEWAL_INTERVAL,
            settings,
        })
    }

    /// Returns true if the session samples this process, not an earlier one with the same pid.
    fn belongs_to(&self, agent: &Agent) -> bool {
        self.target.agent.file == agent.file
    }

    fn is_unused(&self) -> bool {
        self.leases == 0 && self.user_hold == UserHold::None
    }

    /// Returns the end of the session, if it is known.
    fn until(&self) -> Option<Instant> {
        self.user_hold.until().filter(|_| self.leases == 0)
    }

    /// Extends the session to last at least `length` from now, or until it is stopped if that is
    /// `None`. Never shortens it.
    fn extend(&mut self, length: Option<Duration>) {
        let requested = length.map(|length| Instant::now() + length);
        self.user_hold = match (self.user_hold, requested) {
            (UserHold::UntilStopped, _) | (_, None) => UserHold::UntilStopped,
            (UserHold::Until(earlier), Some(requested)) => UserHold::Until(earlier.max(requested)),
            (UserHold::None, Some(requested)) => UserHold::Until(requested),
        };
        // The deadline in the segment may have to be extended.
        self.renewal = Instant::now();
    }

    fn describe_start(&self) -> StartedSession {
        let until = self.user_hold.until();
        StartedSession {
            settings: self.settings,
            left: until.map(|until| until.saturating_duration_since(Instant::now())),
        }
    }

    /// Ends the session. Its counts are not saved: the clients that wanted them have them.
    fn end(&mut self) {
        // If this fails, the session ends at its deadline, within a minute.
        let _ = self.target.stop();
        // Removes the segment if the process has exited.
        self.target.update_life();
        let _ = self.target.release();
    }

    /// Checks the session and extends its deadline. Returns false if it is over.
    fn tick(&mut self, now: Instant) -> bool {
        if self.user_hold.until().is_some_and(|until| now >= until) {
            self.user_hold = UserHold::None;
        }
        let is_counting = matches!(self.target.poll(), Ok(Polled::Counting));
        for warning in self.target.take_warnings() {
            crate::say(&warning);
        }
        if is_counting && !self.is_unused() && now >= self.renewal {
            self.renewal = now + RENEWAL_INTERVAL;
            let deadline = offspring::deadline(self.until(), now);
            return self.target.publish(deadline).is_ok();
        }
        is_counting
    }
}

impl State {
    /// Starts a session, unless another controller's session runs in the process.
    fn begin(&mut self, agent: Agent, settings: Settings) -> Result<&mut Entry, String> {
        if let Some(why) = session_conflict(&agent)? {
            return Err(why);
        }
        let pid = agent.pid;
        let entry = Entry::begin(agent, settings)?;
        self.offspring.begin(&entry.target, settings.max_overhead);
        // An entry with this pid belongs to an earlier process.
        if let Some(earlier) = self.entries.remove(&pid) {
            self.offspring.orphan(earlier.root);
        }
        Ok(self.entries.entry(pid).or_insert(entry))
    }

    /// Ends the session of a process if it is unused.
    fn end_if_unused(&mut self, pid: i32) {
        if self.entries.get(&pid).is_some_and(Entry::is_unused)
            && let Some(mut entry) = self.entries.remove(&pid)
        {
            entry.end();
            self.offspring.end(entry.root);
        }
    }

    /// Checks all sessions, and removes those that are over or unused.
    fn tick(&mut self, now: Instant) {
        let mut ended_pids = Vec::new();
        for (pid, entry) in &mut self.entries {
            let is_counting = entry.tick(now);
            self.offspring.extend(entry.root, entry.until());
            // A session whose process has ended is kept until the clients with leases have read it.
            if entry.is_unused() || !is_counting && entry.leases == 0 {
                ended_pids.push(*pid);
            }
        }
        for pid in ended_pids {
            let Some(mut entry) = self.entries.remove(&pid) else {
                continue;
            };
            if entry.user_hold == UserHold::None {
                entry.end();
                self.offspring.end(entry.root);
            } else if entry.target.is_alive() {
                // Another program has ended the session.
                self.offspring.end(entry.root);
            } else {
                self.offspring.orphan(entry.root);
            }
        }
        for warning in self.offspring.tick(now) {
            crate::say(&warning);
        }
    }
}

impl Sessions {
    /// Creates an empty set of sessions. `has_default_limit` is true if the limit in `settings` is
    /// the default, not chosen by a user.
    pub fn new(settings: Settings, has_default_limit: bool) -> Arc<Self> {
        Arc::new(Self {
            settings,
            has_default_limit,
            state: Mutex::default(),
        })
    }

    /// Returns the default settings of sessions.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if the session of a process was started by this server.
    pub fn is_own_session(&self, pid: i32) -> bool {
        let state = self.state();
        state.entries.contains_key(&pid) || state.offspring.has(pid)
    }

    /// Returns true if a session runs that this server has started.
    pub fn has_any(&self) -> bool {
        !self.state().entries.is_empty()
    }

    /// Returns the remaining time of a session that a user of this server has started, or `None` if
    /// there is no such session.
    pub fn time_left(&self, pid: i32) -> Option<TimeLeft> {
        let state = self.state();
        let user_hold = match state.entries.get(&pid) {
            Some(entry) => entry.user_hold,
            None => match state.offspring.session_end(pid)? {
                SessionEnd::At(end) => UserHold::Until(end),
                SessionEnd::Unknown => UserHold::UntilStopped,
            },
        };
        match user_hold {
            UserHold::None => None,
            UserHold::Until(until) => {
                let left = until.saturating_duration_since(Instant::now());
                Some(TimeLeft::For(left))
            }
            UserHold::UntilStopped => Some(TimeLeft::UntilStopped),
        }
    }

    /// Returns true if this server has no session to maintain.
    pub fn is_idle(&self) -> bool {
        let state = self.state();
        state.entries.is_empty() && state.offspring.is_empty()
    }

    /// Returns the settings of a process's session, if it was started by this server.
    pub fn settings_of(&self, pid: i32) -> Option<Settings> {
        self.state().entries.get(&pid).map(|entry| entry.settings)
    }

    /// Returns a lease of the session that runs in a process, or of a new one.
    pub fn lease(self: &Arc<Self>, agent: Agent) -> Result<Lease, String> {
        let pid = agent.pid;
        let file = agent.file;
        let mut state = self.state();
        let entry_of_pid = state.entries.get_mut(&pid);
        if let Some(entry) = entry_of_pid.filter(|entry| entry.belongs_to(&agent)) {
            entry.leases += 1;
            entry.renewal = Instant::now();
        } else if running_session(&agent)?.is_some() {
            return Ok(Lease {
                sessions: Arc::clone(self),
                session: None,
            });
        } else {
            state.begin(agent, self.settings)?.leases = 1;
        }
        Ok(Lease {
            sessions: Arc::clone(self),
            session: Some((pid, file)),
        })
    }

    /// Starts a session that runs for `length`, or until it is stopped if that is `None`. If one of
    /// this server's sessions is running, extends it, unless `requested` requests other settings.
    pub fn start(
        &self,
        agent: Agent,
        requested: RequestedSettings,
        length: Option<Duration>,
    ) -> Result<StartedSession, String> {
        let settings = self.settings.applied_to(requested, self.has_default_limit);
        let mut state = self.state();
        let entry_of_pid = state.entries.get_mut(&agent.pid);
        let entry = match entry_of_pid.filter(|entry| entry.belongs_to(&agent)) {
            Some(entry) => {
                let is_other = requested.interval.is_some() || requested.max_overhead.is_some();
                if (is_other || requested.thin) && entry.settings != settings {
                    return Err(format!(
                        "{}: a session of this server is running, {}: stop it first, or ask for \
                         nothing else",
                        agent.title(),
                        entry.settings.describe()
                    ));
                }
                entry
            }
            None => state.begin(agent, settings)?,
        };
        entry.extend(length);
        Ok(entry.describe_start())
    }

    /// Stops a session of this server as soon as no client waits for it. Stops a session without a
    /// controller immediately. Stops a session of another controller only with `of_others`: that
    /// controller then writes the profile, and reports that the session was ended.
    pub fn stop(&self, agent: &Agent, of_others: bool) -> Result<(), String> {
        let mut state = self.state();
        let entry_of_pid = state.entries.get_mut(&agent.pid);
        if let Some(entry) = entry_of_pid.filter(|entry| entry.belongs_to(agent)) {
            entry.user_hold = UserHold::None;
            state.end_if_unused(agent.pid);
            return Ok(());
        }
        if state.offspring.end_child(agent.pid) {
            return Ok(());
        }
        let message = |error: &dyn std::fmt::Display| format!("{}: {error}", agent.title());
        let session = running_session(agent)?.ok_or_else(|| message(&"no session runs"))?;
        if !of_others && (agent.segment.is_locked() || is_inherited(agent, &session)) {
            return Err(describe_owner(agent, &session));
        }
        agent.confirm().map_err(|e| message(&e))?;
        target::stop(agent, &session).map_err(|e| message(&e))
    }

    /// Checks all sessions, and ends those that are unused.
    pub fn tick(&self) {
        self.state().tick(Instant::now());
    }

    /// Ends all sessions, at the end of the server.
    pub fn end(&self) {
        let mut state = self.state();
        state.entries.drain().for_each(|(_, mut entry)| entry.end());
        state.offspring.end_all();
    }
}

/// Returns the session that runs in a process.
fn running_session(agent: &Agent) -> Result<Option<Session>, String> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head);
    let header = header.map_err(|error| format!("{}: {error}", agent.title()))?;
    Ok(header.session().filter(|_| is_running(&header)))
}

/// Returns the reason why no session can be started in a process, if another one runs there.
fn session_conflict(agent: &Agent) -> Result<Option<String>, String> {
    Ok(running_session(agent)?.map(|session| describe_owner(agent, &session)))
}

/// Returns true if a process continues its parent's session after a fork, which the parent's
/// controller maintains.
fn is_inherited(agent: &Agent, session: &Session) -> bool {
    session.controller_pid == 0 && session.deadline_ns != 0 && agent.forked_from != 0
}

/// Formats a message about who runs the session in a process, for how long, and how to end it.
fn describe_owner(agent: &Agent, session: &Session) -> String {
    let title = agent.title();
    let pid = agent.pid;
    let left = Deadline::of(session.deadline_ns).left();
    let owner = match session.controller_pid {
        0 if is_inherited(agent, session) => {
            format!(
                "it continues the session of its parent ({})",
                agent.forked_from
            )
        }
        0 => "the process has begun a session itself".to_owned(),
        controller => format!("a session of mem_profiler (pid {controller}) is running"),
    };
    format!("{title}: {owner}, {left}; mem_profiler stop -p {pid} ends it and writes its profile")
}
