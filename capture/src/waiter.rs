//! Waiting for traced threads, with a deadline.

use std::cell::Cell;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Refusal;
use crate::alarm;
use crate::request::{self, Event};
use proc::Status;

/// Number of polls without a pause: some 30 µs. A thread on another processor has responded by
/// then, which saves two context switches.
const SPINS: u32 = 64;
/// Number of polls without a pause if processor time matters more.
const SPARING_SPINS: u32 = 20;
/// Limit below which a response after a pause shows that the thread runs on this processor. It can
/// respond only when this processor is given up, so the next [`YIELDING_WAITS`] waits start with
/// that.
const MAX_LOCAL_RESPONSE: Duration = Duration::from_micros(200);
const YIELDING_WAITS: u32 = 6;
/// First sleep in µs, if no timer wakes this thread. Each further sleep is a µs longer.
const INITIAL_SLEEP_US: u32 = 21;

thread_local! {
    /// Number of next waits that start by giving up the processor.
    static YIELDING: Cell<u32> = const { Cell::new(0) };
}

/// Wait with a deadline, which polls at first and then sleeps.
pub struct Waiter {
    /// Number of polls so far.
    asked: u32,
    /// Number of polls before the first pause.
    spins: u32,
    /// Number of pauses so far.
    slept: u32,
    /// Maximum length of a pause.
    longest: Duration,
    limit: Duration,
    end: Instant,
}

impl Waiter {
    /// Starts a wait of at most `limit`.
    pub fn new(limit: Duration) -> Self {
        let yielding = YIELDING.get();
        YIELDING.set(yielding.saturating_sub(1));
        Self {
            asked: 0,
            spins: if yielding == 0 { SPINS } else { 0 },
            slept: 0,
            longest: Duration::from_millis(1),
            limit,
            end: Instant::now() + limit,
        }
    }

    /// Makes the wait poll often all the time, since a process cannot continue before it ends.
    fn brisk(mut self) -> Self {
        self.longest = Duration::from_micros(50);
        self
    }

    /// Makes the wait poll less often, since processor time matters more than a fast response.
    pub fn sparing(mut self) -> Self {
        self.spins = SPARING_SPINS;
        self
    }

    /// Waits for some time, or until the thread has an event. Returns false after the deadline.
    pub fn wait(&mut self, tid: i32) -> bool {
        self.asked += 1;
        // No yielding, which takes the longest among busy threads.
        if self.asked > self.spins {
            if !alarm::wait_for(tid) {
                let time = Duration::from_micros((INITIAL_SLEEP_US + self.slept).into());
                sleep(time.min(self.longest));
            }
            self.slept += 1;
        }
        Instant::now() < self.end
    }

    /// Records that the response arrived. If it shows that the other thread runs on this processor,
    /// the next waits start by giving it up.
    pub fn answered(&self) {
        let gone = || self.limit.saturating_sub(self.end - Instant::now());
        if self.spins > 0 && self.slept > 0 && gone() < MAX_LOCAL_RESPONSE {
            YIELDING.set(YIELDING_WAITS);
        }
    }

    /// Returns true now and then, for checks that are expensive.
    pub fn seldom(&self) -> bool {
        self.asked % 64 == 63 || self.slept > 1
    }

    /// Returns the error that this thread did not stop in time.
    pub fn ended(&self, pid: i32, tid: i32) -> Refusal {
        let state = Status::of_thread(pid, tid).map_or('X', |status| status.state());
        Refusal::Deadline {
            pid,
            tid,
            state,
            limit: self.limit,
        }
    }
}

/// Returns the next event of a thread, or of a child of it, that was resumed.
pub fn next_event(pid: i32, tid: i32, keep_end: bool, limit: Duration) -> Result<Event, Refusal> {
    let mut waiter = Waiter::new(limit).brisk();
    let failed = |error| Refusal::kernel(pid, "wait for", error);
    loop {
        // A first thread's end is not reported before the others have been waited for.
        let dead = waiter.seldom() && Status::of(tid).is_none_or(|status| status.is_dead());
        match request::poll(tid, keep_end).map_err(failed)? {
            Some(event) => {
                waiter.answered();
                return Ok(event);
            }
            None if dead => return Ok(Event::End),
            None if waiter.wait(tid) => {}
            None => return Err(waiter.ended(pid, tid)),
        }
    }
}

/// Returns true if this process is the parent of `pid`, so that it is notified of its end and waits
/// for it elsewhere.
pub fn is_own_child(pid: i32) -> bool {
    let parent = || Status::of(pid)?.parent();
    parent() == Some(std::process::id().cast_signed())
}
