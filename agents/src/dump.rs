//! Writing one process's dump, whatever requested it: a session that ends, a trigger, a recovery.

use std::io;
use std::path::PathBuf;

use heap_format::crowding;
use heap_format::dump::Text;
use heap_format::moment::Moment;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use crate::clock::Time;
use crate::collect::{self, Metadata};
use crate::discovery::{Agent, Life};
use crate::ended::Ended;
use crate::interpreted;
use crate::output::Output;
use crate::parallel_writer;
use crate::process;
use crate::segment::{Head, Refusal};
use crate::snapshot::{Gone, Snapshot};
use crate::text;
use crate::threads;
use crate::timeline::{self, Timeline};

/// Why there is no dump.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The segment cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The session's data are not there.
    #[error(transparent)]
    Gone(#[from] Gone),
    /// The file cannot be written, or another system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A dump that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// The process.
    pub pid: i32,
    /// Its name and pid, for display.
    pub title: String,
    /// How the session stood.
    pub ended: Ended,
    /// Samples in it.
    pub samples: u64,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Estimated live bytes.
    pub live_bytes: f64,
    /// Threads that noticed the session.
    pub threads: u64,
    /// Whether it is the one at the end of the session.
    pub is_last: bool,
    /// A remark behind its name.
    pub remark: Option<String>,
    /// Warnings to print before its name.
    pub warnings: Vec<String>,
}

impl Written {
    /// The file's name, and a remark where not all went as planned.
    pub fn line(&self) -> String {
        let path = text::path(&self.path);
        let ended = Some(self.ended.remark(&self.title)).filter(|r| !r.is_empty());
        match self.remark.clone().or(ended) {
            None => path,
            Some(remark) => format!("{path} ({remark})"),
        }
    }
}

/// Returns when a session's counting ended, or the present time.
pub fn end_of(session: &Session, header: &Header<'_>) -> Time {
    let now = Time::now();
    let (ended, at) = header.ended();
    let end = match (ended == session.number, session.deadline_ns) {
        (true, _) => at,
        (false, 0) => now.ns,
        (false, deadline) => deadline.min(now.ns),
    };
    now.at(end.clamp(session.start_ns.min(now.ns), now.ns))
}

/// Copies the table of an agent's session.
pub fn snapshot(agent: &Agent, session: &Session, header: &Header<'_>) -> Result<Snapshot, Gone> {
    let end = end_of(session, header);
    Snapshot::read(&agent.segment, session, end)
}

/// Writes what a process left. When it died is not known exactly: within a second of its
/// last sign of life, if it gave one.
pub fn write_dead(
    output: &Output,
    agent: &Agent,
    session: &Session,
    (trigger, ended): (&str, Ended),
) -> Result<Written, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let end = end_of_dead(session, &header);
    let snapshot = Snapshot::read(&agent.segment, session, end)?;
    write_snapshot(
        output,
        agent,
        &header,
        (&snapshot, &[]),
        (trigger, ended, false),
    )
}

/// Returns when a dead process's session ended, as [`end_of`].
fn end_of_dead(session: &Session, header: &Header<'_>) -> Time {
    let same_boot = proc::boot_id().is_some_and(|(id, _)| header.boot_id() == id);
    if same_boot {
        return last_sign_of_life(end_of(session, header), session, header);
    }
    // The clock of another boot says nothing today.
    Time {
        ns: session.start_ns,
        unix_ns: session.start_unix_ns,
        boot_ns: None,
    }
}

/// Writes the profile of the maximum of the live heap in a session. That is the present one if the
/// heap has only grown.
pub fn write_peak(
    output: &Output,
    agent: &Agent,
    (session, timeline): (&Session, Option<&Timeline>),
    ended: Ended,
) -> Result<Written, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    name_threads(agent, session)?;
    let end = match agent.life {
        Life::Running => end_of(session, &header),
        _ => end_of_dead(session, &header),
    };
    let peak = Snapshot::read_peak(&agent.segment, session, end)?;
    let snapshot = peak.map_or_else(|| Snapshot::read(&agent.segment, session, end), Ok)?;
    let reason = format!(
        "high-water mark, {} live",
        text::bytes(snapshot.totals.live_bytes)
    );
    let moments = timeline.map_or(Vec::new(), |timeline| timeline.until(&snapshot));
    let cause = (reason.as_str(), ended, true);
    let mut written = write_snapshot(output, agent, &header, (&snapshot, &moments), cause)?;
    written.remark = Some(reason);
    Ok(written)
}

/// Moves the end of a dead process's session to when it was last seen alive.
fn last_sign_of_life(end: Time, session: &Session, header: &Header<'_>) -> Time {
    const PERIOD_NS: u64 = 1_000_000_000;
    let seen = header
        .last_sign_of_life()
        .map(|seen| seen.saturating_add(PERIOD_NS));
    match seen {
        Some(seen) if (session.start_ns..end.ns).contains(&seen) => end.at(seen),
        _ => end,
    }
}

/// Writes the names of a running process's threads into its segment.
fn name_threads(agent: &Agent, session: &Session) -> Result<(), Error> {
    if agent.life == Life::Running {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = agent.segment.bank(session.number, &mut buffer)?;
        threads::write_down(agent, session, &bank, true);
    }
    Ok(())
}

