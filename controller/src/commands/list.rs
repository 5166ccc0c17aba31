//! `list`: every process with the agent, and what dead ones left.

use std::process::ExitCode;

use serde::Serialize;
use shm_protocol::layout::BANK_HEADER_BYTES;
use shm_protocol::snapshot::Header;

use crate::cgroup;
use crate::cli::ListArgs;
use crate::discovery::{Agent, Discovery, Life, Refused};
use crate::process;
use crate::segment::{Head, Refusal};
use crate::select::Selection;
use crate::target::{End, is_running, uncollected};
use crate::terminal::{result, tell};
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
    rss_bytes: Option<u64>,
    segment: String,
}

/// Prints the list.
pub fn execute(args: ListArgs) -> anyhow::Result<ExitCode> {
    let selection = Selection::from(args.select);
    let scan = Discovery::new().scan();
    let mut head = Head::new();
    let wanted = scan.agents.iter().filter(|agent| selection.wants(agent));
    let rows: Vec<Row> = wanted.filter_map(|agent| row(agent, &mut head)).collect();
    if args.json {
        result(&serde_json::to_string_pretty(&rows)?);
    } else {
        print(&rows);
    }
    if selection.names.is_empty() {
        scan.refused.iter().for_each(warn);
    }
    Ok(ExitCode::SUCCESS)
}

fn row(agent: &Agent, head: &mut Head) -> Option<Row> {
    let header = agent.segment.head(head).ok()?;
    let live = agent.life == Life::Running;
    let running = live && is_running(&header);
    let session = header.session().filter(|_| running);
    let end = session.map(|s| End::of(s.deadline_ns));
    let (samples, sampled_live) = sampled(agent, &header);
    let allocated = header
        .allocator_stats()
        .map(|(_, stats)| stats[0].1)
        .filter(|_| live);
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
            Some(End::At(ns)) => {
                Some(ns.saturating_sub(shm_protocol::clock::now_ns()) as f64 / 1e9)
            }
            _ => None,
        },
        open_end: matches!(end, Some(End::Rolling(_) | End::Never)),
        samples,
        live_bytes: allocated.or(sampled_live),
        rss_bytes: live.then(|| rss_bytes(agent.pid)).flatten(),
        segment: agent.segment.path().display().to_string(),
    })
}

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
            memory(row.live_bytes),
            memory(row.rss_bytes),
        ]
    });
    for line in text::table(&HEAD, &[0, 6, 7, 8, 9], cells.collect()) {
        result(&line);
    }
}

fn warn(refused: &Refused) {
    if !matches!(refused.reason, Refusal::Foreign(_)) && !refused.young {
        tell(&format!(
            "warning: {} cannot be used: {}",
            refused.path.display(),
            refused.reason
        ));
    }
}
