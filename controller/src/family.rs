//! Recognises descendants of this process, whose segments `run` takes over.
//!
//! Processes are found by polling, so short-lived ones may be missed. A segment of a missed process
//! counts as a descendant's if a known descendant ran as the same user: that user could have
//! tampered with the descendant anyway. No other process is accepted.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use mem_agents::discovery::{Found, Life};
use proc::{Stat, Status};

/// Pause between two polls, as a multiple of the time that the last one took.
const PAUSE_FACTOR: u32 = 10;
/// Minimum pause between two polls.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Process that was seen for the first time.
pub struct Newcomer {
    /// Pid.
    pub pid: i32,
    /// Pid of its parent.
    pub parent: i32,
}

/// Descendants seen so far.
pub struct Family {
    /// Pids and start times.
    seen: HashSet<(i32, u64)>,
    /// User ids under which descendants have run.
    users: HashSet<u32>,
    /// Our own pid and start time.
    us: Option<(i32, u64)>,
    next_poll: Instant,
    newcomers: Vec<Newcomer>,
    /// Number of segments that were refused, since their processes are not known as descendants.
    pub refused: usize,
}

impl Family {
    /// Starts without known descendants.
    pub fn new() -> Self {
        let pid = std::process::id() as i32;
        Self {
            seen: HashSet::new(),
            users: HashSet::from([nix::unistd::geteuid().as_raw()]),
            us: Stat::of(pid).map(|stat| (pid, stat.start_time)),
            next_poll: Instant::now(),
            newcomers: Vec::new(),
            refused: 0,
        }
    }

    /// Polls all processes, if a poll is due.
    pub fn poll(&mut self) {
        let start = Instant::now();
        if start < self.next_poll {
            return;
        }
        let pids = proc::all_pids().into_iter();
        let mut processes: Vec<(i32, Stat)> =
            pids.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
        // Parents first: a child is never older than its parent.
        processes.sort_by_key(|(pid, stat)| (stat.start_time, *pid));
        let mut living_family: HashSet<i32> = HashSet::new();
        for (pid, stat) in &processes {
            let key = (*pid, stat.start_time);
            let is_known = Some(key) == self.us || self.seen.contains(&key);
            if is_known || living_family.contains(&stat.parent) {
                living_family.insert(*pid);
            }
            // A process may change its user at any time, so the users are read every time.
            if living_family.contains(pid) && Some(key) != self.us {
                if self.seen.insert(key) {
                    self.newcomers.push(Newcomer {
                        pid: *pid,
                        parent: stat.parent,
                    });
                }
                self.users.extend(
                    Status::of(*pid)
                        .map(|status| status.uids)
                        .into_iter()
                        .flatten(),
                );
            }
        }
        self.next_poll = Instant::now() + (start.elapsed() * PAUSE_FACTOR).max(MIN_POLL_INTERVAL);
    }

    /// Takes the processes that were seen for the first time since the last call, except for our
    /// own children.
    pub fn take_newcomers(&mut self) -> Vec<Newcomer> {
        let us = self.us.map_or(0, |(pid, _)| pid);
        let mut newcomers = std::mem::take(&mut self.newcomers);
        newcomers.retain(|newcomer| newcomer.parent != us);
        newcomers
    }

    /// Returns true if a segment in this run's directory belongs to a descendant.
    pub fn contains(&self, found: &Found) -> bool {
        let start = found.entry.name.start_time;
        let Some((_, our_start)) = self.us else {
            return false;
        };
        let is_in_family =
            self.users.contains(&found.owner) || self.seen.contains(&(found.pid, start));
        let is_mapped = || found.life != Life::Running || found.seems_mapped() == Some(true);
        start >= our_start && is_in_family && is_mapped()
    }
}
