//! Records which processes a session has reached: those in which it was started, and forked
//! children, which continue it by themselves.

use std::collections::HashMap;

use proc::Stat;
use shm_protocol::segment::Session;

use crate::discovery::{Agent, Found};
use crate::segment::Head;

/// Number of recorded processes above which exited ones are forgotten.
pub const MAX_REACHED: usize = 1 << 10;

/// Maximum number of scans for children when a session ends. Children forked after the end do not
/// continue the session, but those forked before may have created their segments just now.
pub const MAX_FINAL_SCANS: usize = 4;

/// Processes that a session has reached.
#[derive(Default)]
pub struct Lineage {
    /// Pids in our namespace, by pid in the process's own pid namespace and that namespace's inode.
    reached: HashMap<(u32, u64), i32>,
}

impl Lineage {
    /// Records that the session has reached a process.
    pub fn add(&mut self, found: &Found) {
        let pid = found.entry.name.pid as u32;
        self.reached.insert((pid, found.namespace), found.pid);
    }

    /// Forgets exited processes once there are many, since a long session keeps reaching new ones.
    /// Must be called after a scan for their children.
    pub fn forget_ended(&mut self) {
        if self.reached.len() > MAX_REACHED {
            self.reached.retain(|_, pid| is_alive(*pid));
        }
    }

    /// Splits processes into children of processes that the session has reached, and others.
    pub fn split(&self, all: Vec<Found>) -> (Vec<Found>, Vec<Found>) {
        all.into_iter().partition(|found| {
            let parent = (found.forked_from, found.namespace);
            found.forked_from != 0 && self.reached.contains_key(&parent)
        })
    }
}

/// Returns the session that an agent started by itself at `since_ns` or later. A child forked
/// during a session starts one.
pub fn self_started_session(agent: &Agent, since_ns: u64) -> Option<Session> {
    let mut head = Head::new();
    let session = agent.segment.head(&mut head).ok()?.session()?;
    (session.controller_pid == 0 && session.start_ns >= since_ns).then_some(session)
}

/// Returns true if a process is running.
pub fn is_alive(pid: i32) -> bool {
    Stat::of(pid).is_some_and(|stat| !stat.is_dead())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_ended_processes_are_forgotten() {
        let pid = std::process::id();
        let mut lineage = Lineage::default();
        lineage.reached.insert((pid, 1), pid.cast_signed());
        // Pids that no process has.
        for number in 0..MAX_REACHED as u32 {
            let pid = i32::MAX - number.cast_signed();
            lineage.reached.insert((number + (1 << 23), 1), pid);
        }
        lineage.forget_ended();
        assert!(lineage.reached.len() == 1 && lineage.reached.contains_key(&(pid, 1)));
    }
}
