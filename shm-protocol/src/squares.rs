//! Sum of squared births of a record's live objects, from which readers get the spread of ages.
//!
//! The sum must stay exact, since nearly all of it cancels out: after a day, the births of objects
//! that live for a second differ by a part in 10^5. A squared tick alone has up to 62 bits, so the
//! sum has 96 and wraps.

use crate::layout::Record;
use crate::sync::Ordering;

/// Number of bits of the sum.
pub(crate) const BITS: u32 = 96;

/// Weight × birth tick² of one object, or a sum of these.
#[derive(Clone, Copy)]
pub(crate) struct Squares {
    high: u32,
    low: u64,
}

/// Returns weight × tick² of one object. The weight is in fixed point.
#[inline]
pub(crate) fn of_object(weight: u64, tick: u32) -> Squares {
    let square = u64::from(tick) * u64::from(tick);
    Squares::from(u128::from(weight) * u128::from(square))
}

impl Squares {
    #[inline]
    fn from(value: u128) -> Self {
        Self {
            high: (value >> 64) as u32,
            low: value as u64,
        }
    }

    #[inline]
    fn value(self) -> u128 {
        u128::from(self.high) << 64 | u128::from(self.low)
    }

    /// Returns the value to add for a free.
    #[inline]
    pub(crate) fn negate(self) -> Self {
        Self::from(self.value().wrapping_neg())
    }

    /// Adds to a record's sum. `exclusive` is true if the calling thread owns the record's shard;
    /// threads that share a record add the two parts one after the other, so a reader in between
    /// sees a sum that lacks a carry.
    #[inline]
    pub(crate) fn add_to(self, record: &Record, exclusive: bool) {
        let (low, high) = (&record.live_squares, &record.live_squares_high);
        if exclusive {
            let known = Self {
                high: high.load(Ordering::Relaxed),
                low: low.load(Ordering::Relaxed),
            };
            let sum = Self::from(known.value().wrapping_add(self.value()));
            low.store(sum.low, Ordering::Relaxed);
            high.store(sum.high, Ordering::Relaxed);
        } else {
            let before = low.fetch_add(self.low, Ordering::Relaxed);
            let carry = u32::from(before.checked_add(self.low).is_none());
            high.fetch_add(self.high.wrapping_add(carry), Ordering::Relaxed);
        }
    }
}
