//! Raises the priority of threads on which a stopped process depends, and of those that must read
//! data before it is overwritten.

/// Nice level of the highest priority.
const HIGHEST_NICE: i32 = -20;
/// Nice level with which a thread is scheduled soon even among hundreds of busy threads.
const COLLECTOR_NICE: i32 = -10;

/// Guard that raises the calling thread's priority until it is dropped, so that a stopped process
/// does not have to wait until the thread is scheduled. Does nothing if that is not permitted.
#[must_use]
pub struct RaisedPriority {
    tid: i32,
    /// Nice level to restore.
    original_nice: i32,
    /// True if `SCHED_RESET_ON_FORK` was set, so that new threads and processes start with normal
    /// priority.
    resets_on_fork: bool,
}

impl RaisedPriority {
    /// Raises the priority to the maximum.
    pub fn new() -> Self {
        let this = Self::unchanged();
        raise(this.tid);
        this
    }

    /// Raises the priority moderately, for a thread that collects samples, unless it was given a
    /// low one. Threads and processes that the thread starts while the guard exists have normal
    /// priority.
    pub fn of_collector() -> Self {
        let mut this = Self::unchanged();
        // SAFETY: the call takes no pointers.
        let policy = unsafe { libc::sched_getscheduler(this.tid) };
        if policy == libc::SCHED_OTHER && (COLLECTOR_NICE + 1..=0).contains(&this.original_nice) {
            this.resets_on_fork = set_reset_on_fork(this.tid, true);
            set_nice(this.tid, COLLECTOR_NICE);
        }
        this
    }

    /// Records the calling thread's priority without changing it.
    fn unchanged() -> Self {
        // SAFETY: the call takes no arguments.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        Self {
            tid,
            original_nice: nice_level(tid),
            resets_on_fork: false,
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
        set_nice(self.tid, self.original_nice);
        if self.resets_on_fork {
            set_reset_on_fork(self.tid, false);
        }
    }
}

/// Sets whether threads and processes that a thread starts get normal priority instead of its
/// raised one. Only a thread that may raise priorities can clear the flag. Returns true on success.
fn set_reset_on_fork(tid: i32, resets: bool) -> bool {
    let flag = if resets { libc::SCHED_RESET_ON_FORK } else { 0 };
    let policy = libc::SCHED_OTHER | flag;
    // SAFETY: all-zero bytes are a valid `sched_param`; `SCHED_OTHER` requires priority 0.
    let parameters: libc::sched_param = unsafe { std::mem::zeroed() };
    // SAFETY: the kernel only reads `parameters`.
    unsafe { libc::sched_setscheduler(tid, policy, &raw const parameters) == 0 }
}

/// Returns the nice level of an existing thread.
pub fn nice_level(tid: i32) -> i32 {
    // SAFETY: the call takes no pointers.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, tid.cast_unsigned()) }
}

/// Raises a thread's priority, if that is permitted.
pub fn raise(tid: i32) {
    set_nice(tid, HIGHEST_NICE);
}

/// Sets a thread's nice level, if that is permitted. On Linux, each thread has its own.
pub fn set_nice(tid: i32, nice: i32) {
    // SAFETY: the call takes no pointers.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.cast_unsigned(), nice) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_the_guard_restores_the_priority() {
        let original_nice = nice_level(0);
        let guard = RaisedPriority::new();
        let raised = nice_level(0);
        // Without the privilege, the priority is unchanged.
        assert!(
            raised == HIGHEST_NICE || raised == original_nice,
            "{raised}"
        );
        drop(guard);
        assert_eq!(nice_level(0), original_nice);
    }

    fn nice_level_of_a_new_thread() -> i32 {
        let thread = std::thread::spawn(|| nice_level(0));
        thread.join().expect("no panic")
    }

    #[test]
    fn a_collector_with_low_priority_keeps_it() {
        let thread = std::thread::spawn(|| {
            let original_nice = nice_level(0);
            let guard = RaisedPriority::of_collector();
            let raised = nice_level(0);
            assert!(
                raised == COLLECTOR_NICE || raised == original_nice,
                "{raised}"
            );
            assert_eq!(nice_level_of_a_new_thread(), original_nice);
            drop(guard);
            assert_eq!(nice_level(0), original_nice);
            assert_eq!(nice_level_of_a_new_thread(), original_nice);
            set_nice(0, 15);
            let _guard = RaisedPriority::of_collector();
            assert_eq!(nice_level(0), 15);
        });
        thread.join().expect("no panic");
    }
}
