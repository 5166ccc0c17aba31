//! The sessions that this server maintains: for clients that wait for a profile, which share them,
//! and for users who start one.
//!
//! The caller ticks several times a second.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use mem_controller::discovery::Agent;
use mem_controller::segment::Head;
use mem_controller::target::{self, Deadline, Density, Look, RENEWAL, Target, is_running};

/// How sessions sample.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How densely at first.
    pub density: Density,
    /// The share of a process's CPU time that sampling may take, if limited.
    pub max_overhead: Option<f64>,
}

/// Sessions by pid.
pub struct Sessions {
    settings: Settings,
    entries: Mutex<HashMap<i32, Entry>>,
}

struct Entry {
    target: Target,
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
        let mut entries = self.sessions.entries();
        // Another process may have the number by now.
        let own = entries.get_mut(&pid);
        if let Some(entry) = own.filter(|entry| entry.target.agent.file == file) {
            entry.leases = entry.leases.saturating_sub(1);
            if entry.is_unused() {
                entries.remove(&pid).iter_mut().for_each(Entry::end);
            }
        }
    }
}

impl Entry {
    fn is_unused(&self) -> bool {
        self.leases == 0 && self.kept.is_none()
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
        if counts && now >= self.renewal {
            self.renewal = now + RENEWAL;
            return self.target.publish(Deadline::ns_after(None)).is_ok();
        }
        counts
    }
}

impl Sessions {
    /// None yet.
    pub fn new(settings: Settings) -> Arc<Self> {
        Arc::new(Self {
            settings,
            entries: Mutex::default(),
        })
    }

    /// How its sessions sample.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    fn entries(&self) -> MutexGuard<'_, HashMap<i32, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the session of a process is one of these.
    pub fn has(&self, pid: i32) -> bool {
        self.entries().contains_key(&pid)
    }

    /// Has a session run: the one that does, or a new one.
    pub fn lease(self: &Arc<Self>, agent: Agent) -> Result<Lease, String> {
        let (pid, file) = (agent.pid, agent.file);
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&pid).filter(|entry| entry.is_of(&agent)) {
            entry.leases += 1;
        } else if runs(&agent)? {
            return Ok(Lease {
                sessions: Arc::clone(self),
                of: None,
            });
        } else {
            let mut entry = begin(agent, self.settings)?;
            entry.leases = 1;
            entries.insert(pid, entry);
        }
        Ok(Lease {
            sessions: Arc::clone(self),
            of: Some((pid, file)),
        })
    }

    /// Starts a session that lasts until it is stopped, or this long; one of ours that runs
    /// continues for that time, unless it does not sample as is `asked` for.
    pub fn start(
        &self,
        agent: Agent,
        asked: Option<Settings>,
        length: Option<Duration>,
    ) -> Result<(), String> {
        let kept = Some(length.map(|length| Instant::now() + length));
        let pid = agent.pid;
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&pid).filter(|entry| entry.is_of(&agent)) {
            let interval = entry.settings.density.interval;
            if asked.is_some_and(|asked| asked.density.interval != interval) {
                return Err(format!(
                    "{}: a session of this server is running, with a sample every {interval} bytes \
                     to begin with: stop it first, or name no other interval",
                    agent.title()
                ));
            }
            entry.kept = kept;
            return Ok(());
        }
        let mut entry = begin(agent, asked.unwrap_or(self.settings))?;
        entry.kept = kept;
        entries.insert(pid, entry);
        Ok(())
    }

    /// Stops a session: at once if it is somebody else's, and, if it is ours, when no client waits
    /// for it any more.
    pub fn stop(&self, agent: &Agent) -> Result<(), String> {
        let mut entries = self.entries();
        if let Some(entry) = entries.get_mut(&agent.pid) {
            entry.kept = None;
            if entry.is_unused() {
                entries.remove(&agent.pid).iter_mut().for_each(Entry::end);
            }
            return Ok(());
        }
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", agent.title());
        let mut head = Head::new();
        let header = agent.segment.head(&mut head).map_err(|e| said(&e))?;
        let session = header.session().filter(|_| is_running(&header));
        let session = session.ok_or_else(|| said(&"no session runs"))?;
        agent.confirm().map_err(|e| said(&e))?;
        target::stop(agent, &session).map_err(|e| said(&e))
    }

    /// Looks after all, and ends those that no client wants any more.
    pub fn tick(&self) {
        let now = Instant::now();
        self.entries().retain(|_, entry| {
            let goes_on = entry.tick(now);
            // One that its process has ended is its clients' until they have read it.
            let is_used = !entry.is_unused() && (goes_on || entry.leases > 0);
            if !is_used && entry.kept.is_none() {
                entry.end();
            }
            is_used
        });
    }

    /// Ends all: the server ends.
    pub fn end(&self) {
        self.entries()
            .drain()
            .for_each(|(_, mut entry)| entry.end());
    }
}

impl Entry {
    /// Whether it is of this very process, and not of an earlier one of its pid.
    fn is_of(&self, agent: &Agent) -> bool {
        self.target.agent.file == agent.file
    }
}

fn runs(agent: &Agent) -> Result<bool, String> {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head);
    let header = header.map_err(|error| format!("{}: {error}", agent.title()))?;
    Ok(is_running(&header))
}

fn begin(agent: Agent, settings: Settings) -> Result<Entry, String> {
    let title = agent.title();
    let said = |error: target::Error| format!("{title}: {error}");
    let target = Target::take(agent).map_err(said)?;
    let mut target = target.limited(settings.max_overhead);
    let started = target
        .prepare(settings.density)
        .and_then(|()| target.publish(Deadline::ns_after(None)));
    started.map_err(said)?;
    Ok(Entry {
        target,
        kept: None,
        leases: 0,
        renewal: Instant::now() + RENEWAL,
        settings,
    })
}
