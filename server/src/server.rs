//! State shared by all requests.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::pages::Reports;
use crate::snapshots::Snapshots;
use crate::sources::Sources;
use crate::uploads::Uploads;

/// State shared by all requests.
#[derive(Clone)]
pub struct Server {
    /// Sources of profiles.
    pub sources: Sources,
    /// Counts of the server's own work.
    pub counts: Arc<Counts>,
    /// Profiles of earlier moments.
    pub snapshots: Arc<Snapshots>,
    /// Profiles that users have sent.
    pub uploads: Arc<Uploads>,
    /// Pages that viewers share.
    pub reports: Arc<Reports>,
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
    pub fn count_answer(&self, status: u16) {
        if let Some(count) = self.by_status.get(usize::from(status / 100)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Server {
    /// Creates a server for the profiles of `sources`.
    pub fn new(sources: Sources) -> Self {
        Self {
            sources,
            snapshots: Arc::new(Snapshots::new()),
            uploads: Arc::new(Uploads::new()),
            reports: Arc::default(),
            counts: Arc::default(),
        }
    }
}
