//! Position of a frame within its code object.

use super::frame::Words;
use super::frames::Damaged;
use super::layout::{Layout, MAX_PLACE, Style};
use super::state::{follow, follow_any};
use shm_protocol::codes::{NO_CODE, TABLE_FULL, address_of};

/// Returns the address that stands for a frame in stacks: number of the code object and instruction
/// offset. `words` are the words of the frame.
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline]
pub unsafe fn address(
    layout: &Layout,
    number: u32,
    frame: u64,
    words: Words,
) -> Result<u64, Damaged> {
    let offset = match layout.style {
        Style::Objects => {
            let offset = i64::from(words.instruction as i32).max(0) as u64;
            offset / u64::from(layout.place_unit)
        }
        _ => {
            let first = match layout.copies {
                0 => words.code + layout.instructions,
                // SAFETY: the frame is readable.
                _ => unsafe { own_copy(layout, frame, words.code) }.ok_or(Damaged)?,
            };
            (words.instruction.wrapping_sub(first) as i64).max(0) as u64 / 2
        }
    };
    match number {
        _ if offset >= MAX_PLACE => Err(Damaged),
        NO_CODE => Ok(address_of(NO_CODE, TABLE_FULL)),
        number => Ok(address_of(number, offset as u32)),
    }
}

/// Returns the address of the first instruction of the copy that a frame runs. Without the GIL,
/// each thread may have its own copy of the instructions; copy 0 is in the code object. The table
/// of copies may be replaced by a larger one meanwhile.
///
/// # Safety
/// `frame` is the address of a readable frame.
unsafe fn own_copy(layout: &Layout, frame: u64, code: u64) -> Option<u64> {
    // SAFETY: the frame is readable.
    let copy = unsafe { *((frame + layout.frame_copy) as *const u32) };
    if copy == 0 {
        return Some(code + layout.instructions);
    }
    let copies = follow(code + layout.copies)?;
    let exists = follow_any(copies).is_some_and(|count| u64::from(copy) < count);
    exists.then(|| follow(copies + 8 + 8 * u64::from(copy)))?
}
