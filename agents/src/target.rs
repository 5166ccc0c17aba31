//! Runs a session in one process: claims the process, starts the session and polls it.

mod deadline;
mod error;
mod table;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use proc::Stat;
use shm_protocol::clock::unix_ns;
use shm_protocol::cpu::CpuSetting;
use shm_protocol::layout::{BANK_HEADER_BYTES, REFUSES_MUSL, REFUSES_SANITIZER, REFUSES_SECCOMP};
use shm_protocol::segment::{IntervalPeriod, Session};
use shm_protocol::snapshot::{Header, Totals};

use crate::claims::Claims;
use crate::clock::now_ns;
use crate::descriptors;
use crate::discovery::{Agent, Life};
use crate::dump;
use crate::governor;
use crate::process_end::ProcessEnd;
use crate::segment::{Head, Refusal, io_error};
use crate::text;
use crate::threads;
pub use deadline::{Deadline, RENEWAL_INTERVAL, ROLLING_LENGTH};
pub use error::{Error, NoRoom};
use table::segment_bytes;

/// Maximum time from a process's last destructor to its exit.
const EXIT_TIMEOUT: Duration = Duration::from_millis(500);
/// Time to wait for another controller that is starting or ending a session, which includes writing
/// its dumps.
pub const LOCK_TIMEOUT: Duration = Duration::from_secs(3);
/// Time to wait for the lock of a segment whose session is taken over. Programs that only check for
/// a lock hold one for a moment.
const ADOPTION_LOCK_TIMEOUT: Duration = Duration::from_millis(300);
/// Interval between attempts to lock a segment.
const LOCK_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Returns true if a session is counting now.
pub fn is_running(header: &Header<'_>) -> bool {
    let session = header.session();
    header.epoch() != 0
        && session.is_some_and(|s| s.deadline_ns == 0 || s.deadline_ns > now_ns())
        && session.is_some_and(|s| header.ended().0 != s.number)
}

/// Ends an agent's session.
pub fn stop(agent: &Agent, session: &Session) -> Result<(), Error> {
    let now = now_ns();
    let end_ns = match session.deadline_ns {
        0 => now,
        deadline => deadline.min(now),
    };
    let view = agent.segment.view();
    let mut epoch = [0];
    let stopped = view
        .read_at(0, &mut epoch)
        .and_then(|_| view.stop())
        // If the agent ended the session first, it has recorded the time.
        .and_then(|()| match epoch {
            [0] => Ok(()),
            _ => view.mark_ended(session.number, end_ns),
        });
    stopped.map_err(|e| Error::Stop(io_error(e)))
}

/// Returns the last session if it has samples and its profile has not been written.
pub fn uncollected(agent: &Agent, header: &Header<'_>) -> Option<Session> {
    let session = header
        .session()
        .filter(|s| s.number != header.collected_session() && !s.is_probe())?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    (bank.session() == session.number && bank.totals().samples > 0).then_some(session)
}

/// Returns the last session if it has CPU samples and its profile has not been written.
pub fn uncollected_cpu_session(agent: &Agent, header: &Header<'_>) -> Option<Session> {
    let session = header.session();
    let session = session.filter(|s| s.cpu.rate != 0 && s.number != header.collected_session())?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    let counted = bank.cpu();
    let has_samples = counted.samples > 0 || counted.full_samples > 0;
    (bank.session() == session.number && has_samples).then_some(session)
}

/// Sampling interval and thinning of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Density {
    /// Mean number of bytes between two samples.
    pub interval: u64,
    /// Binary logarithm of the thinning factor; 0: no thinning. See [`Session::thinning`].
    pub thinning: u64,
}

impl Density {
    /// Thinning of sessions with `--thin`.
    pub const THINNED: u64 = 3;

    /// Setting for a probe: every allocation, with the samples discarded.
    pub const PROBE: Self = Self {
        interval: 1,
        thinning: Session::PROBE,
    };

    /// Samples at this interval, without thinning.
    pub fn uniform(interval: u64) -> Self {
        Self {
            interval,
            thinning: 0,
        }
    }
}

/// Result of polling a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polled {
    /// The session is running.
    Counting,
    /// The session was ended.
    Stopped,
    /// The process has exited.
    Dead,
}

