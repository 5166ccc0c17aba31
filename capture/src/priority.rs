//! The priority of threads for which a process stands still.

/// The calling thread before all others of normal scheduling, until this is dropped: whoever is
/// waited for by a stopped process runs at once where other threads want the processor, too. Where
/// that is not allowed, nothing changes.
#[must_use]
pub struct Hurry(Option<(i32, i32)>);

/// Before everything else of normal scheduling.
const FIRST: i32 = -20;

impl Hurry {
    /// Raises the calling thread's priority, where that is allowed.
    pub fn begin() -> Self {
        // SAFETY: takes nothing.
        let tid = unsafe { libc::syscall(libc::SYS_gettid) } as i32;
        // SAFETY: takes numbers; the answer -1 can only be a priority here, the thread being there.
        let before = unsafe { libc::getpriority(libc::PRIO_PROCESS, tid.cast_unsigned()) };
        Self(set(tid, FIRST).then_some((tid, before)))
    }
}

impl Drop for Hurry {
    fn drop(&mut self) {
        if let Some((tid, before)) = self.0 {
            set(tid, before);
        }
    }
}

/// Lets a thread run before others, where that is allowed.
pub fn raise(tid: i32) {
    set(tid, FIRST);
}

/// Gives a thread the priority of another one, where that is allowed.
pub fn equal(tid: i32, other: i32) {
    // SAFETY: takes numbers only.
    let priority = unsafe { libc::getpriority(libc::PRIO_PROCESS, other.cast_unsigned()) };
    set(tid, priority);
}

/// On Linux, a priority is a thread's.
fn set(tid: i32, priority: i32) -> bool {
    // SAFETY: takes numbers only.
    unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.cast_unsigned(), priority) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_priority_comes_back() {
        let nice = || {
            // SAFETY: takes numbers only; 0 is the calling thread.
            unsafe { libc::getpriority(libc::PRIO_PROCESS, 0) }
        };
        let before = nice();
        let hurry = Hurry::begin();
        let meanwhile = nice();
        let is_root = set(0, FIRST);
        assert!(!is_root || meanwhile == FIRST, "{meanwhile}");
        drop(hurry);
        assert!(!is_root || nice() == before, "{before}");
    }
}
