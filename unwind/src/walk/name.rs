//! What names a stack: the sum of what its frames add ([`memo::part`]).

use super::{TRUNCATED, memo};
use crate::Cause;
use crate::inserted::Inserted;
use crate::seen::Key;

/// What names a stack of native frames with that sum, and that end.
#[inline(always)]
pub(super) fn named(sum: u64, truncated: Option<Cause>) -> Key {
    match truncated {
        Some(_) => Key(sum.wrapping_add(TRUNCATED)),
        None => Key(sum),
    }
}

/// What names a stack that has these frames of an interpreter besides.
#[inline(always)]
pub(super) fn with_inserted(native: u64, frames: &[Inserted], salt: u64) -> Key {
    let mut key = native;
    for (index, frame) in frames.iter().enumerate() {
        // Several may run at one address.
        let place = frame.at ^ (index as u64) << 48;
        key = key.wrapping_add(memo::part(frame.address, place, !salt));
    }
    Key(key)
}
