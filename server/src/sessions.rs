//! The sessions that this server maintains: for clients that wait for a profile, which share them,
//! and for users who start one.
//!
//! The caller ticks several times a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mem_agents::discovery::Agent;
use mem_agents::governor;
use mem_agents::offspring::{self, Offspring, Root};
use mem_agents::segment::Head;
use mem_agents::target::{self, Deadline, Density, Look, RENEWAL, Target, is_running};
use mem_agents::text::percent;
use shm_protocol::segment::Session;

/// How sessions sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// How densely at first.
    pub density: Density,
    /// The share of a process's CPU time that sampling may take, if limited.
    pub max_overhead: Option<f64>,
}

/// What a request for a session says about it. The server's limits hold in any case.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Mean bytes between samples at first.
    pub interval: Option<u64>,
    /// The share of the process's CPU time that sampling may take.
    pub max_overhead: Option<f64>,
    /// Whether to take fewer samples of objects that are freed at once.
    pub thin: bool,
}

impl Settings {
    /// How densely to sample with these options, and at which share of the CPU time at most.
    pub fn new(interval: u64, max_overhead: Option<f64>, thin: bool) -> Self {
        let interval = match max_overhead {
            Some(_) => interval.clamp(governor::FLOOR, governor::CEILING),
            None => interval,
        };
        let thinning = if thin { Density::THINNED } else { 0 };
        Self {
            density: Density { interval, thinning },
            max_overhead,
        }
    }

    /// Whether fewer samples are taken of objects that are freed at once.
    pub fn is_thin(&self) -> bool {
        self.density.thinning != 0
    }

    /// What applies to a request: it may only lower the limits.
    fn applied_to(self, asked: Asked) -> Self {
        let limits = [self.max_overhead, asked.max_overhead];
        Self::new(
            asked.interval.unwrap_or(self.density.interval),
            limits.into_iter().flatten().reduce(f64::min),
            self.is_thin() || asked.thin,
        )
    }

    fn describe(&self) -> String {
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

/// A session that was started, as it is by now.
#[derive(Clone, Copy, Debug)]
pub struct Started {
    /// How it samples.
    pub settings: Settings,
    /// How long it will last; `None`: until it is stopped.
    pub left: Option<Duration>,
}

/// Sessions by pid.
pub struct Sessions {
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<i32, Entry>,
    offspring: Offspring,
}

struct Entry {
    target: Target,
    /// The same in [`Offspring`].
    root: Root,
    /// Whether somebody has started it, and until when.
    kept: Option<Option<Instant>>,
    /// Clients that wait for its numbers.
    leases: usize,
    renewal: Instant,
    /// How it began.
    settings: Settings,
}

/// A session runs for as long as this is held.
pub struct Lease {
    sessions: Arc<Sessions>,
    /// For ours, by pid and the segment's file; `None` if somebody else keeps it.
    of: Option<(i32, (u64, u64))>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some((pid, file)) = self.of else {
            return;
        };
        let mut state = self.sessions.state();
        // Another process may have the number by now.
        let own = state.entries.get_mut(&pid);
        if let Some(entry) = own.filter(|entry| entry.target.agent.file == file) {
            entry.leases = entry.leases.saturating_sub(1);
            state.settle(pid);
        }
    }
}

impl Entry {
    fn begin(agent: Agent, settings: Settings) -> Result<Self, String> {
        let title = agent.title();
        let said = |error: target::Error| format!("{title}: {error}");
        let target = Target::take(agent).map_err(said)?;
        let mut target = target.limited(settings.max_overhead);
        let started = target
            .prepare(settings.density)
            .and_then(|()| target.publish(Deadline::ns_after(None)));
        started.map_err(said)?;
        Ok(Self {
            root: target.agent.file,
            target,
            kept: None,
            leases: 0,
            renewal: Instant::now() + RENEWAL,
            settings,
        })
    }

    /// Whether it is of this very process, and not of an earlier one of its pid.
    fn is_of(&self, agent: &Agent) -> bool {
        self.target.agent.file == agent.file
    }

    fn is_unused(&self) -> bool {
        self.leases == 0 && self.kept.is_none()
    }

    /// When it ends, if that is known.
    fn until(&self) -> Option<Instant> {
        self.kept.flatten().filter(|_| self.leases == 0)
    }

    /// Lasts at least this long from now on; `None`: until it is stopped. No earlier request is cut
    /// short.
    fn keep(&mut self, length: Option<Duration>) {
        let asked = length.map(|length| Instant::now() + length);
        self.kept = Some(match (self.kept, asked) {
            (Some(None), _) => None,
            (Some(Some(earlier)), Some(asked)) => Some(earlier.max(asked)),
            (_, asked) => asked,
        });
        // It may last longer than it was to.
        self.renewal = Instant::now();
    }

    fn started(&self) -> Started {
        let until = self.kept.flatten();
        Started {
            settings: self.settings,
            left: until.map(|until| until.saturating_duration_since(Instant::now())),
        }
    }

    /// Ends it. What it counted need not be recovered: the clients that wanted it have it.
    fn end(&mut self) {
        // Not switched off, it ends by its deadline, within a minute.
        let _ = self.target.stop();
        // A process that has ended leaves its segment to the last reader.
        self.target.settle_life();
        let _ = self.target.release();
    }

