//! Sessions that threads have noticed, for each bank.

use crate::clock::is_since;
use crate::sync::{AtomicU64, Ordering};

/// Number and first tick of the last session that a thread has noticed, for each bank. Needed for
/// frees by threads that never sampled in that session.
pub struct Sessions([AtomicU64; 2]);

/// Packs a session's number and first tick into one word, so that no thread sees the number of one
/// session with the tick of another.
fn pack(session: u64, start_tick: u32) -> u64 {
    (session << 32) | u64::from(start_tick)
}

impl Sessions {
    /// Creates an empty set.
    #[cfg(not(loom))]
    #[must_use]
    #[expect(clippy::new_without_default, reason = "for a static")]
    pub const fn new() -> Self {
        Self([const { AtomicU64::new(0) }; 2])
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self([AtomicU64::new(0), AtomicU64::new(0)])
    }

    /// Records a session that a thread has noticed, unless a later session already uses its bank:
    /// the thread may have been preempted before this call.
    pub fn record(&self, session: u64, start_tick: u32) {
        let recorded = &self.0[session as usize & 1];
        let new = pack(session, start_tick);
        let mut known = recorded.load(Ordering::Relaxed);
        loop {
            let is_newer = (session as u32).wrapping_sub((known >> 32) as u32) as i32 > 0;
            if known != 0 && !is_newer {
                return;
            }
            match recorded.compare_exchange_weak(known, new, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => known = now,
            }
        }
    }

    /// Returns the session in which an object was sampled: the lower half of its number, and its
    /// first tick. `session` is the lowest byte of its number. Returns `None` if another session
    /// uses the bank at tick `now`.
    #[inline]
    #[must_use]
    pub fn of_object(&self, session: u8, born: u32, now: u32) -> Option<(u32, u32)> {
        let known = self.0[usize::from(session & 1)].load(Ordering::Acquire);
        let number = (known >> 32) as u32;
        let start = known as u32;
        let is_same = number as u8 == session && is_since(born, start, now);
        is_same.then_some((number, start))
    }

    /// Clears all sessions. Called in a copy of the process, which must not count in its parent's
    /// banks.
    #[inline]
    pub fn forget(&self) {
        for session in &self.0 {
            // Writes only if needed, since each page that a child writes to is copied.
            if session.load(Ordering::Relaxed) != 0 {
                session.store(0, Ordering::Release);
            }
        }
    }
}
