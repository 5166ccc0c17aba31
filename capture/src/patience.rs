//! Waiting for a traced thread, with a deadline.

use std::cell::Cell;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::Refusal;
use crate::alarm;
use crate::request::{self, Event};
use proc::Status;

/// How often the state is polled without a pause: some 30 µs. What runs on another processor has
/// answered by then, which saves two changes between processes.
const SPINS: u32 = 64;
/// The same where the processor has better things to do.
const FEW_SPINS: u32 = 20;
/// What runs on this processor answers soon after this one has been given up, and not before. Then
/// this many waits begin with that, since it is likely to stay here.
const SOON: Duration = Duration::from_micros(200);
const REST: u32 = 6;
/// The first sleep where the kernel cannot be made to wake us, in µs; each further one is a µs
/// longer.
const FIRST_SLEEP: u32 = 21;

thread_local! {
    /// Waits to come that begin with giving up the processor.
    static RESTING: Cell<u32> = const { Cell::new(0) };
}

/// A wait that ends: it asks often at first, and then is woken.
pub struct Patience {
    asked: u32,
    spins: u32,
    slept: u32,
    longest: Duration,
    limit: Duration,
    end: Instant,
}

impl Patience {
    /// Waits for so long at most.
    pub fn new(limit: Duration) -> Self {
        let resting = RESTING.get();
        RESTING.set(resting.saturating_sub(1));
        Self {
            asked: 0,
            spins: if resting == 0 { SPINS } else { 0 },
            slept: 0,
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

    /// Asks less often: processor time counts more than how soon the answer is here.
    pub fn sparing(mut self) -> Self {
        self.spins = FEW_SPINS;
        self
    }

    /// Waits for some time, or until something happens to this thread; false if there is none left.
    pub fn wait(&mut self, tid: i32) -> bool {
        self.asked += 1;
        // No yielding: among busy threads that takes the longest.
        if self.asked > self.spins {
            if !alarm::wait_for(tid) {
                let time = Duration::from_micros((FIRST_SLEEP + self.slept).into());
                sleep(time.min(self.longest));
            }
            self.slept += 1;
        }
        Instant::now() < self.end
    }

    /// Notes how the answer came that was waited for.
    pub fn answered(&self) {
        let gone = || self.limit.saturating_sub(self.end - Instant::now());
        if self.spins > 0 && self.slept > 0 && gone() < SOON {
            RESTING.set(REST);
        }
    }

    /// Whether it is time for what is done now and then only.
    pub fn seldom(&self) -> bool {
        self.asked % 64 == 63 || self.slept > 1
    }

    /// That this thread did not stop in time.
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

/// What happens next to a thread of a process, or to a child of it, that was let run.
pub fn next_event(pid: i32, tid: i32, keep_end: bool, limit: Duration) -> Result<Event, Refusal> {
    let mut patience = Patience::new(limit).brisk();
    let failed = |error| Refusal::kernel(pid, "wait for", error);
    loop {
        // A first thread's end is not reported before the others have been waited for.
        let dead = patience.seldom() && Status::of(tid).is_none_or(|status| status.is_dead());
        match request::poll(tid, keep_end).map_err(failed)? {
            Some(event) => {
                patience.answered();
                return Ok(event);
            }
            None if dead => return Ok(Event::End),
            None if patience.wait(tid) => {}
            None => return Err(patience.ended(pid, tid)),
        }
    }
}

/// Whether this process, as the parent, is notified of a process's end, too, and waits for it
/// elsewhere.
pub fn is_own_child(pid: i32) -> bool {
    let parent = || Status::of(pid)?.parent();
    parent() == Some(std::process::id().cast_signed())
}
