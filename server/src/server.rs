//! State shared by all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use mem_agents::segment::default_directory;
use profile::Profile;

use crate::agents::Agents;
use crate::board::Board;
use crate::naming::Naming;
use crate::report::Reports;
use crate::sessions::Sessions;
use crate::snapshots::Snapshots;
use crate::uploads::Uploads;

/// State shared by all requests.
#[derive(Clone)]
pub struct Server {
    /// Processes to serve.
    pub agents: Arc<Agents>,
    /// Sessions started by this server.
    pub sessions: Arc<Sessions>,
    /// State of the live page.
    pub board: Arc<Board>,
    /// Counts of the server's own work.
    pub counts: Arc<Counts>,
    /// Profiles of earlier moments.
    pub snapshots: Arc<Snapshots>,
    /// Profiles that users have sent.
    pub uploads: Arc<Uploads>,
    /// Pages that viewers share.
    pub reports: Arc<Reports>,
    naming: Arc<Naming>,
}

/// Counts of the server's own work.
pub struct Counts {
    /// Start of the server.
    pub start: Instant,
    /// Requests answered, by the first digit of the status.
    pub by_status: [AtomicU64; 6],
    /// Connections closed because there were too many.
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
    /// Creates a server of the processes that `agents` finds.
    pub fn new(agents: Agents, sessions: Arc<Sessions>, naming: Naming) -> Self {
        Self {
            agents: Arc::new(agents),
            sessions,
            board: Arc::new(Board::new(&default_directory())),
            snapshots: Arc::new(Snapshots::new()),
            uploads: Arc::new(Uploads::new()),
            reports: Arc::default(),
            counts: Arc::default(),
            naming: Arc::new(naming),
        }
    }

    /// Symbolizes a profile. Prints an error if something failed.
    pub fn symbolize(&self, profile: &mut Profile) {
        if let Some(trouble) = self.naming.name(profile) {
            crate::say(&trouble);
        }
    }
}