/// Process in a session.
pub struct Target {
    /// Process and its segment.
    pub agent: Agent,
    /// Session; its number is 0 before [`Target::prepare`].
    pub session: Session,
    /// Totals at the last poll.
    pub totals: Totals,
    /// Resident memory at the last poll, in bytes.
    pub resident: Option<u64>,
    /// True if the last poll found the table more than half full and enlarged it.
    pub growing: bool,
    /// CPU budget for sampling, as a fraction of the process's CPU time. `None`: fixed interval.
    max_overhead: Option<f64>,
    /// True once the user was warned that sampling exceeds the budget.
    warned_of_overhead: bool,
    /// Warnings that have not been taken yet.
    warnings: Vec<String>,
    /// `None` if the kernel has no pidfds.
    pidfd: Option<OwnedFd>,
    thread_names: threads::Lookups,
    /// Number of the table's units (see [`Geometry`](shm_protocol::Geometry)) that are backed by
    /// memory.
    units: u32,
    /// True if the table cannot grow, or must not be enlarged by this program.
    is_table_fixed: bool,
    /// Size of the segment with tables, in bytes.
    segment_bytes: usize,
}

impl Target {
    /// Claims a process for a session. Fails if the process does not have the segment mapped, or if
    /// another controller has a session in it or holds it for longer than [`LOCK_TIMEOUT`].
    pub fn claim(agent: Agent) -> Result<Self, Error> {
        Self::claim_before(agent, Instant::now() + LOCK_TIMEOUT)
    }

    /// Like [`claim`](Self::claim), but waits for another controller until `deadline` at most.
    pub fn claim_before(agent: Agent, deadline: Instant) -> Result<Self, Error> {
        agent.confirm()?;
        let pidfd = proc::pidfd(agent.pid);
        // Does not wait for the end of a running session.
        lock_until(&agent, deadline, |error| !error.is_passing())?;
        let session = Session {
            number: 0,
            interval: 0,
            deadline_ns: 0,
            start_ns: 0,
            start_unix_ns: 0,
            controller_pid: u64::from(std::process::id()),
            range_limit: 0,
            thinning: 0,
            max_overhead: 0,
            cpu: CpuSetting::default(),
        };
        let segment_bytes = segment_bytes(&agent)?;
        Self::new(agent, session, pidfd, segment_bytes).if_alive()
    }

    /// Returns the target if its process still exists, and otherwise an error.
    fn if_alive(self) -> Result<Self, Error> {
        if self.is_alive() {
            return Ok(self);
        }
        Err(descriptors::shortage().map_or(Error::Ended, Error::Descriptors))
    }

    /// Takes over a session that an agent started by itself, whether or not its process still runs.
    /// Returns `None` if there is no session yet.
    pub fn adopt(agent: Agent) -> Result<Option<Self>, Error> {
        let mut head = Head::new();
        let header = agent.segment.head(&mut head)?;
        let mut buffer = [0; BANK_HEADER_BYTES];
        let Some(session) = header.session() else {
            return Ok(None);
        };
        let bank = agent.segment.bank(session.number, &mut buffer)?;
        if bank.session() != session.number {
            return Ok(None);
        }
        let deadline = Instant::now() + ADOPTION_LOCK_TIMEOUT;
        lock_until(&agent, deadline, |_| false)?;
        let pidfd = (agent.life == Life::Running)
            .then(|| proc::pidfd(agent.pid))
            .flatten();
        let segment_bytes = agent.segment.view().bytes();
        Ok(Some(Self {
            totals: bank.totals(),
            units: bank.units(),
            ..Self::new(agent, session, pidfd, segment_bytes)
        }))
    }

    /// Observes a session that another part of this program has started and maintains.
    pub fn observe(agent: Agent, session: Session) -> Result<Self, Error> {
        let pidfd = proc::pidfd(agent.pid);
        let segment_bytes = segment_bytes(&agent)?;
        let mut target = Self::new(agent, session, pidfd, segment_bytes);
        // That part of the program enlarges the table.
        target.is_table_fixed = true;
        target.if_alive()
    }

    /// Marks the session's data as collected and removes the segment if it is not in use. Returns
    /// true if it was removed.
    pub fn release(&self) -> io::Result<bool> {
        let segment = &self.agent.segment;
        let marked = segment
            .view()
            .mark_collected(self.session.number)
            .map_err(io_error);
        match self.agent.life {
            Life::Running => marked.map(|()| false),
            // `clean` removes it later, since it is marked as collected.
            _ if !self.is_gone() => marked.map(|()| false),
            _ => segment.remove().map(|_| true),
        }
    }

    fn new(agent: Agent, session: Session, pidfd: Option<OwnedFd>, segment_bytes: usize) -> Self {
        Self {
            agent,
            session,
            totals: Totals::default(),
            resident: None,
            growing: false,
            max_overhead: None,
            warned_of_overhead: false,
            warnings: Vec::new(),
            pidfd,
            units: 0,
            is_table_fixed: false,
            thread_names: threads::Lookups::default(),
            segment_bytes,
        }
    }

