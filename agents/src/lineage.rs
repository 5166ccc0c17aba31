//! The processes that a session has reached: those that it was begun in, and children forked from
//! them, which continue with it by themselves.

use std::collections::HashMap;

use proc::Stat;
use shm_protocol::segment::Session;

use crate::discovery::{Agent, Found};
use crate::segment::Head;

/// Number of processes that are remembered as reached before those that have ended are forgotten.
pub const MAX_REACHED: usize = 1 << 10;

/// How often children are looked for that come while a session ends: what they fork meanwhile does
/// not continue with it, but may have made its segment before.
pub const LAST_LOOKS: usize = 4;

/// The processes that a session has reached.
#[derive(Default)]
pub struct Lineage {
    /// Pids as we see them, by their own pids and the namespaces of those.
    reached: HashMap<(u32, u64), i32>,
}

impl Lineage {
    /// The session has reached a process.
    pub fn add(&mut self, found: &Found) {
        let pid = found.entry.name.pid as u32;
        self.reached.insert((pid, found.namespace), found.pid);
    }

    /// Forgets processes that have ended once there are many: a session of days reaches ever new ones. Their
    /// children must have been looked for.
    pub fn forget_ended(&mut self) {
        if self.reached.len() > MAX_REACHED {
            self.reached.retain(|_, pid| is_alive(*pid));
        }
    }

    /// Splits into children of processes that the session has reached, forked at whatever time, and
    /// the others.
    pub fn split(&self, all: Vec<Found>) -> (Vec<Found>, Vec<Found>) {
        all.into_iter().partition(|found| {
            let parent = (found.forked_from, found.namespace);
            found.forked_from != 0 && self.reached.contains_key(&parent)
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

/// Whether a process has not ended.
pub fn is_alive(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| !stat.is_dead())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ended_processes_are_forgotten() {
        let own = std::process::id();
        let mut lineage = Lineage::default();
        lineage.reached.insert((own, 1), own.cast_signed());
        // Numbers that no process has.
        for number in 0..MAX_REACHED as u32 {
            let pid = i32::MAX - number.cast_signed();
            lineage.reached.insert((number + (1 << 23), 1), pid);
        }
        lineage.forget_ended();
        assert!(lineage.reached.len() == 1 && lineage.reached.contains_key(&(own, 1)));
    }
}
