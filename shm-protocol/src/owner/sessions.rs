//! The sessions whose banks are in use.

use crate::clock::is_since;
use crate::sync::{AtomicU64, Ordering};

/// For each bank, the number and first tick of the last session that a thread has met. Needed for
/// frees by threads that never sampled in it.
pub struct Sessions([AtomicU64; 2]);

/// Both in one word: no thread sees the number of one session with the tick of another.
fn word(session: u64, start_tick: u32) -> u64 {
    session << 32 | u64::from(start_tick)
}

impl Sessions {
    /// None.
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

    /// Records a session that a thread has met, unless a later one already uses its bank: the
    /// thread may have slept since.
    pub fn note(&self, session: u64, start_tick: u32) {
        let place = &self.0[session as usize & 1];
        let mine = word(session, start_tick);
        let mut known = place.load(Ordering::Relaxed);
        loop {
            let newer = (session as u32).wrapping_sub((known >> 32) as u32) as i32 > 0;
            if known != 0 && !newer {
                return;
            }
            match place.compare_exchange_weak(known, mine, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => known = now,
            }
        }
    }

    /// The session that an object was sampled in, by the last bits of its number, and its first
    /// tick; the number's lower half. `None`: another session uses the bank at the tick `now`.
    #[inline]
    #[must_use]
    pub fn of_object(&self, session: u8, born: u32, now: u32) -> Option<(u32, u32)> {
        let known = self.0[usize::from(session & 1)].load(Ordering::Acquire);
        let (number, start) = ((known >> 32) as u32, known as u32);
        let same = number as u8 == session && is_since(born, start, now);
        same.then_some((number, start))
    }

    /// Forgets them: those of a copy are its parent's, in whose banks the copy must not count.
    #[inline]
    pub fn forget(&self) {
        for session in &self.0 {
            // Only if needed: each page that a child writes to is copied.
            if session.load(Ordering::Relaxed) != 0 {
                session.store(0, Ordering::Release);
            }
        }
    }
}
