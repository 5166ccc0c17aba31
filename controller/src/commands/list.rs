//! `list`: every process with the agent, and what dead ones left.

use std::process::ExitCode;

use serde::Serialize;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::snapshot::Header;

use crate::allocator;
use crate::cgroup;
use crate::cli::ListArgs;
use crate::discovery::{Agent, Discovery, Life, Refused};
use crate::preload;
use crate::process;
use crate::segment::{Head, Refusal};
use crate::select::Selection;
use crate::target::{Deadline, Error, is_running, obstacle, uncollected};
use crate::terminal::{diagnostic, json, result, warning};
use crate::text;
use crate::triggers::rss_bytes;

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row {
    pid: i32,
    name: String,
    user: String,
    uid: u32,
    container: Option<String>,
    agent_version: String,
    state: &'static str,
    /// Bytes, while a session runs.
    interval: Option<u64>,
    /// Seconds left of a session with an end.
    seconds_left: Option<f64>,
    /// Whether the session goes on until it is stopped.
    open_end: bool,
    samples: u64,
    live_bytes: Option<u64>,
    /// Where `live_bytes` is from.
    live_source: Option<&'static str>,
    /// Seconds since it was true.
    live_age_seconds: Option<f64>,
    rss_bytes: Option<u64>,
    segment: String,
}

