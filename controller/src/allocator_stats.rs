//! Obtains current allocator statistics of running processes.
//!
//! While a process is sampled, it publishes statistics once a second. If no session is running, a
//! short one (a probe) is started for this purpose. It ends as soon as the statistics are
//! published, or after a second, and leaves no profile; the profile of the previous session is
//! kept. A process that does not allocate during that second publishes nothing.

// Decision 58: querying statistics keeps the last profile.
use std::time::{Duration, Instant};

use anyhow::bail;
use mem_agents::clock::now_ns;
use mem_agents::discovery::{Agent, Found, Life};
use mem_agents::segment::{Head, io_error};
use mem_agents::target::{Deadline, Density, Target, is_running, uncollected};
use shm_protocol::snapshot::Header;

/// Interval at which a process publishes statistics, in nanoseconds.
const PUBLICATION_INTERVAL_NS: u64 = 1_000_000_000;
/// Maximum time to wait for an allocation once publication is due.
const ALLOCATION_TIMEOUT: Duration = Duration::from_secs(1);
/// Polling interval.
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Statistics in bytes, by jemalloc's names.
pub type Stats = [(&'static str, u64); 6];

/// State of the request for one process's statistics.
enum Request {
    /// Done. Contains the reason if there are no statistics and the reason is known.
    Settled(Option<String>),
    /// A probe is to be started at this time ([`now_ns`]). An earlier one would publish nothing.
    Due(u64),
    /// Another controller's session is running and will publish the statistics.
    Awaited,
    /// Our probe is running.
    Probe(Box<Target>),
}

/// Returns the statistics if they were taken after `ns` ([`now_ns`]). The clock advances only every
/// few milliseconds, so statistics with an equal time may be older.
pub fn since(header: &Header<'_>, ns: u64) -> Option<Stats> {
    let (taken_ns, stats) = header.allocator_stats()?;
    (taken_ns > ns).then_some(stats)
}

/// Obtains current statistics of the given processes. Returns for each the reason why there are
/// none, if it is known.
pub fn refresh(agents: &[Agent]) -> Vec<Option<String>> {
    let start = now_ns();
    let mut requests: Vec<Request> = agents
        .iter()
        .map(|agent| Request::new(agent, start))
        .collect();
    let deadline =
        Instant::now() + Duration::from_nanos(PUBLICATION_INTERVAL_NS) + ALLOCATION_TIMEOUT;
    loop {
        let mut is_waiting = false;
        for (agent, request) in agents.iter().zip(&mut requests) {
            request.advance(agent, start);
            is_waiting |= !matches!(request, Request::Settled(_));
        }
        if !is_waiting || Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
    requests.into_iter().map(Request::end).collect()
}

/// Returns true if statistics taken after `ns` exist.
fn has_stats_since(agent: &Agent, ns: u64) -> bool {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head);
    header.is_ok_and(|header| since(&header, ns).is_some())
}

/// Starts a probe, unless it would overwrite an earlier session's profile.
fn start_probe(agent: &Agent) -> anyhow::Result<Target> {
    let mut target = Target::claim(Found::clone(agent).open()?)?;
    let mut head = Head::new();
    if uncollected(&target.agent, &target.agent.segment.head(&mut head)?).is_some() {
        bail!("an earlier session left a profile: mem_profiler dump writes it out");
    }
    target.prepare(Density::PROBE)?;
    // The session is marked before it starts, so that its few samples are not taken for a profile
    // even if this process is killed.
    let view = target.agent.segment.view();
    view.mark_collected(target.session.number)
        .map_err(io_error)?;
    target.publish(Deadline::ns_after(Some(ALLOCATION_TIMEOUT)))?;
    Ok(target)
}

impl Request {
    /// Decides how to obtain statistics that an agent publishes after `start`.
    fn new(agent: &Agent, start: u64) -> Self {
        let mut head = Head::new();
        let Ok(header) = agent.segment.head(&mut head) else {
            return Self::Settled(None);
        };
        if header.system_allocator() || agent.life != Life::Running {
            return Self::Settled(None);
        }
        if is_running(&header) {
            return Self::Awaited;
        }
        let taken_ns = header.allocator_stats().map_or(0, |(taken_ns, _)| taken_ns);
        // A time in the future was not written by the agent.
        let due = taken_ns
            .min(now_ns())
            .saturating_add(PUBLICATION_INTERVAL_NS);
        Self::Due(due.max(start.saturating_add(1)))
    }

    /// Starts the probe when it is due, and completes the request once statistics taken after `ns`
    /// exist.
    fn advance(&mut self, agent: &Agent, ns: u64) {
        match self {
            Self::Settled(_) => {}
            Self::Due(due_ns) if now_ns() >= *due_ns => {
                *self = match start_probe(agent) {
                    Ok(target) => Self::Probe(Box::new(target)),
                    Err(reason) => Self::Settled(Some(format!("{reason:#}"))),
                };
            }
            Self::Due(_) => {}
            Self::Awaited | Self::Probe(_) if has_stats_since(agent, ns) => {
                std::mem::replace(self, Self::Settled(None)).end();
            }
            Self::Awaited | Self::Probe(_) => {}
        }
    }

    /// Ends a running probe. Returns the reason why there are no statistics, if it is known.
    fn end(self) -> Option<String> {
        match self {
            Self::Settled(reason) => return reason,
            Self::Awaited | Self::Due(_) => {}
            // If stopping fails, the deadline ends the probe. Stopping keeps the end time of the
            // previous session.
            Self::Probe(target) => drop(target.agent.segment.view().stop()),
        }
        Some(IDLE.to_owned())
    }
}

/// Reason why a process has published no statistics.
const IDLE: &str = "it has not allocated for a second";