    /// Starts a session that continues without a controller; the process itself enlarges its table.
    pub fn start_alone(&mut self, density: Density) -> Result<(), Error> {
        self.session.controller_pid = 0;
        self.prepare(density)?;
        self.publish(0)
    }

    /// Sets the CPU budget for sampling, to which the agent adapts the interval once the session is
    /// published. `None` means no limit.
    #[must_use]
    pub fn with_max_overhead(mut self, max_overhead: Option<f64>) -> Self {
        self.max_overhead = max_overhead;
        self.session.max_overhead = governor::millionths(max_overhead);
        self
    }

    /// Returns true if the claimed process is still running.
    pub fn is_alive(&self) -> bool {
        self.stat().is_some()
    }

    /// Returns the state of the claimed process, or `None` if it has exited.
    fn stat(&self) -> Option<Stat> {
        if self.agent.life != Life::Running {
            return None;
        }
        match &self.pidfd {
            Some(fd) if proc::has_ended(fd) => None,
            // The pid may have been reused before the pidfd was opened, so compares the start time
            // too.
            _ => Stat::of(self.agent.pid)
                .filter(|s| s.start_time == self.agent.segment.name.start_time && !s.is_dead()),
        }
    }

    /// Returns the process's CPU time in ns. Also works for an exited process until it is reaped.
    pub fn cpu_clock(&self) -> Option<u64> {
        if self.agent.life == Life::Replaced {
            return None;
        }
        let ns = proc::cpu_ns(self.agent.pid)?;
        // Makes sure that the pid has not been reused.
        let stat = Stat::of(self.agent.pid)?;
        (stat.start_time == self.agent.segment.name.start_time).then_some(ns)
    }

    /// Returns true if the segment is no longer in use: the process was seen to exit, or no process
    /// can have the segment mapped.
    pub fn is_gone(&self) -> bool {
        match (self.agent.life, &self.pidfd) {
            (Life::Running, _) => false,
            (Life::Dead, Some(fd)) if proc::has_ended(fd) => true,
            _ => {
                let start = self.agent.entry.name.start_time;
                Claims::since(start).check(&self.agent).is_ok()
            }
        }
    }

    /// Returns true if a session that was found stopped was ended by another program while the
    /// process continues.
    pub fn is_cut_short(&self) -> bool {
        let mut head = Head::new();
        let header = self.agent.segment.head(&mut head);
        header.is_ok_and(|header| !header.exited()) && self.is_alive()
    }

    /// Returns the length of the session, until now or until its end.
    pub fn lasted(&self) -> Duration {
        let mut head = Head::new();
        let end_ns = match self.agent.segment.head(&mut head) {
            Ok(header) => dump::end_of(&self.session, &header).ns,
            Err(_) => now_ns(),
        };
        Duration::from_nanos(end_ns.saturating_sub(self.session.start_ns))
    }

