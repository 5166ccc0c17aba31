//! Waiting for traced threads, with a deadline.

use std::cell::Cell;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Refusal;
use crate::alarm;
use crate::request::{self, Event};
use proc::Status;

/// Number of polls without a pause, which take about 30 µs. A thread on another CPU has usually
/// responded by then, which saves two context switches.
const SPINS: u32 = 64;
/// Number of polls without a pause if CPU time matters more than a fast response.
const SPARING_SPINS: u32 = 20;
/// If the response comes within this time after a pause, the thread evidently runs on this CPU and
/// can respond only once we block. The next [`BLOCKING_WAITS`] waits therefore block immediately.
const MAX_LOCAL_RESPONSE: Duration = Duration::from_micros(200);
const BLOCKING_WAITS: u32 = 6;
/// First sleep in µs, if this thread has no timer. Each further sleep is 1 µs longer.
const INITIAL_SLEEP_US: u32 = 21;
/// Number of polls between two expensive checks.
const CHECK_EVERY: u32 = 64;

thread_local! {
    /// Number of upcoming waits that block immediately.
    static BLOCKING_WAITS_LEFT: Cell<u32> = const { Cell::new(0) };
}

/// Wait with a deadline, which polls at first and then sleeps.
pub struct Waiter {
    /// Number of polls so far.
    polls: u32,
    /// Number of polls before the first pause.
    spins: u32,
    /// Number of pauses so far.
    pauses: u32,
    /// Maximum length of a pause.
    max_pause: Duration,
    limit: Duration,
    start: Instant,
}

impl Waiter {
    /// Starts a wait of at most `limit`.
    pub fn new(limit: Duration) -> Self {
        let blocking_waits = BLOCKING_WAITS_LEFT.get();
        BLOCKING_WAITS_LEFT.set(blocking_waits.saturating_sub(1));
        Self {
            polls: 0,
            spins: if blocking_waits == 0 { SPINS } else { 0 },
            pauses: 0,
            max_pause: Duration::from_millis(1),
            limit,
            start: Instant::now(),
        }
    }

    /// Keeps the pauses short throughout: a process is stopped until this wait ends.
    fn brisk(mut self) -> Self {
        self.max_pause = Duration::from_micros(50);
        self
    }

    /// Makes the wait pause earlier, since CPU time matters more than a fast response.
    pub fn sparing(mut self) -> Self {
        self.spins = SPARING_SPINS;
        self
    }

    /// Waits for a short time, or until the thread has an event. Returns false after the deadline.
    pub fn wait(&mut self, tid: i32) -> bool {
        self.polls += 1;
        // Not `sched_yield`, which takes longest when other threads are busy.
        if self.polls > self.spins {
            if !alarm::wait_for(tid) {
                let pause = Duration::from_micros((INITIAL_SLEEP_US + self.pauses).into());
                sleep(pause.min(self.max_pause));
            }
            self.pauses += 1;
        }
        self.start.elapsed() < self.limit
    }

    /// Records that the response arrived. If the response time shows that the other thread runs on
    /// this CPU, the next waits block immediately.
    pub fn record_response(&self) {
        if self.spins > 0 && self.pauses > 0 && self.start.elapsed() < MAX_LOCAL_RESPONSE {
            BLOCKING_WAITS_LEFT.set(BLOCKING_WAITS);
        }
    }

    /// Returns true if an expensive check may be made now: at every [`CHECK_EVERY`]th poll, and at
    /// every poll after the second pause.
    pub fn may_check(&self) -> bool {
        self.polls % CHECK_EVERY == CHECK_EVERY - 1 || self.pauses > 1
    }

    /// Returns the error for a thread that did not stop in time.
    pub fn timed_out(&self, pid: i32, tid: i32) -> Refusal {
        let state = Status::of_thread(pid, tid).map_or('X', |status| status.state());
        Refusal::Deadline {
            pid,
            tid,
            state,
            limit: self.limit,
        }
    }
}

/// Waits for the next ptrace event of a resumed thread, or of its new child. If `keep_exit`, the
/// exit of the thread is left for others to wait for.
pub fn next_event(pid: i32, tid: i32, keep_exit: bool, limit: Duration) -> Result<Event, Refusal> {
    let mut waiter = Waiter::new(limit).brisk();
    let failed = |error| Refusal::kernel(pid, "wait for", error);
    loop {
        // The exit of a thread-group leader is not reported until all other threads have been
        // reaped.
        let is_dead = waiter.may_check() && Status::of(tid).is_none_or(|status| status.is_dead());
        match request::poll(tid, keep_exit).map_err(failed)? {
            Some(event) => {
                waiter.record_response();
                return Ok(event);
            }
            None if is_dead => return Ok(Event::Exited),
            None if waiter.wait(tid) => {}
            None => return Err(waiter.timed_out(pid, tid)),
        }
    }
}

/// Returns true if this process is the parent of `pid`. Then the code that started it reaps it.
pub fn is_own_child(pid: i32) -> bool {
    let parent = || Status::of(pid)?.parent();
    parent() == Some(std::process::id().cast_signed())
}
