//! Waiting for a traced thread, with a deadline.

use std::thread::{sleep, yield_now};
use std::time::{Duration, Instant};

use crate::Refusal;
use crate::process::Status;
use crate::request::{self, Event};

/// A wait that ends: it asks often at first, then less and less.
pub struct Patience {
    asked: u32,
    limit: Duration,
    end: Instant,
}

impl Patience {
    /// Waits for so long at most.
    pub fn new(limit: Duration) -> Self {
        Self { asked: 0, limit, end: Instant::now() + limit }
    }

    /// Lets some time pass; false if there is none left.
    pub fn wait(&mut self) -> bool {
        self.asked += 1;
        if self.asked < 50 {
            yield_now();
        } else {
            sleep(Duration::from_micros(u64::from(self.asked.min(1000))));
        }
        Instant::now() < self.end
    }

    /// How often it has waited.
    pub fn asked(&self) -> u32 {
        self.asked
    }

    /// That this thread did not stop in time.
    pub fn ended(&self, pid: i32, tid: i32) -> Refusal {
        let state = Status::of(pid, tid).map_or('X', |status| status.state());
        Refusal::Deadline { pid, tid, state, limit: self.limit }
    }
}

/// What happens next to a thread of a process, or to a child of it, that was let run.
pub fn next_event(
    pid: i32,
    tid: i32,
    keep_end: bool,
    limit: Duration,
) -> Result<Event, Refusal> {
    let mut patience = Patience::new(limit);
    loop {
        let event = request::poll(tid, keep_end);
        match event.map_err(|error| Refusal::kernel(pid, "wait for", error))? {
            Some(event) => return Ok(event),
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