    /// Returns a descriptor that becomes readable when the process exits.
    pub fn pidfd(&self) -> Option<BorrowedFd<'_>> {
        self.pidfd.as_ref().map(AsFd::as_fd)
    }

    /// Starts the session or extends it.
    pub fn publish(&mut self, deadline_ns: u64) -> Result<(), Error> {
        if self.session.start_ns == 0 {
            self.session.start_ns = now_ns();
            self.session.start_unix_ns = unix_ns();
        }
        self.session.deadline_ns = deadline_ns;
        let published = self.agent.segment.view().publish(&self.session);
        published
            .map(|_| ())
            .map_err(|e| Error::Publish(io_error(e)))
    }

    /// Ends the session.
    pub fn stop(&self) -> Result<(), Error> {
        stop(&self.agent, &self.session)
    }

    /// Polls the session: reads the totals, and enlarges a table that fills up.
    pub fn poll(&mut self) -> Result<Polled, Refusal> {
        let Some(stat) = self.stat() else {
            return Ok(Polled::Dead);
        };
        self.resident = stat.rss_bytes();
        let mut epoch = [0];
        self.agent
            .segment
            .view()
            .read_at(0, &mut epoch)
            .map_err(io_error)?;
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = self.agent.segment.bank(self.session.number, &mut buffer)?;
        self.totals = bank.totals();
        self.thread_names.update(&self.agent, &self.session, &bank);
        let geometry = self.agent.segment.view().geometry();
        let is_half_full = |used: usize, limit: u32| used as u64 * 2 > u64::from(limit);
        // Includes units that the agent has added itself.
        self.units = self.units.max(bank.units());
        let is_crowded = is_half_full(bank.nodes(), geometry.nodes_in(self.units))
            || is_half_full(bank.records(), geometry.records_in(self.units));
        self.growing = is_crowded && !self.is_table_fixed && self.units < geometry.units;
        if self.growing {
            self.grow();
        }
        if epoch == [0] {
            return Ok(Polled::Stopped);
        }
        self.warn_of_overhead(bank.intervals().last());
        Ok(Polled::Counting)
    }

    /// Warns once if the CPU budget cannot be kept.
    fn warn_of_overhead(&mut self, last: Option<IntervalPeriod>) {
        let Some(share) = self.max_overhead else {
            return;
        };
        if governor::exceeds_at_max_interval(last, share) && !self.warned_of_overhead {
            self.warned_of_overhead = true;
            self.warnings.push(format!(
                "{}: sampling takes more than {} of its CPU time even at the widest interval, {} \
                 bytes: its objects are large",
                self.agent.title(),
                text::percent(share),
                governor::MAX_INTERVAL
            ));
        }
    }

    /// Returns the warnings since the last call.
    pub fn take_warnings(&mut self) -> Vec<String> {
        std::mem::take(&mut self.warnings)
    }

    /// Returns the CPU time that the process has used since it was found, in seconds.
    pub fn cpu_seconds(&self) -> f64 {
        let now = Stat::of(self.agent.pid).map_or(0, |s| s.cpu_ticks);
        let ticks = nix::unistd::sysconf(nix::unistd::SysconfVar::CLK_TCK);
        let per_second = ticks.ok().flatten().unwrap_or(100).max(1);
        now.saturating_sub(self.agent.cpu_ticks) as f64 / per_second as f64
    }

    /// Waits for a process that is exiting: its agent ends the session a moment before the exit.
    fn wait_for_exit(&self) {
        let mut head = Head::new();
        let header = self.agent.segment.head(&mut head);
        if header.is_ok_and(|header| header.exited())
            && let Some(fd) = &self.pidfd
        {
            proc::wait_for_end(fd, EXIT_TIMEOUT);
        }
    }

    /// Determines whether the process still runs the program whose segment this is.
    pub fn update_life(&mut self) {
        if self.agent.life != Life::Running {
            return;
        }
        self.wait_for_exit();
        if !self.is_alive() {
            self.agent.life = Life::Dead;
            let start = self.agent.segment.name.start_time;
            let end = ProcessEnd::of(self.agent.pid, start, self.pidfd());
            self.agent.end = self.agent.end.or(end);
        } else if proc::maps(self.agent.pid).is_some() && self.agent.confirm().is_err() {
            self.agent.life = Life::Replaced;
        }
    }
}

/// Returns the reason why a process cannot be sampled, if there is one that the agent has stated or
/// that is visible from outside. Must be checked before a session is started.
pub fn obstacle(agent: &Agent, header: &Header<'_>) -> Option<Error> {
    let is_unnoticed = || is_sandboxed_unnoticed(agent, header);
    stated_obstacle(header).or_else(|| is_unnoticed().then_some(Error::Sandboxed))
}

/// Returns the obstacle that the agent itself has noticed.
pub fn stated_obstacle(header: &Header<'_>) -> Option<Error> {
    match header.refuses() {
        (REFUSES_SANITIZER, _) => Some(Error::Sanitizer),
        (REFUSES_MUSL, _) => Some(Error::Musl),
        (REFUSES_SECCOMP, _) => Some(Error::Sandboxed),
        _ => None,
    }
}

/// Returns true if a seccomp filter that the agent has not noticed prevents sessions: it was
/// installed just now, or in a way that the agent does not intercept. Reads the status of each
/// thread.
pub fn is_sandboxed_unnoticed(agent: &Agent, header: &Header<'_>) -> bool {
    let has_tables = || {
        let mapped = agent.maps_tables();
        mapped.unwrap_or_else(|| agent.segment.view().has_tables())
    };
    proc::seccomp(agent.pid) > header.seccomp() && !has_tables()
}

/// Locks a segment. Tries again until `deadline`, unless the error is final.
fn lock_until(agent: &Agent, deadline: Instant, is_final: fn(&Error) -> bool) -> Result<(), Error> {
    while !agent.segment.lock().map_err(Error::Lock)? {
        let error = conflict(agent);
        if is_final(&error) || Instant::now() >= deadline {
            return Err(error);
        }
        std::thread::sleep(LOCK_POLL_INTERVAL);
    }
    Ok(())
}

/// Returns the error for a segment that another controller holds.
fn conflict(agent: &Agent) -> Error {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head).ok();
    let running = header.filter(is_running).and_then(|h| h.session());
    match running {
        Some(session) if session.is_probe() => Error::Probed {
            controller: session.controller_pid,
        },
        Some(session) => Error::Busy {
            controller: session.controller_pid,
            left: Deadline::of(session.deadline_ns).left(),
        },
        None => Error::Locked,
    }
}
