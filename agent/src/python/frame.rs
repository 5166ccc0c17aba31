//! An interpreter frame: the words that are read of it, and its entry in the cache.

use super::function::Function;
use super::layout::{Layout, Style};
use super::memory::word;
use super::quick_check::{QuickCheck, Version};
use super::tag::CodeTag;
use unwind::inserted::Inserted;

/// Words of a frame that are read.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Words {
    /// Address of the code object.
    pub code: u64,
    /// Address of the caller's frame; 0 for the outermost.
    pub previous: u64,
    /// Address of the current instruction; up to 3.10 its offset.
    pub instruction: u64,
}

impl Words {
    /// Reads the words of a frame.
    ///
    /// # Safety
    /// `frame` is the address of a readable frame.
    #[inline(always)]
    pub unsafe fn of(layout: &Layout, frame: u64) -> Self {
        // SAFETY: the frame is readable.
        unsafe {
            Self {
                code: code_of(layout, frame),
                previous: word(frame + layout.frame_previous),
                instruction: word(frame + layout.frame_instruction),
            }
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
    let code = unsafe { word(frame + layout.frame_code) };
    match layout.style {
        Style::Entries => code & !3,
        _ => code,
    }
}

/// A frame in the cache.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CachedFrame {
    /// Address of the frame; 0 if this stands for the outer frames of a stack that was too deep.
    pub frame: u64,
    /// Words of the frame when it was last read.
    pub words: Words,
    /// The frame as it is merged into the stack.
    pub inserted: Inserted,
    /// Number of the code object in the segment, or `NO_CODE`.
    pub number: u32,
    /// Nonzero if this is the outermost frame that its native frame runs (3.11).
    pub is_entry: u8,
    /// Link to the caller.
    pub link: Link,
    pub function: Function,
    pub tag: CodeTag,
}

impl CachedFrame {
    /// Returns the words of this frame that are compared first.
    #[inline]
    pub fn quick_check(&self, layout: &Layout) -> QuickCheck {
        let version = match layout.function_version {
            0 => {
                let (name, version) = self.tag.version();
                (version != 0).then_some(Version::OfCode(name, version))
            }
            _ => self.function.version(),
        };
        let is_direct = |_: &Version| self.link == Link::Direct;
        QuickCheck::of(self.frame, self.words, version.filter(is_direct))
    }
}

/// Link from a frame to its caller.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Link {
    /// The frame points to its caller, and the same native frame runs both.
    Direct,
    /// Another native frame runs the caller.
    Native,
    /// The frame has no caller.
    None,
}

/// Returns nonzero if a frame is the outermost one that its native frame runs (3.11).
///
/// # Safety
/// `frame` is the address of a readable frame.
#[inline(always)]
pub unsafe fn is_entry(layout: &Layout, frame: u64) -> u8 {
    match layout.style {
        // SAFETY: the frame is readable.
        Style::Records => unsafe { *((frame + layout.frame_owner + 4) as *const u8) },
        _ => 0,
    }
}
