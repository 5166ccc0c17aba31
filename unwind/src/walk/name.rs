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
    /// For this many, the outermost; `usize::MAX`: some of them are others now.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(at: u64, address: u64) -> Inserted {
        Inserted { at, address }
    }

    /// The name by what was computed before, which is to be that by nothing.
    fn name(sum: &mut InsertedSum, frames: &[Inserted], same: usize, salt: u64) -> Key {
        sum.note(&Insertion { frames, same });
        let name = sum.name(7, frames, salt);
        assert_eq!(name, InsertedSum::default().name(7, frames, salt));
        name
    }

    #[test]
    fn a_sum_is_recomputed_where_frames_differ() {
        let sum = &mut InsertedSum::default();
        let frames = [frame(64, 1), frame(64, 2), frame(32, 3)];
        let first = name(sum, &frames, 0, 5);
        assert_eq!(name(sum, &frames, 3, 5), first);
        // Another one further in, at the same number of frames.
        let other = [frame(64, 1), frame(64, 2), frame(32, 4)];
        assert_ne!(name(sum, &other, 2, 5), first);
        // The outermost ones alone; then all of them, as they were.
        assert_ne!(name(sum, &other[..2], 2, 5), first);
        assert_eq!(name(sum, &frames, 2, 5), first);
        assert_eq!(name(sum, &[], 0, 5), Key(7));
        assert_eq!(name(sum, &frames, 0, 5), first);
    }

    /// Some walks note the frames, and do not name them.
    #[test]
    fn what_was_noted_and_not_named_is_not_taken_for_what_was_named() {
        let sum = &mut InsertedSum::default();
        let (frames, others) = ([frame(64, 1)], [frame(64, 2)]);
        let first = name(sum, &frames, 0, 5);
        sum.note(&Insertion {
            frames: &others,
            same: 0,
        });
        assert_ne!(name(sum, &others, 1, 5), first);
    }

    #[test]
    fn names_differ_by_salt_place_and_order() {
        let sum = &mut InsertedSum::default();
        let names = [
            name(sum, &[frame(64, 1), frame(64, 2)], 0, 5),
            name(sum, &[frame(64, 1), frame(64, 2)], 2, 1 << 40),
            name(sum, &[frame(64, 2), frame(64, 1)], 0, 1 << 40),
            name(sum, &[frame(64, 2), frame(56, 1)], 1, 1 << 40),
            name(sum, &[frame(64, 2)], 1, 1 << 40),
        ];
        for (index, one) in names.iter().enumerate() {
            assert!(names[..index].iter().all(|other| other != one), "{index}");
        }
    }
}
