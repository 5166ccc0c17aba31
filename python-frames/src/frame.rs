//! Reads the words of an interpreter frame.

use super::layout::{ENTRY_AFTER_OWNER, Layout, Style};
use super::memory::read_word;
use cpython::chain::{Frame, Words};

/// Reads the words of a frame.
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline(always)]
pub unsafe fn words_of(layout: &Layout, frame: u64) -> Words {
    // SAFETY: the frame is readable.
    unsafe {
        Words {
            code: code_of(layout, frame),
            previous: read_word(frame + layout.frame_previous),
            instruction: read_word(frame + layout.frame_instruction),
        }
    }
}

/// Reads all that is needed of a frame to add it and to find its caller.
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline(always)]
pub unsafe fn read(layout: &Layout, frame: u64) -> Frame {
    // SAFETY: the frame is readable.
    unsafe {
        Frame {
            words: words_of(layout, frame),
            owner: match layout.style {
                Style::Entries => *((frame + layout.frame_owner) as *const u8),
                _ => 0,
            },
            is_entry: is_entry(layout, frame),
        }
    }
}

/// Returns the code object of a frame. From 3.12 on, the lowest bits of the pointer are flags.
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline(always)]
pub unsafe fn code_of(layout: &Layout, frame: u64) -> u64 {
    // SAFETY: the frame is readable.
    let code = unsafe { read_word(frame + layout.frame_code) };
    match layout.style {
        Style::Entries => code & !3,
        _ => code,
    }
}

/// Returns nonzero if a frame is the outermost one that its native frame runs (3.11).
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline(always)]
pub unsafe fn is_entry(layout: &Layout, frame: u64) -> u8 {
    match layout.style {
        // SAFETY: the frame is readable.
        Style::Records => unsafe {
            *((frame + layout.frame_owner + ENTRY_AFTER_OWNER) as *const u8)
        },
        _ => 0,
    }
}
