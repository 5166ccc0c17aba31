//! Maximum of the live heap in a session, and what each stack held then.
//!
//! Nothing is copied when the heap is at its maximum. A free that is the first after a new maximum
//! begins a new *peak epoch*: the state before that free is the peak. A record copies its sums the
//! first time that they are about to change in the epoch ([`Records::keep`](crate::Records::keep)).
//! A reader takes the copy of each record that has one of the last epoch, and the sums of the
//! others, which have not changed since. While the heap only grows, there is no new epoch, and the
//! present state is the peak: readers compare the two.
//!
//! Each shard sums up the changes of its live bytes, and adds them to the common count when they
//! exceed [`Self::unsettled_limit`](PeakState::unsettled_limit). A thread's view is the common count
//! and its own rest, so one thread's view is exact.
//!
//! Limits: a new epoch begins only if the heap is higher than at the last one by more than one
//! part in [`STEP`]. With several threads, a view is wrong by at most what the other shards have not
//! settled: together one part in a thousand of the heap or 132 KiB, whichever is more. Events that
//! other threads are counting while an epoch begins may be before or after it: one for each thread.

use crate::layout::PeakState;
use crate::sync::Ordering;

/// The maximum grows by steps of this part of it, so that there are at most some 40,000 epochs in a
/// session, however it grows.
const STEP: u64 = 1024;
/// Share of the heap that a shard need not settle: together, one part in a thousand.
const UNSETTLED_SHARE: u64 = 32 * 1024;
/// Samples like the present one that a shard need not settle, up to [`UNSETTLED_BYTES`].
const UNSETTLED_SAMPLES: u64 = 4;
/// Maximum that a shard need not settle if the heap is small, in bytes.
const UNSETTLED_BYTES: u64 = 4096;
/// Fractional bits of bytes.
const BYTE_BITS: u32 = 8;

impl PeakState {
    /// Returns the estimated live bytes as the shard sees them that has not settled `unsettled`.
    #[inline]
    fn view(&self, unsettled: u64) -> i64 {
        self.settled.load(Ordering::Relaxed).wrapping_add(unsettled) as i64
    }

    /// Begins a new epoch if the live bytes, which are about to fall, are a new maximum.
    #[inline]
    pub(crate) fn before_free(&self, unsettled: u64, tick: u32) {
        let (view, level) = (self.view(unsettled), self.level.load(Ordering::Relaxed));
        if view > level.saturating_add(level / STEP) as i64 {
            self.mark(view as u64, level, tick);
        }
    }

    /// Begins a new epoch, unless another thread has just done it.
    #[cold]
    fn mark(&self, view: u64, level: u64, tick: u32) {
        let relaxed = Ordering::Relaxed;
        if self
            .level
            .compare_exchange(level, view, relaxed, relaxed)
            .is_ok()
        {
            self.tick.store(tick, relaxed);
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the change of live bytes up to which a shard keeps it to itself, after a change by
    /// `last`.
    #[inline]
    pub(crate) fn unsettled_limit(&self, last: u64) -> u64 {
        let most = UNSETTLED_BYTES << BYTE_BITS;
        let few = last.saturating_mul(UNSETTLED_SAMPLES).min(most);
        few.max(self.settled.load(Ordering::Relaxed) / UNSETTLED_SHARE)
    }
}
