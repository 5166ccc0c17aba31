//! The profile of a session as it is now, in memory: for programs that send it instead of writing a
//! dump of it.

use heap_format::Profile;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::{Header, Totals};

use crate::collect::{self, Metadata};
use crate::discovery::{Agent, Life};
use crate::dump::{self, Error};
use crate::ended::Ended;
use crate::segment::Head;
use crate::target::is_running;
use crate::threads;

/// A profile, and how its session stands.
pub struct Live {
    /// The profile, whose code has no names yet.
    pub profile: Profile,
    /// The session that counted it.
    pub session: Session,
    /// Whether that still counts.
    pub running: bool,
    /// Its sums.
    pub totals: Totals,
    /// When the numbers were true, ns of the segment's clock.
    pub at_ns: u64,
}

/// Whether this session counts at this moment.
pub fn is_counting(header: &Header<'_>, session: &Session) -> bool {
    is_running(header)
        && header
            .session()
            .is_some_and(|last| last.number == session.number)
}

/// The last session of a process, if its table is there.
pub fn session_of(agent: &Agent, header: &Header<'_>) -> Option<Session> {
    // One of CPU time alone has nothing of the heap.
    let session = header.profiled();
    let session = session.filter(|session| session.interval != 0)?;
    let mut buffer = [0; BANK_HEADER_BYTES];
    let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
    (bank.session() == session.number).then_some(session)
}

/// The profile of the last session of a live process; `None` if nothing was sampled yet.
/// `trigger` says in its metadata why it was made.
pub fn profile(agent: &Agent, trigger: &str) -> Result<Option<Live>, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let Some(session) = session_of(agent, &header) else {
        return Ok(None);
    };
    if agent.life == Life::Running {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = agent.segment.bank(session.number, &mut buffer)?;
        threads::write_down(agent, &session, &bank, true);
    }
    let running = is_counting(&header, &session);
    let snapshot = dump::snapshot(agent, &session, &header)?;
    let mut metadata = Metadata::of_live(agent.pid, &agent.name);
    trigger.clone_into(&mut metadata.trigger);
    metadata.ended = match running {
        true => Ended::Not.fact(),
        false => Ended::InOrder.fact(),
    };
    let (profile, _) = collect::profile(&snapshot, &header, &metadata);
    Ok(Some(Live {
        profile,
        session,
        running,
        totals: snapshot.totals,
        at_ns: snapshot.end_ns,
    }))
}
