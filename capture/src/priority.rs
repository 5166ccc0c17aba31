//! Priorities of threads that a stopped process waits for.

/// The highest priority of normal scheduling.
const HIGHEST: i32 = -20;

/// Raises the calling thread's priority until this is dropped, so that a stopped process does not
/// wait for the processor on its behalf. Where that is not allowed, nothing changes.
#[must_use]
pub struct RaisedPriority {
    tid: i32,
    before: i32,
}

impl RaisedPriority {
    /// Raises it.
    pub fn new() -> Self {
        // SAFETY: takes nothing.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        let before = of(tid);
        raise(tid);
        Self { tid, before }
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
    }
}

/// The priority of a thread that is there.
pub fn of(tid: i32) -> i32 {
    // SAFETY: takes numbers only.
    unsafe { libc::getpriority(libc::PRIO_PROCESS, tid.cast_unsigned()) }
}

/// Raises a thread's priority, where that is allowed.
pub fn raise(tid: i32) {
    set(tid, HIGHEST);
}

/// Sets a thread's priority, where that is allowed. On Linux, each thread has its own.
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
        assert!(meanwhile == HIGHEST || meanwhile == before, "{meanwhile}");
        drop(raised);
        assert_eq!(of(0), before);
    }
}
