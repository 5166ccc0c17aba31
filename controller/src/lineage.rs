//! The processes that a session has reached: those that it was begun in, and children forked from
//! them, which continue with it by themselves.

use std::collections::HashSet;

use shm_protocol::segment::Session;

use crate::discovery::{Agent, Discovery, Found, Life};
use crate::segment::Head;
use crate::target::Target;

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

/// Ends the session of a target, which is over there, in all children that continued with it.
/// What they counted is not wanted.
pub fn end_in_children(target: &Target) {
    let (discovery, mut lineage) = (Discovery::new(), Lineage::default());
    lineage.add(&target.agent);
    let mut known = HashSet::from([target.agent.entry]);
    for _ in 0..LAST_LOOKS {
        let mut rest = discovery.scan_except(&known).found;
        known.extend(rest.iter().map(|found| found.entry));
        let mut has_new = false;
        // Children of children, too.
        loop {
            let (children, strangers) = lineage.split(rest);
            if children.is_empty() {
                break;
            }
            for agent in children.into_iter().filter_map(|found| found.open().ok()) {
                let is_ours = session_by_birth(&agent, target.session.start_ns).is_some()
                    && (agent.life != Life::Running || agent.confirm().is_ok());
                if is_ours {
                    lineage.add(&agent);
                    has_new = true;
                    end_child(agent);
                }
            }
            rest = strangers;
        }
        if !has_new {
            return;
        }
    }
}

fn end_child(agent: Agent) {
    // Where another controller has it, that looks after it.
    if let Ok(Some(child)) = Target::adopt(agent) {
        // Where that fails, it ends by itself within a minute.
        let _ = child.stop();
        let _ = child.release();
    }
}