/// Takes a snapshot and writes it, with the session's timeline where somebody kept one.
pub fn write(
    output: &Output,
    agent: &Agent,
    (session, timeline): (&Session, Option<&Timeline>),
    (trigger, ended): (&str, Ended),
) -> Result<Written, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    name_threads(agent, session)?;
    let peak = match timeline {
        Some(_) => Snapshot::read_peak_sums(&agent.segment, session)?,
        None => None,
    };
    let snapshot = snapshot(agent, session, &header)?;
    let moments = timeline.map_or(Vec::new(), |timeline| {
        let mut moments = timeline.until(&snapshot);
        if let Some((at_ns, sums)) = peak {
            timeline::insert_peak(&mut moments, at_ns, &sums);
        }
        moments
    });
    write_snapshot(
        output,
        agent,
        &header,
        (&snapshot, &moments),
        (trigger, ended, false),
    )
}

/// Writes a snapshot, with the moments before it where somebody kept them: those of stacks name
/// them by their leaves.
fn write_snapshot(
    output: &Output,
    agent: &Agent,
    header: &Header<'_>,
    (snapshot, moments): (&Snapshot, &[Moment]),
    (trigger, ended, is_peak): (&str, Ended, bool),
) -> Result<Written, Error> {
    let mut metadata = match ended {
        Ended::Not | Ended::InOrder => Metadata::of_live(agent.pid, &agent.name),
        _ => Metadata {
            pid: agent.pid,
            name: agent.name.clone(),
            ..Metadata::default()
        },
    };
    if snapshot.is_past {
        // Nobody knows what there was then.
        metadata.memory.clear();
    }
    metadata.is_peak = is_peak;
    metadata.trigger = trigger.to_owned();
    metadata.ended = ended.fact();
    metadata.boot_id = process::boot_id_of(header);
    let (mut profile, truncated, records) =
        collect::profile_with_records(snapshot, header, &metadata);
    if !moments.is_empty() {
        profile.moments = timeline::numbered(moments, snapshot, &profile);
    }
    let unnamed = interpreted::without_room(&profile);
    let samples = snapshot.totals.samples;
    let elsewhere = snapshot.untracked_elsewhere();
    let untracked = snapshot.untracked() - elsewhere;
    let unsampled = snapshot.unsampled_threads();
    let warnings = [
        (unsampled > 0).then(|| without_memory(agent, unsampled)),
        (untracked > 0).then(|| without_place(agent, untracked, samples)),
        // A few are nothing to worry about.
        (elsewhere > samples / 100).then(|| placed_elsewhere(agent, elsewhere, samples)),
        overwritten(agent, snapshot),
        (truncated > 0).then(|| truncation(agent, truncated)),
        (unnamed > 0).then(|| unnamed_lines(agent, unnamed)),
        crowding::remark(&profile).map(|remark| format!("{}: {remark}", agent.title())),
    ];
    let path = output.write(&agent.name, agent.pid, |number, file| {
        profile.facts.sequence = Some(number);
        parallel_writer::write(&Text::with_parts(profile, records)?, file)
    })?;
    Ok(Written {
        path,
        pid: agent.pid,
        title: agent.title(),
        ended,
        samples: snapshot.totals.samples,
        alloc_bytes: snapshot.totals.alloc_bytes,
        live_bytes: snapshot.totals.live_bytes,
        threads: snapshot.threads,
        is_last: false,
        remark: None,
        warnings: warnings.into_iter().flatten().collect(),
    })
}

fn without_place(agent: &Agent, untracked: u64, samples: u64) -> String {
    format!(
        "{}: {untracked} of {samples} samples have no place in the range of sampled objects: live \
         values are too small; raise ulimit -v",
        agent.title()
    )
}

fn placed_elsewhere(agent: &Agent, elsewhere: u64, samples: u64) -> String {
    format!(
        "{}: {elsewhere} of {samples} samples were taken in threads that were ending, or are of \
         the allocator itself: live values are too small",
        agent.title()
    )
}

fn without_memory(agent: &Agent, threads: u64) -> String {
    format!(
        "{}: {threads} threads were not sampled (ulimit -v or -d, or seccomp's strict mode): what \
         they allocated is missing",
        agent.title()
    )
}

/// What the program writes outside its objects; their stacks are in the dump.
fn overwritten(agent: &Agent, snapshot: &Snapshot) -> Option<String> {
    let remark = snapshot.overwritten().remark(&[])?;
    let hint = match snapshot.overwritten.is_empty() {
        true => "",
        false => "; mem_parser -t names the functions that allocated them",
    };
    Some(format!("{}: {remark}{hint}", agent.title()))
}

fn truncation(agent: &Agent, stacks: usize) -> String {
    format!(
        "{}: {stacks} stacks are truncated (more than {} frames in all, or a damaged segment): \
         their bytes are under [truncated]",
        agent.title(),
        collect::MAX_FRAMES
    )
}

fn unnamed_lines(agent: &Agent, samples: u64) -> String {
    format!(
        "{}: lines of Python have no name in {samples} samples ({}): start it with a larger \
         MEM_PROFILER_TABLE",
        agent.title(),
        cpython::TABLE_FULL
    )
}
