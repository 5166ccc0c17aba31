//! Writes the dump of one process, for the end of a session, a trigger or a recovery.

use std::io;
use std::path::PathBuf;

use profile::crowding;
use profile::dump::Text;
use profile::moment::Moment;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::segment::Session;
use shm_protocol::snapshot::Header;

use crate::clock::Time;
use crate::collect::{self, Metadata, ProfileWithRecords};
use crate::discovery::{Agent, Life};
use crate::ended::Ended;
use crate::interpreted;
use crate::output::Output;
use crate::parallel_writer;
use crate::process;
use crate::segment::{Head, Refusal};
use crate::snapshot::{Snapshot, SnapshotError};
use crate::text;
use crate::threads::{self, Which};
use crate::timeline::{self, Timeline};

/// Reason why no dump was written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The segment cannot be read.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The session's data no longer exist.
    #[error(transparent)]
    SnapshotError(#[from] SnapshotError),
    /// The file could not be written, or another system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// A dump that was written.
#[derive(Clone, Debug)]
pub struct Written {
    /// The file.
    pub path: PathBuf,
    /// Pid of the process.
    pub pid: i32,
    /// Name and pid of the process, for display.
    pub title: String,
    /// State of the session or process when the dump was written.
    pub ended: Ended,
    /// Number of samples in the dump.
    pub samples: u64,
    /// True if every allocation was sampled, so that the sums are exact.
    pub is_exact: bool,
    /// Estimated bytes allocated.
    pub alloc_bytes: f64,
    /// Estimated live bytes.
    pub live_bytes: f64,
    /// Largest sum of live bytes that is known.
    pub peak_bytes: f64,
    /// Number of threads that have taken part in the session.
    pub threads: u64,
    /// Cost of sampling, if it was measured.
    pub cost: Option<profile::Cost>,
    /// True for the dump that is written at the end of the session.
    pub is_last: bool,
    /// Text to print in parentheses after the file name.
    pub remark: Option<String>,
    /// Warnings to print before the file name.
    pub warnings: Vec<String>,
}

/// Minimum ratio of the peak to the live bytes for nearly everything to count as freed.
const FREED_RATIO: f64 = 20.0;
/// Live bytes that the runtime of a C++ program leaves at its exit.
const RUNTIME_BYTES: f64 = (128 << 10) as f64;

impl Written {
    /// Returns true if the process has exited and had freed nearly everything (as `mem_parser`
    /// judges it, `parser/src/freed.rs`).
    pub fn is_freed(&self) -> bool {
        let (live, peak) = (self.live_bytes, self.peak_bytes);
        matches!(self.ended, Ended::Exited(_))
            && (live < peak / FREED_RATIO || live < RUNTIME_BYTES && live < peak / 2.0)
    }

    /// Returns the file name, with a remark if not all went as planned.
    pub fn line(&self) -> String {
        let path = text::path(&self.path);
        let ended = Some(self.ended.remark(&self.title)).filter(|r| !r.is_empty());
        match self.remark.clone().or(ended) {
            None => path,
            Some(remark) => format!("{path} ({remark})"),
        }
    }
}

/// Returns the time at which the session stopped counting, or the present time if it still counts.
/// At a normal exit, that is when the agent stopped, not when the controller notices.
pub fn end_of(session: &Session, header: &Header<'_>) -> Time {
    let now = Time::now();
    let (ended_session, ended_ns) = header.ended();
    let end = if ended_session == session.number {
        ended_ns
    } else {
        let deadline = Some(session.deadline_ns).filter(|&at| at != 0);
        let ends = [deadline, header.exited_ns()].into_iter().flatten();
        ends.fold(now.ns, u64::min)
    };
    now.at(end.clamp(session.start_ns.min(now.ns), now.ns))
}

/// Takes a snapshot of an agent's session.
pub fn snapshot(
    agent: &Agent,
    session: &Session,
    header: &Header<'_>,
) -> Result<Snapshot, SnapshotError> {
    let end = end_of(session, header);
    Snapshot::read(&agent.segment, session, end)
}

/// Writes the dump of a dead process. The time of its death is known if it exited normally,
/// otherwise only to within a second of its last sign of life, if there is one.
pub fn write_dead(
    output: &Output,
    agent: &Agent,
    session: &Session,
    trigger: &str,
    ended: Ended,
) -> Result<Written, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    let end = end_of_dead(session, &header);
    let snapshot = Snapshot::read(&agent.segment, session, end)?;
    let content = Content {
        snapshot: &snapshot,
        moments: &[],
        trigger,
        ended,
        is_peak: false,
    };
    write_content(output, agent, &header, &content)
}

/// Like [`end_of`], for the session of a dead process.
pub(crate) fn end_of_dead(session: &Session, header: &Header<'_>) -> Time {
    let boot_id = proc::boot_id().map(|(id, _)| id);
    if !process::is_from_other_boot(boot_id, header) {
        return last_sign_of_life(end_of(session, header), session, header);
    }
    // Times of an earlier boot cannot be compared with the present clock.
    Time {
        ns: session.start_ns,
        unix_ns: session.start_unix_ns,
        boot_ns: None,
    }
}

