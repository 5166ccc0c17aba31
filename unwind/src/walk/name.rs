//! What names a stack: the sum of what its frames add ([`memo::part`]).

use super::{TRUNCATED, memo};
use crate::Cause;
use crate::inserted::{Inserted, Insertion};
use crate::seen::Key;

/// What names a stack of native frames with that sum, and that end.
#[inline(always)]
pub(super) fn named(sum: u64, truncated: Option<Cause>) -> Key {
    match truncated {
        Some(_) => Key(sum.wrapping_add(TRUNCATED)),
        None => Key(sum),
    }
}

/// What an interpreter's frames add to the name of a stack, as it was last computed. Zeroed memory is
/// that of no frames.
#[derive(Default)]
pub(super) struct InsertedSum {
    /// Of so many, the outermost; `usize::MAX`: some of them are others now.
    count: usize,
    salt: u64,
    sum: u64,
}

impl InsertedSum {
    /// Each time that frames are found: what was computed is forgotten unless they are the same.
    #[inline(always)]
    pub(super) fn note(&mut self, found: &Insertion<'_>) {
        if found.same < found.frames.len() {
            self.count = usize::MAX;
        }
    }

    /// What names a stack that has these frames, the outermost of those that were noted last, besides.
    #[inline(always)]
    pub(super) fn name(&mut self, native: u64, frames: &[Inserted], salt: u64) -> Key {
        if self.count != frames.len() || self.salt != salt {
            *self = Self {
                count: frames.len(),
                salt,
                sum: sum_of(frames, salt),
            };
        }
        Key(native.wrapping_add(self.sum))
    }
}

fn sum_of(frames: &[Inserted], salt: u64) -> u64 {
    let part = |(index, frame): (usize, &Inserted)| {
        // Several may run at one address.
        let place = frame.at ^ (index as u64) << 48;
        memo::part(frame.address, place, !salt)
    };
    let parts = frames.iter().enumerate().map(part);
    parts.fold(0, u64::wrapping_add)
}
