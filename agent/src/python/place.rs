//! The place of the instruction that a frame is at, in its code object.

use super::frame::Words;
use super::frames::Damaged;
use super::layout::{Layout, MOST_PLACE, Style};
use super::state::{follow, follow_any};
use shm_protocol::codes::{NO_CODE, TABLE_FULL, address_of};

/// The address that stands for a frame: its code object and the place of its instruction.
#[inline]
pub fn address(layout: &Layout, number: u32, (frame, words): (u64, Words)) -> Result<u64, Damaged> {
    let place = match layout.style {
        Style::Objects => {
            let place = i64::from(words.instruction as i32).max(0) as u64;
            place / u64::from(layout.place_unit)
        }
        _ => {
            let first = match layout.copies {
                0 => words.code + layout.instructions,
                _ => own_copy(layout, frame, words.code).ok_or(Damaged)?,
            };
            (words.instruction.wrapping_sub(first) as i64).max(0) as u64 / 2
        }
    };
    match number {
        _ if place >= MOST_PLACE => Err(Damaged),
        NO_CODE => Ok(address_of(NO_CODE, TABLE_FULL)),
        number => Ok(address_of(number, place as u32)),
    }
}

/// Where the instructions begin that a frame runs, where each thread may have a copy of its own: the
/// first thread's is in the code object. The table of copies may grow meanwhile, and be another one.
fn own_copy(layout: &Layout, frame: u64, code: u64) -> Option<u64> {
    // SAFETY: callers have read the frame.
    let copy = unsafe { *((frame + layout.frame_copy) as *const u32) };
    if copy == 0 {
        return Some(code + layout.instructions);
    }
    let copies = follow(code + layout.copies)?;
    let is_there = follow_any(copies).is_some_and(|count| u64::from(copy) < count);
    is_there.then(|| follow(copies + 8 + 8 * u64::from(copy)))?
}