/// Prints the list.
pub fn execute(args: ListArgs) -> anyhow::Result<ExitCode> {
    let selection = Selection::from(args.select);
    let scan = Discovery::new().scan();
    let unknown = selection.unknown(&scan);
    unknown.iter().for_each(|failure| diagnostic(failure));
    let mut head = Head::new();
    let wanted = scan
        .found
        .into_iter()
        .filter(|found| selection.wants(found));
    // One after the other: there may be more than descriptors.
    let agents = wanted.filter_map(|found| found.open().ok());
    let mut live = Vec::new();
    let rows = agents.filter_map(|agent| {
        if agent.life == Life::Running {
            live.push((agent.pid, agent.name.clone()));
        }
        row(&agent, &mut head)
    });
    let rows: Vec<Row> = rows.filter(|row| args.all || row.is_of_use()).collect();
    if args.json {
        json(&rows)?;
    } else {
        print(&rows);
    }
    let live = live.iter().map(|(pid, name)| (*pid, &name[..]));
    let others = allocator::warnings(live);
    others.iter().for_each(|line| warning(line));
    if selection.names.is_empty() {
        let missing = preload::warnings();
        missing.iter().for_each(|line| warning(line));
        let concerns =
            |refused: &Refused| !matches!(refused.reason, Refusal::Foreign(_)) && !refused.young;
        let warnings = scan.refused.warnings(concerns, true);
        warnings.iter().for_each(|line| warning(line));
    }
    Ok(match unknown.is_empty() {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

fn row(agent: &Agent, head: &mut Head) -> Option<Row> {
    let header = agent.segment.head(head).ok()?;
    let live = agent.life == Life::Running;
    let running = live && is_running(&header);
    let session = header.session().filter(|_| running);
    let end = session.map(|s| Deadline::of(s.deadline_ns));
    let (samples, sampled_live) = sampled(agent, &header);
    // What a session counted is the present state while it runs, and a dead process's last one.
    let sampled_live = sampled_live.filter(|_| running || !live);
    let heap = Live::of(&header, live, sampled_live);
    Some(Row {
        pid: agent.pid,
        name: text::escape(&agent.name),
        user: process::user_name(agent.uid),
        uid: agent.uid,
        container: live.then(|| cgroup::container(agent.pid)).flatten(),
        agent_version: text::escape(header.agent_version()),
        state: state(agent, &header, running),
        interval: session.map(|s| s.interval),
        seconds_left: match end {
            Some(Deadline::At(ns)) => Some(ns.saturating_sub(crate::clock::now_ns()) as f64 / 1e9),
            _ => None,
        },
        open_end: matches!(end, Some(Deadline::Rolling(_) | Deadline::Never)),
        samples,
        live_bytes: heap.as_ref().map(|heap| heap.bytes),
        live_source: heap.as_ref().map(|heap| heap.source),
        live_age_seconds: heap.as_ref().map(|heap| heap.age_ns as f64 / 1e9),
        rss_bytes: live.then(|| rss_bytes(agent.pid)).flatten(),
        segment: text::path(agent.segment.path()),
    })
}

impl Row {
    /// Whether the process lives, or left a profile.
    fn is_of_use(&self) -> bool {
        !["dead", "replaced"].contains(&self.state)
    }
}

/// Bytes in use, as well as they are known.
struct Live {
    bytes: u64,
    source: &'static str,
    age_ns: u64,
}

impl Live {
    /// The allocator's own figure is refreshed once a second by whoever samples then, and shown
    /// with its age when it is older. In a session its sums are better then if they cover the
    /// whole heap, or more than the allocator knew of. Where there is none, they are all there is.
    fn of(header: &Header<'_>, live: bool, sampled: Option<u64>) -> Option<Self> {
        let now = crate::clock::now_ns();
        let allocator = header.allocator_stats().filter(|_| live);
        let allocator = allocator.map(|(taken, stats)| Self {
            bytes: stats[0].1,
            source: ALLOCATOR,
            age_ns: now.saturating_sub(taken),
        });
        let sampled = sampled.map(|bytes| Self {
            bytes,
            source: SAMPLES,
            age_ns: 0,
        });
        let first = |start_ns: u64| start_ns.saturating_sub(header.created_ns()) < STALE_NS;
        let whole = header.session().is_some_and(|s| first(s.start_ns));
        match (allocator, sampled) {
            (Some(a), Some(s)) if a.age_ns > STALE_NS && is_running(header) => {
                Some(if whole || s.bytes > a.bytes { s } else { a })
            }
            (allocator, sampled) => allocator.or(sampled),
        }
    }
}

/// Age at which the allocator's figure is no longer taken for the present one.
const STALE_NS: u64 = 3_000_000_000;
/// The allocator counts all of the heap.
const ALLOCATOR: &str = "allocator";
/// The samples estimate what was allocated since the session began and is in use.
const SAMPLES: &str = "samples";

/// Samples and live bytes of the last session, as far as its data are there.
fn sampled(agent: &Agent, header: &Header<'_>) -> (u64, Option<u64>) {
    let mut buffer = [0; BANK_HEADER_BYTES];
    let Some(session) = header.session() else {
        return (0, None);
    };
    match agent.segment.bank(session.number, &mut buffer) {
        Ok(bank) if bank.session() == session.number => {
            let totals = bank.totals();
            (totals.samples, Some(totals.live_bytes as u64))
        }
        _ => (0, None),
    }
}

fn state(agent: &Agent, header: &Header<'_>, running: bool) -> &'static str {
    let kept = uncollected(agent, header).is_some();
    let alive = agent.life == Life::Running;
    match alive.then(|| obstacle(agent, header)).flatten() {
        Some(Error::Musl) => return "not sampled: musl",
        Some(Error::Sanitizer) => return "not sampled: sanitizer",
        Some(Error::Sandboxed) => return "not sampled: seccomp",
        _ => {}
    }
    match (agent.life, running, kept) {
        (Life::Running, true, _) => "sampling",
        (Life::Running, false, true) => "idle, profile kept",
        (Life::Running, false, false) => "idle",
        (Life::Replaced, _, true) => "replaced, profile kept",
        (Life::Replaced, _, false) => "replaced",
        (Life::Dead, _, true) => "dead, profile kept",
        (Life::Dead, _, false) => "dead",
    }
}

fn print(rows: &[Row]) {
    const HEAD: [&str; 10] = [
        "PID",
        "NAME",
        "USER",
        "CONTAINER",
        "AGENT",
        "STATE",
        "INTERVAL",
        "LEFT",
        "LIVE",
        "RSS",
    ];
    let dash = || "-".to_owned();
    let memory = |bytes: Option<u64>| bytes.map_or_else(dash, |b| text::bytes(b as f64));
    let cells = rows.iter().map(|row| {
        let left = row.seconds_left.map(std::time::Duration::from_secs_f64);
        let open = if row.open_end {
            "open".to_owned()
        } else {
            dash()
        };
        vec![
            row.pid.to_string(),
            row.name.clone(),
            row.user.clone(),
            row.container.clone().unwrap_or_else(dash),
            row.agent_version.clone(),
            row.state.to_owned(),
            row.interval.map_or_else(dash, |i| i.to_string()),
            left.map_or(open, text::duration),
            live_text(row).unwrap_or_else(dash),
            memory(row.rss_bytes),
        ]
    });
    for line in text::table(&HEAD, &[0, 6, 7, 8, 9], cells.collect()) {
        result(&line);
    }
}

/// `~` before an estimate; how long ago behind an old figure.
fn live_text(row: &Row) -> Option<String> {
    let (bytes, source, age) = (row.live_bytes?, row.live_source?, row.live_age_seconds?);
    let text = text::bytes(bytes as f64);
    Some(match source {
        SAMPLES => format!("~{text}"),
        _ if age * 1e9 > STALE_NS as f64 => {
            let age = std::time::Duration::from_secs_f64(age);
            format!("{text} {} ago", text::duration(age))
        }
        _ => text,
    })
}
