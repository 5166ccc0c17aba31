//! Waiting for a traced thread, with a deadline.

use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Refusal;
use crate::process::Status;
use crate::request::{self, Event};

/// A wait that ends: it asks often at first, then less and less.
pub struct Patience {
    asked: u32,
    longest: Duration,
    limit: Duration,
    end: Instant,
}

impl Patience {
    /// Waits for so long at most.
    pub fn new(limit: Duration) -> Self {
        Self {
            asked: 0,
            longest: Duration::from_millis(1),
            limit,
            end: Instant::now() + limit,
        }
    }

    /// Asks often all the time: what is waited for keeps a process from running on.
    fn brisk(mut self) -> Self {
        self.longest = Duration::from_micros(50);
        self
    }

    /// Lets some time pass; false if there is none left.
    pub fn wait(&mut self) -> bool {
        self.asked += 1;
        // Most answers come at once. No yielding: among busy threads that takes the longest.
        if self.asked > 20 {
            sleep(Duration::from_micros(self.asked.into()).min(self.longest));
        }
        Instant::now() < self.end
    }

    /// Whether it is time for what is done now and then only.
    pub fn seldom(&self) -> bool {
        self.asked % 64 == 63
    }

    /// That this thread did not stop in time.
    pub fn ended(&self, pid: i32, tid: i32) -> Refusal {
        let state = Status::of(pid, tid).map_or('X', |status| status.state());
        Refusal::Deadline {
            pid,
            tid,
            state,
            limit: self.limit,
        }
    }
}

/// What happens next to a thread of a process, or to a child of it, that was let run.
pub fn next_event(pid: i32, tid: i32, keep_end: bool, limit: Duration) -> Result<Event, Refusal> {
    let mut patience = Patience::new(limit).brisk();
    let failed = |error| Refusal::kernel(pid, "wait for", error);
    loop {
        // A first thread's end is not told before the others have been waited for.
        let dead = patience.seldom() && Status::of(tid, tid).is_none_or(|status| status.is_dead());
        match request::poll(tid, keep_end).map_err(failed)? {
            Some(event) => return Ok(event),
            None if dead => return Ok(Event::End),
            None if patience.wait() => {}
            None => return Err(patience.ended(pid, tid)),
        }
    }
}

/// Whether a process's end is also told to this process as the parent, who waits for it
/// elsewhere.
pub fn is_own_child(pid: i32) -> bool {
    let parent = || Status::of(pid, pid)?.parent();
    parent() == Some(std::process::id().cast_signed())
}
