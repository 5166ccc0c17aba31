//! Peak of the live heap in a session, and the live objects of each stack at that moment.
//!
//! Nothing is copied when the heap reaches a peak. The first free after a new maximum starts a new
//! *peak epoch*: the state just before that free is the peak. A record copies its sums when they
//! are about to change for the first time in the epoch ([`Records::keep`](crate::Records::keep)).
//! If a record has a copy of the last epoch, a reader uses that; otherwise it uses the current
//! sums, which have not changed since the peak. While the heap only grows, there is no new epoch,
//! and the current state is the peak. So readers also compare the current state with the last peak.
//!
//! Each shard accumulates the changes of its live bytes and adds them to the common count when they
//! exceed a limit ([`ShardTotals::unsettled_limit`]). A thread sees the common count plus its own
//! unsettled part, so with one thread the count is exact.
//!
//! Limits: a new epoch starts only if the heap is higher than at the last one by more than one part
//! in [`STEP`]. With several threads, a thread's count is off by at most what the other shards have
//! not settled: one part in a thousand of the heap or 132 KiB in total, whichever is more. If a
//! thread is counting an event when another one starts an epoch, the event may be counted before or
//! after the peak.

// Decision 70: the peak is found inside.
use crate::layout::{PeakState, ShardTotals};
use crate::record::add;
use crate::sync::Ordering;

/// A peak must exceed the last one by 1 / `STEP` of it. Bounds the number of epochs in a session to
/// about 40,000, however the heap grows.
const STEP: u64 = 1024;
/// A shard may leave 1 / `UNSETTLED_SHARE` of the heap unsettled. All shards together may leave one
/// part in a thousand.
const UNSETTLED_SHARE: u64 = 32 * 1024;
/// Number of samples of the shard's mean size that it may leave unsettled, up to
/// [`UNSETTLED_BYTES`].
const UNSETTLED_SAMPLES: u64 = 16;
/// Maximum number of bytes that a shard may leave unsettled if the heap is small.
const UNSETTLED_BYTES: u64 = 4096;
/// Number of fractional bits of byte counts.
const BYTE_BITS: u32 = 8;

impl PeakState {
    /// Starts a new epoch if the live bytes are a new maximum. Called before a thread of this shard
    /// decreases them.
    #[inline]
    pub(crate) fn before_free(&self, shard: &ShardTotals, tick: u32) {
        if self.visible_live_bytes(shard) > self.next_level.load(Ordering::Relaxed) as i64 {
            self.start_epoch(shard, tick);
        }
    }

    /// Returns the live bytes as this shard sees them.
    #[inline]
    fn visible_live_bytes(&self, shard: &ShardTotals) -> i64 {
        let unsettled = shard.unsettled.load(Ordering::Relaxed);
        self.settled.load(Ordering::Relaxed).wrapping_add(unsettled) as i64
    }

    /// Starts a new epoch, unless another thread has just done so.
    #[cold]
    #[inline(never)]
    fn start_epoch(&self, shard: &ShardTotals, tick: u32) {
        let relaxed = Ordering::Relaxed;
        let known = self.next_level.load(relaxed);
        let live_bytes = self.visible_live_bytes(shard);
        if live_bytes <= known as i64 {
            return;
        }
        let live_bytes = live_bytes as u64;
        let step = live_bytes / STEP;
        if self
            .next_level
            .compare_exchange(known, live_bytes.saturating_add(step), relaxed, relaxed)
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

    /// Counts a decrease of the live bytes in a shard.
    #[inline]
    pub(crate) fn count_free(&self, shard: &ShardTotals, amount: u64, exclusive: bool) {
        let unsettled = add(&shard.unsettled, amount.wrapping_neg(), exclusive);
        let limit = shard.unsettled_limit.load(Ordering::Relaxed);
        if (unsettled.wrapping_add(limit) as i64) < 0 {
            self.settle(shard, exclusive);
        }
    }

    /// Adds a shard's unsettled change to the common count.
    #[cold]
    #[inline(never)]
    fn settle(&self, shard: &ShardTotals, exclusive: bool) {
        let relaxed = Ordering::Relaxed;
        let unsettled = if exclusive {
            shard.unsettled.load(relaxed)
        } else {
            shard.unsettled.swap(0, relaxed)
        };
        let settled = self.settled.fetch_add(unsettled, relaxed);
        if exclusive {
            shard.unsettled.store(0, relaxed);
        }
        let heap = settled.wrapping_add(unsettled) as i64;
        let mean_bytes = shard.alloc_bytes.load(relaxed) / shard.samples.load(relaxed).max(1);
        let limit = mean_bytes
            .saturating_mul(UNSETTLED_SAMPLES)
            .min(UNSETTLED_BYTES << BYTE_BITS)
            .max(heap.max(0) as u64 / UNSETTLED_SHARE);
        shard.unsettled_limit.store(limit, relaxed);
    }
}
