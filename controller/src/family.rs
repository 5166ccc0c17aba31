//! The descendants of this process, whose segments `run` takes over.
//!
//! Only processes that were seen are known. One that came and went between two looks is treated as
//! a descendant if another descendant of its user was seen: that user could as well have tampered
//! with the other. No other process can.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use mem_agents::discovery::{Found, Life};
use proc::{Stat, Status};

/// Pause between two looks, as a multiple of the time that the last took.
const PAUSE: u32 = 10;
/// And at least this long.
const LEAST_PAUSE: Duration = Duration::from_millis(20);

/// The descendants seen so far.
pub struct Family {
    /// By pid and start time.
    seen: HashSet<(i32, u64)>,
    /// The users that they were.
    users: HashSet<u32>,
    us: Option<(i32, u64)>,
    next: Instant,
    /// Segments that were not taken, since their processes were not seen among ours.
    pub strangers: usize,
}

impl Family {
    /// No process was seen yet.
    pub fn new() -> Self {
        let pid = std::process::id() as i32;
        Self {
            seen: HashSet::new(),
            users: HashSet::from([nix::unistd::geteuid().as_raw()]),
            us: Stat::of(pid).map(|stat| (pid, stat.start_time)),
            next: Instant::now(),
            strangers: 0,
        }
    }

    /// Looks at all processes, if it is time.
    pub fn look(&mut self) {
        let start = Instant::now();
        if start < self.next {
            return;
        }
        let all = proc::all().into_iter();
        let mut all: Vec<(i32, Stat)> = all.filter_map(|pid| Some((pid, Stat::of(pid)?))).collect();
        // Parents first: none is younger than its children.
        all.sort_by_key(|(pid, stat)| (stat.start_time, *pid));
        let mut living: HashSet<i32> = HashSet::new();
        for (pid, stat) in &all {
            let key = (*pid, stat.start_time);
            let known = Some(key) == self.us || self.seen.contains(&key);
            if known || living.contains(&stat.parent) {
                living.insert(*pid);
            }
            // It may become another user at any time.
            if living.contains(pid) && Some(key) != self.us {
                self.seen.insert(key);
                self.users.extend(
                    Status::of(*pid)
                        .map(|status| status.uids)
                        .into_iter()
                        .flatten(),
                );
            }
        }
        self.next = Instant::now() + (start.elapsed() * PAUSE).max(LEAST_PAUSE);
    }

    /// Whether a segment in the directory of this run is a descendant's.
    pub fn has(&self, found: &Found) -> bool {
        let start = found.entry.name.start_time;
        let Some((_, born)) = self.us else {
            return false;
        };
        let is_ours = self.users.contains(&found.owner) || self.seen.contains(&(found.pid, start));
        let is_mapped = || found.life != Life::Running || found.seems_mapped() == Some(true);
        start >= born && is_ours && is_mapped()
    }
}
