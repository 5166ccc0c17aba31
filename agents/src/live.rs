//! Builds the current profile of a session in memory, for programs that send it instead of writing
//! a dump.

use profile::Profile;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::{Header, Totals};

use crate::collect::{self, Metadata};
use crate::discovery::{Agent, Life};
use crate::dump::{self, Error};
use crate::ended::Ended;
use crate::process;
use crate::segment::Head;
use crate::snapshot::Snapshot;
use crate::target::is_running;
use crate::threads::{self, Which};
use crate::timeline::{self, Timeline};

/// Profile with the state of its session.
pub struct Live {
    /// Profile without function names.
    pub profile: Profile,
    /// Session that the profile is from.
    pub session: Session,
    /// True if the session is still counting.
    pub running: bool,
    /// Totals of the session.
    pub totals: Totals,
    /// Time of the snapshot, in ns of the segment's clock.
    pub at_ns: u64,
}

/// Moments of a session that were recorded while it ran.
#[derive(Clone)]
pub struct Recorded {
    /// Number of the session.
    pub session: u64,
    /// Moments of that session.
    pub timeline: Timeline,
}

/// Returns true if this session is counting now.
pub fn is_counting(header: &Header<'_>, session: &Session) -> bool {
    is_running(header)
        && header
            .session()
            .is_some_and(|last| last.number == session.number)
}

/// Returns the last heap session of a process, if its table still exists.
pub fn session_of(agent: &Agent, header: &Header<'_>) -> Option<Session> {
    // A session of CPU time alone has no heap data.
    let session = header.profiled().filter(|session| session.interval != 0)?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    (bank.session() == session.number).then_some(session)
}

/// Builds the profile of a live process's last session. Returns `None` if there was no session.
/// `trigger` is recorded in the metadata as the cause. The profile has the moments that were
/// `recorded`, if they are of that session.
pub fn profile(
    agent: &Agent,
    trigger: &str,
    recorded: Option<&Recorded>,
) -> Result<Option<Live>, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let Some(session) = session_of(agent, &header) else {
        return Ok(None);
    };
    if agent.life == Life::Running {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = agent.segment.bank(session.number, &mut buffer)?;
        threads::record_names(agent, &session, &bank, Which::All);
    }
    let running = is_counting(&header, &session);
    let recorded = recorded.filter(|recorded| recorded.session == session.number);
    let peak = match recorded {
        Some(_) => Snapshot::read_peak_sums(&agent.segment, &session)?,
        None => None,
    };
    let snapshot = dump::snapshot(agent, &session, &header)?;
    let mut metadata = Metadata::of_live(agent.pid, &agent.name);
    metadata.add_owners(&header);
    trigger.clone_into(&mut metadata.trigger);
    metadata.ended = if running {
        Ended::Not.fact()
    } else {
        Ended::Normally.fact()
    };
    let (mut profile, _) = collect::profile(&snapshot, &header, &metadata);
    if let Some(recorded) = recorded {
        let mut moments = recorded.timeline.until(&snapshot);
        if let Some(peak) = peak {
            timeline::insert_peak(&mut moments, peak.at_ns, &peak.sums);
        }
        profile.moments = timeline::with_stack_numbers(&moments, &snapshot, &profile);
    }
    Ok(Some(Live {
        profile,
        session,
        running,
        totals: snapshot.totals,
        at_ns: snapshot.end_ns,
    }))
}

/// Builds the profile that a dead process left. Returns `None` if there was no session.
pub fn last_profile(agent: &Agent, trigger: &str, ended: Ended) -> Result<Option<Profile>, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let Some(session) = session_of(agent, &header) else {
        return Ok(None);
    };
    let end = dump::end_of_dead(&session, &header);
    let snapshot = Snapshot::read(&agent.segment, &session, end)?;
    let metadata = Metadata {
        pid: agent.pid,
        name: agent.name.clone(),
        trigger: trigger.to_owned(),
        ended: ended.fact(),
        boot_id: process::boot_id_of(&header),
        ..Metadata::default()
    };
    Ok(Some(collect::profile(&snapshot, &header, &metadata).0))
}
