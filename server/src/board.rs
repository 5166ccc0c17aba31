//! State of the live page: the list of processes, and the recent history of each. Updated on
//! request, at most once a second however many clients request it.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mem_agents::clock::{Time, now_ns};
use mem_agents::discovery::Agent;
use mem_agents::listing::{self, Row};
use mem_agents::live;
use mem_agents::segment::Head;
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::sessions::Sessions;

/// Maximum age of the list before it is updated.
const MAX_AGE: Duration = Duration::from_millis(900);
/// Maximum number of points in a process's history.
const MAX_POINTS: usize = 300;
/// Maximum number of processes shown.
pub const MAX_PROCESSES: usize = 1000;

/// The list of processes, shared by all clients.
#[derive(Default)]
pub struct Board {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Time of the last update.
    read: Option<Instant>,
    rows: Vec<Value>,
    /// History by pid and the creation time of the segment.
    histories: HashMap<(i32, u64), VecDeque<Point>>,
}

/// One point of a process's history.
#[derive(Clone, Copy)]
struct Point {
    at_ms: u64,
    /// Best known value of the bytes in use, by the allocator or the samples.
    live: Option<u64>,
    /// Bytes in use by the samples alone.
    sampled: Option<f64>,
    allocated: Option<f64>,
    rss: Option<u64>,
    session: u64,
}

impl Board {
    /// Returns the list as JSON.
    pub fn read(&self, agents: &Agents, sessions: &Sessions) -> Value {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.read.is_none_or(|read| read.elapsed() >= MAX_AGE) {
            state.update(agents, sessions);
            state.read = Some(Instant::now());
        }
        let settings = sessions.settings();
        json!({
            "processes": state.rows,
            "interval": settings.density.interval,
            "max_overhead": settings.max_overhead,
            "thin": settings.is_thin(),
        })
    }
}

impl State {
    fn update(&mut self, agents: &Agents, sessions: &Sessions) {
        let mut head = Head::new();
        let mut histories = HashMap::new();
        self.rows.clear();
        for agent in agents.all().take(MAX_PROCESSES) {
            let Some(row) = listing::row(&agent, &mut head) else {
                continue;
            };
            let key = (agent.pid, agent.created_ns);
            let mut history = self.histories.remove(&key).unwrap_or_default();
            history.push_back(point(&agent, &row, &mut head));
            if history.len() > MAX_POINTS {
                history.pop_front();
            }
            self.rows.push(shown(&row, &history, sessions));
            histories.insert(key, history);
        }
        self.histories = histories;
    }
}

fn point(agent: &Agent, row: &Row, head: &mut Head) -> Point {
    let header = agent.segment.head(head).ok();
    let session = header.and_then(|header| live::session_of(agent, &header));
    let session = session.filter(|_| row.interval.is_some());
    let totals = session.and_then(|session| {
        let mut buffer = [0; shm_protocol::layout::BANK_HEADER_BYTES];
        let bank = agent.segment.bank(session.number, &mut buffer).ok()?;
        Some((session.number, bank.totals()))
    });
    Point {
        at_ms: now_ns() / 1_000_000,
        live: row.live_bytes,
        sampled: totals.as_ref().map(|(_, totals)| totals.live_bytes),
        allocated: totals.as_ref().map(|(_, totals)| totals.alloc_bytes),
        rss: row.rss_bytes,
        session: totals.map_or(0, |(number, _)| number),
    }
}

/// Formats a process with its history. Rates are computed over the last few points, from samples alone: the best
/// value of what is live may come from the allocator in one point and from samples in the next.
fn shown(row: &Row, history: &VecDeque<Point>, sessions: &Sessions) -> Value {
    let mut value = json!(row);
    // Converted by the present system clock, which may have been set since the first point.
    let now = Time::now();
    let unix_ms = |p: &Point| now.at(p.at_ms * 1_000_000).unix_ns / 1_000_000;
    let points: Vec<Value> = history
        .iter()
        .map(|p| json!([unix_ms(p), p.live, p.rss]))
        .collect();
    let last = history.back();
    let first = history.iter().rev().take(6).next_back();
    let rates = last.zip(first).and_then(|(last, first)| {
        let seconds = last.at_ms.saturating_sub(first.at_ms) as f64 / 1000.0;
        let same = last.session == first.session && last.session != 0;
        (same && seconds > 0.0).then(|| {
            let growth = last
                .sampled
                .zip(first.sampled)
                .map(|(l, f)| (l - f) / seconds);
            let rate = last
                .allocated
                .zip(first.allocated)
                .map(|(l, f)| (l - f).max(0.0) / seconds);
            (growth, rate)
        })
    });
    let (growth, rate) = rates.unwrap_or_default();
    value["growth_per_second"] = json!(growth);
    value["alloc_per_second"] = json!(rate);
    value["ours"] = json!(sessions.has(row.pid));
    let settings = sessions.settings_of(row.pid);
    value["max_overhead"] = json!(settings.and_then(|settings| settings.max_overhead));
    value["thin"] = json!(settings.map(|settings| settings.is_thin()));
    value["history"] = json!(points);
    value
}
