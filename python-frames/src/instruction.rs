//! Position of a frame within its code object.

use super::layout::{Layout, Style};
use super::state::probe_word;
use cpython::chain::{Damaged, Words, first_instruction, instruction_offset};
use shm_protocol::codes::{NO_CODE, TABLE_FULL, address_of};

/// Returns the address that stands for a frame in stacks: number of the code object and instruction
/// offset. `words` are the words of the frame.
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline(always)]
pub unsafe fn address(
    layout: &Layout,
    number: u32,
    frame: u64,
    words: Words,
) -> Result<u64, Damaged> {
    let first = match (layout.style, layout.copies) {
        (Style::Objects, _) => 0,
        (_, 0) => words.code + layout.instructions,
        _ => {
            // SAFETY: the frame is readable.
            let copy = unsafe { *((frame + layout.frame_copy) as *const u32) };
            first_instruction(layout, words.code, copy, probe_word).ok_or(Damaged)?
        }
    };
    let offset = instruction_offset(layout, words, first).ok_or(Damaged)?;
    Ok(match number {
        NO_CODE => address_of(NO_CODE, TABLE_FULL),
        number => address_of(number, offset),
    })
}
