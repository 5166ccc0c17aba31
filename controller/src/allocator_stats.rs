//! The allocator's statistics of running processes, brought up to date.
//!
//! A process publishes them once a second while it is sampled. If no session is running, a short
//! one of our own makes it do so (a probe): it ends as soon as the statistics are there, after a
//! second at the latest, and leaves no profile. That of the session before stays. A process that
//! does not allocate in that second publishes nothing.

// Decision 58: querying statistics keeps the last profile.
use std::time::{Duration, Instant};

use anyhow::bail;
use mem_agents::clock::now_ns;
use mem_agents::discovery::{Agent, Found, Life};
use mem_agents::segment::{Head, io_error};
use mem_agents::target::{Deadline, Density, Target, is_running, uncollected};
use shm_protocol::snapshot::Header;

/// Time between two publications by a process, in nanoseconds.
const PERIOD_NS: u64 = 1_000_000_000;
/// Longest wait for an allocation once publication is due.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between looks.
const LOOK: Duration = Duration::from_millis(2);
/// Bytes by the name that jemalloc gives them.
pub type Stats = [(&'static str, u64); 6];

/// What is done about a process whose statistics are wanted.
enum Request {
    /// Nothing more; why, if they are not there and that is the reason.
    Settled(Option<String>),
    /// A session of our own starts at this time: before, nothing would be published.
    Due(u64),
    /// Another's session runs, in which they will be published.
    Awaited,
    /// Our own does.
    Session(Box<Target>),
}

/// The statistics, if they are later than this moment of [`now_ns`]. That clock is updated only
/// every few milliseconds: what is of the same moment may be earlier.
pub fn since(header: &Header<'_>, ns: u64) -> Option<Stats> {
    let (taken_ns, stats) = header.allocator_stats()?;
    (taken_ns > ns).then_some(stats)
}

/// Brings the statistics of these processes up to date as far as that is possible. For each the
/// reason why they are older than the call, where it is known.
pub fn refresh(agents: &[Agent]) -> Vec<Option<String>> {
    let start = now_ns();
    let mut requests: Vec<Request> = agents.iter().map(|agent| request(agent, start)).collect();
    let end = Instant::now() + Duration::from_nanos(PERIOD_NS) + PATIENCE;
    loop {
        let mut waiting = false;
        for (agent, request) in agents.iter().zip(&mut requests) {
            request.look(agent, start);
            waiting |= !matches!(request, Request::Settled(_));
        }
        if !waiting || Instant::now() >= end {
            break;
        }
        std::thread::sleep(LOOK);
    }
    requests.into_iter().map(Request::end).collect()
}

fn is_since(agent: &Agent, ns: u64) -> bool {
    let mut head = Head::new();
    let header = agent.segment.head(&mut head);
    header.is_ok_and(|header| since(&header, ns).is_some())
}

/// `start`: what is published at that very moment would not count.
fn request(agent: &Agent, start: u64) -> Request {
    let mut head = Head::new();
    let Ok(header) = agent.segment.head(&mut head) else {
        return Request::Settled(None);
    };
    if header.system_allocator() || agent.life != Life::Running {
        return Request::Settled(None);
    }
    if is_running(&header) {
        return Request::Awaited;
    }
    let taken = header.allocator_stats().map_or(0, |(taken_ns, _)| taken_ns);
    // A time that is still to come is not the agent's.
    let due = taken.min(now_ns()).saturating_add(PERIOD_NS);
    Request::Due(due.max(start.saturating_add(1)))
}

/// Starts a session of our own, unless that would overwrite what an earlier one left.
fn start(agent: &Agent) -> anyhow::Result<Target> {
    let mut target = Target::take(Found::clone(agent).open()?)?;
    let mut head = Head::new();
    if uncollected(&target.agent, &target.agent.segment.head(&mut head)?).is_some() {
        bail!("an earlier session left a profile: mem_profiler dump writes it out");
    }
    target.prepare(Density::PROBE)?;
    // Before it begins: however we end, its few samples must not be taken for a profile.
    let view = target.agent.segment.view();
    view.mark_collected(target.session.number)
        .map_err(io_error)?;
    target.publish(Deadline::ns_after(Some(PATIENCE)))?;
    Ok(target)
}

impl Request {
    /// Starts the session when it is due; settles it as soon as there are statistics that are
    /// later than `ns`.
    fn look(&mut self, agent: &Agent, ns: u64) {
        match self {
            Self::Settled(_) => {}
            Self::Due(at) if now_ns() >= *at => {
                *self = match start(agent) {
                    Ok(target) => Self::Session(Box::new(target)),
                    Err(reason) => Self::Settled(Some(format!("{reason:#}"))),
                };
            }
            Self::Due(_) => {}
            Self::Awaited | Self::Session(_) if is_since(agent, ns) => {
                std::mem::replace(self, Self::Settled(None)).end();
            }
            Self::Awaited | Self::Session(_) => {}
        }
    }

    /// Ends our own session; the reason why there are no statistics, if it is known.
    fn end(self) -> Option<String> {
        match self {
            Self::Settled(reason) => return reason,
            Self::Awaited | Self::Due(_) => {}
            // Not switched off, it ends by its deadline. When the session before it ended stays
            // known.
            Self::Session(target) => drop(target.agent.segment.view().stop()),
        }
        Some(IDLE.to_owned())
    }
}

const IDLE: &str = "it has not allocated for a second";
