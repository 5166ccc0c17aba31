//! What all requests share.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use heap_format::Profile;

use crate::agents::Agents;
use crate::board::Board;
use crate::naming::Naming;
use crate::sessions::Sessions;

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
            crate::say(&trouble);
        }
    }
}