    /// Looks after it; whether it continues.
    fn tick(&mut self, now: Instant) -> bool {
        if matches!(self.kept, Some(Some(until)) if now >= until) {
            self.kept = None;
        }
        let counts = matches!(self.target.look(), Ok(Look::Counting));
        for warning in self.target.take_warnings() {
            crate::say(&warning);
        }
        if counts && !self.is_unused() && now >= self.renewal {
            self.renewal = now + RENEWAL;
            let deadline = offspring::deadline(self.until(), now);
            return self.target.publish(deadline).is_ok();
        }
        counts
    }
}

impl State {
    fn begin(&mut self, agent: Agent, settings: Settings) -> Result<&mut Entry, String> {
        if let Some(why) = of_another(&agent)? {
            return Err(why);
        }
        let pid = agent.pid;
        let entry = Entry::begin(agent, settings)?;
        self.offspring.begin(&entry.target, settings.max_overhead);
        // Of an earlier process with its pid, if there is one.
        if let Some(earlier) = self.entries.remove(&pid) {
            self.offspring.orphan(earlier.root);
        }
        Ok(self.entries.entry(pid).or_insert(entry))
    }

    /// Ends the session of a process if nobody uses it any more.
    fn settle(&mut self, pid: i32) {
        if self.entries.get(&pid).is_some_and(Entry::is_unused)
            && let Some(mut entry) = self.entries.remove(&pid)
        {
            entry.end();
            self.offspring.end(entry.root);
        }
    }

    fn tick(&mut self, now: Instant) {
        let mut over = Vec::new();
        for (pid, entry) in &mut self.entries {
            let goes_on = entry.tick(now);
            self.offspring.extend(entry.root, entry.until());
            // One that its process has ended is its clients' until they have read it.
            if entry.is_unused() || !goes_on && entry.leases == 0 {
                over.push(*pid);
            }
        }
        for pid in over {
            let Some(mut entry) = self.entries.remove(&pid) else {
                continue;
            };
            if entry.kept.is_none() {
                entry.end();
                self.offspring.end(entry.root);
            } else if entry.target.is_alive() {
                // Somebody else has ended it.
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
    /// None yet.
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            state: Mutex::default(),
        })
    }

    /// How its sessions sample, unless a request says otherwise.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the session of a process is one of these.
    pub fn has(&self, pid: i32) -> bool {
        let state = self.state();
        state.entries.contains_key(&pid) || state.offspring.has(pid)
    }

    /// How the session of a process that was begun here samples.
    pub fn settings_of(&self, pid: i32) -> Option<Settings> {
        self.state().entries.get(&pid).map(|entry| entry.settings)
    }

    /// Has a session run: the one that does, or a new one.
    pub fn lease(self: &Arc<Self>, agent: Agent) -> Result<Lease, String> {
        let (pid, file) = (agent.pid, agent.file);
        let mut state = self.state();
        let own = state.entries.get_mut(&pid);
        if let Some(entry) = own.filter(|entry| entry.is_of(&agent)) {
            entry.leases += 1;
            entry.renewal = Instant::now();
        } else if running(&agent)?.is_some() {
            return Ok(Lease {
                sessions: Arc::clone(self),
                of: None,
            });
        } else {
            state.begin(agent, self.settings)?.leases = 1;
        }
        Ok(Lease {
            sessions: Arc::clone(self),
            of: Some((pid, file)),
        })
    }

    /// Starts a session that lasts until it is stopped, or this long; one of ours that runs
    /// continues for at least that time, unless it does not sample as is `asked` for.
    pub fn start(
        &self,
        agent: Agent,
        asked: Asked,
        length: Option<Duration>,
    ) -> Result<Started, String> {
        let settings = self.settings.applied_to(asked);
        let mut state = self.state();
        let own = state.entries.get_mut(&agent.pid);
        let entry = match own.filter(|entry| entry.is_of(&agent)) {
            Some(entry) => {
                let is_other = asked.interval.is_some() || asked.max_overhead.is_some();
                if (is_other || asked.thin) && entry.settings != settings {
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
        entry.keep(length);
        Ok(entry.started())
    }

    /// Stops a session of ours when no client waits for it any more, and one that nobody looks
    /// after at once. Another controller's is left alone.
    pub fn stop(&self, agent: &Agent) -> Result<(), String> {
        let mut state = self.state();
        let own = state.entries.get_mut(&agent.pid);
        if let Some(entry) = own.filter(|entry| entry.is_of(agent)) {
            entry.kept = None;
            state.settle(agent.pid);
            return Ok(());
        }
        if state.offspring.end_child(agent.pid) {
            return Ok(());
        }
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", agent.title());
        let session = running(agent)?.ok_or_else(|| said(&"no session runs"))?;
        if agent.segment.is_locked() || is_inherited(agent, &session) {
            return Err(whose(agent, &session));
        }
        agent.confirm().map_err(|e| said(&e))?;
        target::stop(agent, &session).map_err(|e| said(&e))
    }

    /// Looks after all, and ends those that no client wants any more.
    pub fn tick(&self) {
        self.state().tick(Instant::now());
    }

    /// Ends all: the server ends.
    pub fn end(&self) {
        let mut state = self.state();
        state.entries.drain().for_each(|(_, mut entry)| entry.end());
        state.offspring.end_all();
    }
}

/// The session that a process is in.
fn running(agent: &Agent) -> Result<Option<Session>, String> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head);
    let header = header.map_err(|error| format!("{}: {error}", agent.title()))?;
    Ok(header.session().filter(|_| is_running(&header)))
}

/// Why no session can be begun in a process: somebody else's runs there.
fn of_another(agent: &Agent) -> Result<Option<String>, String> {
    Ok(running(agent)?.map(|session| whose(agent, &session)))
}

/// Whether a child continues its parent's session, which is a controller's.
fn is_inherited(agent: &Agent, session: &Session) -> bool {
    session.controller_pid == 0 && session.deadline_ns != 0 && agent.forked_from != 0
}

/// Whose session runs in a process, for how long, and how to end it.
fn whose(agent: &Agent, session: &Session) -> String {
    let (title, pid) = (agent.title(), agent.pid);
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
