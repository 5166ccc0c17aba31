//! Stack keys: sums of the hashes of a stack's frames ([`last_stack::frame_hash`]).

use super::{TRUNCATED, last_stack};
use crate::Cause;
use crate::interpreter::{InterpreterFrame, InterpreterFrames};
use crate::seen::Key;

/// Returns the key of a stack of native frames, from the sum of their hashes.
#[inline(always)]
pub(super) fn stack_key(sum: u64, truncated: Option<Cause>) -> Key {
    match truncated {
        Some(_) => Key(sum.wrapping_add(TRUNCATED)),
        None => Key(sum),
    }
}

/// Cached sum of the hashes of the interpreter frames that were found last. Zeroed: no frames.
#[derive(Default)]
pub(super) struct InterpreterHash {
    /// Number of outermost frames in `sum`; `usize::MAX` if it is invalid.
    count: usize,
    salt: u64,
    sum: u64,
}

impl InterpreterHash {
    /// Invalidates the sum if the frames `found` differ from the frames found before.
    #[inline(always)]
    pub(super) fn update(&mut self, found: &InterpreterFrames<'_>) {
        if found.unchanged < found.frames.len() {
            self.count = usize::MAX;
        }
    }

    /// Returns the key of a stack with native hash `native` and the interpreter frames `frames`,
    /// which are the outermost of the frames passed to the last [`update`](Self::update).
    #[inline(always)]
    pub(super) fn key(&mut self, native: u64, frames: &[InterpreterFrame], salt: u64) -> Key {
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

/// Returns the sum of the hashes of interpreter frames.
fn sum_of(frames: &[InterpreterFrame], salt: u64) -> u64 {
    let hash = |(index, frame): (usize, &InterpreterFrame)| {
        // The index distinguishes frames that run at the same stack address.
        let position = frame.at ^ ((index as u64) << 48);
        last_stack::frame_hash(frame.address, position, !salt)
    };
    let hashes = frames.iter().enumerate().map(hash);
    hashes.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(at: u64, address: u64) -> InterpreterFrame {
        InterpreterFrame { at, address }
    }

    /// Returns the key from the cached sum, after checking that an empty cache gives the same.
    fn key(
        sum: &mut InterpreterHash,
        frames: &[InterpreterFrame],
        unchanged: usize,
        salt: u64,
    ) -> Key {
        sum.update(&InterpreterFrames { frames, unchanged });
        let key = sum.key(7, frames, salt);
        assert_eq!(key, InterpreterHash::default().key(7, frames, salt));
        key
    }

    #[test]
    fn the_sum_is_recomputed_for_frames_that_differ() {
        let sum = &mut InterpreterHash::default();
        let frames = [frame(64, 1), frame(64, 2), frame(32, 3)];
        let first = key(sum, &frames, 0, 5);
        assert_eq!(key(sum, &frames, 3, 5), first);
        // As many frames as before, with a different innermost one.
        let other = [frame(64, 1), frame(64, 2), frame(32, 4)];
        assert_ne!(key(sum, &other, 2, 5), first);
        // First only the outermost frames, then all of them again.
        assert_ne!(key(sum, &other[..2], 2, 5), first);
        assert_eq!(key(sum, &frames, 2, 5), first);
        assert_eq!(key(sum, &[], 0, 5), Key(7));
        assert_eq!(key(sum, &frames, 0, 5), first);
    }

    /// Some walks update the sum without computing a key.
    #[test]
    fn a_changed_stack_without_key_invalidates_the_sum() {
        let sum = &mut InterpreterHash::default();
        let frames = [frame(64, 1)];
        let others = [frame(64, 2)];
        let first = key(sum, &frames, 0, 5);
        sum.update(&InterpreterFrames {
            frames: &others,
            unchanged: 0,
        });
        assert_ne!(key(sum, &others, 1, 5), first);
    }

    #[test]
    fn keys_depend_on_salt_position_and_order() {
        let sum = &mut InterpreterHash::default();
        let keys = [
            key(sum, &[frame(64, 1), frame(64, 2)], 0, 5),
            key(sum, &[frame(64, 1), frame(64, 2)], 2, 1 << 40),
            key(sum, &[frame(64, 2), frame(64, 1)], 0, 1 << 40),
            key(sum, &[frame(64, 2), frame(56, 1)], 1, 1 << 40),
            key(sum, &[frame(64, 2)], 1, 1 << 40),
        ];
        for (index, key) in keys.iter().enumerate() {
            assert!(keys[..index].iter().all(|other| other != key), "{index}");
        }
    }
}
