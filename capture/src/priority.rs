//! Priorities of threads that a stopped process waits for, or that collect data which is soon
//! overwritten.

/// Highest nice level of normal scheduling.
const HIGHEST_NICE: i32 = -20;
/// Nice level with which a thread is scheduled soon even among hundreds of busy threads.
const COLLECTOR_NICE: i32 = -10;

/// Raises the calling thread's priority until this is dropped, so that a stopped process does not
/// wait for it to be scheduled. Does nothing where that is not permitted.
#[must_use]
pub struct RaisedPriority {
    tid: i32,
    before: i32,
    /// True if threads and processes that it starts have normal priority.
    resets: bool,
}

impl RaisedPriority {
    /// Raises the priority as high as possible.
    pub fn new() -> Self {
        let this = Self::keep();
        raise(this.tid);
        this
    }

    /// Raises the priority of a thread that collects samples, less high, unless somebody gave it a
    /// low one. Threads and processes that it starts meanwhile have normal priority.
    pub fn of_collector() -> Self {
        let mut this = Self::keep();
        // SAFETY: the call takes no pointers.
        let policy = unsafe { libc::sched_getscheduler(this.tid) };
        if policy == libc::SCHED_OTHER && (COLLECTOR_NICE + 1..=0).contains(&this.before) {
            this.resets = reset_on_fork(this.tid, true);
            set(this.tid, COLLECTOR_NICE);
        }
        this
    }

    fn keep() -> Self {
        // SAFETY: takes nothing.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        Self {
            tid,
            before: of(tid),
            resets: false,
        }
    }
}

impl Default for RaisedPriority {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for RaisedPriority {
    fn drop(&mut self) {
        set(self.tid, self.before);
        if self.resets {
            reset_on_fork(self.tid, false);
        }
    }
}

/// Sets whether threads and processes that a thread starts have normal priority instead of its
/// raised one. Only a thread that may raise priorities can undo this. Returns true on success.
fn reset_on_fork(tid: i32, yes: bool) -> bool {
    let policy = libc::SCHED_OTHER | if yes { libc::SCHED_RESET_ON_FORK } else { 0 };
    // SAFETY: all zero is valid, and what normal scheduling requires.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads `parameters`.
    unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) == 0 }
}

/// Returns the nice level of an existing thread.
pub fn of(tid: i32) -> i32 {
    // SAFETY: takes numbers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, tid.cast_unsigned()) }
}

/// Raises a thread's priority, if that is permitted.
pub fn raise(tid: i32) {
    set(tid, HIGHEST_NICE);
}

/// Sets a thread's nice level, if that is permitted. On Linux, each thread has its own.
pub fn set(tid: i32, priority: i32) {
    // SAFETY: takes numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.cast_unsigned(), priority) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_comes_back() {
        let before = of(0);
        let raised = RaisedPriority::new();
        let meanwhile = of(0);
        // Only some may.
        assert!(
            meanwhile == HIGHEST_NICE || meanwhile == before,
            "{meanwhile}"
        );
        drop(raised);
        assert_eq!(of(0), before);
    }

    fn of_a_child() -> i32 {
        let child = std::thread::spawn(|| of(0));
        child.join().expect("no failure")
    }

    #[test]
    fn a_collector_that_was_made_nice_stays_so() {
        let thread = std::thread::spawn(|| {
            let before = of(0);
            let raised = RaisedPriority::of_collector();
            let meanwhile = of(0);
            assert!(
                meanwhile == COLLECTOR_NICE || meanwhile == before,
                "{meanwhile}"
            );
            assert_eq!(of_a_child(), before);
            drop(raised);
            assert_eq!((of(0), of_a_child()), (before, before));
            set(0, 15);
            let _raised = RaisedPriority::of_collector();
            assert_eq!(of(0), 15);
        });
        thread.join().expect("no failure");
    }
}