/// Writes the profile of a session's high-water mark. If the heap has only grown, that is the
/// present profile.
pub fn write_peak(
    output: &Output,
    agent: &Agent,
    session: &Session,
    timeline: Option<&Timeline>,
    ended: Ended,
) -> Result<Written, Error> {
    let mut head = Head::new();
    let header = agent.segment.full_head(&mut head)?;
    name_threads(agent, session)?;
    let end = match agent.life {
        Life::Running => end_of(session, &header),
        _ => end_of_dead(session, &header),
    };
    let snapshot = match Snapshot::read_peak(&agent.segment, session, end)? {
        Some(peak) => peak,
        None => Snapshot::read(&agent.segment, session, end)?,
    };
    let mark = if snapshot.largest_interval() == 1 {
        ""
    } else {
        "~"
    };
    let live = text::bytes(snapshot.totals.live_bytes);
    let reason = format!("high-water mark, {mark}{live} live");
    let moments = timeline.map_or(Vec::new(), |timeline| timeline.until(&snapshot));
    let content = Content {
        snapshot: &snapshot,
        moments: &moments,
        trigger: &reason,
        ended,
        is_peak: true,
    };
    let mut written = write_content(output, agent, &header, &content)?;
    written.remark = Some(reason);
    Ok(written)
}

/// Limits the end of a dead process's session to a second after the process was last seen alive.
fn last_sign_of_life(end: Time, session: &Session, header: &Header<'_>) -> Time {
    const PERIOD_NS: u64 = 1_000_000_000;
    let seen = header
        .last_sign_of_life()
        .map(|seen| seen.saturating_add(PERIOD_NS));
    match seen {
        _ if header.exited_ns().is_some() => end,
        Some(seen) if (session.start_ns..end.ns).contains(&seen) => end.at(seen),
        _ => end,
    }
}

/// Writes the names of a running process's threads into its segment.
fn name_threads(agent: &Agent, session: &Session) -> Result<(), Error> {
    if agent.life == Life::Running {
        let mut buffer = [0; BANK_HEADER_BYTES];
        let bank = agent.segment.bank(session.number, &mut buffer)?;
        threads::record_names(agent, session, &bank, Which::All);
    }
    Ok(())
}

/// Takes a snapshot and writes it, with the session's timeline if there is one.
pub fn write(
    output: &Output,
    agent: &Agent,
    session: &Session,
    timeline: Option<&Timeline>,
    trigger: &str,
    ended: Ended,
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
        if let Some(peak) = peak {
            timeline::insert_peak(&mut moments, peak.at_ns, &peak.sums);
        }
        moments
    });
    let content = Content {
        snapshot: &snapshot,
        moments: &moments,
        trigger,
        ended,
        is_peak: false,
    };
    write_content(output, agent, &header, &content)
}

/// Input from which a dump is built.
struct Content<'a> {
    snapshot: &'a Snapshot,
    /// Earlier moments of the session, with stacks identified by leaf nodes. Empty: no timeline.
    moments: &'a [Moment],
    /// Cause of the dump.
    trigger: &'a str,
    ended: Ended,
    /// True if the snapshot is of the session's high-water mark.
    is_peak: bool,
}

/// Writes a dump and collects the warnings that belong to it.
fn write_content(
    output: &Output,
    agent: &Agent,
    header: &Header<'_>,
    content: &Content<'_>,
) -> Result<Written, Error> {
    let Content {
        snapshot,
        moments,
        trigger,
        ended,
        is_peak,
    } = *content;
    let mut metadata = match ended {
        Ended::Not | Ended::Normally => Metadata::of_live(agent.pid, &agent.name),
        _ => Metadata {
            pid: agent.pid,
            name: agent.name.clone(),
            ..Metadata::default()
        },
    };
    if snapshot.is_past {
        // The kernel's counters describe the present, not the time of the snapshot.
        metadata.memory.clear();
    } else if !metadata.memory.is_empty() {
        metadata.add_owners(header);
    }
    metadata.is_peak = is_peak;
    metadata.trigger = trigger.to_owned();
    metadata.ended = ended.fact();
    metadata.boot_id = process::boot_id_of(header);
    let ProfileWithRecords {
        mut profile,
        truncated,
        records,
    } = collect::profile_with_records(snapshot, header, &metadata);
    if !moments.is_empty() {
        profile.moments = timeline::with_stack_numbers(moments, snapshot, &profile);
    }
    let unnamed = interpreted::samples_without_code_object(&profile);
    let samples = snapshot.totals.samples;
    let elsewhere = snapshot.untracked_elsewhere();
    let untracked = snapshot.untracked() - elsewhere;
    let unsampled = snapshot.unsampled_threads();
    let warnings = [
        (unsampled > 0).then(|| without_memory(agent, unsampled)),
        (untracked > 0).then(|| untracked_samples(agent, untracked, samples)),
        // A few are normal, since threads exit.
        (elsewhere > samples / 100).then(|| samples_elsewhere(agent, elsewhere, samples)),
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
        is_exact: snapshot.largest_interval() <= 1,
        alloc_bytes: snapshot.totals.alloc_bytes,
        live_bytes: snapshot.totals.live_bytes,
        peak_bytes: moments
            .iter()
            .map(|moment| moment.live as f64)
            .fold(snapshot.totals.live_bytes, f64::max),
        threads: snapshot.threads,
        cost: snapshot.cost(),
        is_last: false,
        remark: None,
        warnings: warnings.into_iter().flatten().collect(),
    })
}

fn untracked_samples(agent: &Agent, untracked: u64, samples: u64) -> String {
    format!(
        "{}: {untracked} of {samples} samples have no place in their range: live values are too \
         small; if ulimit -v is set, raise it",
        agent.title()
    )
}

fn samples_elsewhere(agent: &Agent, elsewhere: u64, samples: u64) -> String {
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

/// Returns a warning if the program writes outside its objects. The stacks that allocated them are
/// in the dump.
fn overwritten(agent: &Agent, snapshot: &Snapshot) -> Option<String> {
    let remark = snapshot.overwritten().remark(&[])?;
    let hint = if snapshot.overwritten.is_empty() {
        ""
    } else {
        "; mem_parser -t names the functions that allocated them"
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
