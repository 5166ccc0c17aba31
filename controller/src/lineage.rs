//! The processes that a session has reached: those that it was begun in, and children forked from
//! them, which continue with it by themselves.

use std::collections::HashSet;

use shm_protocol::segment::Session;

use crate::discovery::{Agent, Found};
use crate::segment::Head;

/// How often children are looked for that come while a session ends: what they fork meanwhile does
/// not continue with it, but may have made its segment before.
pub const LAST_LOOKS: usize = 4;

/// The processes that a session has reached.
#[derive(Default)]
pub struct Lineage {
    /// By their own pids, and the namespaces of those.
    reached: HashSet<(u32, u64)>,
}

impl Lineage {
    /// The session has reached a process.
    pub fn add(&mut self, found: &Found) {
        let pid = found.entry.name.pid as u32;
        self.reached.insert((pid, found.namespace));
    }

    /// Splits into children of processes that the session has reached, forked at whatever time, and
    /// the others.
    pub fn split(&self, all: Vec<Found>) -> (Vec<Found>, Vec<Found>) {
        all.into_iter().partition(|found| {
            let parent = (found.forked_from, found.namespace);
            found.forked_from != 0 && self.reached.contains(&parent)
        })
    }
}

/// The session that an agent began by itself at this time or later, as a child does that is forked
/// during a session.
pub fn session_by_birth(agent: &Agent, since_ns: u64) -> Option<Session> {
    let mut head = Head::new();
    let session = agent.segment.head(&mut head).ok()?.session()?;
    (session.controller_pid == 0 && session.start_ns >= since_ns).then_some(session)
}
