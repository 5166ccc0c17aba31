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
//! exceed a limit ([`ShardTotals::unsettled_limit`]). A thread's view is the common count
//! and its own rest, so one thread's view is exact.
//!
//! Limits: a new epoch begins only if the heap is higher than at the last one by more than one
//! part in [`STEP`]. With several threads, a view is wrong by at most what the other shards have not
//! settled: together one part in a thousand of the heap or 132 KiB, whichever is more. Events that
//! other threads are counting while an epoch begins may be before or after it: one for each thread.

// Decision 70: the peak is found inside.
use crate::layout::{PeakState, ShardTotals};
use crate::record::add;
use crate::sync::Ordering;

/// The maximum grows by steps of this part of it, so that there are at most some 40,000 epochs in a
/// session, however it grows.
const STEP: u64 = 1024;
/// Share of the heap that a shard need not settle: together, one part in a thousand.
const UNSETTLED_SHARE: u64 = 32 * 1024;
/// Samples of the shard's mean size that it need not settle, up to [`UNSETTLED_BYTES`].
const UNSETTLED_SAMPLES: u64 = 16;
/// Maximum that a shard need not settle if the heap is small, in bytes.
const UNSETTLED_BYTES: u64 = 4096;
/// Fractional bits of bytes.
const BYTE_BITS: u32 = 8;

impl PeakState {
    /// Begins a new epoch if the live bytes, which a thread of this shard is about to decrease, are a
    /// new maximum.
    #[inline]
    pub(crate) fn before_free(&self, shard: &ShardTotals, tick: u32) {
        if self.view(shard) > self.next_level.load(Ordering::Relaxed) as i64 {
            self.mark(shard, tick);
        }
    }

    /// Returns the live bytes, as a shard sees them.
    #[inline]
    fn view(&self, shard: &ShardTotals) -> i64 {
        let unsettled = shard.unsettled.load(Ordering::Relaxed);
        self.settled.load(Ordering::Relaxed).wrapping_add(unsettled) as i64
    }

    /// Begins a new epoch, unless another thread has just done it.
    #[cold]
    #[inline(never)]
    fn mark(&self, shard: &ShardTotals, tick: u32) {
        let (relaxed, known) = (Ordering::Relaxed, self.next_level.load(Ordering::Relaxed));
        let view = self.view(shard);
        if view <= known as i64 {
            return;
        }
        let (view, step) = (view as u64, view as u64 / STEP);
        if self
            .next_level
            .compare_exchange(known, view.saturating_add(step), relaxed, relaxed)
            .is_ok()
        {
            self.tick.store(tick, relaxed);
            self.epoch.fetch_add(1, Ordering::Release);
        }
    }

    /// Counts an increase of the live bytes in a shard.
    #[inline]
    pub(crate) fn count_new(&self, shard: &ShardTotals, amount: u64, exclusive: bool) {
        let unsettled = add(&shard.unsettled, amount, exclusive) as i64;
        if unsettled > shard.unsettled_limit.load(Ordering::Relaxed) as i64 {
            self.settle(shard, exclusive);
        }
    }

    /// Counts a decrease.
    #[inline]
    pub(crate) fn count_free(&self, shard: &ShardTotals, amount: u64, exclusive: bool) {
        let unsettled = add(&shard.unsettled, amount.wrapping_neg(), exclusive);
        let limit = shard.unsettled_limit.load(Ordering::Relaxed);
        if (unsettled.wrapping_add(limit) as i64) < 0 {
            self.settle(shard, exclusive);
        }
    }

    /// Adds what a shard has not settled to the common count.
    #[cold]
    #[inline(never)]
    fn settle(&self, shard: &ShardTotals, exclusive: bool) {
        let (all, relaxed) = (&shard.unsettled, Ordering::Relaxed);
        let unsettled = match exclusive {
            true => all.load(relaxed),
            false => all.swap(0, relaxed),
        };
        let settled = self.settled.fetch_add(unsettled, relaxed);
        if exclusive {
            all.store(0, relaxed);
        }
        let heap = settled.wrapping_add(unsettled) as i64;
        let bytes = shard.alloc_bytes.load(relaxed) / shard.samples.load(relaxed).max(1);
        let limit = bytes
            .saturating_mul(UNSETTLED_SAMPLES)
            .min(UNSETTLED_BYTES << BYTE_BITS)
            .max(heap.max(0) as u64 / UNSETTLED_SHARE);
        shard.unsettled_limit.store(limit, relaxed);
    }
}
