//! What all requests share, and which handler answers which path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use heap_format::Profile;

use crate::agents::Agents;
use crate::board::Board;
use crate::naming::Naming;
use crate::profiles::{self, Dialect};
use crate::reply::{Reply, Step};
use crate::request::Request;
use crate::sessions::Sessions;
use crate::{api, assets, metrics, report};

/// What requests share.
#[derive(Clone)]
pub struct Server {
    /// The processes.
    pub agents: Arc<Agents>,
    /// Sessions of this server.
    pub sessions: Arc<Sessions>,
    /// What the live page shows.
    pub board: Arc<Board>,
    /// Counts of itself.
    pub counts: Arc<Counts>,
    naming: Arc<Naming>,
}

/// What the server counts of itself.
pub struct Counts {
    /// When it began.
    pub start: Instant,
    /// Requests that were answered, by the first digit of their status.
    pub by_status: [AtomicU64; 6],
    /// Connections that were closed since there were too many.
    pub evicted: AtomicU64,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            start: Instant::now(),
            by_status: Default::default(),
            evicted: AtomicU64::new(0),
        }
    }
}

impl Counts {
    /// Counts an answer.
    pub fn answered(&self, status: u16) {
        if let Some(count) = self.by_status.get(usize::from(status / 100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    /// A server of these processes.
    pub fn new(agents: Agents, sessions: Arc<Sessions>, naming: Naming) -> Self {
        Self {
            agents: Arc::new(agents),
            sessions,
            board: Arc::default(),
            counts: Arc::default(),
            naming: Arc::new(naming),
        }
    }

    /// Names the code of a profile, as far as that is possible.
    pub fn name(&self, profile: &mut Profile) {
        if let Some(trouble) = self.naming.name(profile) {
            eprintln!("mem_server: {trouble}");
        }
    }

    /// Whether a path changes something, for which a request must be a POST.
    pub fn changes(path: &str) -> bool {
        matches!(path, "/api/start" | "/api/stop")
    }

    /// Answers a request.
    pub fn answer(&self, request: &Request) -> Step {
        let path = request.path.as_str();
        let takes_post = Self::changes(path) || path.ends_with("/symbol");
        if request.is_post && !takes_post {
            let refusal = Reply::refusal(405, "this is only read: GET");
            return refusal.with("Allow", "GET, HEAD".to_owned()).into();
        }
        if !request.is_post && Self::changes(path) {
            let refusal = Reply::refusal(405, "this changes something: POST");
            return refusal.with("Allow", "POST".to_owned()).into();
        }
        let step = self
            .profile(path, request)
            .or_else(|| self.other(path, request));
        let step = step.unwrap_or_else(|| {
            Err(Reply::refusal(
                404,
                "there is no such page; / shows what there is",
            ))
        });
        step.unwrap_or_else(Step::Done)
    }

    fn profile(&self, path: &str, request: &Request) -> Option<Result<Step, Reply>> {
        let (kind, dialect) = match path.strip_prefix("/debug/pprof/") {
            Some(kind) => (kind, Dialect::Go),
            None => (path.strip_prefix("/pprof/")?, Dialect::Gperftools),
        };
        profiles::answer(self, kind, dialect, request)
    }

    fn other(&self, path: &str, request: &Request) -> Option<Result<Step, Reply>> {
        let reply = match path {
            "/healthz" => Ok(Reply::text("ok\n")),
            "/metrics" => Ok(metrics::answer(self, request)),
            "/debug/pprof" | "/debug/pprof/" => Ok(assets::profiles()),
            "/api/processes" => api::processes(self),
            "/api/start" => api::start(self, request),
            "/api/stop" => api::stop(self, request),
            "/report" => return Some(report::answer(self, request)),
            _ => Ok(assets::find(path)?),
        };
        Some(reply.map(Step::Done))
    }
}
